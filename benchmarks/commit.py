"""How long the two phases of a commit take, for a growing number of parts: no Spark, the engine's own steps alone."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from benchmarks.common import Bench, median
from exactly_once.completion import complete
from exactly_once.deadline import Deadline
from exactly_once.kafka.commit_log import CommitLog, now_ms
from exactly_once.kafka.evidence import Evidence, with_places
from exactly_once.kafka.transaction import PartTransaction
from exactly_once.protocol.names import part_id
from exactly_once.protocol.records import Claim, Completed, Decision
from exactly_once.recovery import recover


@dataclass(frozen=True)
class Run:
    """Medians in ms: opening one part, asking whether all are alive, noting topics and places, deciding, ending all,
    marking.
    """

    parts: int
    open_ms: float
    alive_ms: float
    place_ms: float
    decide_ms: float
    end_ms: float
    mark_ms: float


def measure(bench: Bench, parts: int, repeats: int) -> Run:
    """``repeats`` batches of ``parts`` transactions of one record each."""
    sink_id, topic = f"bench-commit-{uuid.uuid4().hex[:6]}", bench.topic("bench-commit", 4)
    times: dict[str, list[float]] = {}

    def timed(name: str, since: float) -> float:
        now = time.perf_counter()
        times.setdefault(name, []).append((now - since) * 1000)
        return now

    with Evidence(bench.connection) as control:
        version = control.end_txn_version()
        log = CommitLog(bench.connection, sink_id)
        _, claim = log.claim(lambda _: Claim(1, "bench", now_ms(), "stream", "bench", 0), Deadline(30))
        for batch in range(repeats):
            handles = []
            for part in range(parts):
                start = time.perf_counter()
                transaction = PartTransaction(
                    bench.connection, {}, part_id(sink_id, claim.token, part, "0.0"), 60_000, control
                )
                timed("open", start)
                transaction.send(topic, b"key", b"value")
                handles.append(transaction.prepare(part, 10))
            t = time.perf_counter()
            described = control.renew(10).describe(h.transactional_id for h in handles)
            t = timed("alive", t)
            control.topic_ids([topic])
            placed = with_places(handles, control.places(described.values()))
            t = timed("place", t)
            decision = Decision("bench", batch, claim.token, placed, "", version, now_ms())
            log.append(decision, Deadline(30), {topic: {0: batch}})  # with an input offset, as a stream from Kafka has
            t = timed("decide", t)
            complete(sink_id, decision, control, 30)
            t = timed("end", t)
            log.append(Completed("bench", batch, claim.token, now_ms()), Deadline(30))
            timed("mark", t)
        log.close()
    recover(bench.connection, sink_id, 30)
    return Run(parts, *(median(times[name][1:]) for name in ("open", "alive", "place", "decide", "end", "mark")))

"""Who may decide: drivers that are paused and wake, second queries, checkpoints that were deleted, rewound or
exchanged.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.checkpoint import batch_in_flight
from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.records import Decision
from exactly_once.txn.coordinators import end_txn_version
from testkit.fixtures import Bench, KafkaInput, StartDriver, make_bench
from testkit.kafka_part import PartTransaction
from testkit.part_ids import part_id
from testkit.processes import until
from testkit.stream import SparkDriver


@pytest.mark.long
@pytest.mark.parametrize("point", ["all-prepared", "decided"])
def test_a_paused_driver_that_wakes_after_another_one_took_over_is_refused(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against two drivers of one checkpoint that both write a batch (duplicates), and against a late one that
    ends or aborts what its successor has prepared (loss).
    """
    paused = driver()
    run = bench.begin(paused)
    bench.hold(run, point, "sleep 1")
    paused.freeze()

    second = warm.start(bench.job.until_stopped())
    second.await_commit(1)
    paused.thaw()
    ended = run.end()
    bench.input.add()
    second.await_commit(2)
    second.stop()()

    if point == "decided":  # nothing is left to decide: Spark's own commits/N, which the other driver wrote, refuses it
        assert "CONCURRENT_STREAM_LOG_UPDATE" in ended.failure or ended.code == "EO-FENCED", ended.failure
    else:
        assert ended.code == "EO-FENCED", ended.failure
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_a_paused_task_that_wakes_after_another_driver_took_over_changes_nothing(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a zombie's init: a task of the old driver opens its transaction while the new driver decides."""
    paused = driver()
    run = bench.begin(paused)
    bench.hold(run, "before-begin", "sleep 1")
    paused.freeze()

    second = warm.start(bench.job.until_stopped())
    second.await_commit(1)
    paused.thaw()
    ended = run.end()
    bench.input.add()
    second.await_commit(2)
    second.stop()()
    warm.complete(bench.job)  # a start sweeps what the zombie opened after the other one's sweep

    assert ended.code in ("EO-FENCED", "EO-PREPARE"), ended.failure
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_a_second_query_with_the_same_sink_id_is_refused_and_the_first_one_does_not_notice(
    bench: Bench, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against two queries that fence each other forever, or abort each other's transactions."""
    run = bench.begin(warm)
    claim = bench.log().owner
    other = make_bench(bench.connection, tmp_path / "other")
    other.input.add()
    intruder = other.job.having(sink_id=bench.sink_id, topic=bench.topic)

    refused = warm.run(intruder).with_code("EO-SINK-OWNED")
    assert run.query_id in refused.sentence
    bench.input.add()
    run.await_commit(1)
    run.stop()()
    bench.assert_exactly_once()
    assert bench.log().owner == claim


@pytest.mark.long
def test_a_deleted_checkpoint_is_refused_until_a_person_says_so(bench: Bench, warm: SparkDriver) -> None:
    """Guards against writing the whole input a second time (duplicates) because the log of the first time is gone."""
    bench.complete(warm, batches=2)
    owner = bench.log().owner
    assert owner is not None
    shutil.rmtree(bench.checkpoint)

    warm.run(bench.job).with_code("EO-SINK-OWNED")
    bench.assert_exactly_once()

    warm.complete(bench.job.having(sink_takeover=owner.query_id))  # the word of a person, who accepts this:
    assert sorted(bench.visible()) == sorted(bench.input.expected() * 2)


@pytest.mark.long
def test_a_new_checkpoint_that_begins_before_the_decisions_takes_the_sink_by_a_second_word_alone(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """A duplicate of every row: the takeover was done as the refusal advised, and all 4,000 rows were written again,
    with exit code 0.
    """
    select = ["cast(key as string) key", "cast(value as string) value"]
    job = replace(bench.job, source=kafka_input.source(1_000_000), select=select)
    kafka_input.fill(batches=1, rows=40)
    warm.complete(job)
    shutil.rmtree(bench.checkpoint)
    owned = warm.run(job).with_code("EO-SINK-OWNED")

    taken = job.having(**owned.consent("sink.takeover"))
    refused = warm.run(taken).with_code("EO-REWOUND")
    assert all(f'"{p}": 0' in refused.sentence for p in range(4)), refused.sentence
    bench.assert_exactly(kafka_input.sent)
    where = re.search(r"startingOffsets: (\{.*?\}\})\)", owned.sentence)
    assert where, owned.sentence
    source = {**job.source, "options": {**job.source["options"], "startingOffsets": where[1]}}
    kafka_input.fill(batches=1, rows=8)
    warm.complete(replace(taken, source=source).having(checkpointLocation=f"{bench.checkpoint}-2"))
    bench.assert_exactly(kafka_input.sent)
    owned = warm.run(taken)
    taken = job.having(**owned.consent("sink.takeover"))
    warm.complete(taken.having(**warm.run(taken).consent("sink.adopt")))
    assert sorted(bench.visible()) == sorted(kafka_input.sent * 2)  # on purpose


@pytest.mark.long
@pytest.mark.parametrize("rewound_by", [1, 2])
def test_a_rewound_checkpoint_is_refused(rewound_by: int, bench: Bench, warm: SparkDriver) -> None:
    """Guards against a batch that is drained although it now names other input (loss), or written again
    (duplicates).
    """
    bench.complete_exactly_once(warm, batches=3)
    for batch in range(3 - rewound_by, 3):
        for folder in ("offsets", "commits"):
            (bench.checkpoint / folder / str(batch)).unlink()
    written = bench.input.expected()
    bench.input.add()

    warm.run(bench.job).with_code("EO-REWOUND")
    bench.assert_exactly(written)


@pytest.mark.long
def test_a_checkpoint_that_lost_only_its_last_commit_drains_the_batch(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a refusal of what is normal: the same batch, planned from the same offsets, is decided already."""
    bench.complete(warm, batches=2)
    (bench.checkpoint / "commits" / "1").unlink()
    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_a_checkpoint_with_history_is_not_adopted_by_a_sink_without_any(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a lost commit log: batch N may be in the output already. A switch from another sink says so."""
    bench.complete(warm, batches=2)
    bench.input.add()
    renamed = bench.job.having(sink_id=f"{bench.sink_id}-2")

    refused = warm.run(renamed).with_code("EO-REWOUND")
    word = refused.consent("sink.adopt")
    bench.complete_exactly_once(warm, renamed.having(**word), batches=0)

    bench.input.add()
    lost = renamed.having(sink_id=f"{bench.sink_id}-3", **word)
    assert warm.run(lost).code == "EO-REWOUND", "the word named one batch, and must not adopt a later one"


@pytest.mark.long
def test_a_batch_that_somebody_decided_meanwhile_is_not_decided_again(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a whole batch twice: the plan was made from what another process could read minutes ago. The last
    word has the log, in the very state behind which the decision is written.
    """
    run = bench.begin(warm)
    bench.hold(run, "all-prepared", "sleep 1")
    warm.freeze()
    try:
        decide_elsewhere(bench, 1)
    finally:
        warm.thaw()

    ended = run.end().with_code("EO-DECIDED")
    assert f"batch 1 of sink '{bench.sink_id}'" in ended.sentence and "decided, under claim 1" in ended.sentence
    until("what it prepared to be rolled back", lambda: bench.open_parts() == 1, 10)
    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


def decide_elsewhere(bench: Bench, batch_id: int) -> None:
    """Prepare the rows of a batch in one transaction and decide it, under the claim of the driver at work."""
    claim = bench.log().owner
    assert claim is not None and claim.query_id is not None
    with Admin(bench.connection) as admin:
        part = PartTransaction(bench.connection, {}, part_id(bench.sink_id, claim.token, 0, "9.0"), 60_000, admin)
        for row in bench.input.expected(slice(batch_id, batch_id + 1)):
            part.send(bench.topic, *(cell.encode() if cell is not None else None for cell in row))
        handle = part.prepare(0, 30)
        version = end_txn_version(admin)
    digest = batch_in_flight(str(bench.checkpoint)).offsets_digest
    log = CommitLog(bench.connection, bench.sink_id)
    log.append(
        Decision(claim.query_id, batch_id, claim.token, (handle,), digest, version, 0, topics=(bench.topic,)),
        Deadline(30),
    )
    log.close()

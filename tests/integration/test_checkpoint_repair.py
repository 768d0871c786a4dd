"""A checkpoint that a full disk or a loss of power has torn: the repair does what the commit log allows, and the next
start goes on with every row once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_exactly_once.runs.failures import diagnose
from exactly_once.checkpoint import check_whole, read_checkpoint
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.spark.session import file_manager
from exactly_once.tools.operation.repair.applying import Repair
from exactly_once.tools.operation.rules import Refused
from testkit import repair
from testkit.commands import Run, held_at
from testkit.fixtures import Bench, KafkaInput, StartDriver, make_bench
from testkit.stream import SparkDriver

#: Spark's default, whose renames fail on a checksum that was left behind; that of the other tests does not mind.
DEFAULT_FILE_MANAGER = {"spark.sql.streaming.checkpointFileManagerClass": file_manager("FileContextBased")}


def tear(checkpoint: Path, name: str, content: bytes | None = b"") -> None:
    """Leave ``content`` of a file, or nothing of it; its checksum stays, as a person's rm leaves it."""
    if content is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_bytes(content)


def command(bench: Bench, *arguments: str) -> list[str]:
    """The command on a bench's checkpoint."""
    return ["checkpoint", "repair", str(bench.checkpoint), "--sink", bench.sink_id, "--json", *arguments]


def actions(found: Repair) -> dict[str, str]:
    """What is to be done, by file."""
    return {f.name: f.action.value for f in found.findings}


@pytest.fixture
def bench(connection: Connection, tmp_path: Path) -> Bench:
    """A small one: what is torn does not depend on the rows."""
    return make_bench(connection, tmp_path / "bench", parts=2, rows=10)


@pytest.fixture
def settled(bench: Bench, warm: SparkDriver) -> Bench:
    """Three batches went through, and there is more input."""
    bench.complete(warm, batches=3)
    bench.input.add()
    return bench


def fail_at(point: str, bench: Bench, warm: SparkDriver) -> None:
    """One batch goes through; the next one fails at ``point``, and Spark has not marked it."""
    bench.complete(warm)
    warm.arm(point, "raise")
    bench.input.add()
    assert f"failpoint {point}" in (warm.run(bench.job).failure or "")
    assert read_checkpoint(str(bench.checkpoint)).in_flight == 1


# -- a settled checkpoint ---------------------------------------------------------------------------------------------

LONG = pytest.mark.long
SETTLED = [
    pytest.param({"commits/2": b""}, {"commits/2": "remove"}, id="empty commits", marks=pytest.mark.long),
    pytest.param({"commits/2": b"v1"}, {"commits/2": "remove"}, id="commits of a version alone", marks=LONG),
    pytest.param({"offsets/2": b""}, {"offsets/2": "rebuild"}, id="empty offsets", marks=LONG),
    pytest.param({"offsets/2": b"\0" * 900, "commits/2": None}, {"offsets/2": "rebuild"}, id="offsets of zeros"),
    pytest.param(
        {"offsets/2": b"v1\n{", "commits/2": b"v1\n{"},
        {"offsets/2": "rebuild", "commits/2": "remove"},
        id="offsets and commits that are cut off",
        marks=LONG,
    ),
    pytest.param({"offsets/1": b""}, {"offsets/1": "rebuild"}, id="the offsets before the last ones", marks=LONG),
    pytest.param({"metadata": b""}, {"metadata": "rebuild"}, id="empty metadata", marks=LONG),
    pytest.param(
        {"metadata": None, "offsets/2": b"", "offsets/1": b"", "commits/2": b""},
        {"metadata": "rebuild", "offsets/1": "rebuild", "offsets/2": "rebuild", "commits/2": "remove"},
        id="nearly all of it",
        marks=LONG,
    ),
]


@pytest.mark.parametrize(("torn", "expected"), SETTLED)
def test_a_torn_checkpoint_names_its_repair_and_goes_on_after_it(
    torn: dict[str, bytes | None], expected: dict[str, str], settled: Bench, warm: SparkDriver
) -> None:
    """Guards against a stream that stands still until a person has deleted files by guess, and against what such a
    guess costs: a batch written twice, or never.
    """
    for name, content in torn.items():
        tear(settled.checkpoint, name, content)
    with pytest.raises(CheckpointUnusable, match=f"checkpoint repair {settled.checkpoint} --sink {settled.sink_id}"):
        check_whole(str(settled.checkpoint), settled.sink_id)
    if torn != {"commits/2": b"v1"}:  # which Spark takes for a batch with a watermark of 0
        found = diagnose(RuntimeError(warm.run(settled.job).failure))
        assert found.code == "EO-CHECKPOINT" and "checkpoint_repair" in found.remedy, found

    dry = repair.examine(settled.connection, settled.sink_id, str(settled.checkpoint))
    assert {name: action for name, action in actions(dry).items() if ".crc" not in name} == expected
    assert not dry.whole and not (settled.checkpoint / "_repairs").exists()

    assert repair.mend(settled).applied
    assert repair.mend(settled).findings == []  # twice is harmless
    check_whole(str(settled.checkpoint), settled.sink_id)
    warm.complete(settled.job)
    settled.assert_exactly_once()
    assert settled.decided_batches() == [0, 1, 2, 3]


def test_what_was_there_is_kept_beside_a_record_of_who_did_what(settled: Bench, warm: SparkDriver) -> None:
    """Guards against a repair that cannot be told from damage, nor taken back."""
    cut = (settled.checkpoint / "offsets" / "2").read_bytes()[:40]
    tear(settled.checkpoint, "offsets/2", cut)
    before = settled.log()
    done = repair.repair(
        settled.connection, settled.sink_id, str(settled.checkpoint), force=repair.phrase(settled), by="somebody"
    )
    kept = settled.checkpoint / done.kept_in
    assert (kept / "offsets" / "2").read_bytes() == cut and (kept / "offsets" / ".2.crc").exists()
    audit = json.loads((kept / "audit.json").read_text())
    assert audit["by"]["who"] == "somebody" and audit["claim"] == done.claim == before.owner.token + 1
    assert audit["ended_at"] is not None and audit["before"]["offsets/2"]["bytes"] == 40
    [finding] = audit["findings"]
    assert (finding["name"], finding["action"]) == ("offsets/2", "rebuild")
    assert (settled.checkpoint / "offsets" / "2").read_text() == before.decisions[-1].offsets
    assert settled.log().decisions == before.decisions


def test_the_decision_of_a_batch_keeps_the_text_of_its_offsets(settled: Bench) -> None:
    """Guards against a copy that Spark would not take, or that the digest does not prove."""
    for decision in settled.log().decisions:
        assert decision.offsets == (settled.checkpoint / "offsets" / str(decision.batch_id)).read_text()
        assert digest_of(decision.offsets) == decision.offsets_digest


# -- a batch in flight ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "torn", "expected"),
    [
        pytest.param("all-prepared", {"offsets/1": b""}, {"offsets/1": "remove"}, marks=LONG),
        pytest.param(
            *("all-prepared", {"commits/0": b"", "offsets/1": b""}, {"offsets/1": "remove", "commits/0": "remove"}),
            marks=LONG,
        ),
        pytest.param("all-prepared", {"commits/0": b""}, {"offsets/1": "remove", "commits/0": "remove"}, marks=LONG),
        ("decided", {"offsets/1": b""}, {"offsets/1": "rebuild"}),
        pytest.param("decided", {"commits/0": b""}, {"commits/0": "remove"}, marks=LONG),
    ],
)
def test_a_batch_in_flight_whose_files_are_torn_is_written_once(
    point: str, torn: dict[str, bytes], expected: dict[str, str], bench: Bench, warm: SparkDriver
) -> None:
    """Guards against an undecided batch that is taken for written (loss), and against a decided one that Spark plans
    anew (duplicates).
    """
    fail_at(point, bench, warm)
    for name, content in torn.items():
        tear(bench.checkpoint, name, content)
    assert actions(repair.examine(bench.connection, bench.sink_id, str(bench.checkpoint))) == expected
    assert repair.mend(bench).applied
    if point == "all-prepared":  # planned anew beside more input, Spark's tasks would race for the order of a key
        warm.complete(bench.job)
    bench.complete_exactly_once(warm)


@pytest.mark.long
def test_a_batch_that_is_too_long_is_planned_anew_and_smaller(
    run: Run, bench: Bench, warm: SparkDriver, kafka_input: KafkaInput
) -> None:
    """Guards against a batch whose transactions always time out: Spark runs it as it was planned, whatever
    maxOffsetsPerTrigger says since, and the stream never gets past it.
    """
    kafka_input.fill(batches=4, rows=40)
    large, small = (
        replace(bench.job, source=kafka_input.source(per_batch=n), select=["key", "value"]) for n in (200, 40)
    )
    warm.arm("all-prepared", "raise")
    assert "failpoint" in (warm.run(large).failure or "")
    planned = (bench.checkpoint / "offsets" / "0").read_text()
    assert repair.examine(bench.connection, bench.sink_id, str(bench.checkpoint)).whole

    code, found, _ = run(*command(bench, "--plan-anew"))
    assert code == 1 and [(f["name"], f["action"]) for f in found["findings"]] == [("offsets/0", "remove")]
    assert (bench.checkpoint / "offsets" / "0").read_text() == planned
    code, found, _ = run(*command(bench, "--plan-anew", "--apply", "--force", found["force"]))
    assert code == 0 and found["applied"]

    warm.complete(small)
    first = bench.log().decisions[0]
    assert first.records < sum(1 for _ in kafka_input.sent) and first.offsets_digest != digest_of(planned)
    bench.assert_exactly(kafka_input.sent)
    code, found, _ = run(*command(bench, "--plan-anew"))
    assert code == 1 and [f["action"] for f in found["findings"]] == ["refuse"]  # it is decided


@pytest.mark.long
def test_a_file_that_was_deleted_by_guess_is_put_back(bench: Bench, warm: SparkDriver, kafka_input: KafkaInput) -> None:
    """Guards against the dead end after it: Spark plans the decided batch with other input, EO-REWOUND refuses that,
    and nobody has the file any more.
    """
    kafka_input.fill(batches=2, rows=40)
    job = replace(bench.job, source=kafka_input.source(per_batch=200), select=["key", "value"])
    warm.complete(job)
    for name in ("offsets/0", "offsets/.0.crc", "commits/0"):
        tear(bench.checkpoint, name, None)
    kafka_input.fill(batches=1, rows=40)
    assert warm.run(replace(job, source=kafka_input.source(per_batch=40))).code == "EO-REWOUND"

    assert repair.mend(bench).applied
    warm.complete(job)
    bench.assert_exactly(kafka_input.sent)


# -- whoever repairs --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("point", [pytest.param("repair-kept", marks=LONG), "repair-changed"])
def test_a_repair_that_is_killed_is_finished_by_the_next_one(
    point: str, run: Run, settled: Bench, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against a repair that leaves the checkpoint worse than it was."""
    for name in ("offsets/2", "commits/2"):
        tear(settled.checkpoint, name)
    forced = command(settled, "--apply", "--force", repair.phrase(settled))
    with held_at(point, tmp_path, settled.connection.bootstrap_servers, forced):
        pass  # and killed
    left = {"repair-kept": {"offsets/2": "rebuild", "commits/2": "remove"}, "repair-changed": {"commits/2": "remove"}}
    assert actions(repair.examine(settled.connection, settled.sink_id, str(settled.checkpoint))) == left[point]

    code, found, _ = run(*command(settled, "--apply"))  # the killed one's claim is a recovery's, which stops nobody
    assert code == 0 and found["applied"]
    warm.complete(settled.job)
    settled.assert_exactly_once()


@pytest.mark.long
def test_a_driver_that_lives_is_not_fenced_by_a_repair_unless_that_is_typed_out(run: Run, settled: Bench) -> None:
    """Guards against the wrong sink, and against files that change below a stream at work."""
    tear(settled.checkpoint, "commits/2")
    owner = settled.log().owner
    code, found, _ = run(*command(settled))
    assert code == 1 and found["dry_run"] and "is alive" in found["refused"]
    assert found["force"] == repair.phrase(settled)
    code, found, _ = run(*command(settled, "--apply"))
    assert code == 1 and found["error"]["code"] == "EO-REFUSED" and found["error"]["force"] == repair.phrase(settled)
    with pytest.raises(Refused, match="is alive"):
        repair.repair(settled.connection, settled.sink_id, str(settled.checkpoint))
    assert settled.log().owner == owner and (settled.checkpoint / "commits" / "2").read_bytes() == b""
    assert run(*command(settled, "--apply", "--force", repair.phrase(settled)))[0] == 0
    code, found, _ = run(*command(settled))
    assert code == 0 and found["whole"] and found["findings"] == []


@pytest.mark.long
def test_a_checksum_that_was_left_behind_does_not_stop_spark_s_default_file_manager(
    bench: Bench, driver: StartDriver
) -> None:
    """Guards against a repair, or a person's rm, after which Spark reports a second query that is not there."""
    stream = driver(conf=DEFAULT_FILE_MANAGER)
    bench.complete(stream, batches=2)
    tear(bench.checkpoint, "commits/1", None)
    bench.input.add()
    found = diagnose(RuntimeError(stream.run(bench.job).failure))
    assert found.code == "SPARK-TWO-DRIVERS" and "checkpoint_repair" in found.remedy
    (bench.checkpoint / "commits/1").unlink(missing_ok=True)  # Spark renames a file before its checksum
    assert actions(repair.mend(bench)) == {"commits/.1.crc": "remove"}
    stream.complete(bench.job)
    tear(bench.checkpoint, "commits/2")
    assert actions(repair.mend(bench)) == {"commits/2": "remove"}
    bench.complete_exactly_once(stream, batches=0)

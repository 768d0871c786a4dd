"""A checkpoint that a full disk or a loss of power has torn: the start names the repair, the repair does what the
commit log allows, and the next start goes on with every row once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exactly_once import repair
from exactly_once.repair import Repair
from exactly_once.rules import Refused
from platform_assets.streaming.failures import diagnose
from tests.support.fixtures import Bench
from tests.support.stream import ROOT, SparkDriver

#: Spark's default, whose renames fail on a checksum that was left behind; the tests' other one has none of that.
DEFAULT_FILE_MANAGER = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    )
}


def tear(checkpoint: Path, name: str, content: bytes | None = b"") -> None:
    """Leave ``content`` of a file, and its checksum, as a file system does that lost the pages of the last seconds."""
    if content is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_bytes(content)


def run_cli(bench: Bench, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The command on a bench: exit code and document."""
    command = [
        *(sys.executable, "-m", "exactly_once.cli", "--bootstrap-servers", bench.connection.bootstrap_servers),
        *("checkpoint", "repair", str(bench.checkpoint), "--sink", bench.sink_id, "--json", *arguments),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, json.loads(ended.stdout)


def mend(bench: Bench, **options: Any) -> Repair:
    """Repair a bench's checkpoint, fencing the driver that still lives in this test."""
    try:
        return repair.repair(bench.connection, bench.sink_id, str(bench.checkpoint), **options)
    except Refused as e:
        assert e.phrase is not None
        return repair.repair(bench.connection, bench.sink_id, str(bench.checkpoint), force=e.phrase, **options)


def kill_with_a_batch_planned(bench: Bench, victim: SparkDriver, point: str, batches: int = 1) -> None:
    """``batches`` go through; the next one is killed at ``point``."""
    bench.input.add(batches)
    run = victim.start(bench.job.until_stopped())
    run.await_commit(batches - 1)
    victim.arm(point)
    bench.input.add()
    run.await_true(point, lambda: victim.has_reached(point))
    victim.kill9()


@pytest.fixture
def settled(bench: Bench, warm: SparkDriver) -> Bench:
    """Three batches went through."""
    bench.input.add(3)
    warm.complete(bench.job)
    return bench


# -- a settled checkpoint ---------------------------------------------------------------------------------------------

SETTLED = {
    "empty commits": ({"commits/2": b""}, {"commits/2": "remove"}),
    "commits of a version alone": ({"commits/2": b"v1"}, {"commits/2": "remove"}),
    "empty offsets": ({"offsets/2": b""}, {"offsets/2": "rebuild"}),
    "offsets of zeros, no commits": ({"offsets/2": b"\0" * 900, "commits/2": None}, {"offsets/2": "rebuild"}),
    "both": ({"offsets/2": b"v1\n{", "commits/2": b"v1\n{"}, {"offsets/2": "rebuild", "commits/2": "remove"}),
    "the offsets before": ({"offsets/1": b""}, {"offsets/1": "rebuild"}),
    "empty metadata": ({"metadata": b""}, {"metadata": "rebuild"}),
    "all of them": (
        {"metadata": None, "offsets/2": b"", "offsets/1": b"", "commits/2": b""},
        {"metadata": "rebuild", "offsets/1": "rebuild", "offsets/2": "rebuild", "commits/2": "remove"},
    ),
}


@pytest.mark.parametrize(("torn", "actions"), SETTLED.values(), ids=SETTLED)
def test_a_torn_checkpoint_names_its_repair_and_goes_on_after_it(
    torn: dict[str, bytes | None], actions: dict[str, str], settled: Bench, warm: SparkDriver
) -> None:
    """Guards against a stream that stands still until a person has deleted files by guess, and against what such a
    guess costs: a batch written twice, or never.
    """
    for name, content in torn.items():
        tear(settled.checkpoint, name, content)
    settled.input.add()
    with pytest.raises(CheckpointUnusable, match=f"checkpoint repair {settled.checkpoint} --sink {settled.sink_id}"):
        check_whole(str(settled.checkpoint), settled.sink_id)
    failure = warm.run(settled.job).failure
    if torn != {"commits/2": b"v1"}:  # which Spark takes for a batch with a watermark of 0
        assert failure is not None
        found = diagnose(RuntimeError(failure))
        assert found.code == "SPARK-CHECKPOINT-TORN" and "checkpoint_repair" in found.way_out, failure

    dry = repair.examine(settled.connection, settled.sink_id, str(settled.checkpoint))
    assert {f.name: f.action.value for f in dry.findings} == actions
    assert not dry.whole and not (settled.checkpoint / "_repairs").exists()

    done = mend(settled)
    assert done.applied and done.whole
    assert mend(settled).findings == []  # twice is harmless
    warm.complete(settled.job)
    settled.assert_exactly_once()
    assert settled.decided_batches() == [0, 1, 2, 3]

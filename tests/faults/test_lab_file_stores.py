"""A checkpoint on HDFS and on S3 in the fault lab: their servers are killed and paused, and the checkpoint is damaged.

`make test-hdfs` and `make test-s3` bring the servers.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from exactly_once.checkpoint import read_checkpoint
from faultlab.building import lab_of
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.faults.checkpoints import ForeignCheckpoint, RewindCheckpoint, TearCheckpoint
from faultlab.file_stores import file_store
from faultlab.settings import Settings
from faultlab.system import GONE
from tests.faults.lab import Fault, run_clean, shown, struck

ON_HDFS: list[Fault] = [
    ("kill-name-node", 3.0, "decided"),
    ("pause-data-node", 6.0, "all-prepared"),
    ("kill-data-node", 3.0, "completed"),
    ("pause-name-node", 6.0, "decided"),
    ("kill-driver", 0.1, "some-ended"),
    ("checkpoint-torn", 1.0, "decided"),
]
ON_S3: list[Fault] = [
    ("pause-s3", 6.0, "decided"),
    ("pause-s3", 12.0, "all-prepared"),
    ("kill-driver", 0.1, "some-ended"),
    ("checkpoint-rewound", 1.0, "decided"),
]

#: Ends that Dagster's sensors restart, and those of the last fault, after which a person repairs the checkpoint.
RESTARTED = {"EO-CHECKPOINT-AWAY", "SPARK-CHECKPOINT-AWAY", GONE}
REPAIRED = {"EO-CHECKPOINT", "EO-REWOUND", "SPARK-CHECKPOINT-TORN", "EO-SINK-OWNED"}

STORES = [
    pytest.param(
        "hdfs", ON_HDFS, marks=pytest.mark.skipif(not os.environ.get("TEST_HDFS"), reason="make test-hdfs runs it")
    ),
    pytest.param("s3", ON_S3, marks=pytest.mark.skipif(not os.environ.get("TEST_S3"), reason="make test-s3 runs it")),
]


@pytest.mark.long
@pytest.mark.parametrize(("store", "faults"), STORES)
def test_a_stream_gets_over_every_fault_of_the_store_that_its_checkpoint_is_on(
    store: str, faults: list[Fault], tmp_path: Path
) -> None:
    """Guards against a batch that is lost or doubled because its commits/N never came, or came late, and against an
    outage of the store that no sensor gets a stream over.
    """
    with lab_of(Settings(rate=100, timeout_ms=60_000, checkpoint=store), 1, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, 1, faults)
        assert set(lab.history.seen) <= RESTARTED | REPAIRED, history
    for name, _, _ in faults:
        assert len(struck(history, name)) == [fault for fault, _, _ in faults].count(name), history
    before_damage = history[: history.index(" checkpoint-")]
    assert not any(f"ended  {' ' * 26}{code}:" in before_damage for code in REPAIRED), history


@pytest.mark.long
@pytest.mark.parametrize("store", [pytest.param(p.values[0], marks=p.marks) for p in STORES])
def test_a_checkpoint_on_a_store_is_damaged_copied_and_put_back_as_on_a_disk(store: str, tmp_path: Path) -> None:
    """Guards against a lab that damages nothing there, and so proves nothing."""
    with file_store(store, tmp_path / store) as servers:
        assert servers is not None
        kept, files = CheckpointFiles(tmp_path / "kept"), CheckpointFiles(servers.checkpoint)
        for n in range(3):
            kept.write_all({f"offsets/{n}": b'v1\n{"n":0}\n{"in":{"0":1}}', f"commits/{n}": b'v1\n{"nextBatch":0}'})
        kept.write_all({"metadata": b'{"id":"query"}', "sources/0/0": b"0"})
        files.replace(kept)
        assert files.names() == kept.names() and files.batches("offsets") == [0, 1, 2]
        TearCheckpoint().spoil(files, Random(1))
        assert read_checkpoint(servers.checkpoint).torn
        files.replace(kept)
        RewindCheckpoint().spoil(files, Random(1))
        assert 0 < len(files.batches("offsets")) < 3
        files.replace(kept)
        assert {name: files.read(name) for name in files.names()} == {name: kept.read(name) for name in kept.names()}
        ForeignCheckpoint().spoil(files, Random(1))
        assert read_checkpoint(servers.checkpoint).query_id != "query"

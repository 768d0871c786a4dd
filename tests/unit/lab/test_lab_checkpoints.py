"""What the fault lab does to the files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from exactly_once.checkpoint import read_checkpoint
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.faults import FAULTS
from faultlab.faults.checkpoints import (
    CHECKPOINTS,
    DeleteCheckpointFile,
    ForeignCheckpoint,
    OlderCheckpointFile,
    RewindCheckpoint,
    SpoilState,
    TearCheckpoint,
)
from faultlab.faults.fault import NOTHING

QUERY = "5a8ef0c5-6a4f-4e87-9b2c-111111111111"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a query with batches 0 to 3 committed and batch 4 in flight; each file has a checksum."""
    for log, last in (("offsets", 4), ("commits", 3)):
        (tmp_path / log).mkdir()
        for n in range(last + 1):
            text = (
                f'v1\n{{"n":{n}}}\n{{"in":{{"0":{n}}}}}' if log == "offsets" else f'v1\n{{"nextBatchWatermarkMs":{n}}}'
            )
            (tmp_path / log / str(n)).write_text(text)
            (tmp_path / log / f".{n}.crc").write_bytes(b"crc")
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


@pytest.mark.parametrize("seed", range(8))
def test_a_torn_file_is_the_newest_one_and_the_product_sees_it(seed: int, checkpoint: Path) -> None:
    """Guards against a lab that tears what nobody reads, and so proves nothing."""
    assert not read_checkpoint(str(checkpoint)).torn
    said = TearCheckpoint().spoil(CheckpointFiles(checkpoint), Random(seed))
    [torn] = read_checkpoint(str(checkpoint)).torn
    assert torn in ("offsets/4", "commits/3") and said.startswith(torn)


@pytest.mark.parametrize("seed", range(8))
def test_a_deleted_file_is_the_newest_one_with_its_checksum_or_without(seed: int, checkpoint: Path) -> None:
    """Guards against a lab that deletes more than it says."""
    said = DeleteCheckpointFile().spoil(CheckpointFiles(checkpoint), Random(seed))
    name = said.split()[0]
    assert name in ("offsets/4", "commits/3") and not (checkpoint / name).exists()
    log, number = name.split("/")
    assert (checkpoint / log / f".{number}.crc").exists() == ("its checksum not" in said)
    files = CheckpointFiles(checkpoint)
    assert len(files.batches("offsets")) + len(files.batches("commits")) == 8


@pytest.mark.parametrize("seed", range(4))
def test_an_older_file_is_whole(seed: int, checkpoint: Path) -> None:
    """Guards against old content that is found by its form and not by what it says."""
    name = OlderCheckpointFile().spoil(CheckpointFiles(checkpoint), Random(seed)).split()[0]
    log, number = name.split("/")
    assert (checkpoint / name).read_text() == (checkpoint / log / str(int(number) - 1)).read_text()
    assert not read_checkpoint(str(checkpoint)).torn


def test_the_first_file_has_no_older_content(checkpoint: Path) -> None:
    """Guards against a fault that counts and does nothing."""
    for n in range(1, 5):
        (checkpoint / "offsets" / str(n)).unlink()
        (checkpoint / "commits" / str(n)).unlink(missing_ok=True)
    assert OlderCheckpointFile().spoil_file(CheckpointFiles(checkpoint), "offsets", 0, Random(0)) == NOTHING


@pytest.mark.parametrize("seed", range(4))
def test_a_rewound_checkpoint_is_one_of_before(seed: int, checkpoint: Path) -> None:
    """Guards against a copy that no backup could be: batches in its middle are missing, or commits beyond offsets."""
    files = CheckpointFiles(checkpoint)
    RewindCheckpoint().spoil(files, Random(seed))
    planned, committed = files.batches("offsets"), files.batches("commits")
    assert planned == list(range(len(planned))) and 2 <= len(planned) <= 4
    assert committed == list(range(len(committed))) and committed[-1] <= planned[-1]


@pytest.mark.parametrize("seed", range(4))
def test_a_foreign_checkpoint_names_another_query_or_is_not_there(seed: int, checkpoint: Path) -> None:
    """Guards against a foreign checkpoint that is the stream's own."""
    ForeignCheckpoint().spoil(CheckpointFiles(checkpoint), Random(seed))
    assert read_checkpoint(str(checkpoint)).query_id != QUERY


def write_state(checkpoint: Path, kind: str, checksum: bool) -> set[str]:
    """Two partitions with the state of batches 0 to 4, of which 4 is in flight; return the names of batch 3's."""
    for partition in "01":
        folder = checkpoint / "state" / "0" / partition
        folder.mkdir(parents=True)
        for version in range(1, 6):
            (folder / f"{version}.{kind}").write_text(f"version {version}")
            (folder / f".{version}.{kind}.crc").write_bytes(b"crc")
            if checksum:
                (folder / f"{version}.{kind}.crc").write_text(f"checksum {version}")
    return {f"state/0/{partition}/4.{kind}" for partition in "01"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kind", "checksum"), [("delta", False), ("changelog", True)])
def test_the_state_that_is_damaged_is_what_the_next_start_reads(
    kind: str, checksum: bool, seed: int, checkpoint: Path
) -> None:
    """Guards against a lab that damages the state of a batch in flight, which Spark writes again, and so proves
    nothing; and against an old file that Spark cannot tell from the newest one, which no sink can survive.
    """
    newest = write_state(checkpoint, kind, checksum)
    said = SpoilState().spoil(CheckpointFiles(checkpoint), Random(seed))
    name = said.split()[0]
    left = (checkpoint / name).read_text()
    assert name in newest and left != "version 4"
    if "holds what version 3 held" in said:
        assert checksum and left == "version 3"
        assert (checkpoint / f"{name}.crc").read_text() == "checksum 3"
    else:
        assert "version 4".startswith(left) and ("empty" in said) == (not left)


def test_damage_to_state_is_not_counted_where_there_is_none(checkpoint: Path) -> None:
    """Guards against a fault that counts and does nothing."""
    assert SpoilState().spoil(CheckpointFiles(checkpoint), Random(0)) == NOTHING


def test_every_fault_of_a_checkpoint_can_be_drawn_by_its_name() -> None:
    """Guards against a fault that no round ever does."""
    assert all(FAULTS[fault.name] is fault for fault in CHECKPOINTS)

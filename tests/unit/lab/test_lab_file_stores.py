"""What the lab does to the servers that a checkpoint is on, and to rounds that have none."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from faultlab import __main__ as command
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.faults.disks import FillCheckpointDisk
from faultlab.faults.fault import NOTHING
from faultlab.faults.file_stores import FILE_STORES, KillDataNode, KillNameNode, PauseS3
from faultlab.file_stores import FileStore, file_store
from faultlab.settings import draw_settings
from testkit.hdfs import DATA_NODE, NAME_NODE, Hdfs
from testkit.s3 import S3


class Servers(Hdfs):
    """Keep what is done to them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def kill(self, name: str) -> None:
        self.done.append(("kill", name))

    def start(self, *names: str) -> None:
        self.done.append(("start", *names))  # type: ignore[arg-type]


def lab(server: Hdfs | S3 | None) -> Any:
    """A lab of which only the checkpoint's store is asked."""
    machine = SimpleNamespace(disk=Path("disk"))
    return SimpleNamespace(file_store=server and FileStore(server), machine=machine)


def test_one_server_is_struck_at_a_time() -> None:
    """Guards against a lab that waits for a name node while it holds the data node that the name node waits for."""
    servers = Servers()
    struck, first, second, later = lab(servers), KillDataNode(), KillNameNode(), KillNameNode()
    assert first.do(struck, Random(0)) == "DataNode"
    assert second.do(struck, Random(0)) == NOTHING
    second.undo(struck)
    first.undo(struck)
    assert servers.done == [("kill", DATA_NODE), ("start", DATA_NODE)]
    assert later.do(struck, Random(0)) == "NameNode"
    assert servers.done[-1] == ("kill", NAME_NODE)


def test_a_fault_of_a_store_is_drawn_only_where_a_checkpoint_is_on_it() -> None:
    """Guards against other plans for the seeds of rounds on a local disk, and against a disk that fills in vain."""
    on_disk, on_hdfs, on_s3 = lab(None), lab(Servers()), lab(S3.__new__(S3))
    assert not any(fault.fits(on_disk) for fault in FILE_STORES)
    assert [fault for fault in FILE_STORES if not fault.fits(on_hdfs)] == [PauseS3]
    assert [fault for fault in FILE_STORES if fault.fits(on_s3)] == [PauseS3]
    assert [FillCheckpointDisk.fits(one) for one in (on_disk, on_hdfs, on_s3)] == [True, False, False]


def test_no_seed_draws_a_store() -> None:
    """Guards against make faults that fetches servers which nobody asked for."""
    assert {draw_settings(seed).checkpoint for seed in range(200)} == {"disk"}
    with file_store("disk", Path("nowhere")) as store:
        assert store is None


def test_a_round_on_s3_without_a_server_is_refused_at_the_start_with_what_brings_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a lab that starts brokers and drivers, and then says that a class is not found."""
    monkeypatch.setattr("testkit.s3.FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["faultlab", "--checkpoint", "s3"])
    with pytest.raises(SystemExit, match=f"There is no S3 server in {tmp_path}: run make s3"):
        command.main()


def test_a_copy_of_a_checkpoint_has_all_of_its_files_and_no_others(tmp_path: Path) -> None:
    """Guards against an operator who puts back a checkpoint with files of the damaged one in it."""
    files, copy = CheckpointFiles(tmp_path / "checkpoint"), CheckpointFiles(tmp_path / "copy")
    contents = {"metadata": b"m", "offsets/0": b"o", "offsets/.0.crc": b"c", "state/0/0/1.delta": b"s"}
    files.write_all(contents)
    copy.write_all({"offsets/1": b"of another"})
    copy.replace(files)
    assert {name: copy.read(name) for name in copy.names()} == contents
    files.clear()
    assert files.names() == [] and files.batches("offsets") == []

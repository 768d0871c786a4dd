"""Files as a participant: the conformance suite on local disk, and what is special about them."""

from __future__ import annotations

import base64
import datetime as dt
import json
import multiprocessing
import os
import re
import resource
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from exactly_once.errors import Expired, PrepareFailed, StoreRefused, Unfinished
from exactly_once.outputs import files
from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.conformance.processes import prepare
from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.files.stores import HdfsStore
from testkit import oracle
from testkit.processes import until


class Files(ParticipantConformance):
    """What the tests of both formats share."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "flights"

    def leftovers(self) -> set[str]:
        found = (path for path in (self.root / "_staging").rglob("*") if path.is_file() and path.parent.name != "_id")
        return {re.sub(r"(\.files)?\.(jsonl|parquet)$", "", path.name).replace("~", ":") for path in found}

    def foreign(self) -> set[str]:
        (self.root / "_staging" / "notes.txt").write_text("a person's")
        (self.root / "_staging" / "eo~orders_1~1~7~0").write_text("no attempt: not a name of ours")
        return {"notes.txt", "eo:orders_1:1:7:0"}

    def lose(self, handle: Any) -> None:
        (path,) = (self.root / "_staging").glob(handle.data["file"])
        path.unlink()


class TestJsonLines(Files):
    """Read by plain json."""

    def participant(self) -> FileParticipant:
        return FileParticipant("files", str(self.root))

    def visible(self) -> list[dict[str, Any]]:
        return [_typed(row) for row in oracle.in_files(self.root)]


@pytest.mark.long
class TestParquet(Files):
    """Read as a dataset by Arrow, as any engine would."""

    crashes = 4  # its own code is that of writing; all the rest is killed in TestJsonLines

    def participant(self) -> FileParticipant:
        return FileParticipant("files", f"file://{self.root}", "parquet")

    def visible(self) -> list[dict[str, Any]]:
        if not list(self.root.glob("batch=*")):
            return []
        found = ds.dataset(self.root, format="parquet", partitioning="hive")
        return list(found.to_table(self.schema.names).to_pylist())


@pytest.mark.long
class TestThroughArrow(TestJsonLines):
    """The store for HDFS. Its processes are killed in :class:`TestJsonLines`; here they only run."""

    crashes = 1

    @pytest.fixture(autouse=True)
    def arrow(self, place: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of the store's code but the name node: around Arrow's local files."""
        monkeypatch.setattr(
            files, "store_of", lambda url: HdfsStore(url, lambda: SubTreeFileSystem(url, LocalFileSystem()))
        )


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """What the document says about times and bytes, backwards."""
    row["at"] = row["at"] and dt.datetime.fromisoformat(row["at"])
    row["raw"] = row["raw"] if row["raw"] is None else base64.b64decode(row["raw"])
    return row


class Place(TestJsonLines):
    """The suite's tools, without its tests, for what files promise beyond the contract."""

    __test__ = False

    def __init__(self, root: Path):
        self.root = root


@pytest.fixture
def at(tmp_path: Path) -> Place:
    place = Place(tmp_path / "flights")
    place.checked()
    return place


def test_a_reader_never_sees_part_of_a_batch(at: Place) -> None:
    """A torn batch: a reader that counts or joins between two files of it gets an answer that was never true."""
    looks: list[set[tuple[str, int]]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            looks.append({(d.name, len(list(d.glob("*.jsonl")))) for d in at.root.glob("batch=*")})

    batches, parts = 25, 8
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for batch in range(batches):
            _, handles = at.batch(batch, parts=parts)
            assert at.participant().commit(handles) == []
        seen = len(looks)
        until("a look after the last commit", lambda: len(looks) > seen + 1)
    finally:
        done.set()
        reader.join()
    assert {files for look in looks for _, files in look} == {parts}
    assert len(looks[-1]) == batches and len({len(look) for look in looks}) > 3, "the reader looked while it happened"


def _commit_in_another_process(at: Place, handles: list[Any], failpoints: Path, action: str) -> Any:
    failpoints.mkdir()
    (failpoints / "files-gathered").write_text(action)
    os.environ["EXACTLY_ONCE_FAILPOINTS"] = str(failpoints)
    try:
        process = multiprocessing.get_context("spawn").Process(target=at.participant().commit, args=(handles,))
        process.start()
    finally:
        del os.environ["EXACTLY_ONCE_FAILPOINTS"]
    until("the failpoint", (failpoints / "files-gathered.reached").exists, 60)
    return process


def test_a_commit_killed_between_gathering_and_renaming_is_completed(at: Place, tmp_path: Path) -> None:
    """The batch is in one directory, which no reader sees, and nowhere else: a sweep must not take it for garbage."""
    names, handles = at.batch()
    process = _commit_in_another_process(at, handles, tmp_path / "failpoints", "hang")
    at.assert_visible()
    process.kill()
    process.join()
    at.assert_left(*names)
    assert at.participant().recover_and_abort(at.scope(99, None, *handles)) == []
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    at.assert_left()


def test_what_was_gathered_for_a_decision_that_is_no_more_is_swept(at: Place, tmp_path: Path) -> None:
    """Files that no decision names would stay forever, or be published by chance."""
    names, handles = at.batch()
    process = _commit_in_another_process(at, handles, tmp_path / "failpoints", "hang")
    process.kill()
    process.join()
    assert sorted(at.participant().recover_and_abort(at.scope(99))) == sorted(map(str, names))
    at.assert_left()
    assert [d.name for d in (at.root / "_staging").iterdir()] == ["_id"]


@pytest.mark.long
def test_a_superseded_driver_that_wakes_up_in_its_commit_doubles_nothing(at: Place, tmp_path: Path) -> None:
    """Its successor has published the same batch meanwhile."""
    names, handles = at.batch()
    process = _commit_in_another_process(at, handles, tmp_path / "failpoints", "sleep 2")
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    process.join(60)
    assert process.exitcode == 0
    at.assert_visible(*names)
    at.assert_left()


def test_everything_is_durable_before_it_counts(at: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right after a handle, or right after a commit, must not take back what was promised."""
    steps: list[str] = []

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(f"fsync {short(os.readlink(f'/proc/self/fd/{descriptor}'))}")

    def renamed(old: str, new: str) -> None:
        rename(old, new)
        steps.append(f"rename {short(old)} {short(new)}")

    def short(path: str) -> str:
        return re.sub(r"eo~\S+", "FILE", re.sub(r"batch=[^/]+", "BATCH", os.path.relpath(path, at.root)))

    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    handles = at.prepared(at.name())
    assert steps == ["fsync _staging/FILE", "fsync _staging"]
    steps.clear()
    at.participant().commit(handles)
    assert steps == [
        "fsync _staging",  # the new directory
        "rename _staging/FILE _staging/BATCH/FILE",
        "fsync _staging/BATCH",
        "fsync _staging",
        "rename _staging/BATCH BATCH",
        "fsync _staging",
        "fsync .",
    ]
    steps.clear()
    at.participant().recover_and_commit(handles)
    assert steps == ["fsync BATCH", "fsync ."], "the first commit may have died before these"


def test_a_part_that_turns_up_again_before_it_was_written_again_is_published(at: Place, tmp_path: Path) -> None:
    """A disk that was away for a minute: the batch has its directory already."""
    names, handles = at.batch()
    staged = at.root / "_staging" / handles[2].data["file"]
    staged.rename(tmp_path / "away")
    assert [h.part for h in at.participant().commit(handles)] == [2]
    (tmp_path / "away").rename(staged)
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    at.assert_left()


def test_a_prepared_file_that_was_cut_short_is_lost_and_never_shown(at: Place) -> None:
    """A file system that lost its tail in a power cut: half of the rows, and perhaps half of one."""
    names, handles = at.batch()
    staged = at.root / "_staging" / handles[0].data["file"]
    os.truncate(staged, handles[0].data["bytes"] - 5)
    assert [h.part for h in at.participant().gone(handles)] == [0]
    assert [h.part for h in at.participant().commit(handles)] == [0]
    at.assert_visible(*names[1:])


def test_another_place_is_not_taken_for_a_loss(at: Place, tmp_path: Path) -> None:
    """A disk that is not mounted, a changed URL: a batch written again there would be doubled when the disk is back."""
    names, handles = at.batch()
    at.root.rename(tmp_path / "unmounted")
    at.root.mkdir()
    with pytest.raises(Expired, match="not mounted"):
        at.participant().commit(handles)
    at.checked()  # gives the empty place an identity of its own
    with pytest.raises(Expired, match="the URL has changed"):
        at.participant().recover_and_commit(handles)
    (at.root).rename(tmp_path / "empty")
    (tmp_path / "unmounted").rename(at.root)
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)


def test_a_place_that_is_away_says_that_nothing_is_lost(at: Place) -> None:
    """An output that does not answer is no reason to write the batch again."""
    _, handles = at.batch()
    away = at.root.rename(at.root.with_name("away"))
    at.root.write_text("a file where the directory was")
    for call_it in (at.participant().commit, at.participant().recover_and_commit, at.participant().abort):
        with pytest.raises(Unfinished):
            call_it(handles)
    with pytest.raises(PrepareFailed):
        at.participant().begin(at.name(9))
    with pytest.raises(StoreRefused, match="EO-STORE"):
        at.checked()
    at.root.unlink()
    away.rename(at.root)
    assert at.participant().commit(handles) == []


def test_a_task_on_a_machine_with_other_files_is_refused(at: Place, tmp_path: Path) -> None:
    """Executors with disks of their own: their files would never be found by the driver."""
    elsewhere_root = tmp_path / "local disk"
    with pytest.raises(PrepareFailed, match=f"files: {elsewhere_root} .*not the directory"):
        FileParticipant("files", str(elsewhere_root)).begin(at.name())
    assert not elsewhere_root.exists()


def test_a_full_disk_fails_the_task_and_leaves_nothing(at: Place) -> None:
    """A part that lacks its last rows must not be prepared."""
    name = at.name()
    writer = at.participant().begin(name)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(PrepareFailed, match="EO-PREPARE"):
            for batch in at.rows(name, 40):
                writer.write(batch)
            writer.pre_commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.abort()
    at.assert_left()


def test_a_staging_on_another_file_system_is_refused(tmp_path: Path) -> None:
    """A rename across file systems is a copy: readers would see it grow."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir=other) as staging:
        (tmp_path / "_staging").symlink_to(staging)
        with pytest.raises(StoreRefused, match="on one file system"):
            FileParticipant("files", str(tmp_path)).check("orders", Place.schema)


def test_the_format_may_change_between_prepare_and_commit(at: Place) -> None:
    """A restart with another format: what is decided is committed as it was written, the rest is swept."""
    names, handles = at.batch()
    at.prepared(at.name(9))
    parquet = FileParticipant("files", str(at.root), "parquet")
    assert parquet.recover_and_commit(handles) == []
    assert parquet.recover_and_abort(at.scope(99)) == [str(at.name(9))]
    at.assert_visible(*names)
    at.assert_left()


def test_only_the_named_columns_are_written_and_digested(at: Place) -> None:
    """Columns for Kafka (topic, partition) have no place in the file, nor in the proof that a part is the same."""
    name = at.name()
    chosen = FileParticipant("files", str(at.root), columns=["text", "id"])
    handle = prepare(chosen, name, at.rows(name))
    assert chosen.commit([handle]) == []
    assert handle.digest == at.digest([batch.select(["text", "id"]) for batch in at.rows(name)])
    (file,) = at.root.glob("batch=*/*.jsonl")
    assert [list(json.loads(line)) for line in file.read_text().splitlines()] == [["text", "id"]] * 3

"""Files as a participant: names, places and forms, without crashes."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from exactly_once.errors import CommitLogDamaged, InvalidOption, InvalidRecord, InvalidSchema, StoreRefused
from exactly_once.outputs import files
from exactly_once.outputs.conformance.processes import prepare
from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.files.names import directory_of, part_of
from exactly_once.outputs.files.stores import ATOMIC_RENAME, HdfsStore, LocalStore, store_of
from exactly_once.participant import PartName
from exactly_once.protocol.names import incarnation
from exactly_once.protocol.records import PreparedPart

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = [pa.record_batch([pa.array([1])], schema=SCHEMA)]


def checked(root: Path, schema: pa.Schema = SCHEMA, **more: Any) -> FileParticipant:
    """A participant that has started."""
    participant = FileParticipant("files", str(root), **more)
    participant.check("orders", schema)
    return participant


def handle(part: int, batch: int = 7, token: int = 3, attempt: str = "0.1", sink: str = "orders") -> PreparedPart:
    name = PartName(sink, token, batch, part, attempt)
    return PreparedPart(
        "files", str(name), part, 1, "", {"file": f"{str(name).replace(':', '~')}.files.jsonl", "bytes": 1}
    )


@pytest.mark.parametrize(
    "url", ["s3://b/x", "gs://b/x", "abfs://c/x", "http://h/x", "memory://x", "sftp://h/x", "zip://a::s3://b/x"]
)
def test_a_store_without_atomic_rename_is_refused_by_name(url: str) -> None:
    """On an object store a directory is copied object by object: readers see half, and a crash leaves it so."""
    with pytest.raises(StoreRefused, match=f"^EO-STORE: '{url}' is on .*: file, hdfs"):
        FileParticipant("files", url).check("orders", SCHEMA)
    with pytest.raises(StoreRefused):
        FileParticipant("files", url).begin(PartName("orders", 1, 1, 0, "0.1"))


def test_files_on_hdfs_are_written_by_arrow_whatever_else_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """hdfs-native, for checkpoints, puts itself in the place of Arrow's client; no commit was ever killed there."""
    asked: list[tuple[Any, ...]] = []

    def connect(host: str, port: int, user: str | None, replication: int) -> pafs.FileSystem:
        asked.append((host, port, user, replication))
        return pafs.LocalFileSystem()

    monkeypatch.setattr(pafs, "HadoopFileSystem", connect)
    for url in ("hdfs://nameService:8020/archive/orders", "hdfs://etl@nameService/archive/orders?replication=2"):
        store = store_of(url)
        assert isinstance(store, HdfsStore) and store.root == store.fs.base_path.rstrip("/") == "/archive/orders"
    assert asked == [("nameService", 8020, None, 3), ("nameService", 0, "etl", 2)]
    assert store_of("hdfs://nn:8020/a b#2?c%20d/").root == "/a b#2?c%20d", "a URI would end at its # or its ?"


@pytest.mark.parametrize("name", ["orders", "my files", "a%20b", "orders#2", "a?b", "a[1]", "a:b", "100%"])
def test_a_folder_of_any_name_and_spelling_is_the_one_that_spark_reads(tmp_path: Path, name: str) -> None:
    """Loss: rows that are written to a folder beside the one that readers look at. And a restart with another spelling
    would not find what is staged.
    """
    for url in ("{}", "{}/", "file:{}", "file://{}", "file://{}/", "local://{}"):
        participant = FileParticipant("files", url.format(f"{tmp_path}/{name}"))
        store = store_of(participant.url)
        assert isinstance(store, LocalStore) and participant.url == store.root == f"{tmp_path}/{name}"
    assert set(ATOMIC_RENAME) == {"file", "hdfs"}


@pytest.mark.parametrize("url", ["file://data/x", "simplecache::s3://b/x", "C:\\x", ""])
def test_a_text_that_names_no_folder_is_refused(url: str) -> None:
    """Loss: file://data/x has been the folder data/x below the working directory."""
    with pytest.raises(StoreRefused, match=r"EO-STORE: .* is no location"):
        FileParticipant("files", url)


def test_a_relative_path_is_fixed_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's working directory is not the driver's."""
    monkeypatch.chdir(tmp_path)
    participant = FileParticipant("files", "out")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(participant)).url == str(tmp_path / "out")


def test_a_files_name_tells_its_part_and_no_others_is_taken_for_one() -> None:
    """A sweep that cannot read a name leaves it forever; one that reads too much deletes a person's file."""
    name = str(PartName("orders_1.x-y", 3, 7, 0, "1.20"))
    assert part_of(name.replace(":", "~") + ".files.jsonl") == name
    assert part_of(name.replace(":", "~") + ".other-one.parquet") == name
    for foreign in ("_id", "notes.txt", "batch=1-2", name, "eo~orders~3~7~0.files.jsonl", name.replace(":", "~")):
        assert part_of(foreign) is None


def test_a_files_name_has_the_participant_once_and_is_read_back(tmp_path: Path) -> None:
    """Two kinds of files of one part may lie in one place, and each sweep must know its own."""
    name = PartName("orders_1.x-y", 3, 7, 0, "1.20", incarnation("c", "l"), "files")
    prepare(checked(tmp_path), name, ROWS)
    (file,) = (tmp_path / "_staging").glob("eo~*")
    assert file.name.count("files") == 1 and part_of(file.name) == str(name)


def test_a_place_that_renames_into_a_directory_shows_the_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS does. Two drivers that publish at once (one of them superseded) would leave a directory of the batch inside
    the batch's own: readers of Hive's layout see a second partition level.
    """

    class Hdfs(LocalStore):
        def move(self, old: str, new: str) -> None:
            into = self._at(new)
            super().move(old, f"{new}/{old.rpartition('/')[2]}" if Path(into).is_dir() else new)

    def other_driver(point: str) -> None:
        store = Hdfs(str(tmp_path))
        (gathered,) = (name for name in store.names("_staging") if name.startswith("batch="))
        store.move(f"_staging/{gathered}", gathered)
        store.make(f"_staging/{gathered}")

    monkeypatch.setattr(files, "store_of", lambda url: Hdfs(str(tmp_path)))
    monkeypatch.setattr(files, "reach", other_driver)
    participant = checked(tmp_path)
    prepared = prepare(participant, PartName("orders", 1, 1, 0, "0.1", participant="files"), ROWS)
    assert participant.commit([prepared]) == []
    published = list(tmp_path.glob("batch=*/**/*"))
    assert [path.name for path in published] == [prepared.data["file"]]


FORGED = {
    "a file above the store": "../victim.txt",
    "a file above it, named like a part's": "eo~orders~3~7~0~0.1.files.jsonl/../../../victim.txt",
    "an absolute path": "{root}/victim.txt",
    "a file of another place in the store": "../kept.txt",
    "the identity of the place": "_id",
    "another part's file": "eo~orders~3~7~1~0.1.files.jsonl",
    "another sink's file": "eo~payments~3~7~0~0.1.files.jsonl",
    "a name with a NUL": "eo~orders~3~7~0~0.1.files.jsonl\0",
    "a number": 7,
    "nothing": None,
}


@pytest.mark.parametrize("file", FORGED.values(), ids=FORGED)
def test_a_forged_handle_moves_and_deletes_nothing(file: str | int | None, tmp_path: Path) -> None:
    """Corruption: who may write to the commit log publishes /etc/shadow as a batch, or has a sweep delete it."""
    (tmp_path / "victim.txt").write_text("mine")
    participant = checked(tmp_path / "store")
    (tmp_path / "store" / "kept.txt").write_text("mine")
    for part in (0, 1):
        prepare(participant, PartName("orders", 3, 7, part, "0.1"), ROWS)
    before = sorted(tmp_path.rglob("*"))
    forged = file.replace("{root}", str(tmp_path)) if isinstance(file, str) else file
    data = {"store": "x", "bytes": 4} | ({} if forged is None else {"file": forged})
    handle = PreparedPart("files", str(PartName("orders", 3, 7, 0, "0.1")), 0, 1, "", data)
    acts = (participant.commit, participant.recover_and_commit, participant.abort, participant.gone)
    for act in (*acts, partial(participant.found, "orders")):
        with pytest.raises(CommitLogDamaged, match=r"EO-LOG: .*not that part's"):
            act([handle])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_forged_name_and_its_file_stay_in_the_folder(tmp_path: Path) -> None:
    """Corruption: a name and a file that agree, both of them a path."""
    for name in ("eo:../../x:3:7:0:0.1", "eo:..:3:7:0:0.1", "eo:orders/..:3:7:0:0.1", "eo:orders:1.2", "x"):
        file = f"{name.replace(':', '~')}.files.jsonl"
        handle = PreparedPart("files", name, 0, 1, "", {"store": "x", "file": file, "bytes": 1})
        participant = FileParticipant("files", str(tmp_path))
        if name == "eo:..:3:7:0:0.1":  # a name without a slash: below the staging folder, where no such file is
            assert participant.gone([handle]) == [handle]
            continue
        with pytest.raises(CommitLogDamaged):
            participant.commit([handle])
    assert list(tmp_path.rglob("*")) == []


def test_a_directory_belongs_to_exactly_its_handles() -> None:
    """Whatever has the same batch number - a later query, another sink, a part written again - is another batch."""
    mine = [handle(0), handle(1)]
    assert directory_of(mine) == directory_of(mine[::-1])
    assert directory_of(mine).startswith("batch=00000000000000000007-")
    others = [
        [handle(0)],
        [handle(0), handle(1, attempt="1.2")],
        [handle(0, token=4), handle(1, token=4)],
        [handle(0, sink="payments"), handle(1, sink="payments")],
    ]
    assert len({directory_of(handles) for handles in (mine, *others)}) == 5


def test_directories_sort_as_their_batches() -> None:
    """People, and readers that take the newest, look at the end of the listing."""
    names = [directory_of([handle(0, batch)]) for batch in (9, 10, 2**40)]
    assert names == sorted(names)


@pytest.mark.parametrize("wrong", [{"name": "a/b"}, {"name": ""}, {"name": "a.b"}, {"format": "csv"}])
def test_what_cannot_work_is_refused_when_it_is_made(wrong: dict[str, Any], tmp_path: Path) -> None:
    """A name becomes part of a file name."""
    with pytest.raises(InvalidOption):
        FileParticipant(**{"name": "files", "url": str(tmp_path), **wrong})


def test_columns_that_are_missing_or_would_be_hidden_are_refused(tmp_path: Path) -> None:
    """A reader would take the directory's name for the value of a column ``batch``."""
    with pytest.raises(InvalidSchema, match="no column b, c"):
        checked(tmp_path, columns=["id", "c", "b"])
    hidden = pa.schema([("id", pa.int64()), ("batch", pa.int64())])
    with pytest.raises(InvalidSchema, match="would confuse the column 'batch'"):
        checked(tmp_path, hidden)
    checked(tmp_path, hidden, columns=["id"])


def test_the_check_leaves_only_the_staging(tmp_path: Path) -> None:
    """Each start checks; what it left would pile up beside the batches."""
    root = tmp_path / "a" / "b"
    for _ in range(3):
        checked(root)
    assert [str(path.relative_to(root)) for path in sorted(root.rglob("*"))[:2]] == ["_staging", "_staging/_id"]
    assert len(list(root.rglob("*"))) == 3


def written(root: Path, column: pa.Array) -> str:
    """The file of a part with one column ``x``."""
    rows = pa.record_batch([column], names=["x"])
    prepare(checked(root, rows.schema), PartName("orders", 1, 1, 0, "0.1"), [rows])
    (file,) = (root / "_staging").glob("eo~*")
    return file.read_text("utf-8")


@pytest.mark.parametrize(
    ("column", "lines"),
    [
        (pa.array(["ü\n\u2028", None, ""]), ['"ü\\n\u2028"', "null", '""']),
        (pa.array([b"\x00\xff", None]), ['"AP8="', "null"]),
        (pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 6)]), ['"2026-01-02T03:04:05.000006"']),
        (pa.array([0], pa.timestamp("us", "Europe/Berlin")), ['"1970-01-01T01:00:00+01:00"']),
        (pa.array([dt.date(2026, 1, 2)]), ['"2026-01-02"']),
        (pa.array([dt.time(1, 2, 3)]), ['"01:02:03"']),
        (pa.array([Decimal("12345678901234567890.10")]), ['"12345678901234567890.10"']),
        (pa.array([2**63 - 1]), ["9223372036854775807"]),
        (pa.array([[1, None]]), ["[1,null]"]),
        (pa.array([{"a": b"x", "b": None}]), ['{"a":"eA==","b":null}']),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), ['[["k",1]]']),
        (pa.array([True, False]), ["true", "false"]),
    ],
)
def test_json_lines_have_the_documented_form(column: pa.Array, lines: list[str], tmp_path: Path) -> None:
    """A consumer parses by this; one object in a line, whatever is in the text."""
    text = written(tmp_path, column)
    assert text == "".join(f'{{"x":{line}}}\n' for line in lines)
    assert [list(json.loads(line)) for line in text.split("\n")[:-1]] == [["x"]] * len(lines)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused(value: float, tmp_path: Path) -> None:
    """``NaN`` in a file is no JSON, and null in its place is another value."""
    with pytest.raises(InvalidRecord, match=r"EO-RECORD.*write Parquet"):
        written(tmp_path, pa.array([1.0, value]))


def test_an_abort_that_comes_after_pre_commit_leaves_the_part(tmp_path: Path) -> None:
    """From pre_commit on the part is the driver's, which may have decided."""
    participant = checked(tmp_path)
    writer = participant.begin(PartName("orders", 1, 1, 0, "0.1"))
    writer.write(ROWS[0])
    prepared = writer.pre_commit()
    writer.abort()
    assert prepared is not None and participant.gone([prepared]) == []

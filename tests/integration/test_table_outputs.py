"""Tables of Delta Lake and Iceberg as outputs, beyond the contract: two drivers, other writers, maintenance."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType
from pyiceberg.utils.config import Config

from exactly_once.errors import (
    CommitLogDamaged,
    Expired,
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    PrepareFailed,
    StoreRefused,
    Unfinished,
)
from exactly_once.outputs import tables
from exactly_once.outputs.conformance.output import Output
from exactly_once.outputs.conformance.processes import call, prepare
from exactly_once.outputs.delta import DeltaParticipant
from exactly_once.outputs.iceberg import IcebergParticipant
from exactly_once.outputs.tables import TableParticipant
from exactly_once.participant import PartName
from exactly_once.protocol.records import PreparedPart
from exactly_once.tools.cli import outputs
from testkit.processes import until

ROWS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string()), pa.field("day", pa.date32())]
)


class TableOutput(Output):
    """A table below ``root`` on the local disk, and what others do to it. ``incarnation`` and names are the suite's."""

    schema = ROWS
    root: Path
    folder: str

    @property
    def location(self) -> Path:
        return self.root / self.folder

    def named(self) -> set[str]:
        """The names of the files that the table has, by its library's own reader."""
        raise NotImplementedError

    def leftovers(self) -> set[str]:
        return self.unnamed({p.name for folder in ("_exactly_once", "data") for p in self.location.glob(f"{folder}/*")})

    def unnamed(self, files: set[str]) -> set[str]:
        """The parts of those files that the table does not have."""
        return {name.removesuffix(".parquet").replace("=", ":") for name in files - self.named()}

    def foreign(self) -> set[str]:
        (self.location / "_exactly_once" / "notes.txt").write_text("a person's")
        (self.location / "_exactly_once" / "eo=orders_1=1=7=0.parquet").write_text("no attempt: not a name of ours")
        return {"notes.txt", "eo:orders_1:1:7:0"}

    def file(self, handle: Any) -> Path:
        """The file of a part."""
        return self.location / "data" / f"{handle.name.replace(':', '=')}.parquet"

    def lose(self, handle: Any) -> None:
        self.file(handle).unlink()

    def other_rows(self) -> pa.Table:
        return pa.table([[-1, -2], ["another's", None], [None, None]], schema=ROWS)


class Delta(TableOutput):
    """``create`` to ``versions`` are what :class:`Iceberg` has, too: done as another program does it, through the
    library's own writer.
    """

    folder = "orders"

    def create(self) -> None:
        DeltaTable.create(str(self.location), Schema.from_arrow(self.schema))

    def drop(self) -> None:
        shutil.rmtree(self.location)

    def participant(self, **more: Any) -> DeltaParticipant:
        return DeltaParticipant("lake", str(self.location), **more)

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.location))

    def named(self) -> set[str]:
        return {uri.rpartition("/")[2] for uri in self.table().file_uris()}

    def visible(self) -> list[dict[str, Any]]:
        return list(self.table().to_pyarrow_table().select(self.schema.names).to_pylist())

    def append(self, rows: pa.Table) -> None:
        write_deltalake(str(self.location), rows, mode="append")

    def compact(self, orphans: bool = True) -> None:
        """Write all rows into other files. With ``orphans`` also remove every older version, and all files that the
        newest one does not name, as the clean-ups do after their retention.
        """
        self.table().optimize.compact()
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=orphans)
        self.table().create_checkpoint()
        newest = self.table().version()
        for old in self.location.glob("_delta_log/*.json"):  # as the clean-up of the log does after its retention
            if orphans and int(old.stem) < newest:
                old.unlink()

    def delete_all(self) -> None:
        self.table().delete()

    def go_back(self) -> None:
        """Make the version before the newest one the table's."""
        self.table().restore(self.table().version() - 1)

    def add_column(self) -> None:
        self.table().alter.add_columns([Field("more", PrimitiveType("string"))])

    def change_columns(self, schema: pa.Schema) -> None:
        """Give the table, which has no rows, these columns."""
        write_deltalake(str(self.location), schema.empty_table(), mode="overwrite", schema_mode="overwrite")

    def ask_more(self) -> None:
        """Give the table a rule that the participant does not keep."""
        self.table().alter.add_constraint({"positive": "id > 0"})

    def versions(self) -> int:
        """The number of commits that have added rows, as the table tells."""
        return sum(entry["operation"] == "WRITE" for entry in self.table().history())


class Iceberg(TableOutput):
    folder = "warehouse/shop/orders"

    @cached_property
    def catalog(self) -> Any:
        catalog = load_catalog("lab", **self.properties)
        catalog.create_namespace_if_not_exists("shop")
        return catalog

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/warehouse"}

    def create(self) -> None:
        self.catalog.create_table("shop.orders", self.schema)

    def drop(self) -> None:
        self.catalog.drop_table("shop.orders")

    def participant(self, **more: Any) -> IcebergParticipant:
        return IcebergParticipant("lake", "shop.orders", "lab", self.properties, **more)

    def table(self) -> Any:
        return self.catalog.load_table("shop.orders")

    def named(self) -> set[str]:
        return {task.file.file_path.rpartition("/")[2] for task in self.table().scan().plan_files()}

    def visible(self) -> list[dict[str, Any]]:
        return list(self.table().scan().to_arrow().select(self.schema.names).to_pylist())

    def append(self, rows: pa.Table) -> None:
        self.table().append(rows)

    def compact(self, orphans: bool = True) -> None:
        self.table().overwrite(self.table().scan().to_arrow())
        self.table().maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(1)).commit()
        assert len(self.table().snapshots()) == 1
        named = self.named()
        for file in self.location.glob("data/eo=*") if orphans else ():  # as the removal of orphan files does
            if file.name not in named:
                file.unlink()

    def delete_all(self) -> None:
        self.table().delete()

    def go_back(self) -> None:
        with self.table().manage_snapshots() as snapshots:
            snapshots.rollback_to_snapshot(self.table().snapshots()[-2].snapshot_id)

    def add_column(self) -> None:
        with self.table().update_schema() as update:
            update.add_column("more", StringType())

    def change_columns(self, schema: pa.Schema) -> None:
        with self.table().update_schema(allow_incompatible_changes=True) as update:
            for name in {*ROWS.names} - {*schema.names}:
                update.delete_column(name)
            for field in schema:
                update.update_column(field.name, required=not field.nullable)

    def ask_more(self) -> None:
        with self.table().update_spec() as update:
            update.add_field("day", IdentityTransform())

    def versions(self) -> int:
        return sum(snapshot.summary.operation.value == "append" for snapshot in self.table().snapshots())


Table = Delta | Iceberg


@pytest.fixture
def delta(tmp_path: Path) -> Delta:
    """As ``bare``, for tests of Delta alone."""
    output = Delta()
    output.root = tmp_path
    return output


@pytest.fixture(params=[Delta, pytest.param(Iceberg, marks=pytest.mark.long)])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """An output whose table is not there yet."""
    output: Table = request.param()
    output.root = tmp_path
    return output


@pytest.fixture
def at(bare: Table) -> Table:
    bare.create()
    bare.checked()
    return bare


class Driver:
    """A driver's commit in a process of its own, stopped at a point; the test lets it go on, or kills it."""

    def __init__(self, at: Table, handles: list[Any], point: str, folder: Path):
        folder.mkdir()
        (folder / point).write_text("wait")
        job = pickle.dumps((call, (at.participant(), "commit", handles)))
        program = (
            "import pickle, sys\nstep, args = pickle.load(sys.stdin.buffer)\n"
            "try:\n    assert step(*args) == []\nexcept Exception as e:\n    sys.exit(repr(e))"
        )
        environment = {**os.environ, "EXACTLY_ONCE_FAILPOINTS": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=environment)
        assert self.process.stdin is not None
        self.process.stdin.write(job)
        self.process.stdin.close()
        self.reached = folder / f"{point}.reached"
        until(point, self.reached.exists, 60)

    def go_on(self) -> None:
        self.reached.unlink()
        assert self.process.wait(60) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def driver(at: Table, tmp_path: Path) -> Iterator[Callable[[list[Any], str], Driver]]:
    started: list[Driver] = []

    def start(handles: list[Any], point: str) -> Driver:
        started.append(Driver(at, handles, point, tmp_path / f"failpoints-{len(started)}"))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


StartedDriver = Callable[[list[Any], str], Driver]


@pytest.mark.long
def test_iceberg_17340_a_restart_in_the_middle_of_a_commit_adds_no_file_twice(at: Table, driver: StartedDriver) -> None:
    """Duplicates: iceberg#17340, 149 files referenced twice and 111,927 rows doubled within three days. The committer
    died when its files were in the table and it had not noted so; its successor added the same files again.
    """
    names, handles = at.batch()
    driver(handles, "table-committed-lake").kill()
    at.assert_visible(*names)
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    at.assert_left()
    assert at.versions() == 1


@pytest.mark.long
def test_iceberg_17551_a_committer_that_wakes_up_after_its_successor_adds_nothing(
    at: Table, driver: StartedDriver
) -> None:
    """Duplicates: two committers, the first paused right before its commit of the table, such as by the garbage
    collector. It has looked, and saw that the batch is not there; the second has committed it meanwhile.
    """
    names, handles = at.batch()
    paused = driver(handles, "table-commit-lake")
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    paused.go_on()
    at.assert_visible(*names)
    at.assert_left()
    assert at.versions() == 1


def test_paimon_9666_a_batch_that_is_committed_again_is_there_once(at: Table) -> None:
    """Duplicates: paimon#9666. Spark has lost the mark of its last batch and runs it again; here its decision is
    committed again, by every later driver, after other batches too.
    """
    names, handles = at.batch(7)
    more_names, more = at.batch(8)
    assert at.participant().commit(handles) == at.participant().commit(more) == []
    for _ in range(2):
        assert at.participant().recover_and_commit(more) == at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names, *more_names)
    assert at.versions() == 2


def test_a_kill_right_before_the_commit_of_the_table_loses_nothing(at: Table, driver: StartedDriver) -> None:
    """Loss: the files are prepared and decided, and no reader sees them."""
    names, handles = at.batch()
    driver(handles, "table-commit-lake").kill()
    at.assert_visible()
    assert at.participant().recover_and_abort(at.scope(1_000, None, *handles)) == []
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    at.assert_left()


def test_the_proof_outlives_compaction_expiry_and_vacuum(at: Table, driver: StartedDriver) -> None:
    """Duplicates: the driver died right after the commit of the table, and maintenance ran before the next start. No
    file, snapshot or log entry of that commit is left; who looks for these adds the rows once more, or calls them lost.
    """
    names, handles = at.batch()
    driver(handles, "table-committed-lake").kill()
    at.compact()
    assert not list(at.location.glob("data/eo=*"))
    at.assert_visible(*names)
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible(*names)
    at.assert_left()


def test_the_proof_of_a_part_outlives_maintenance_while_another_part_is_lost(at: Table) -> None:
    """Duplicates: the batch is committed in two steps, since one part was written again; maintenance ran in between."""
    names, handles = at.batch()
    at.lose(handles[1])
    assert at.participant().commit(handles) == [handles[1]]
    at.compact()
    again = at.name(1, token=4)
    (new,) = at.prepared(again)
    for _ in range(2):
        assert at.participant().recover_and_commit([handles[0], new, handles[2]]) == []
    at.assert_visible(names[0], again, names[2])
    at.assert_left()


def test_what_a_person_deleted_does_not_come_back(at: Table) -> None:
    """Phantom: rows that are gone by a DELETE are not lost, and a commit that is repeated must not add them again."""
    _, handles = at.batch()
    assert at.participant().commit(handles) == []
    at.delete_all()
    assert at.participant().recover_and_commit(handles) == []
    at.assert_visible()


@pytest.mark.long
def test_another_writer_between_the_look_and_the_commit_costs_another_look(at: Table, driver: StartedDriver) -> None:
    """Loss, or a stream that stops at each conflict: others append to the same table, all the time."""
    names, handles = at.batch()
    paused = driver(handles, "table-commit-lake")
    at.append(at.other_rows())
    paused.go_on()
    ours = [row for row in at.visible() if row["id"] > 0]
    assert len(ours) == 9 and len(at.visible()) == 11
    assert at.versions() == 2 and names


@pytest.mark.long
def test_maintenance_between_the_look_and_the_commit_costs_another_look(at: Table, driver: StartedDriver) -> None:
    """As above: a compaction rewrites the table while a batch commits."""
    names, handles = at.batch(6)
    more_names, more = at.batch(7)
    assert at.participant().commit(handles) == []
    paused = driver(more, "table-commit-lake")
    at.compact(orphans=False)
    paused.go_on()
    at.assert_visible(*names, *more_names)


@pytest.mark.long
def test_a_file_that_maintenance_took_before_the_commit_is_written_again(at: Table, driver: StartedDriver) -> None:
    """Loss: a clean-up without any retention takes files that no version names yet. The stream stops; the next driver
    finds the parts lost, and has them written again.
    """
    _, handles = at.batch()
    paused = driver(handles, "table-commit-lake")
    at.compact()
    paused.kill()
    assert at.participant().recover_and_commit(handles) == handles
    again = [at.name(part, token=4) for part in range(3)]
    assert at.participant().commit(at.prepared(*again)) == []
    at.assert_visible(*again)
    at.assert_left()


def test_two_sinks_and_two_participants_write_to_one_table(at: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss: one's proof must not pass for the other's. Four writers at once: each has its conflicts with the others."""
    every: list[PartName] = []
    threads = []
    for number in range(4):
        names = [at.name(part, sink=f"orders_{number}") for part in range(2)]
        every += names
        threads.append(threading.Thread(target=at.participant().commit, args=(at.prepared(*names),)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    at.assert_visible(*every)
    assert at.versions() == 4


def test_writers_that_never_pause_are_named_after_a_while(at: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mishap: a driver that tries for ever, without a word."""

    def faster(*_: Any) -> list[Any]:
        raise tables.Conflict("version 7 is there")

    monkeypatch.setattr(tables, "_CONFLICTS_S", 0.05)
    monkeypatch.setattr(TableParticipant, "_add", faster)
    _, handles = at.batch()
    with pytest.raises(Unfinished, match=r"could not commit for 0.05 s, .* \(version 7 is there\)"):
        at.participant().commit(handles)


def test_a_table_that_was_created_again_is_not_taken_for_the_one_before(at: Table) -> None:
    """Loss: a batch decided for a table that somebody dropped since cannot be called committed, nor lost."""
    _, handles = at.batch()
    at.drop()
    at.create()
    assert at.participant().gone(handles) == handles
    with pytest.raises(Expired, match="is not the table"):
        at.participant().commit(handles)
    shown = f"the Delta table {at.location}" if isinstance(at, Delta) else "the Iceberg table shop.orders"
    found = at.participant().found(at.sink_id, handles)
    assert [f.unproven.startswith(f"{shown} is not the table ") for f in found] == [True] * 3


def test_a_column_that_others_add_to_the_table_is_null_in_our_rows(at: Table) -> None:
    """A stop for nothing: the files of a batch that is prepared lack the column."""
    names, handles = at.batch()
    at.add_column()
    assert at.participant().commit(handles) == []
    at.assert_visible(*names)


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        (pa.schema([("id", pa.int32())]), None, "the column id is int32 in the rows, int64 in the table"),
        (pa.schema([("id", pa.int64()), ("cents", pa.int64())]), None, "the table has no column cents"),
        (pa.schema([("text", pa.string())]), None, "the table requires the column id, which the rows do not have"),
        (pa.schema([("id", pa.int64())]), ["id", "text"], "the rows have no column text"),
        (pa.schema([("id", pa.int64()), ("day", pa.timestamp("us"))]), None, "the column day is timestamp"),
    ],
)
def test_rows_that_do_not_fit_are_refused_at_the_start(
    at: Table, rows: pa.Schema, columns: list[str] | None, said: str
) -> None:
    """A wedge: found behind the decision, no start of the stream would get past the batch."""
    with pytest.raises(InvalidSchema, match=said):
        at.participant(columns=columns).check(at.sink_id, rows)
    some = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("topic", pa.string())])
    at.participant(columns=["day", "id"]).check(at.sink_id, some)


def test_a_null_where_the_table_has_none_is_a_bad_record(at: Table) -> None:
    """A wedge, as above: Spark calls every column nullable."""
    rows = pa.RecordBatch.from_pylist([{"id": None}], schema=pa.schema([("id", pa.int64())]))
    writer = at.participant().begin(at.name())
    with pytest.raises(InvalidRecord, match="row has no id"):
        writer.write(rows)
    writer.abort()
    at.assert_left()


def test_a_table_that_is_not_there_is_refused(bare: Table) -> None:
    """A stream that starts would fail with its first batch, in an error of a library."""
    with pytest.raises(StoreRefused, match=r"(no Delta table in|has no table shop.orders).*Nothing was written"):
        bare.participant().check(bare.sink_id, ROWS)


def test_partitions_are_refused(bare: Table) -> None:
    """Wrong results: a file that spans partitions is in one of them for its readers, or in none."""
    bare.create()
    if isinstance(bare, Iceberg):
        with bare.table().update_spec() as update:
            update.add_field("day", IdentityTransform())
    else:
        bare.drop()
        DeltaTable.create(str(bare.location), Schema.from_arrow(ROWS), partition_by=["day"])
    with pytest.raises(StoreRefused, match=r"has partitions .*day.*What to do: .*without partitions"):
        bare.checked()


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "delta.setTransactionRetentionDuration"),
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
    ],
)
def test_a_delta_table_that_forgets_proofs_or_asks_more_of_its_writers_is_refused(
    delta: Delta, properties: dict[str, str], said: str
) -> None:
    """Duplicates: a proof that expires. Wrong rows: a file that lacks what other writers of the table compute."""
    DeltaTable.create(str(delta.location), Schema.from_arrow(ROWS), configuration=properties)
    with pytest.raises(StoreRefused, match=f"has {said}, which this sink"):
        delta.checked()


def test_a_check_constraint_of_a_delta_table_is_refused(delta: Delta) -> None:
    """Wrong rows: nothing would check them, and every other writer relies on it."""
    delta.create()
    delta.ask_more()
    with pytest.raises(StoreRefused, match=r"has delta.constraints.positive"):
        delta.checked()


def test_a_rule_that_a_table_gets_under_a_stream_is_refused_before_the_next_decision(at: Table) -> None:
    """Wrong rows: what was decided would be added, and nothing would check it. What is decided already is added, as
    far as the table's library adds it.
    """
    participant = at.checked()
    names, decided = at.batch(6)
    assert participant.gone(decided) == []
    if isinstance(at, Iceberg):
        assert participant.commit(decided) == []
    _, undecided = at.batch(7)
    at.ask_more()
    with pytest.raises(StoreRefused, match=r"has (delta.constraints.positive|partitions).*batch is not decided"):
        participant.gone(undecided)
    assert participant.commit(decided) == []
    participant.abort(undecided)
    at.assert_visible(*names)
    at.assert_left()


def test_a_column_that_no_longer_takes_null_is_compared_with_the_files_of_a_batch(at: Table) -> None:
    """Wrong rows: a null where every reader may rely on a value. A batch without one is written again, since Iceberg
    takes no file with another type.
    """
    first, second = at.checked(), at.checked()
    without, with_null = at.prepared(at.name(0, 6)), at.prepared(at.name(1, 7))
    assert first.gone([*without, *with_null]) == []
    at.change_columns(pa.schema([f.with_nullable(f.name != "text" and f.nullable) for f in ROWS]))
    with pytest.raises(InvalidRecord, match=r"row has no text, .*batch is not decided"):
        first.gone(with_null)
    with pytest.raises(PrepareFailed, match=r"requires the column text.*Start the stream again"):
        second.gone(without)
    again = [prepare(second, at.name(0, 6, token=4), at.rows(at.name(0, 6)))]
    assert second.gone(again) == [] == second.commit(again)
    assert len(at.visible()) == 3


def test_a_column_that_is_dropped_under_a_stream_is_refused_before_the_next_decision(at: Table) -> None:
    """A wedge: found behind the decision, no start of the stream would get past the batch."""
    participant = at.checked()
    _, handles = at.batch()
    at.change_columns(pa.schema([ROWS.field("id"), ROWS.field("text")]))
    with pytest.raises(InvalidSchema, match=r"has no column day.*batch is not decided"):
        participant.gone(handles)


def test_tasks_need_no_catalogue(at: Table) -> None:
    """A catalogue that is asked by each task of each batch; and its password on every executor."""
    participant = at.checked()
    travelled = pickle.loads(pickle.dumps(participant))
    travelled._open = None  # nobody may call it
    handle = prepare(travelled, at.name(), at.rows(at.name()))
    assert at.participant().commit([at.stored(handle)]) == []
    at.assert_visible(at.name())


def test_the_checker_tells_a_compacted_part_from_a_lost_one(at: Table) -> None:
    """A false alarm after each compaction; or a loss that nobody sees."""
    _, handles = at.batch()
    assert at.participant().commit(handles) == []
    at.compact()
    found = at.participant().found(at.sink_id, handles)
    assert found and all("table got it" in f.unproven and "compaction" in f.unproven for f in found)

    _, more = at.batch(8)
    assert at.participant().commit(more) == []
    paths = list(map(at.file, more))
    paths[0].unlink()
    paths[1].write_bytes(paths[2].read_bytes())
    seen = at.participant().found(at.sink_id, more)
    gone, other, whole = (f.wrong for f in seen)
    assert "the file is gone" in gone and "other contents" in other and not whole
    assert seen[1].digest != more[1].digest and seen[2].digest == more[2].digest


def test_a_table_that_a_person_set_back_keeps_the_proofs_of_the_batches_that_it_lost(at: Table) -> None:
    """participant.md says so: the stream goes on behind the rows, and ``verify`` calls them unproven. Guards against a
    batch that comes again, which that person has taken back.
    """
    _, first = at.batch()
    assert at.participant().commit(first) == []
    before = at.visible()
    _, second = at.batch(8)
    assert at.participant().commit(second) == []
    at.go_back()
    assert sorted(at.visible(), key=str) == sorted(before, key=str)
    assert at.participant().recover_and_commit(second) == []
    assert sorted(at.visible(), key=str) == sorted(before, key=str)
    found = at.participant().found(at.sink_id, second)
    assert found and all("table got it" in f.unproven and "compaction" in f.unproven for f in found)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("eo:orders_1:aaaaabbbbb:3:7:0:0.1:../../secret", {}),
        ("eo:orders_1:aaaaabbbbb:3:999999999999:0:0.1:lake", {}),
        ("eo:orders_1:aaaaabbbbb:3:7:0:0.1:lake", {"table": 7}),
        ("eo:orders_1:aaaaabbbbb:3:7:0:0.1:lake", {"bytes": "7"}),
    ],
)
def test_a_forged_handle_reaches_no_file(at: Table, name: str, data: dict[str, Any]) -> None:
    """A program that may write to the commit log names files of its choice, or a proof beyond every batch."""
    handle = PreparedPart("lake", name, 0, 1, "", {"table": "t", "bytes": 7, "checksum": "c", **data})
    for method in ("commit", "abort"):
        with pytest.raises(CommitLogDamaged, match=re.escape(f"handle of {name!r} is not that of")):
            getattr(at.participant(), method)([handle])


def test_the_command_line_names_tables(at: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """``exactly-once verify`` proves what it is told of, and refuses a flag that names no table."""
    parser = argparse.ArgumentParser()
    outputs.add_arguments(parser)
    flag = f"--delta=lake={at.location}"
    if isinstance(at, Iceberg):
        flag = "--iceberg=lake=lab,shop.orders"
        monkeypatch.setenv("PYICEBERG_CATALOG__LAB__TYPE", "sql")
        monkeypatch.setenv("PYICEBERG_CATALOG__LAB__URI", at.properties["uri"])
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # else that of the import
    (made,) = outputs.outputs_of(parser.parse_args([flag]))
    _, handles = at.batch()
    assert made.commit(handles) == []
    assert [f.visible for f in made.found(at.sink_id, handles)] == [True] * 3
    with pytest.raises(InvalidOption, match=r"--iceberg ice=\.\.\. names no table"):
        outputs.outputs_of(parser.parse_args(["--iceberg=ice=shop.orders"]))


def test_readers_of_delta_skip_files_by_right_bounds(delta: Delta, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, for a reader: a file with wrong bounds is skipped by the queries that need it."""
    columns = [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("f", pa.float64())]
    monkeypatch.setattr(Delta, "schema", pa.schema(columns))
    delta.create()
    delta.checked()
    delta.participant().commit(delta.prepared(*(delta.name(part) for part in range(3))))
    (stats,) = {tuple(sorted(c for c in delta.table().get_add_actions(flatten=True).schema.names if "." in c))}
    assert {"min.id", "max.id", "min.at", "max.day", "null_count.f"} <= set(stats)
    everything = delta.visible()
    assert len(everything) == 9
    for row in everything:
        for column in ("id", "at", "day"):
            same = delta.table().to_pyarrow_dataset().filter(pa.compute.field(column) == row[column]).to_table()
            wanted = [one for one in everything if row[column] is not None and one[column] == row[column]]
            assert same.num_rows == len(wanted), (column, row)


@pytest.mark.quick("exactly_once.outputs.files")
@pytest.mark.parametrize("module", ["exactly_once", "exactly_once.outputs.files", "exactly_once.tools.cli"])
def test_who_does_not_ask_for_a_table_imports_none_of_it(module: str) -> None:
    """A sink of topics alone must not pay for these packages, nor need them."""
    program = f"import sys, {module}; print(*[m for m in sys.modules if m.split('.')[0] in ('deltalake', 'pyiceberg')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""

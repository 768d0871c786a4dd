"""A table of Delta Lake or Iceberg as an output: what both have in common.

Tasks write Parquet files that the table does not name yet (:mod:`exactly_once.outputs.tables.files`). After the
decision the driver adds the files of a batch in **one** commit of the table, and the same commit says so: it sets a
number in the table's own state, the *proof*, which neither compaction nor the expiry of snapshots or logs removes. The
proof is looked up in the very version of the table that the commit builds on, and the commit fails if another one was
faster: then the proof is looked up again. So of two drivers that both believe they own the batch, one adds it.

A number is claim and batch of a part; both grow, and a sink commits its batches in the order of their decisions. A
proof of the whole batch covers every part of it, and of all batches before. While a part is lost, the others have
proofs of their own, one for each number of a part.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from exactly_once.deadline import Deadline
from exactly_once.errors import (
    ExactlyOnceError,
    Expired,
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    StoreRefused,
    Unfinished,
)
from exactly_once.failpoints import reach
from exactly_once.outputs.files.stores import LocalStore, Store
from exactly_once.outputs.files.visible import checksum_of, rows_of
from exactly_once.outputs.tables.files import (
    DATA,
    MARKS,
    TableLocation,
    TableWriter,
    check_columns,
    check_file,
    data_of,
    each,
    mark_of,
    of_sink,
    part_of,
)
from exactly_once.participant import Found, Participant, PartName, Scope
from exactly_once.protocol.records import PreparedPart
from exactly_once.protocol.untrusted import forged

#: The pattern of a name: with a sink id and a part's numbers it makes a file name, which may have 255 bytes.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")

#: Time to win against other writers of the table, each of which commits at most every few hundred milliseconds.
_CONFLICTS_S = 120

#: Lower bits of a proof, for the batch; the claim is above, in a signed number of 64 bits.
_BATCH_BITS = 36

_UNDECIDED = "The batch is not decided; none of it is visible"
_DECIDED = "Decided batches stay decided, and the next start commits them"


class Conflict(Exception):
    """Another writer has committed to the table since it was opened: nothing of this commit is in it."""


class OpenTable(ABC):
    """One version of the table, as it was when it was opened."""

    #: The table's name for people.
    shown: str
    place: TableLocation

    @abstractmethod
    def refusal(self) -> tuple[str, str] | None:
        """Return why files of a task cannot be added to this table, and the way out; None when they can."""

    @abstractmethod
    def files(self) -> Mapping[str, str]:
        """Return the table's data files, as paths below its location: "", or why readers may see other rows of one."""

    @abstractmethod
    def proof(self, key: str) -> int:
        """Return the number that the table keeps under the key; -1 when there is none."""

    @abstractmethod
    def append(self, sizes: Mapping[str, int], proofs: Mapping[str, int]) -> None:
        """Add the files and keep the numbers, in one commit on top of this version. Raise Conflict when there is a
        newer one, InvalidSchema when the table's columns have changed since the files were written.
        """

    @abstractmethod
    def rows(self) -> int | None:
        """Return the number of rows; None when the table does not say."""

    def written(self) -> list[str]:
        """Return the files on a local disk that the newest version needs: the table's library does not sync them."""
        return []


class TableParticipant(Participant[PreparedPart]):
    """The rows as Parquet files of a table that has a transaction log of its own. The table exists, has no partitions,
    and belongs to the sink as much as to others: they may append, compact, delete and expire at any time.
    """

    def __init__(self, name: str, columns: Sequence[str] | None = None):
        if not _NAME.fullmatch(name):
            raise InvalidOption(f"{name!r} cannot name a participant", "Use up to 32 letters, digits, '_' or '-'")
        self.name = name
        self.columns = None if columns is None else list(columns)
        self._place: TableLocation | None = None

    @abstractmethod
    def _open(self) -> OpenTable:
        """Open the newest version of the table; raise StoreRefused when there is no such table."""

    def check(self, sink_id: str, schema: pa.Schema) -> None:
        """Refuse a table that cannot be added to, rows that do not fit it, and a location that is not writable."""
        with self._answering("Nothing was written"):
            table = self._accepted()
            check_columns(table.place.schema, schema, self.columns, table.shown)
            for folder in (MARKS, DATA):
                table.place.store.make(folder)
            probe = f"{MARKS}/probe-{sink_id}"
            table.place.store.remove(probe)
            table.place.store.seal(table.place.store.create(probe))
            table.place.store.remove(probe)

    def row_count(self) -> int | None:
        """Return the number of rows in the table now, those of others among them; None when it does not say."""
        with self._answering("Nothing was changed"):
            return self._open().rows()

    def table_schema(self) -> pa.Schema:
        """Return the columns of the table now."""
        with self._answering("Nothing was changed"):
            return self._open().place.schema

    def begin(self, part: PartName) -> TableWriter:
        with self._answering(_UNDECIDED):
            place = self._place or self._opened().place
        begun = PreparedPart(self.name, str(part), part.part, 0, data={"table": place.identity})
        return TableWriter(place, self.columns, begun)

    def gone(self, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        """Return those whose files are gone; refuse a table that has changed and no longer takes the others: once they
        are decided, they are added whatever it has become.
        """
        with self._answering(_UNDECIDED):
            written = self._place  # by which the tasks wrote
            table = self._accepted()
            found = _by_presence(table.place, handles)
            if written is None or written.schema != table.place.schema:
                each(lambda h: check_file(table.place, data_of(h.name), table.shown), found[True])
            return found[False]

    def commit(self, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        _check(handles)
        if not handles:
            return []
        with self._answering(Unfinished.default_safe):
            conflict: Exception | None = None
            for _ in Deadline(_CONFLICTS_S).tries(longest_pause_s=2):
                table = self._opened()
                try:
                    lost = self._add(table, handles)
                except Conflict as e:
                    conflict = e
                    continue
                self._settle(table.place.store, handles)
                return lost
            raise Unfinished(
                f"{self.name} could not commit for {_CONFLICTS_S} s, because other writers committed first each time "
                f"({conflict})",
                "Start the stream again; let fewer programs write to the table at once",
            )

    def _add(self, table: OpenTable, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        """Add the parts that the table has no proof of; return those whose files are gone."""
        new = [h for h in handles if not proven(table, h)]
        place = table.place
        if foreign := [h for h in new if h.data["table"] != place.identity]:
            raise Expired(
                f"{table.shown} is not the table for which {foreign[0].name} was prepared: it was dropped and created "
                "again, or the participant names another one",
                "Name the table in which the parts were prepared, or restore it, and start the stream again",
            )
        there = _by_presence(place, new)
        whole, lost = there[True], there[False]
        if whole:
            if lost:
                proofs = {f"{_key(h)}:{h.part}": _number(part_of_handle(h)) for h in whole}
            else:
                proofs = {_key(handles[0]): max(_number(part_of_handle(h)) for h in handles)}
            reach(f"table-commit-{self.name}")
            table.append({data_of(h.name): int(h.data["bytes"]) for h in whole}, proofs)
            reach(f"table-committed-{self.name}")
        return lost

    def _settle(self, store: Store, handles: Sequence[PreparedPart]) -> None:
        """Make durable what is committed, by this driver or by one that died right then, and remove the marks."""
        if isinstance(store, LocalStore):
            for path in self._opened().written():
                store.seal(store.open(path))
                store.sync(path.rpartition("/")[0])
        each(lambda h: store.remove(mark_of(h.name)), handles)
        store.sync(MARKS)

    def abort(self, handles: Sequence[PreparedPart]) -> None:
        _check(handles)
        with self._answering(_UNDECIDED):
            table = self._opened()
            self._delete(table, [h.name for h in handles if table.place.store.size(mark_of(h.name)) is not None])

    def recover_and_abort(self, scope: Scope) -> list[str]:
        with self._answering(_DECIDED):
            table = self._opened()
            parts = [part for part in map(part_of, table.place.store.names(MARKS)) if part is not None]
            return self._delete(self._opened(), [str(p) for p in parts if scope.covers(str(p))])

    def _delete(self, table: OpenTable, names: Sequence[str]) -> list[str]:
        """Delete files and marks of these parts, the files first; return the names. What the table names stays: its
        driver died between the table's commit and the removal of the mark.
        """
        store, kept = table.place.store, table.files() if names else {}
        swept = [name for name in names if data_of(name) not in kept]
        each(lambda name: store.remove(data_of(name)), swept)
        if names:
            store.sync(DATA)
        each(lambda name: store.remove(mark_of(name)), names)
        if names:
            store.sync(MARKS)
        return swept

    def found(self, sink_id: str, handles: Sequence[PreparedPart]) -> list[Found]:
        _check(handles)
        with self._answering(Unfinished.default_safe):
            marks = of_sink(self._opened().place.store.names(MARKS), sink_id, self.name)  # a mark goes after the commit
            table = self._opened()
            files = table.files()
            found = each(lambda h: _found(table, h, files), handles)
            known = {h.name for h in handles}
            mine = of_sink((path.rpartition("/")[2] for path in files), sink_id, self.name)
            late = [str(p) for p in mine.values() if str(p) not in known and _is_late(p, handles)]
            phantoms = [Found(name, True, places=_places(table, name)) for name in late]
            found += each(lambda f: replace(_rows(table.place.store, data_of(f.name), f), digest=""), phantoms)
            waiting = [str(p) for p in marks.values() if str(p) not in known and data_of(str(p)) not in files]
            return found + [Found(name, prepared=True, places=_places(table, name)) for name in waiting]

    def _accepted(self) -> OpenTable:
        """Open the newest version of the table; raise StoreRefused when files cannot be added to it."""
        table = self._opened()
        if refused := table.refusal():
            raise StoreRefused(f"{table.shown} {refused[0]}", refused[1])
        return table

    def _opened(self) -> OpenTable:
        table = self._open()
        self._place = table.place
        return table

    @contextmanager
    def _answering(self, safe: str) -> Iterator[None]:
        try:
            yield
        except (StoreRefused, InvalidSchema, InvalidRecord) as e:
            raise type(e)(e.what, e.way_out, safe) from e.__cause__
        except ExactlyOnceError:
            raise
        except Exception as e:  # of a catalogue, a database, a store: each library has its own, without a common class
            raise Unfinished(
                f"{self.name}: the table, its catalogue or its store failed ({type(e).__name__}: {e})",
                "Make sure that the table's catalogue and store answer, and that this process may read and write "
                "there; then start the stream again",
                safe,
            ) from e


def part_of_handle(handle: PreparedPart) -> PartName:
    """Return the part's name, which :func:`_check` has looked at."""
    part = PartName.parse(handle.name)
    assert part is not None, handle.name
    return part


def proven(table: OpenTable, handle: PreparedPart) -> bool:
    """Return whether the table says that it has got this part, whatever became of its file since."""
    number = _number(part_of_handle(handle))
    return table.proof(_key(handle)) >= number or table.proof(f"{_key(handle)}:{handle.part}") >= number


def _key(handle: PreparedPart) -> str:
    part = part_of_handle(handle)
    return f"eo:{part.sink_id}:{part.incarnation}:{handle.participant}"


def _number(part: PartName) -> int:
    return part.token << _BATCH_BITS | part.batch_id


def _is_late(part: PartName, handles: Sequence[PreparedPart]) -> bool:
    """Return whether a decision of this part would stand after the first of these, in the same commit log."""
    known = [part_of_handle(h) for h in handles]
    return any(k.incarnation == part.incarnation for k in known) and _number(part) >= min(map(_number, known))


def _by_presence(place: TableLocation, handles: Sequence[PreparedPart]) -> dict[bool, list[PreparedPart]]:
    """Return the parts whose file is there, whole, for this table, and the others."""

    def there(h: PreparedPart) -> bool:
        return h.data.get("table") == place.identity and place.store.size(data_of(h.name)) == h.data.get("bytes", -1)

    found: dict[bool, list[PreparedPart]] = {True: [], False: []}
    for handle, one in zip(handles, each(there, handles), strict=True):
        found[one].append(handle)
    return found


def _check(handles: Sequence[PreparedPart]) -> None:
    """Refuse handles that no task of this output made: they come from the commit log, where others may have written."""
    for handle in handles:
        part, data = PartName.parse(handle.name), handle.data
        numbers = part is not None and part.batch_id >> _BATCH_BITS == 0 and part.token >> (63 - _BATCH_BITS) == 0
        kinds = type(data.get("table")), type(data.get("bytes"))
        if not numbers or "/" in handle.name or kinds != (str, int):
            raise forged(handle.name, "is not that of a file of a table")


def _found(table: OpenTable, handle: PreparedPart, files: Mapping[str, str]) -> Found:
    store, path, places = table.place.store, data_of(handle.name), _places(table, handle.name)
    if handle.data["table"] != table.place.identity:
        return Found(handle.name, unproven=f"{table.shown} is not the table for which it was prepared")
    if path not in files and proven(table, handle):
        return Found(handle.name, unproven="the table got it, and a compaction or a delete has replaced its file since")
    size = store.size(path)
    if path not in files:
        return Found(handle.name, prepared=size is not None)
    seen = Found(handle.name, True, records=handle.records, digest=handle.digest, places=places)
    if files[path]:
        return Found(handle.name, unproven=files[path])
    if size is None:
        return replace(seen, records=0, digest="", wrong="the table names the file, and the file is gone")
    if size == handle.data["bytes"] and checksum_of(store, path) == handle.data.get("checksum"):
        return seen
    return replace(_rows(store, path, seen), wrong="the file has other contents than its task wrote")


def _rows(store: Store, path: str, seen: Found) -> Found:
    try:
        records, digest, _ = rows_of(store, path)
    except OSError:  # the file is gone
        records, digest = 0, ""
    return replace(seen, records=records, digest=digest)


def _places(table: OpenTable, name: str) -> tuple[str, ...]:
    return (f"{table.place.store.root}/{data_of(name)}",)


def connected(properties: Mapping[str, Any] | None) -> dict[str, str]:
    """Return settings of a connection as text, for a library that takes nothing else."""
    return {key: str(value) for key, value in (properties or {}).items()}

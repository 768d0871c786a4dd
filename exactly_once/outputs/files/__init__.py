"""Files, one for each part. The files of a batch become visible together.

Below the root that the user names::

    _staging/eo~<sink>~<incarnation>~<claim>~<batch>~<part>~<attempt>~<participant>.<format>   begun, prepared
    _staging/batch=<batch>-<digest>/...                                                         being gathered
    batch=<batch>-<digest>/...                                                        published: one rename

A file moves only downwards in this list, by renames, so a look in this order never misses it. The digest is that of the
decided files' names, which are never used twice: the directory belongs to exactly these handles, even if a later query
or another sink has a batch of the same number. Readers that know Hive's layout (Spark, Arrow) see a column ``batch``
and skip ``_staging``.

Do not move a published directory before the next batch is committed: a part that is neither staged nor published counts
as lost, and the sink writes it again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from exactly_once.errors import (
    Expired,
    InvalidOption,
    InvalidSchema,
    PrepareFailed,
    StoreRefused,
    Unfinished,
)
from exactly_once.failpoints import reach
from exactly_once.outputs.files.names import BATCH, IDENTITY, STAGING, directory_of, file_of, part_of
from exactly_once.outputs.files.stores import Store, place_of, store_of
from exactly_once.outputs.files.visible import found_files
from exactly_once.outputs.files.writer import FileWriter, Format
from exactly_once.participant import Found, Participant, PartName, Scope
from exactly_once.protocol.records import PreparedPart

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")

#: Attempts to publish: a superseded driver may be publishing the same batch, and each of its steps may fail ours.
_TRIES = 10


class FileParticipant(Participant[PreparedPart]):
    """Writes the rows as files, JSON lines or Parquet; a reader sees all files of a batch or none.

    If a decided file was deleted before its publication, the commit publishes the other files first, and the lost one
    when it has been written again.

    Parameters
    ----------
    name : str
        The participant's name: letters, digits, ``_``, ``-``.
    url : str
        The root: a local path that driver and executors share, whatever Spark's default file system (a relative path
        starts at the working directory of the process that makes the participant), or a URL of one of
        :data:`~exactly_once.outputs.files.stores.ATOMIC_RENAME`, without secrets. Nothing in it is escaped.
    format : {"jsonl", "parquet"}
        JSON lines: UTF-8, an object for each row with every column; null is null, a time ISO 8601 (with an offset where
        the column has a time zone), binary is base64, a decimal is text, a map is a list of pairs. NaN and infinity are
        refused: JSON cannot represent them.
    columns : sequence of str, optional
        The columns to write; the digest covers these. Default: all.
    """

    def __init__(self, name: str, url: str, format: Format = "jsonl", columns: Sequence[str] | None = None):
        if not _NAME.fullmatch(name):
            raise InvalidOption(f"{name!r} cannot name a participant", "Use up to 40 letters, digits, '_' or '-'")
        if format not in ("jsonl", "parquet"):
            raise InvalidOption(f"{name} has format {format!r}", "Use 'jsonl' or 'parquet'")
        self.name, self.format = name, format
        self.url = store_of(url).root if place_of(url).is_local else url
        self.columns = list(columns) if columns is not None else None

    def check(self, sink_id: str, schema: pa.Schema) -> None:
        """Refuse a store that has no atomic rename or is not writable, and columns that are missing or have the name of
        the directories' column.
        """
        missing = set(self.columns or ()) - set(schema.names)
        if missing or BATCH in (self.columns or schema.names):
            raise InvalidSchema(
                f"{self.name}: the rows have no column {', '.join(sorted(missing))}"
                if missing
                else f"{self.name}: readers would confuse the column {BATCH!r} with that of the published directories",
                "Correct the participant's columns, or rename the column of the DataFrame",
            )
        probe = f"_probe-{uuid.uuid4().hex}"
        try:
            store = store_of(self.url)
            store.make(f"{STAGING}/{probe}")
            store.move(f"{STAGING}/{probe}", probe)
            store.remove_empty(probe)
            if not store.names(IDENTITY):
                _identify(store)
        except OSError as e:
            raise StoreRefused(
                f"{self.name}: cannot create a directory in {self.url}/{STAGING} and rename it into {self.url} ({e})",
                f"Give the driver and the executors write access to {self.url}, and keep that directory on one file "
                "system",
            ) from e

    def begin(self, part: PartName) -> FileWriter:
        try:
            store = store_of(self.url)
            identity = next(iter(store.names(IDENTITY)))
        except (OSError, StopIteration) as e:
            raise PrepareFailed(
                f"{self.name}: {self.url} on this executor is not the directory that the driver checked ({e})",
                "Use storage that the driver and the executors share, such as a distributed file system",
            ) from e
        stem = str(part).replace(":", "~")
        file = f"{stem}.{self.format}" if part.participant else f"{stem}.{self.name}.{self.format}"
        begun = PreparedPart(self.name, str(part), part.part, 0, data={"store": identity, "file": file})
        return FileWriter(store, f"{STAGING}/{file}", self.format, self.columns, begun)

    def gone(self, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        with self._answering():
            store = store_of(self.url)
            return [h for h in handles if not _there(store, STAGING, h)]

    def commit(self, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        if not handles:
            return []
        with self._answering(Unfinished.default_safe):
            store = store_of(self.url)
            for attempt in range(_TRIES):
                try:
                    lost = _publish(store, handles)
                    break
                except OSError:
                    if attempt + 1 == _TRIES:
                        raise
            here = store.names(IDENTITY)
        if any(h.data.get("store") not in here for h in lost):
            raise Expired(
                f"{self.name}: decided parts are not in {store.root}, which is not the directory where they were "
                "prepared: the URL has changed, a disk is not mounted, or _staging was deleted",
                "Restore the original directory and start the stream again",
                "The sink deleted nothing",
            )
        return lost

    def abort(self, handles: Sequence[PreparedPart]) -> None:
        with self._answering():
            store = store_of(self.url)
            removed = [store.remove(f"{STAGING}/{file_of(h)}") for h in handles]
            if any(removed):
                store.sync(STAGING)

    def recover_and_abort(self, scope: Scope) -> list[str]:
        """Roll back also files gathered for a decision that no longer exists; live decisions are spared by name."""
        swept = dict[str, None]()
        with self._answering():
            store = store_of(self.url)
            entries = store.names(STAGING)
            gathered = [entry for entry in entries if entry.startswith(f"{BATCH}=")]
            for folder in (STAGING, *(f"{STAGING}/{entry}" for entry in gathered)):
                for file in store.names(folder) if folder != STAGING else entries:
                    name = part_of(file)
                    if name is not None and scope.covers(name) and store.remove(f"{folder}/{file}"):
                        swept[name] = None
                if folder != STAGING:
                    store.remove_empty(folder)
            if entries:
                store.sync(STAGING)
        return list(swept)

    def found(self, sink_id: str, handles: Sequence[PreparedPart]) -> list[Found]:
        with self._answering(Unfinished.default_safe):
            return found_files(store_of(self.url), self.name, sink_id, handles)

    @contextmanager
    def _answering(self, safe: str = "No batch was decided, and nothing is lost") -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise Unfinished(
                f"{self.name}: I/O on {self.url} failed ({e})",
                f"Make sure that {self.url} is mounted, is writable and has free space; then start the stream again",
                safe,
            ) from e


def _identify(store: Store) -> None:
    """Give the place its identity; if several drivers try at once, the first wins."""
    identity = uuid.uuid4().hex
    made = f"{STAGING}/_id-{identity}"
    store.make(made)
    store.seal(store.create(f"{made}/{identity}"))
    store.sync(made)
    try:
        store.move(made, IDENTITY)
    except OSError:
        if not store.names(IDENTITY):
            raise
        store.remove(f"{made}/{identity}")
        store.remove_empty(made)
    store.sync(STAGING)


def _there(store: Store, folder: str, handle: PreparedPart) -> bool:
    """Return whether the part's file is in ``folder``, whole."""
    return store.size(f"{folder}/{file_of(handle)}") == handle.data.get("bytes", -1)


def _publish(store: Store, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
    """Gather the staged files and rename the directory; returns the lost parts. OSError: another driver is publishing
    the batch, or the store does not answer.
    """
    final = directory_of(handles)
    gather = f"{STAGING}/{final}"
    # look at a file's old place before its new one: another driver may move it meanwhile
    staged = [h for h in handles if _there(store, STAGING, h)]
    gathered = [h for h in handles if h not in staged and _there(store, gather, h)]
    missing = [h for h in handles if h not in staged and h not in gathered]
    published = set(store.names(final)) if missing else set()
    if not {file_of(h) for h in missing} <= published:  # or by an earlier commit, before other parts were written again
        batch = final.rpartition("-")[0] + "-"
        published.update(file for d in store.names("") if d.startswith(batch) for file in store.names(d))
    if published.intersection(store.names(final)):  # a file that seemed lost is there after all
        for folder, found in ((STAGING, staged), (gather, gathered)):
            for handle in found:
                store.move(f"{folder}/{file_of(handle)}", f"{final}/{file_of(handle)}")
        store.sync(final)
        store.remove_empty(gather)
    elif staged or gathered:
        store.make(gather)
        for handle in staged:
            store.move(f"{STAGING}/{file_of(handle)}", f"{gather}/{file_of(handle)}")
        for broken in set(store.names(gather)) - {file_of(h) for h in (*staged, *gathered)}:
            store.remove(f"{gather}/{broken}")
        store.sync(gather)
        store.sync(STAGING)
        reach("files-gathered")
        store.move(gather, final)
        nested = f"{final}/{final}"  # HDFS renames into an existing directory, when another driver was faster
        for file in store.names(nested):
            store.move(f"{nested}/{file}", f"{final}/{file}")
        store.remove_empty(nested)
        store.sync(STAGING)
    store.sync("")  # the driver that renamed it may have died before this
    return [h for h in missing if file_of(h) not in published]

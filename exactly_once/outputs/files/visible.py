"""Find what readers see of the parts of :mod:`exactly_once.outputs.files`. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64

from exactly_once.digest import RowDigest
from exactly_once.outputs.files.names import BATCH, IDENTITY, STAGING, batch_of, file_of, part_of
from exactly_once.outputs.files.stores import Store
from exactly_once.participant import Found, PartName
from exactly_once.protocol.records import PreparedPart

#: Bytes that are read at once: large enough for a disk or a name node, small enough for any memory.
CHUNK_BYTES = 4 << 20

#: Prefixes of files that engines skip, and leave beside data: _SUCCESS, .crc.
_HIDDEN = ("_", ".")


def found_files(store: Store, participant: str, sink_id: str, handles: Sequence[PreparedPart]) -> list[Found]:
    """Do the work of :meth:`exactly_once.participant.Participant.found`; raise OSError."""
    decided = {file_of(h): h for h in handles}
    staged = dict(_staged(store))  # before the published ones: a file moves only that way
    published = _published(store, handles)
    here = store.names(IDENTITY)
    views = [_found(store, h, published.get(f, []), f in staged, here) for f, h in decided.items()]
    own = {path.rpartition("/")[0] for f in decided for path in published.get(f, ())}
    for file, paths in published.items():
        if file in decided:
            continue
        if _is_of(file, sink_id, participant):
            views.append(
                Found(part_of(file) or "", True, records=rows_of(store, paths[0])[0], places=_shown(store, paths))
            )
        elif not file.startswith(_HIDDEN) and (among := [p for p in paths if p.rpartition("/")[0] in own]):
            rows, *_ = rows_of(store, among[0])
            views.append(Found("", True, records=rows, places=_shown(store, among)))
    waiting = {f: path for f, path in staged.items() if f not in decided and _is_of(f, sink_id, participant)}
    views += [Found(part_of(f) or "", prepared=True, places=_shown(store, [p])) for f, p in waiting.items()]
    return views


def _staged(store: Store) -> Iterator[tuple[str, str]]:
    for name in store.names(STAGING):
        if name.startswith(f"{BATCH}="):
            yield from ((file, f"{STAGING}/{name}/{file}") for file in store.names(f"{STAGING}/{name}"))
        else:
            yield name, f"{STAGING}/{name}"


def _published(store: Store, handles: Sequence[PreparedPart]) -> dict[str, list[str]]:
    """Return the files of these batches and of later ones, each with its paths: copies have the same name."""
    parts = (PartName.parse(h.name) for h in handles)
    first = min((p.batch_id for p in parts if p is not None), default=None)
    found: dict[str, list[str]] = {}
    for directory in store.names("") if first is not None else ():
        batch = batch_of(directory)
        if batch is not None and first is not None and batch >= first:
            for file in store.names(directory):
                found.setdefault(file, []).append(f"{directory}/{file}")
    return found


def _is_of(file: str, sink_id: str, participant: str) -> bool:
    name = part_of(file)
    part = PartName.parse(name) if name else None
    if part is None or not part.is_of(sink_id, participant):
        return False
    return bool(part.participant) or f".{participant}." in file


def _found(store: Store, handle: PreparedPart, paths: list[str], staged: bool, here: Sequence[str]) -> Found:
    if not paths and not staged and handle.data.get("store") not in here:
        return Found(handle.name, unproven=f"{store.root} is not the directory in which it was prepared")
    if not paths:
        return Found(handle.name, prepared=staged)
    path, places = paths[0], _shown(store, paths)
    size, written = store.size(path), handle.data.get("bytes", -1)
    if size == written and checksum_of(store, path) == handle.data.get("checksum"):
        return Found(handle.name, True, records=handle.records, digest=handle.digest, places=places)
    records, digest, wrong = rows_of(store, path)
    if digest == handle.digest and records == handle.records:  # other bytes, the same rows
        return Found(handle.name, True, records=records, digest=digest, places=places)
    if not wrong and size != written:
        wrong = f"the file has {size} bytes, but its task wrote {written}"
    elif not wrong and "checksum" in handle.data:
        wrong = "the file does not have the contents that its task wrote"
    return Found(handle.name, True, records=records, places=places, wrong=wrong)


def checksum_of(store: Store, path: str) -> str:
    """Return the checksum of a file's bytes, as its task noted it."""
    checksum = xxh3_64()
    with closing(store.open(path)) as file:
        for chunk in _chunks(file):
            checksum.update(chunk)
    return checksum.hexdigest()


def rows_of(store: Store, path: str) -> tuple[int, str, str]:
    """Return the number of rows, their digest ("" where the format does not keep what it takes), and what is broken."""
    with closing(store.open(path)) as file:
        if not path.endswith(".parquet"):
            return _lines(file)
        digest, records = RowDigest(), 0
        try:
            for rows in pq.ParquetFile(file).iter_batches():
                digest.add_batch(rows)
                records += rows.num_rows
        except (pa.ArrowException, OSError) as e:
            return 0, "", f"the file cannot be read as Parquet ({e})"
    return records, digest.text, ""


def _lines(file: IO[bytes]) -> tuple[int, str, str]:
    records, end = 0, b"\n"
    for chunk in _chunks(file):
        records += chunk.count(b"\n")
        end = chunk[-1:]
    return records, "", "" if end == b"\n" else f"the file ends in the middle of row {records + 1:,}"


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _shown(store: Store, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{store.root}/{path}" for path in paths)

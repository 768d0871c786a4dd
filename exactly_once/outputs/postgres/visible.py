"""Find what readers of a table see of the parts of :mod:`exactly_once.outputs.postgres`. It changes nothing.

A row keeps the id of the transaction that inserted it (``xmin``), also after it was frozen; an UPDATE makes a new row
with another id. So the rows of a decided transaction are those that its task wrote, and all of them are there unless
somebody updated or deleted some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql

from exactly_once.digest import RowDigest
from exactly_once.errors import Unfinished
from exactly_once.outputs.postgres.session import GRANT, ORIGIN, PREPARED, PostgresSession
from exactly_once.participant import Found, PartName
from exactly_once.protocol.names import namespace
from exactly_once.protocol.records import PreparedPart

if TYPE_CHECKING:
    from exactly_once.outputs.postgres import PostgresParticipant

#: Time for one scan of the table, which no index helps: some 100 GB from a disk of 200 MB/s.
SCAN_S = 600

#: The range of the transaction id in a row, which holds the lower half of it.
_XID = 1 << 32

#: Types whose values give the digest that they had in Arrow, if they had the Arrow type on the right there.
_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int64(),
    "integer": pa.int64(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "character varying": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}

_COLUMNS: LiteralString = """
    SELECT attname, atttypid::regtype::text FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""

_RECENT: LiteralString = (
    "SELECT xmin::text::int8, count(*) FROM {} WHERE age(xmin) BETWEEN 0 AND age({}::xid) GROUP BY 1"
)
_ROWS: LiteralString = "SELECT xmin::text::int8, {} FROM {} WHERE xmin = ANY ({}::xid[])"


def found_rows(of: PostgresParticipant, sink_id: str, handles: Sequence[PreparedPart]) -> list[Found]:
    """Do the work of :meth:`exactly_once.participant.Participant.found`; raise Unfinished or NotAuthorized."""
    database, table = of.database, of.identifier
    with database.driver("show what its readers see", Unfinished.default_safe) as session:
        try:
            gids = {gid for (gid,) in session.run(PREPARED, namespace(sink_id)).fetchall()}
            origin, timeline = session.row("SELECT" + ORIGIN)
            here = [h for h in handles if h.data["database"] == origin]
            counts = _counts(session, table, here)
            by_part = _by_part(here, timeline, counts)
            whole = [h for h in here if by_part[h.name] == h.records]
            digests = _digests(session, table, of.columns, whole)
            views = [
                Found(h.name, prepared=True, places=_places(h))
                if h.name in gids
                else _found(session, h, timeline, by_part[h.name], digests.get(_xid(h), ""), of.shared)
                for h in here
            ]
        except psycopg.errors.InsufficientPrivilege as e:
            raise database.denied(database.said(e), GRANT, Unfinished.default_safe) from None
    views += [
        Found(h.name, unproven="the database is not the one in which it was prepared") for h in handles if h not in here
    ]
    known = {_xid(h) for h in handles}
    rows = table.as_string()
    foreign = {xid: count for xid, count in counts.items() if not of.shared and xid not in known}
    views += [Found("", True, records=count, places=(f"{rows}, xmin {xid}",)) for xid, count in foreign.items()]
    parts = {gid: PartName.parse(gid) for gid in sorted(gids - {h.name for h in handles})}
    mine = [gid for gid, part in parts.items() if part and part.is_of(sink_id, of.name)]
    return views + [Found(gid, prepared=True, places=(f"pg_prepared_xacts, gid {gid}",)) for gid in mine]


def outcome_of(session: PostgresSession, handle: PreparedPart, timeline: str) -> str | None:
    """Return how a transaction ended: committed, aborted, in progress; None when the server cannot tell."""
    if handle.data["timeline"] != timeline:
        return None
    try:
        outcome: str | None = session.row("SELECT pg_xact_status(%s::xid8)", handle.data["xid"])[0]
    except psycopg.errors.InvalidParameterValue:  # an id of the future: the server was restored to an earlier state
        return None
    return outcome


def _found(
    session: PostgresSession, handle: PreparedPart, timeline: str, records: int, digest: str, shared: bool
) -> Found:
    place = _places(handle)
    if records:
        proven = digest == handle.digest
        if not proven and handle.data["timeline"] != timeline:
            return Found(handle.name, unproven="its transaction's id may be another's since a failover or a restore")
        if records < handle.records and shared:
            return Found(handle.name, unproven="other sessions change the table, and some of its rows are gone")
        wrong = "somebody deleted or updated the others" if records < handle.records else ""
        # a column's type that the table does not tell can cause another digest
        return Found(handle.name, True, records=records, digest=digest if proven else "", places=place, wrong=wrong)
    outcome = outcome_of(session, handle, timeline)
    if outcome is None and handle.data["timeline"] != timeline and not shared:
        wrong = "a failover or a restore lost its transaction, or somebody deleted or updated the rows since"
        return Found(handle.name, wrong=wrong, places=place)
    if outcome is None:
        return Found(handle.name, unproven="PostgreSQL cannot tell how its transaction ended")
    if outcome == "committed" and shared:
        return Found(handle.name, unproven="other sessions change the table, and all of its rows are gone")
    if outcome == "committed":
        return Found(
            handle.name, wrong="its transaction is committed: somebody deleted or updated the rows", places=place
        )
    return Found(handle.name, prepared=outcome == "in progress", places=place)


def _counts(session: PostgresSession, table: sql.Identifier, handles: Sequence[PreparedPart]) -> dict[int, int]:
    first = min((int(h.data["xid"]) for h in handles), default=None)
    if first is None:
        return {}
    query = sql.SQL(_RECENT).format(table, sql.Literal(str(first % _XID)))
    return {xid: count for rows in session.stream(query, SCAN_S) for xid, count in rows}


def _by_part(handles: Sequence[PreparedPart], timeline: str, counts: Mapping[int, int]) -> dict[str, int]:
    """Return the number of visible rows of each part, without those of a later part, whose timeline gave its id out
    again.
    """
    again = {_xid(h) for h in handles if h.data["timeline"] == timeline}
    lost = {h.name for h in handles if h.data["timeline"] != timeline and _xid(h) in again}
    return {h.name: 0 if h.name in lost else counts.get(_xid(h), 0) for h in handles}


def _digests(
    session: PostgresSession, table: sql.Identifier, columns: Sequence[str] | None, handles: Sequence[PreparedPart]
) -> dict[int, str]:
    """Return the digest of the visible rows of each transaction; {} if the columns do not keep what it takes."""
    types = dict(session.run(_COLUMNS, table.as_string()).fetchall())
    names = list(types) if columns is None else list(columns)
    if not handles or any(types.get(name) not in _ARROW for name in names):
        return {}
    schema = pa.schema([(name, _ARROW[types[name]]) for name in names])
    query = sql.SQL(_ROWS).format(
        sql.SQL(", ").join(map(sql.Identifier, names)), table, sql.Literal([str(_xid(h)) for h in handles])
    )
    digests: dict[int, RowDigest] = {}
    try:
        for portion in session.stream(query, SCAN_S):
            of: dict[int, list[Any]] = {}
            for xid, *values in portion:
                of.setdefault(xid, []).append(values)
            for xid, rows in of.items():
                cells = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
                digests.setdefault(xid, RowDigest()).add_batch(pa.record_batch(cells, schema=schema))
    except (psycopg.DataError, pa.ArrowException):  # a value that Arrow has not: no task wrote it
        return {}
    return {xid: digest.text for xid, digest in digests.items()}


def _places(handle: PreparedPart) -> tuple[str, ...]:
    return (f"xid {handle.data['xid']}",)


def _xid(handle: PreparedPart) -> int:
    return int(handle.data["xid"]) % _XID

"""PostgreSQL as an output. Each part is a transaction: PREPARE TRANSACTION makes it durable, COMMIT PREPARED visible.

Needs the extra ``postgres`` (psycopg 3) on the driver and on the executors, PostgreSQL 13 or newer, and direct
connections without a pooler. ``max_prepared_transactions`` must be at least the number of parts of a batch, for each
participant on the server.

How is a part proven committed or lost? The handle keeps the id of its transaction. When the gid is gone,
``pg_xact_status`` tells how the transaction ended, in the same database and on the same timeline. After a failover a
standby assigns the same transaction ids again, so on another timeline they prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from reprlib import repr as shortened

import pyarrow as pa

from exactly_once.deadline import Deadline
from exactly_once.digest import RowDigest
from exactly_once.errors import (
    DatabaseUnusable,
    Expired,
    ExtraMissing,
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    Unfinished,
)
from exactly_once.participant import Found, Participant, PartName, PartWriter, Scope
from exactly_once.protocol.names import namespace
from exactly_once.protocol.records import PreparedPart
from exactly_once.protocol.untrusted import forged

try:
    import psycopg
    from psycopg import sql

    from exactly_once.outputs.postgres import session as server
    from exactly_once.outputs.postgres.checks import prepared_gids, refuse
    from exactly_once.outputs.postgres.visible import found_rows, outcome_of
except ImportError as e:
    raise ExtraMissing.of_output("PostgreSQL", "psycopg", "postgres", e) from None

#: Time for a terminated session to end: it takes milliseconds, unless its process hangs in the kernel.
END_S = 5

#: Longest gid that the server accepts.
GID_BYTES = 199

#: Bytes after which the server cuts application_name.
APPLICATION_BYTES = 63

#: An xid8 of PostgreSQL.
_XID = re.compile("[0-9]{1,20}")

#: The longest part name to provide for: a billion claims, a trillion batches, a million parts.
_LONGEST = (10**9 - 1, 10**12 - 1, 10**6 - 1, "999.999999999999", "incarnated")

_UNDECIDED = "The batch is not decided; none of it is visible"
_DECIDED = "Decided batches stay decided"


class PostgresParticipant(Participant[PreparedPart]):
    """Rows into one table of PostgreSQL.

    Lists become arrays; structs and maps (and lists of them) become JSON, with text for values that JSON cannot
    represent. Strings go into any type that parses them (``uuid``, ``jsonb``, enums).

    Parameters
    ----------
    name : str
        The participant's name in decisions.
    dsn : str
        A connection string or URI of libpq. Preferably without a password: libpq reads it from PGPASSWORD, PGPASSFILE
        or a service file, which every executor then needs. Messages never show a password in ``dsn``.
    table : str
        ``table`` or ``schema.table``, spelled as in the catalog: no quotes, capitals count.
    columns : sequence of str, optional
        The columns of the rows to write. Default: all, by name.
    shared : bool
        Other sessions write to the table, too, or change and delete rows of the sink. ``exactly-once verify`` then
        leaves out rows that no decision names, and counts missing ones as unproven.

    Raises
    ------
    InvalidOption
        When ``dsn`` cannot be read.
    """

    def __init__(self, name: str, dsn: str, table: str, columns: Sequence[str] | None = None, *, shared: bool = False):
        self.name = name
        self.shared = shared
        self.table = table
        self.columns = None if columns is None else list(columns)
        self._written: Sequence[str] | None = None
        self.database = server.Database(dsn)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, dsn={self.database.shown!r}, table={self.table!r})"

    @property
    def identifier(self) -> sql.Identifier:
        """The table as an SQL identifier."""
        return sql.Identifier(*self.table.split("."))

    def check(self, sink_id: str, schema: pa.Schema) -> None:
        too_long = len(str(PartName(sink_id, *_LONGEST, self.name)).encode()) - GID_BYTES
        if too_long > 0:
            raise InvalidOption(
                f"sink.id {sink_id} and the participant's name {self.name} are together too long for PostgreSQL, whose "
                f"transaction names hold at most {GID_BYTES} bytes",
                f"Shorten sink.id or the participant's name by {too_long} characters",
            )
        columns = schema.names if self.columns is None else self.columns
        if len(set(columns) & set(schema.names)) < len(columns):
            raise InvalidSchema(
                f"a column listed for table {self.table} is missing from the rows or listed twice: "
                f"{', '.join(columns)}",
                f"List each column once; the rows have {', '.join(schema.names)}",
            )
        refuse(self.database, self.identifier, columns)
        self._written = columns

    def begin(self, part: PartName) -> PartWriter[PreparedPart]:
        return _Writer(self, part)

    def gone(self, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        """Return those that are no longer prepared; for a stream that was checked, refuse again what :meth:`check`
        refuses.
        """
        with self.database.driver("list the prepared transactions", _UNDECIDED) as session:
            if self._written is None:
                there = {gid for (gid,) in session.run(server.PREPARED, "")}
            else:
                there = prepared_gids(session, self.database, self.identifier, self._written, _UNDECIDED)
        return [h for h in handles if h.data["gid"] not in there]

    def commit(self, handles: Sequence[PreparedPart]) -> list[PreparedPart]:
        _check(handles)
        with self.database.driver("commit the decided transactions", Unfinished.default_safe) as session:
            database, timeline = session.row("SELECT" + server.ORIGIN)
            if foreign := [h for h in handles if h.data["database"] != database]:
                raise DatabaseUnusable(
                    f"PostgreSQL ({self.database.shown}) is not the database in which {foreign[0].name} was prepared: "
                    f"this is {database}, that was {foreign[0].data['database']} (system identifier/database)",
                    "Point dsn at the database in which the part was prepared, and start again",
                    _DECIDED,
                )
            missing = [h for h in handles if not self._finish(session, "COMMIT", h)]
            outcomes = {h.name: outcome_of(session, h, timeline) for h in missing}
        if unknown := [h for h in missing if outcomes[h.name] is None]:
            names = [f"{h.name} ({h.records} records, xid {h.data['xid']})" for h in unknown]
            raise Expired(
                f"PostgreSQL ({self.database.shown}) cannot tell how {len(unknown)} decided transactions ended, after "
                f"a failover, a restore or a long time: {', '.join(names[:5])}{', ...' if names[5:] else ''}",
                f"Find out whether table {self.table} holds the rows of these transactions, and write the missing rows",
            )
        if waiting := [h for h in missing if outcomes[h.name] == "in progress"]:
            more = f" and {len(waiting) - 1} more" if waiting[1:] else ""
            raise Unfinished(
                f"PostgreSQL ({self.database.shown}) is still ending {waiting[0].name}{more}",
                "Start the stream (or the recovery) again",
            )
        return [h for h in missing if outcomes[h.name] == "aborted"]

    def abort(self, handles: Sequence[PreparedPart]) -> None:
        with self.database.driver("roll back the undecided transactions", _UNDECIDED) as session:
            for h in handles:
                self._finish(session, "ROLLBACK", h)

    def recover_and_abort(self, scope: Scope) -> list[str]:
        with self.database.driver("roll back what earlier drivers left undecided", _DECIDED) as session:
            # first end the tasks of a lost driver that still write: they hold locks, and might prepare meanwhile
            names = self._end_sessions(session, scope)
            for (gid,) in session.run(server.PREPARED, namespace(scope.sink_id)).fetchall():
                if scope.covers(gid) and self._finish(session, "ROLLBACK", gid):
                    names.add(gid)
        return sorted(names)

    def _end_sessions(self, session: server.PostgresSession, scope: Scope) -> set[str]:
        def alive() -> list[tuple[int, str, bool]]:
            scopes = session_scopes(scope)
            return [s for x in scopes for s in session.run(server.SESSIONS, namespace(x.sink_id)) if x.covers(s[1])]

        found = alive()
        for pid, name, _ in found:
            session.run(server.END_SESSION, pid, name)
        if found:
            any(not alive() for _ in Deadline(END_S).tries())
        return {name for _, name, begun in found if begun}

    def _finish(self, session: server.PostgresSession, verb: str, handle: PreparedPart | str) -> bool:
        """Run COMMIT or ROLLBACK PREPARED; False when there is no such transaction."""
        gid = handle if isinstance(handle, str) else handle.data["gid"]
        command = sql.SQL("COMMIT PREPARED {}" if verb == "COMMIT" else "ROLLBACK PREPARED {}").format(gid)
        try:
            session.run(command)
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.errors.InsufficientPrivilege:
            owner, role = session.row(server.OWNER, gid) or ("unknown", "this one")
            raise self.database.denied(
                f"role {role} may not end the prepared transaction {gid} of role {owner}",
                f"Connect as {owner}, or have {owner} or a superuser run {command.as_string()}",
                _DECIDED,
            ) from None
        return True

    def found(self, sink_id: str, handles: Sequence[PreparedPart]) -> list[Found]:
        _check(handles)
        return found_rows(self, sink_id, handles)


def _check(handles: Sequence[PreparedPart]) -> None:
    """Refuse handles that no task of this output made: they come from the commit log, where others may have written."""
    for handle in handles:
        data = handle.data
        texts = all(isinstance(data.get(name), str) for name in ("gid", "xid", "database", "timeline"))
        own = texts and data["gid"] == handle.name and PartName.parse(handle.name)
        if not own or not _XID.fullmatch(str(data["xid"])):
            raise forged(handle.name, f"holds {shortened(dict(data))}, which is not that part's transaction")


def session_name(part: PartName) -> str:
    """Return the name of a task's session, by which a sweep finds it: its part's name, shortened if necessary. With too
    long a name it is not found before it has prepared; the server ends such a session when its connection breaks.
    """
    short = part._replace(sink_id=_alias(part.sink_id), participant="")
    names = (n for n in (str(part), str(short)) if n.isascii() and len(n) <= APPLICATION_BYTES)
    return next(names, "exactly-once task")


def session_scopes(scope: Scope) -> tuple[Scope, ...]:
    """Return the scopes by which a sweep finds the sink's sessions: of the sink's id, and of its short name."""
    return scope, replace(scope, sink_id=_alias(scope.sink_id))


def _alias(sink_id: str) -> str:
    """Return a short name for the sink that no sink id can equal."""
    return "~" + sha256(sink_id.encode()).hexdigest()[:8]


class _Writer(PartWriter[PreparedPart]):
    def __init__(self, of: PostgresParticipant, part: PartName):
        self._of = of
        self._part = part
        self._digest = RowDigest()
        self._records = 0
        with self._task():
            self._session = of.database.connect(session_name(part))
            self._session.run(sql.SQL("SET statement_timeout = {}").format(f"{server.STATEMENT_S}s"))
            self._session.run("BEGIN")

    def write(self, rows: pa.RecordBatch) -> None:
        if self._of.columns is not None:
            rows = rows.select(self._of.columns)
        with self._task():
            # one COPY for each batch: no deadline runs while the task computes the next batch
            taken = self._session.copy(self._of.identifier, rows) if rows.num_rows else 0
            if taken != rows.num_rows:
                raise InvalidRecord(
                    f"table {self._of.table} accepted {taken} of {rows.num_rows} rows of {self._part}: a trigger on "
                    "the table discards rows",
                    "Filter those rows out in the query, or change the trigger",
                    _UNDECIDED,
                )
        self._digest.add_batch(rows)
        self._records += taken

    def pre_commit(self) -> PreparedPart | None:
        if not self._records and not self._session.closed:
            self.abort()
            return None
        gid = str(self._part)
        with self._task():
            self._session.run("SET CONSTRAINTS ALL IMMEDIATE")  # PREPARE would check them without the server's deadline
            xid, *origin = self._session.row("SELECT pg_current_xact_id()::text," + server.ORIGIN)
            done = self._session.run(sql.SQL("PREPARE TRANSACTION {}").format(gid)).statusmessage
            if done != "PREPARE TRANSACTION":  # the server answers ROLLBACK, and no error, for a failed transaction
                raise psycopg.OperationalError(f"PREPARE TRANSACTION was answered by {done}")
        self._session.close()
        data = {"gid": gid, "xid": xid, "database": origin[0], "timeline": origin[1]}
        return PreparedPart(self._of.name, gid, self._part.part, self._records, self._digest.text, data)

    def abort(self) -> None:
        with suppress(Exception):
            try:
                self._session.run("ROLLBACK")  # so that its locks are gone when this returns
            finally:
                self._session.close()

    @contextmanager
    def _task(self) -> Iterator[None]:
        try:
            with self._of.database.task(str(self._part)):
                yield
        except BaseException:  # the part cannot continue: some of its rows are missing
            self.abort()
            raise

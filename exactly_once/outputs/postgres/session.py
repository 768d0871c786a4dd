"""The PostgreSQL participant's connections: statements with a deadline, rows for COPY, errors without secrets."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from threading import Timer
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import conninfo, sql

from exactly_once.errors import (
    DatabaseUnusable,
    InvalidOption,
    InvalidRecord,
    NotAuthorized,
    PrepareFailed,
    Unfinished,
)

#: Time to connect. libpq waits forever by default; a server accepts within milliseconds, after a failover in seconds.
CONNECT_S = 10

#: The way out of a missing privilege.
GRANT = "Grant the missing privilege to the role that the participant connects as"

#: Time for one statement. A COPY has one Arrow batch (10,000 rows by Spark's default), a COMMIT PREPARED takes
#: milliseconds: a statement that takes a minute waits for a lock, or for a disk that does not answer.
STATEMENT_S = 60

#: Time after the server's own deadline at which the client hangs up: only a server that does not answer reaches it.
GRACE_S = 5

#: Rows of a query in memory at a time.
ROWS_AT_ONCE = 5_000

#: Secret parameters of libpq, which does not mark the SCRAM keys as secret: with them one logs in without the password.
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

#: A query with two columns: this database, independent of its address; and the timeline of its transaction ids.
ORIGIN: LiteralString = """
    (SELECT system_identifier FROM pg_control_system()) || '/' ||
    (SELECT oid FROM pg_database WHERE datname = current_database()), left(pg_walfile_name(pg_current_wal_lsn()), 8)
"""

#: A query for tasks' sessions: each has the name of its part, if the server has room for it. A role sees only its own.
SESSIONS: LiteralString = """
    SELECT pid, application_name, xact_start IS NOT NULL FROM pg_stat_activity WHERE datname = current_database()
    AND usename = current_user AND pid <> pg_backend_pid() AND starts_with(application_name, %s)
"""

PREPARED: LiteralString = """
    SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)
"""

END_SESSION: LiteralString = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s
"""

OWNER: LiteralString = "SELECT owner::text, current_user::text FROM pg_prepared_xacts WHERE gid = %s"


class PostgresSession(AbstractContextManager["PostgresSession"]):
    """A connection in autocommit; its statements end after :data:`STATEMENT_S`, whether the server answers or not. All
    methods raise psycopg.Error; then only :meth:`close` works on the connection.
    """

    def __init__(self, dsn: str, application: str):
        limit = conninfo.conninfo_to_dict(dsn).get("connect_timeout", CONNECT_S)
        self._hung_up = False
        self._psycopg = psycopg.connect(
            dsn,
            autocommit=True,
            prepare_threshold=None,
            client_encoding="utf8",
            application_name=application,
            connect_timeout=limit,
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> int:
        """The server's version, such as 160014."""
        return self._psycopg.info.server_version

    @property
    def closed(self) -> bool:
        return self._psycopg.closed

    def run(self, statement: LiteralString | sql.Composed, *values: Any) -> psycopg.Cursor[Any]:
        """Run one statement; ``values`` stand for its ``%s``, or are one mapping."""
        named = values[0] if values and isinstance(values[0], dict) else values or None
        with self._limit():
            return self._psycopg.execute(statement, named)

    def row(self, statement: LiteralString | sql.Composed, *values: Any) -> Any:
        """Return the first row of the answer; None without rows."""
        return self.run(statement, *values).fetchone()

    def stream(self, query: sql.Composed, limit_s: float) -> Iterator[list[Any]]:
        """Yield the rows of a query in portions; each may take ``limit_s``."""
        with self._psycopg.transaction(), self._psycopg.cursor(name="rows") as cursor:
            with self._limit(limit_s):
                cursor.execute(query)
            while True:
                with self._limit(limit_s):
                    rows = cursor.fetchmany(ROWS_AT_ONCE)
                if not rows:
                    return
                yield rows

    def copy(self, table: sql.Composable, rows: pa.RecordBatch) -> int:
        """Append rows by the names of their columns; return how many the server accepted."""
        names = sql.SQL(", ").join(map(sql.Identifier, rows.schema.names))
        columns = [_column(rows.column(i)) for i in range(rows.num_columns)]
        with self._limit(), self._psycopg.cursor() as cursor:
            with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, names)) as copy:
                for row in zip(*columns, strict=True):
                    copy.write_row(row)
            return cursor.rowcount

    def close(self) -> None:
        """Close the connection; the server rolls back what is not prepared. Never raises."""
        with suppress(Exception):
            self._psycopg.close()

    @contextmanager
    def _limit(self, seconds: float | None = None) -> Iterator[None]:
        # the server's statement_timeout does not help when the server hangs, or the network is cut
        limit_s = (STATEMENT_S if seconds is None else seconds) + GRACE_S
        timer = Timer(limit_s, self._hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg.OperationalError as e:
            if self._hung_up:
                raise psycopg.OperationalError(f"no answer for {round(limit_s, 1):g} s") from e
            raise
        finally:
            timer.cancel()
            timer.join()

    def _hang_up(self) -> None:
        self._hung_up = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._psycopg.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class Database:
    """The database with the table, and its errors, worded without secrets. ``shown`` is ``dsn`` without its
    ``secrets``, the parameters such as ``password``. Raise InvalidOption when ``dsn`` cannot be read.
    """

    def __init__(self, dsn: str):
        self.dsn = dsn
        try:
            known = conninfo.conninfo_to_dict(dsn)
            if "://" in dsn and any("@" in str(known.get(k, ""))[1:] for k in ("host", "port", "dbname")):
                raise psycopg.ProgrammingError  # "@" or "/" in a password: libpq takes the rest of it for the host
        except psycopg.Error:  # the error's text may contain a piece of the password
            raise InvalidOption(
                "dsn is not a connection string of libpq",
                "Write dsn as 'host=... dbname=... user=...' or postgresql://user@host/dbname (percent-encoded)",
            ) from None
        self.secrets = tuple(k for k in _SECRETS if known.get(k))
        self._secrets = [str(known.pop(k)) for k in self.secrets]
        self.shown = conninfo.make_conninfo("", **known)

    def connect(self, application: str) -> PostgresSession:
        """Open a session; raise psycopg.Error when the server refuses."""
        return PostgresSession(self.dsn, application)

    @contextmanager
    def driver(self, what: str, safe: str) -> Iterator[PostgresSession]:
        """Open a session for the driver; turns an error of the server into :class:`Unfinished`."""
        try:
            with self.connect("exactly-once driver") as session:
                # the server's own deadline would end COMMIT PREPARED's wait for a standby, and call it a success
                session.run("SET statement_timeout = 0")
                yield session
        except psycopg.Error as e:
            raise Unfinished(
                f"PostgreSQL ({self.shown}) could not {what}: {self.said(e)}",
                "Start the stream (or the recovery) again when PostgreSQL answers",
                safe,
            ) from None

    @contextmanager
    def task(self, part: str) -> Iterator[None]:
        """Turn the server's errors in a task into those of the contract."""
        where = f"of {part} in PostgreSQL ({self.shown})"
        safe = "The batch is not decided; none of it is visible"
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as e:
            raise self.denied(f"{self.said(e)} ({part})", GRANT, safe) from None
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, TypeError, ValueError) as e:
            raise InvalidRecord(
                f"the rows {where} cannot be written: {self.said(e)}",
                "Correct the rows in the query, or the columns and constraints of the table",
                safe,
            ) from None
        except psycopg.NotSupportedError as e:
            raise self.unusable(
                f"cannot prepare {part}: {self.said(e)}",
                "Remove from the table's triggers what PostgreSQL cannot prepare",
            ) from None
        except psycopg.errors.QueryCanceled as e:
            raise PrepareFailed(
                f"PostgreSQL took longer than {STATEMENT_S} s over the rows {where}: {self.said(e)}",
                "Usually the rows wait for a lock. If two rows of a batch have the same key in a unique index, one "
                "waits for the other's prepared transaction: keep only one of these rows in the query. Otherwise find "
                "the holder of the lock (pg_locks; a prepared transaction has no pid), or the cause of a slow server",
                safe,
            ) from None
        except psycopg.Error as e:
            raise PrepareFailed(
                f"the rows {where} could not be prepared: {self.said(e)}",
                "Spark retries the task; if PostgreSQL has no free slot for a prepared transaction, raise "
                "max_prepared_transactions",
                safe,
            ) from None

    def said(self, e: Exception) -> str:
        """Return the message of the server (or of libpq)."""
        text = str(e)
        if isinstance(e, psycopg.Error) and e.diag.message_primary:
            text = f"{e.diag.message_primary} ({e.diag.context})" if e.diag.context else e.diag.message_primary
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def unusable(self, what: str, way_out: str, safe: str | None = None) -> DatabaseUnusable:
        return DatabaseUnusable(f"PostgreSQL ({self.shown}) {what}", way_out, safe)

    def denied(self, what: str, way_out: str, safe: str) -> NotAuthorized:
        return NotAuthorized(f"PostgreSQL ({self.shown}): {what}", way_out, safe)


def _column(column: pa.Array) -> Sequence[Any]:
    """Convert the values for psycopg; structs and maps, and lists of them, become JSON."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    if not _has_fields(column.type):
        return values
    return [None if v is None else json.dumps(v, ensure_ascii=False, default=_word) for v in values]


def _has_fields(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return True
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and _has_fields(kind.value_type)


def _word(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"JSON cannot represent a {type(value).__name__} inside a struct or a map")

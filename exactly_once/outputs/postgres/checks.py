"""Checks that PostgreSQL and the table can prepare, keep and commit parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

import psycopg
from psycopg import sql

from exactly_once.errors import BrokerUnreachable
from exactly_once.outputs.postgres.session import GRANT, ORIGIN, Database, PostgresSession

#: A query with a row (fault, way out) for each reason not to use the server.
_SERVER: LiteralString = """
    SELECT 'is read-only: a standby, or default_transaction_read_only',
           'Connect to the primary (target_session_attrs=read-write)'
    WHERE pg_is_in_recovery() OR current_setting('transaction_read_only')::bool
    UNION ALL
    SELECT 'has max_prepared_transactions = 0, so nothing can be prepared',
           'Set max_prepared_transactions to at least the number of parts of a batch, summed over all streams (each '
           'part takes a slot until it is committed), and restart the server'
    WHERE current_setting('max_prepared_transactions')::int = 0
    UNION ALL
    SELECT 'runs with fsync off, so a crash loses transactions that it has prepared', 'Set fsync = on'
    WHERE NOT current_setting('fsync')::bool
"""

#: The same for the table.
_TABLE: LiteralString = """
    WITH t AS (SELECT oid, relname, relkind, relpersistence FROM pg_class WHERE oid = to_regclass(%(table)s)),
         x AS (TABLE t UNION SELECT oid, relname, relkind, relpersistence FROM pg_class
               WHERE oid IN (SELECT relid FROM t, pg_partition_tree(t.oid))),
         a AS (SELECT a.*, ty.typdefault FROM pg_attribute a JOIN t ON a.attrelid = t.oid
               JOIN pg_type ty ON ty.oid = a.atttypid WHERE a.attnum > 0 AND NOT a.attisdropped)
    SELECT 'does not exist', 'Create the table, or name it as schema.table' WHERE NOT EXISTS (SELECT FROM t)
    UNION ALL SELECT 'is not a table', 'Name a table' FROM t WHERE relkind NOT IN ('r', 'p')
    UNION ALL SELECT 'is temporary, unlogged or foreign, or has such a partition (' || relname
                     || '): it loses rows, or cannot be prepared', 'ALTER TABLE ... SET LOGGED, or name another table'
              FROM x WHERE relpersistence <> 'p' OR relkind = 'f'
    UNION ALL SELECT 'has row-level security, which COPY does not support', 'Use a role with BYPASSRLS'
              FROM t WHERE row_security_active(oid)
    UNION ALL SELECT 'has no column ' || n, 'Add the column, or choose other columns with columns='
              FROM t, unnest(%(columns)s::text[]) n WHERE n NOT IN (SELECT attname FROM a)
    UNION ALL SELECT 'generates its column ' || attname, 'Exclude the column with columns='
              FROM a WHERE attgenerated <> '' AND attname = ANY (%(columns)s::text[])
    UNION ALL SELECT 'requires a value for its column ' || attname, 'Write the column, or give it a default'
              FROM a WHERE attnotnull AND NOT atthasdef AND attidentity = '' AND typdefault IS NULL
              AND attname <> ALL (%(columns)s::text[])
    UNION ALL SELECT 'may not be written by role ' || current_user,
                     'GRANT INSERT ON ' || %(table)s || ' TO ' || quote_ident(current_user)
              FROM a WHERE attname = ANY (%(columns)s::text[]) AND NOT has_column_privilege(attrelid, attnum, 'INSERT')
"""

#: Rows (whose fault, fault, way out), and one (transaction, gid, null) for each that is prepared: one round trip.
_STATE: LiteralString = f"""
    SELECT 'server', s.* FROM ({_SERVER}) s UNION ALL SELECT 'table', t.* FROM ({_TABLE}) t
    UNION ALL SELECT 'transaction', gid, NULL FROM pg_prepared_xacts WHERE database = current_database()
"""


def prepared_gids(
    session: PostgresSession,
    database: Database,
    table: sql.Identifier,
    columns: Sequence[str],
    safe: str | None = None,
) -> set[str]:
    """Return the gids of the prepared transactions; raise DatabaseUnusable for a server, a role or a table that cannot
    take part in a two-phase commit.
    """
    name = table.as_string()
    found = session.run(_STATE, {"table": name, "columns": list(columns)}).fetchall()
    for whose, fault, way_out in found:
        if whose == "server":
            raise database.unusable(fault, way_out, safe)
        if whose == "table":
            raise database.unusable(f"cannot take rows: the table {name} {fault}", way_out, safe)
    return {gid for _, gid, _ in found}


def refuse(database: Database, table: sql.Identifier, columns: Sequence[str]) -> None:
    """Refuse a server, a role or a table that cannot take part in a two-phase commit, by BrokerUnreachable,
    DatabaseUnusable or NotAuthorized.
    """
    try:
        session = database.connect("exactly-once check")
    except psycopg.Error as e:
        raise BrokerUnreachable(
            f"PostgreSQL ({database.shown}) cannot be reached: {database.said(e)}",
            "Check dsn, the password and the server",
        ) from None
    with session:
        try:
            if session.version < 130000:
                raise database.unusable("is older than PostgreSQL 13", "Upgrade the server to PostgreSQL 13 or newer")
            prepared_gids(session, database, table, columns)
            session.row("SELECT" + ORIGIN)  # every part needs this right
        except psycopg.errors.InsufficientPrivilege as e:
            raise database.denied(database.said(e), GRANT, "Nothing was written") from None
        except psycopg.Error as e:
            raise database.unusable(
                f"could not be checked: {database.said(e)}", "Check the server's log, then start the stream again"
            ) from None

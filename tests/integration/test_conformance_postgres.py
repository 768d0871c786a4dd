"""The PostgreSQL participant on a real server: the contract's conformance suite, and what only PostgreSQL can do."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from exactly_once.errors import (
    BrokerUnreachable,
    CommitLogDamaged,
    DatabaseUnusable,
    ExactlyOnceError,
    Expired,
    InvalidRecord,
    NotAuthorized,
    PrepareFailed,
    Unfinished,
)
from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.conformance.processes import prepare
from exactly_once.outputs.postgres import PostgresParticipant
from exactly_once.outputs.postgres import session as postgres_session
from exactly_once.participant import PartName, Scope
from exactly_once.protocol.records import PreparedPart
from testkit.postgres import PASSWORD, PostgresServer
from testkit.processes import until

SINK = "orders_1"
ROWS = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.mark.long
class TestPostgres(ParticipantConformance):
    """The suite for every participant."""

    @pytest.fixture(autouse=True)
    def output(self, postgres: PostgresServer) -> None:
        self.server = postgres
        clear(postgres)
        postgres.sql(
            "CREATE TABLE output (id int8 NOT NULL, text text, number int4, ratio float8, flag bool, at timestamptz,"
            " raw bytea)"
        )

    def participant(self) -> PostgresParticipant:
        return PostgresParticipant("postgres", self.server.dsn(), "output")

    def visible(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.server.dsn(), row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM output").fetchall()

    def leftovers(self) -> set[str]:
        begun = self.server.sql(
            "SELECT application_name FROM pg_stat_activity"
            " WHERE application_name LIKE 'eo:%' AND xact_start IS NOT NULL"
        )
        return self.server.prepared() | {name for (name,) in begun}

    def foreign(self) -> set[str]:
        gids = {
            "an application's own",
            "eo:",
            f"eo:{self.sink_id}",
            f"eo:{self.sink_id}:log",
            f"eo:{self.sink_id}:1:2:3:x",
            f"eo:{self.sink_id}:1:2:3:0.1:more",
        }
        for gid in gids:
            prepare_foreign(self.server, gid)
        return gids

    def lose(self, handle: PreparedPart) -> None:
        roll_back(self.server, handle.name)


class TestOlderServer:
    """The same statements on the oldest server that the wheel has."""

    def test_a_part_is_prepared_committed_and_proven_on_postgresql_16(self) -> None:
        """A statement that only the newest server knows would fail at the users' servers, not here."""
        server = PostgresServer(version=16)
        try:
            out = Out(server.start())
            first, second = out.prepare(0, [1]), out.prepare(1, [2])
            roll_back(server, second.name)
            assert [h.part for h in out.participant.commit([first, second])] == [1]
            assert out.participant.commit([first]) == []
            out.prepare(2, [3])
            assert len(out.participant.recover_and_abort(Scope(SINK, 9))) == 1
            assert out.ids() == [1]
        finally:
            server.close()


class Out:
    """A table, and a participant that writes it."""

    def __init__(self, server: PostgresServer, columns: str = "id int8, word text", user: str = "postgres"):
        clear(server)
        server.sql(f"CREATE TABLE output ({columns})")
        if user != "postgres":
            make_role(server, user)
            server.sql(f"GRANT INSERT ON output TO {user}")
        self.server = server
        self.participant = PostgresParticipant("postgres", server.dsn(user=user), "output")

    def name(self, part: int, token: int = 3, attempt: str = "0.1") -> PartName:
        return PartName(SINK, token, 7, part, attempt)

    def prepare(self, part: int, ids: list[int], **of: Any) -> PreparedPart:
        handle: PreparedPart = prepare(self.participant, self.name(part, **of), [rows(ids)])
        return handle

    def ids(self) -> list[int]:
        """As the command line client sees them."""
        return [int(line) for line in self.server.psql("SELECT id FROM output ORDER BY id").split()]


def rows(ids: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": i, "word": f"w{i}"} for i in ids], schema=ROWS)


def clear(server: PostgresServer) -> None:
    for gid in server.prepared():
        roll_back(server, gid)
    server.sql("DROP TABLE IF EXISTS output")


def make_role(server: PostgresServer, name: str) -> None:
    if not server.sql("SELECT 1 FROM pg_roles WHERE rolname = %s", name):
        server.sql(f"CREATE ROLE {name} LOGIN")


def wait_for_standby(server: PostgresServer, name: str) -> None:
    server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.sql("SELECT pg_reload_conf()")
    until("the setting", lambda: server.sql("SHOW synchronous_standby_names") == [(name,)])


def roll_back(server: PostgresServer, gid: str) -> None:
    server.sql("ROLLBACK PREPARED '" + gid.replace("'", "''") + "'")


def prepare_foreign(server: PostgresServer, gid: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION '" + gid.replace("'", "''") + "'")


@pytest.fixture
def out(postgres: PostgresServer) -> Out:
    return Out(postgres)


FOREIGN = "an application's own"


@pytest.mark.parametrize(
    "forged",
    [
        {"gid": FOREIGN},
        {"gid": "x'; DROP TABLE output; --"},
        {"gid": 7},
        {"xid": "1; DROP TABLE output"},
        {"xid": 7},
        {"timeline": 1},
        {"database": 1},
    ],
    ids=str,
)
def test_a_forged_handle_ends_no_transaction_and_runs_no_statement(out: Out, forged: dict[str, str | int]) -> None:
    """Corruption: who may write to the commit log commits what another application has prepared in the database."""
    handle = out.prepare(0, [0])
    prepare_foreign(out.server, FOREIGN)
    try:
        with pytest.raises(CommitLogDamaged, match=r"EO-LOG: .*not that part's transaction"):
            out.participant.recover_and_commit([replace(handle, data={**handle.data, **forged})])
        with pytest.raises(CommitLogDamaged):
            out.participant.found("orders", [replace(handle, data={**handle.data, **forged})])
        with pytest.raises(CommitLogDamaged):
            out.participant.commit([replace(handle, data={})])
        with pytest.raises(CommitLogDamaged):
            out.participant.commit([replace(handle, name=FOREIGN, data={**handle.data, "gid": FOREIGN})])
        assert out.server.prepared() == {FOREIGN, handle.name}
        assert out.participant.commit([handle]) == []
    finally:
        out.server.sql("ROLLBACK PREPARED 'an application''s own'")


@pytest.mark.long
def test_prepared_parts_survive_a_server_killed_before_the_commit(own_postgres: PostgresServer) -> None:
    """pre_commit promises that the rows outlive any crash of the server."""
    out = Out(own_postgres.start())
    handles = [out.prepare(part, [part]) for part in range(3)]
    own_postgres.kill()
    with pytest.raises(Unfinished, match="EO-UNFINISHED"):
        out.participant.commit(handles)
    own_postgres.start()
    assert out.ids() == []
    assert out.participant.gone(handles) == []
    assert out.participant.recover_and_commit(handles) == []
    assert out.ids() == [0, 1, 2]


@pytest.mark.long
def test_a_server_killed_in_the_midst_of_a_commit_has_committed_once(own_postgres: PostgresServer) -> None:
    """The commit record is written, the answer never came: neither lost nor written again. A synchronous standby that
    does not exist holds the server at that very point; nobody may take the part for committed until it is through,
    least of all by a deadline of the role's: it ends the wait with a success.
    """
    out = Out(own_postgres.start())
    handles = [out.prepare(part, [part]) for part in range(2)]
    own_postgres.sql("ALTER ROLE postgres SET statement_timeout = '200ms'")
    wait_for_standby(own_postgres, "nobody")
    cut: list[Any] = []
    driver = threading.Thread(target=lambda: cut.append(outcome_of(lambda: out.participant.commit(handles))))
    driver.start()
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND now() > query_start + interval '1s'"
    until("the commit record", lambda: own_postgres.sql(waiting))
    with pytest.raises(Unfinished, match="busy"):
        out.participant.recover_and_commit(handles)
    own_postgres.kill()
    driver.join(20)
    assert [type(e) for e in cut] == [Unfinished]
    own_postgres.start(synchronous_standby_names="")
    assert own_postgres.prepared() == {handles[1].name}, "the record of the first one was durable"
    assert out.participant.recover_and_commit(handles) == []
    assert out.participant.recover_and_commit(handles) == []
    assert out.ids() == [0, 1]


@pytest.mark.long
def test_a_part_that_its_standby_does_not_have_is_not_prepared(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that gives up the wait for its standby says that all is well; after a failover the decided part is not
    there.
    """
    out = Out(own_postgres.start())
    for name in ("STATEMENT_S", "GRACE_S"):
        monkeypatch.setattr(postgres_session, name, 1)
    wait_for_standby(own_postgres, "nobody")
    with pytest.raises(PrepareFailed, match="no answer for 2 s"):
        out.prepare(0, [0])
    wait_for_standby(own_postgres, "")
    assert out.participant.recover_and_abort(Scope(SINK, 9)) == [str(out.name(0))]
    assert own_postgres.prepared() == set()


@pytest.mark.long
def test_a_server_killed_at_any_time_during_commits_commits_each_part_once(own_postgres: PostgresServer) -> None:
    """The same without a net: wherever the kill lands between sixty commits."""
    out = Out(own_postgres.start())
    handles = [out.prepare(part, [part]) for part in range(60)]
    results: list[Any] = []
    driver = threading.Thread(target=lambda: results.append(outcome_of(lambda: out.participant.commit(handles))))
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as reader:
        driver.start()
        some = "SELECT 1 FROM output HAVING count(*) >= 5"
        until("some commits", lambda: reader.execute(some).fetchone(), every_s=0)
    own_postgres.kill()
    driver.join(20)
    assert results[0] == [] or isinstance(results[0], Unfinished)
    own_postgres.start()
    assert out.participant.recover_and_commit(handles) == []
    assert out.ids() == list(range(60))
    assert own_postgres.prepared() == set()


@pytest.mark.long
def test_a_server_that_stands_still_does_not_hang_the_stream(
    own_postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server without an answer (stopped, or behind a cut net) would hold the stream, and its lock, forever."""
    out = Out(own_postgres.start())
    handle = out.prepare(0, [0])
    writer = out.participant.begin(out.name(1))
    writer.write(rows([1]))
    for name, seconds in (("STATEMENT_S", 1), ("GRACE_S", 0), ("CONNECT_S", 2)):
        monkeypatch.setattr(postgres_session, name, seconds)
    began = time.monotonic()
    own_postgres.freeze()
    try:
        with pytest.raises(PrepareFailed, match="no answer for 1 s"):
            writer.pre_commit()
        with pytest.raises(Unfinished):
            out.participant.commit([handle])
        with pytest.raises(BrokerUnreachable):
            out.participant.check(SINK, ROWS)
    finally:
        own_postgres.thaw()
    assert time.monotonic() - began < 15
    writer.abort()
    assert out.participant.recover_and_commit([handle]) == []
    out.participant.recover_and_abort(Scope(SINK, 9))
    assert out.ids() == [0]
    assert own_postgres.prepared() == set()


def test_a_statement_that_waits_for_a_lock_ends(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten LOCK TABLE would hold a task forever; the server's deadline ends the wait."""
    monkeypatch.setattr(postgres_session, "STATEMENT_S", 1)
    with psycopg.connect(out.server.dsn()) as other:
        other.execute("LOCK TABLE output")
        with pytest.raises(PrepareFailed, match="statement timeout"):
            out.prepare(0, [0])


def test_two_rows_of_a_batch_with_one_key_are_named(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first one's prepared transaction, in vain at every try: more slots, which the error for
    any other failure advises, do not help.
    """
    monkeypatch.setattr(postgres_session, "STATEMENT_S", 1)
    out = Out(postgres, "id int8 UNIQUE, word text")
    first = out.prepare(0, [1])
    with pytest.raises(PrepareFailed, match=r"longer than 1 s .* two rows .*the same key") as refused:
        out.prepare(1, [1])
    assert "max_prepared_transactions" not in str(refused.value) and "output_id_key" in str(refused.value)
    assert out.participant.commit([first]) == []


def test_a_part_that_an_operator_committed_is_committed(out: Out) -> None:
    """COMMIT PREPARED by hand at 3 a.m. is not a loss: writing the part again would double it."""
    handles = [out.prepare(part, [part]) for part in range(2)]
    out.server.sql(f"COMMIT PREPARED '{handles[0].name}'")
    assert out.participant.commit(handles) == []
    assert out.ids() == [0, 1]


@pytest.mark.long
def test_a_standby_that_took_over_commits_what_it_has_and_guesses_nothing(own_postgres: PostgresServer) -> None:
    """A standby gives transaction ids out again: one of them, committed by somebody else, would prove a commit that
    never was, and the part's rows would be lost in silence.
    """
    out = Out(own_postgres.start())
    kept, rolled_back = out.prepare(0, [0]), out.prepare(1, [1])
    roll_back(own_postgres, rolled_back.name)
    own_postgres.kill()
    own_postgres.become_standby()
    own_postgres.start()
    with pytest.raises(DatabaseUnusable, match="read-only: a standby"):
        out.participant.check(SINK, ROWS)
    with pytest.raises(Unfinished, match="recovery"):
        out.participant.commit([kept])
    own_postgres.sql("SELECT pg_promote()")
    out.participant.check(SINK, ROWS)
    assert out.participant.gone([kept, rolled_back]) == [rolled_back]
    with pytest.raises(Expired, match=rolled_back.name):
        out.participant.commit([rolled_back, kept])
    assert out.ids() == [0], "the others are committed all the same"


def test_an_outcome_that_the_server_cannot_know_is_in_doubt(out: Out) -> None:
    """A transaction id of the server's future says that it was set back (a restored snapshot): no proof of anything."""
    ((now,),) = out.server.sql("SELECT pg_current_xact_id()::text::int8")
    handle = out.prepare(0, [0])
    roll_back(out.server, handle.name)
    future = replace(handle, data={**handle.data, "xid": str(now + 1_000_000)})
    with pytest.raises(Expired, match=rf"{handle.name} \(1 records, xid {now + 1_000_000}\)"):
        out.participant.commit([future])
    assert [h.part for h in out.participant.commit([handle])] == [0]


def test_a_transaction_that_still_ends_is_neither_committed_nor_lost(out: Out) -> None:
    """Between the end of a name and the end of its transaction, "lost" would write its rows twice."""
    handle = out.prepare(0, [0])
    roll_back(out.server, handle.name)
    with psycopg.connect(out.server.dsn()) as other:
        ((xid,),) = other.execute("SELECT pg_current_xact_id()::text").fetchall()
        with pytest.raises(Unfinished, match=f"still ending {handle.name}"):
            out.participant.commit([replace(handle, data={**handle.data, "xid": xid})])


def test_another_database_proves_nothing(out: Out) -> None:
    """A dsn that was changed to another server or database knows no gid: "lost", and every row twice."""
    handle = out.prepare(0, [0])
    out.server.sql("DROP DATABASE IF EXISTS elsewhere")
    out.server.sql("CREATE DATABASE elsewhere")
    other = PostgresParticipant("postgres", out.server.dsn("elsewhere"), "output")
    with pytest.raises(DatabaseUnusable, match=f"not the database .*{handle.name}"):
        other.commit([handle])
    assert other.gone([handle]) == [handle]
    assert other.recover_and_abort(Scope(SINK, 9)) == [], "another database's transactions are not its business"
    assert out.participant.commit([handle]) == []
    assert out.ids() == [0]


def test_names_with_wildcards_of_like_are_swept_apart(out: Out) -> None:
    """``_`` stands for any character in LIKE: a sweep by pattern would roll back a neighbour's decided parts."""
    for gid in ("eo:ordersX1:3:7:0:0.1", "eo:orders%:3:7:0:0.1", "eo:orders_1%:3:7:0:0.1", "eo:orders_12:3:7:0:0.1"):
        prepare_foreign(out.server, gid)
    foreign = out.server.prepared()
    mine = out.prepare(0, [0])
    assert out.participant.recover_and_abort(Scope(SINK, 9)) == [mine.name]
    assert out.server.prepared() == foreign


def test_a_task_of_a_superseded_driver_is_ended_with_its_locks(postgres: PostgresServer) -> None:
    """A task on a machine that is cut off holds the keys of its rows for hours: the next attempt would wait for them
    and fail, however often the stream is started.
    """
    out = Out(postgres, "id int8 PRIMARY KEY, word text", user="alice")
    late = out.participant.begin(out.name(0, token=3))
    late.write(rows([1]))
    own = out.participant.begin(out.name(1, token=4))
    own.write(rows([2]))
    assert out.participant.recover_and_abort(Scope(SINK, 4)) == [str(out.name(0, token=3))]
    handle = out.prepare(0, [1], token=4)
    with pytest.raises(PrepareFailed):
        late.pre_commit()
    assert out.participant.commit([handle, own.pre_commit()]) == []
    assert out.ids() == [1, 2]


def test_a_part_of_another_role_is_refused_with_both_names(postgres: PostgresServer) -> None:
    """PostgreSQL lets only the role that prepared end it: the person must learn which one."""
    make_role(postgres, "bob")
    out = Out(postgres, user="alice")
    out.participant.check(SINK, ROWS)
    handle = out.prepare(0, [0])
    bob = PostgresParticipant("postgres", postgres.dsn(user="bob"), "output")
    for method, argument in ((bob.commit, [handle]), (bob.abort, [handle]), (bob.recover_and_abort, Scope(SINK, 9))):
        with pytest.raises(NotAuthorized, match=rf"role bob .*{handle.name} of role alice"):
            method(argument)
    with pytest.raises(DatabaseUnusable, match="written by role bob"):
        bob.check(SINK, ROWS)
    assert out.participant.commit([handle]) == []
    assert out.ids() == [0]


def test_a_deferred_constraint_fails_in_pre_commit(postgres: PostgresServer) -> None:
    """A violation that showed at the commit would come after the decision: a torn batch that no start can complete."""
    out = Out(postgres, "id int8 UNIQUE DEFERRABLE INITIALLY DEFERRED, word text")
    writer = out.participant.begin(out.name(0))
    writer.write(rows([1, 1]))
    with pytest.raises(InvalidRecord, match=r"duplicate key .*unique constraint"):
        writer.pre_commit()
    writer.abort()
    assert postgres.prepared() == set()
    assert out.participant.commit([out.prepare(0, [1], attempt="1.2")]) == []


def test_a_deferred_trigger_that_never_ends_is_ended(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by PREPARE itself, which has no deadline at the server, it would go on after the task has given up."""
    monkeypatch.setattr(postgres_session, "STATEMENT_S", 1)
    out.server.sql(
        "CREATE OR REPLACE FUNCTION rest() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'"
    )
    out.server.sql(
        "CREATE CONSTRAINT TRIGGER rest AFTER INSERT ON output DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION rest()"
    )
    with pytest.raises(PrepareFailed, match="statement timeout"):
        out.prepare(0, [1])


def test_a_task_that_goes_on_after_a_failed_write_prepares_nothing(out: Out) -> None:
    """PREPARE TRANSACTION of a failed transaction rolls back and reports no error: a handle of nothing. And "no rows"
    after a first write that failed would be a part that nobody misses.
    """
    writer = out.participant.begin(out.name(0))
    writer.write(rows([1]))
    with pytest.raises(InvalidRecord, match=r'column "no_such" .* does not exist'):
        writer.write(pa.RecordBatch.from_pylist([{"no_such": 1}]))
    first = out.participant.begin(out.name(1))
    with pytest.raises(InvalidRecord):
        first.write(pa.RecordBatch.from_pylist([{"no_such": 1}]))
    for failed in (writer, first):
        with pytest.raises(PrepareFailed):
            failed.pre_commit()
    assert out.server.prepared() == set()


def test_rows_that_a_trigger_drops_are_an_error(out: Out) -> None:
    """The handle would count, and a report would show, rows that are nowhere."""
    out.server.sql(
        "CREATE OR REPLACE FUNCTION drop_odd() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.id % 2 = 1 THEN RETURN NULL; END IF; RETURN NEW; END'"
    )
    out.server.sql("CREATE TRIGGER odd BEFORE INSERT ON output FOR EACH ROW EXECUTE FUNCTION drop_odd()")
    assert out.participant.commit([out.prepare(0, [2, 4])]) == []
    with pytest.raises(InvalidRecord, match="accepted 1 of 2 rows"):
        out.prepare(1, [1, 2])


def test_what_cannot_be_prepared_stops_the_stream(out: Out) -> None:
    """A NOTIFY in a trigger is refused at every PREPARE: trying the task again would never end."""
    out.server.sql(
        "CREATE OR REPLACE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY news; RETURN NULL; END'"
    )
    out.server.sql("CREATE TRIGGER tell AFTER INSERT ON output EXECUTE FUNCTION tell()")
    with pytest.raises(DatabaseUnusable, match="NOTIFY"):
        out.prepare(0, [1])


def test_other_writers_are_not_blocked_by_a_prepared_part(postgres: PostgresServer) -> None:
    """A batch stays prepared for as long as its slowest participant takes; the table must stay usable."""
    out = Out(postgres, "id int8 PRIMARY KEY, word text")
    postgres.sql("INSERT INTO output VALUES (10, 'x'), (11, 'y')")
    handle = out.prepare(0, [1])
    with psycopg.connect(postgres.dsn(), autocommit=True) as other:
        other.execute("SET lock_timeout = '500ms'")
        other.execute("INSERT INTO output VALUES (12, 'z')")
        other.execute("UPDATE output SET word = 'changed' WHERE id = 10")
        other.execute("DELETE FROM output WHERE id = 11")
        assert other.execute("SELECT count(*) FROM output").fetchone() == (2,)
    assert out.participant.commit([handle]) == []
    assert out.ids() == [1, 10, 12]


def test_types_arrive_as_they_are(postgres: PostgresServer) -> None:
    """A value that COPY reads otherwise is a loss that no count shows."""
    kinds = {
        "a": (pa.decimal128(20, 5), "numeric", Decimal("12345678.90123")),
        "b": (pa.date32(), "date", dt.date(1969, 12, 31)),
        "c": (pa.time64("us"), "time", dt.time(23, 59, 59, 999999)),
        "d": (pa.timestamp("us"), "timestamp", dt.datetime(2026, 7, 8, 9, 10, 11, 123456)),
        "e": (pa.duration("us"), "interval", dt.timedelta(days=3, seconds=4, microseconds=5)),
        "f": (pa.list_(pa.int32()), "int4[]", [1, None, 3]),
        "g": (pa.list_(pa.string()), "text[]", ["plain", 'a "quote", {brace} \\ and \n', None, "NULL", ""]),
        "h": (pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]), "jsonb", {"x": 1, "y": ["ü", None]}),
        "i": (pa.map_(pa.string(), pa.float64()), "json", {"k": 1.5}),
        "j": (pa.list_(pa.struct([("at", pa.date32())])), "jsonb", [{"at": dt.date(2026, 1, 2)}]),
        "k": (pa.string(), "uuid", "00000000-0000-0000-0000-00000000002a"),
        "l": (pa.string(), "jsonb", '{"n": null}'),
        "m": (pa.float32(), "float4", float("-inf")),
        "n": (pa.int16(), "int2", -32768),
        "o": (pa.string(), "text", "line\n\\.\n\\N\t'\"end"),
        "p": (pa.binary(), "bytea", bytes(range(256))),
        'Odd name, "100%"': (pa.bool_(), "bool", True),
    }
    columns = ", ".join('"' + name.replace('"', '""') + f'" {sql}' for name, (_, sql, _) in kinds.items())
    out = Out(postgres, columns)
    schema = pa.schema([(name, kind) for name, (kind, _, _) in kinds.items()])
    full, empty = {name: value for name, (_, _, value) in kinds.items()}, dict.fromkeys(kinds)
    out.participant.check(SINK, schema)
    batch = pa.RecordBatch.from_pylist([full, empty, full], schema=schema)
    handle = prepare(out.participant, out.name(0), [batch])
    assert handle.records == 3
    assert out.participant.commit([handle]) == []
    with psycopg.connect(postgres.dsn(), row_factory=dict_row) as reader:
        seen = reader.execute("SELECT * FROM output").fetchall()
    want = full | {"j": [{"at": "2026-01-02"}], "l": {"n": None}}
    assert seen[1] == empty
    for row in (seen[0], seen[2]):
        assert row | {"k": str(row["k"])} == want


def test_a_value_that_the_column_cannot_hold_stops_the_stream(postgres: PostgresServer) -> None:
    """Trying such a task again gives the same rows and the same refusal."""
    out = Out(postgres, "id int2, word text")
    with pytest.raises(InvalidRecord, match=r"out of range .*smallint .*column id"):
        out.prepare(0, [100_000])
    writer = out.participant.begin(out.name(1))
    with pytest.raises(InvalidRecord, match="NUL"):
        writer.write(pa.RecordBatch.from_pylist([{"id": 1, "word": "a\0b"}], schema=ROWS))
    writer.abort()


def test_columns_and_schema_are_chosen_by_name(postgres: PostgresServer) -> None:
    """By position, a column that was added to the table would shift every value."""
    clear(postgres)
    postgres.sql('DROP SCHEMA IF EXISTS "Other" CASCADE')
    postgres.sql('CREATE SCHEMA "Other"')
    postgres.sql('CREATE TABLE "Other"."Out" (at timestamptz DEFAULT now(), word text, id int8)')
    participant = PostgresParticipant("postgres", postgres.dsn(), "Other.Out", columns=["id"])
    participant.check(SINK, ROWS)
    assert participant.commit([prepare(participant, PartName(SINK, 3, 7, 0, "0.1"), [rows([5])])]) == []
    assert postgres.sql('SELECT word, id FROM "Other"."Out"') == [(None, 5)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ("SELECT 1", "does not exist"),
        ("CREATE VIEW output AS SELECT 1::int8 AS id, ''::text AS word", "is not a table"),
        ("CREATE UNLOGGED TABLE output (id int8, word text)", "unlogged"),
        (
            "CREATE TABLE output (id int8, word text) PARTITION BY LIST (id);"
            "CREATE UNLOGGED TABLE output_1 PARTITION OF output FOR VALUES IN (1)",
            r"such a partition \(output_1\)",
        ),
        ("CREATE TABLE output (id int8)", "has no column word"),
        (
            "CREATE TABLE output (id int8, word text GENERATED ALWAYS AS ('x') STORED)",
            "generates its column word",
        ),
        ("CREATE TABLE output (id int8, word text, must int8 NOT NULL)", "requires a value for its column must"),
    ],
)
def test_a_table_that_cannot_work_is_refused_at_the_start(postgres: PostgresServer, make: str, says: str) -> None:
    """Found out at the first batch, it stops a stream that has begun; an unlogged one loses rows at a crash."""
    clear(postgres)
    postgres.sql(make)
    try:
        with pytest.raises(DatabaseUnusable, match=says):
            PostgresParticipant("postgres", postgres.dsn(), "output").check(SINK, ROWS)
    finally:
        postgres.sql("DROP VIEW IF EXISTS output" if "VIEW" in make else "DROP TABLE IF EXISTS output")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ALTER TABLE output SET UNLOGGED", "unlogged"),
        ("ALTER TABLE output ADD must int8 NOT NULL DEFAULT 0; ALTER TABLE output ALTER must DROP DEFAULT", "must"),
        ("REVOKE INSERT ON output FROM alice", "may not be written by role alice"),
        ("ALTER TABLE output ENABLE ROW LEVEL SECURITY", "row-level security"),
    ],
)
def test_a_table_that_changes_under_a_stream_is_refused_before_the_next_decision(
    postgres: PostgresServer, change: str, says: str
) -> None:
    """Loss at a crash of the server: COPY and PREPARE say nothing of a table that is no longer logged. What is decided
    is committed all the same.
    """
    out = Out(postgres, user="alice")
    out.participant.check(SINK, ROWS)
    decided = out.prepare(0, [0])
    assert out.participant.gone([decided]) == []
    assert out.participant.commit([decided]) == []
    postgres.sql(change)
    with pytest.raises(DatabaseUnusable, match=rf"{says}.*batch is not decided"):
        out.participant.gone([decided])
    with pytest.raises(DatabaseUnusable, match=says):
        out.participant.check(SINK, ROWS)
    assert out.ids() == [0] and not postgres.prepared()


def test_a_constraint_that_a_table_gets_under_a_stream_is_kept_by_the_server_itself(out: Out) -> None:
    """Wrong rows: it waits for what is prepared, and is checked in the task of the next batch."""
    out.participant.check(SINK, ROWS)
    assert out.participant.commit([out.prepare(0, [1])]) == []
    out.server.sql("ALTER TABLE output ADD CHECK (id > 0)")
    with pytest.raises(InvalidRecord, match="output_id_check"):
        out.prepare(1, [-1])
    assert out.ids() == [1]


def test_row_level_security_is_no_fault_for_a_role_that_it_does_not_bind(out: Out) -> None:
    """COPY refuses it at the first batch, for the roles of the test before, and never for the table's owner."""
    out.server.sql("ALTER TABLE output ENABLE ROW LEVEL SECURITY")
    out.participant.check(SINK, ROWS)


def test_a_role_that_may_not_ask_is_told_which_function(postgres: PostgresServer) -> None:
    """Without the system identifier, another server could not be told from the right one."""
    out = Out(postgres, user="alice")
    postgres.sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        with pytest.raises(NotAuthorized, match=r"permission denied .*pg_control_system"):
            out.participant.check(SINK, ROWS)
    finally:
        postgres.sql("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")


def test_a_good_table_is_not_refused(postgres: PostgresServer) -> None:
    """Defaults, identities, domains with defaults and partitions are what real tables have."""
    out = Out(
        postgres,
        "id int8 NOT NULL, word text, at timestamptz NOT NULL DEFAULT now(), n int8 GENERATED ALWAYS AS IDENTITY,"
        " twice int8 GENERATED ALWAYS AS (id * 2) STORED) PARTITION BY RANGE (id",
    )
    postgres.sql("CREATE TABLE output_1 PARTITION OF output FOR VALUES FROM (0) TO (10)")
    out.participant.check(SINK, ROWS)
    assert out.participant.commit([out.prepare(0, [1])]) == []
    assert out.ids() == [1]


@pytest.mark.long
def test_a_server_that_cannot_work_is_refused_at_the_start(own_postgres: PostgresServer) -> None:
    """Without slots nothing can be prepared; without fsync a crash loses what pre_commit promised."""
    out = Out(own_postgres.start(max_prepared_transactions="0"))
    with pytest.raises(DatabaseUnusable, match=r"max_prepared_transactions = 0.*restart the server"):
        out.participant.check(SINK, ROWS)
    own_postgres.stop()
    own_postgres.start(max_prepared_transactions="1")
    out.participant.check(SINK, ROWS)  # a stream has begun
    own_postgres.stop()
    own_postgres.start(fsync="off")
    with pytest.raises(DatabaseUnusable, match="fsync"):
        out.participant.check(SINK, ROWS)
    with pytest.raises(DatabaseUnusable, match=r"fsync.*batch is not decided"):
        out.participant.gone([])
    own_postgres.stop()
    own_postgres.start(fsync="on", default_transaction_read_only="on")
    with pytest.raises(DatabaseUnusable, match="read-only"):
        out.participant.check(SINK, ROWS)
    own_postgres.stop()
    own_postgres.start(default_transaction_read_only="off")
    out.participant.check(SINK, ROWS)
    handle = out.prepare(0, [0])
    with pytest.raises(PrepareFailed, match=r"maximum .*prepared transactions"):
        out.prepare(1, [1])
    assert out.participant.commit([handle]) == []
    out.participant.commit([out.prepare(1, [1], attempt="1.2")])
    assert out.ids() == [0, 1]


def test_the_password_comes_from_the_environment_and_is_never_shown(
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handles are kept in a topic and errors in every log; a password there is everybody's."""
    out = Out(postgres)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    tcp = postgres.dsn(tcp=True)
    with pytest.raises(BrokerUnreachable, match="no password supplied"):
        PostgresParticipant("postgres", tcp, "output").check(SINK, ROWS)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    PostgresParticipant("postgres", tcp, "output").check(SINK, ROWS)
    monkeypatch.delenv("PGPASSWORD")
    given = PostgresParticipant("postgres", f"{tcp} password='{PASSWORD}'", "output")
    given.check(SINK, ROWS)
    handle = prepare(given, out.name(0), [rows([0])])
    assert given.commit([handle]) == []
    with pytest.raises(InvalidRecord) as refused, given.database.task(str(out.name(1))):
        raise psycopg.DataError(f"the server repeats {PASSWORD}")
    wrong = PostgresParticipant("postgres", f"{tcp} password=wrong-one", "output")
    with pytest.raises(BrokerUnreachable, match="password authentication failed") as denied:
        wrong.check(SINK, ROWS)
    shown = [
        repr(given),
        str(given),
        repr(wrong),
        json.dumps(dict(handle.data)),
        repr(handle),
        *map(str, (refused.value, denied.value)),
    ]
    assert not [text for text in shown if PASSWORD in text or "wrong-one" in text]


def outcome_of(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except ExactlyOnceError as e:
        return e

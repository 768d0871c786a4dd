"""The PostgreSQL participant without a server: what it shows, what it refuses by itself."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from exactly_once.errors import InvalidOption, InvalidSchema
from exactly_once.outputs.postgres import GID_BYTES, PostgresParticipant, session_name, session_scopes
from exactly_once.outputs.postgres.session import _column
from exactly_once.participant import PartName, Scope
from exactly_once.protocol.names import incarnation

SECRET = "pa55w0rd/with@signs"
ROWS = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db.example dbname=shop user=eo password='pa55w0rd/with@signs'",
        "postgresql://eo:pa55w0rd%2Fwith%40signs@db.example/shop",
        "postgresql://eo@db.example/shop?password=pa55w0rd%2Fwith%40signs&sslpassword=other-one",
    ],
)
def test_a_password_in_the_dsn_is_not_shown(dsn: str) -> None:
    """Spark, Dagster and every debugger print objects; what they print is kept."""
    participant = PostgresParticipant("postgres", dsn, "orders")
    assert "db.example" in repr(participant) and "shop" in repr(participant)
    for text in (repr(participant), str(participant), repr(participant.database), f"{participant!s}"):
        assert "pa55w0rd" not in text and "other-one" not in text
    assert SECRET not in participant.database.said(ValueError(f"libpq repeats {SECRET}"))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://eo:begin@pa55w0rd@host/shop",
        "postgresql://eo:begin/pa55w0rd@host/shop",
        "password=pa55w0rd nonsense=1",
        "pa55w0rd",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    """libpq's own message quotes the piece that it does not understand, often with the password in it."""
    with pytest.raises(InvalidOption, match=r"^EO-OPTION: dsn is not") as refused:
        PostgresParticipant("postgres", dsn, "orders")
    assert "pa55w0rd" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


def test_it_travels_by_pickle() -> None:
    """Spark sends it to every task."""
    one = PostgresParticipant("postgres", "host=db.example", "s.orders", ["id"])
    two = pickle.loads(pickle.dumps(one))
    assert (repr(two), two.columns, two.table) == (repr(one), ["id"], "s.orders")
    assert two.identifier.as_string() == '"s"."orders"'


def test_a_sink_id_whose_names_would_not_fit_is_refused() -> None:
    """The server refuses a gid of 200 bytes at the first PREPARE whose numbers have grown: in a year, at night."""
    participant = PostgresParticipant("postgres", "host=/nowhere", "orders")
    with pytest.raises(InvalidOption, match=f"{GID_BYTES} bytes.*by 1 characters"):
        participant.check("s" * 130, ROWS)
    longer = PostgresParticipant("post-gres-ü", "host=/nowhere", "orders")
    with pytest.raises(InvalidOption, match=r"post-gres-ü are together too long .* by 5 characters"):
        longer.check("s" * 130, ROWS)


@pytest.mark.parametrize("sink", ["orders", "s" * 40, "s" * 150])
def test_a_tasks_session_is_found_by_its_name_however_long_the_sinks_is(sink: str) -> None:
    """The server cuts names at 63 bytes. A task of a lost driver that no sweep finds holds its locks, and may prepare
    after the sweep.
    """
    part = PartName(sink, 12_345, 1_000_000, 999, "1.123456", incarnation("c", "l"), "warehouse")
    name = session_name(part)
    assert len(name) <= 63
    own, other = Scope(sink, 12_346, incarnation=part.incarnation), Scope(f"{sink}1", 12_346)
    assert [covering(x, name) for x in (own, other)] == [True, False]
    assert not covering(Scope(sink, 12_345, incarnation=part.incarnation), name)
    assert not covering(Scope(sink, 12_346, incarnation=incarnation("another cluster", "l")), name)


def covering(scope: Scope, session: str) -> bool:
    """Whether a sweep of the participant ends the session."""
    return any(x.covers(session) for x in session_scopes(replace(scope, participant="warehouse")))


@pytest.mark.parametrize("columns", [["id", "no_such"], ["id", "id"]])
def test_columns_that_the_rows_do_not_have_once_are_refused(columns: list[str]) -> None:
    """Found at the start, not at the first batch."""
    with pytest.raises(InvalidSchema, match="rows have id, word"):
        PostgresParticipant("postgres", "host=/nowhere", "orders", columns).check("s", ROWS)


def test_structs_and_maps_become_json_and_lists_stay() -> None:
    """An array of PostgreSQL has no fields, and JSON no bytes: better refused than written as Python's repr."""
    maps = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32()))
    assert list(_column(maps)) == ['{"k": 1}', None]
    assert list(_column(pa.array([[{"a": "ü"}]], pa.list_(pa.struct([("a", pa.string())]))))) == ['[{"a": "ü"}]']
    assert list(_column(pa.array([[1, None]], pa.list_(pa.int8())))) == [[1, None]]
    with pytest.raises(TypeError, match="cannot represent a bytes"):
        _column(pa.array([{"a": b"x"}]))

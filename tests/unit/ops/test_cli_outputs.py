"""The flags that name outputs beside Kafka, and what is refused of them."""

from __future__ import annotations

import argparse
import re

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.postgres import PostgresParticipant
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Decision
from exactly_once.tools.cli import main
from exactly_once.tools.cli.outputs import add_arguments, check_named, outputs_of


def parsed(*flags: str) -> list[object]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return list(outputs_of(parser.parse_args(flags)))


def test_the_flags_name_the_participants_of_the_stream() -> None:
    """A connection string has '=' and may have ',' itself: several hosts."""
    assert parsed() == []
    archive, warehouse, mart = parsed(
        "--files=archive=/data/a=b", "--postgres=warehouse=host=a,b dbname=shop,public.orders",
        "--postgres", "mart=postgresql://db/shop,orders", "--shared", "mart",
    )  # fmt: skip
    assert isinstance(archive, FileParticipant) and (archive.name, archive.url) == ("archive", "/data/a=b")
    assert isinstance(warehouse, PostgresParticipant) and isinstance(mart, PostgresParticipant)
    assert (warehouse.database.dsn, warehouse.table) == ("host=a,b dbname=shop", "public.orders")
    assert (warehouse.shared, mart.shared, mart.table) == (False, True, "orders")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--files", "archive"], "one --files does not begin with NAME=.*--files 'archive=/data/orders'"),
        (["--postgres", "w=host=db"], "w=... names no table.*--postgres 'warehouse=host=db dbname=shop,orders'"),
        (["--iceberg", "i=orders"], "--iceberg i=... names no table.*--iceberg ice=prod,shop.orders"),
        (["--files", "a=/x", "--files", "a=/y"], "the output a is named twice"),
        (["--files", "a=/x", "--shared", "a"], "--shared a names no output of --postgres"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused_with_an_example(flags: list[str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        parsed(*flags)


def test_an_output_that_no_decision_names_is_refused_with_the_name_of_the_one_that_there_is() -> None:
    """A check that a typing error keeps green for ever: the output counts as one that was not given."""
    decided = Decision("q", 0, 1, (), "", 2, 0, totals={"kafka": [1, 5, 50], "archive": [1, 5, 50]})
    check_named([FileParticipant("archive", "/x")], LogState(decisions=(decided,)))
    check_named([FileParticipant("archve", "/x")], LogState())  # nothing is decided, so nothing contradicts it
    with pytest.raises(InvalidOption, match=r"an output 'archve'.*the stream's output: archive"):
        check_named([FileParticipant("archve", "/x")], LogState(decisions=(decided,)))


@pytest.mark.parametrize(("flag", "value"), [("--batches", "0"), ("--settle", "-1"), ("--settle", "nan")])
def test_a_number_that_proves_nothing_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a report without anomalies over nothing that was read, and against one that waits for ever."""
    assert main(["--bootstrap-servers", "localhost:1", "verify", "orders", flag, value]) == 2
    assert f"EO-OPTION: {flag} {value} is out of range" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:geheim@db/shop",
        "postgresql://u:geheim@db/shop?sslmode=require,orders",
        "w=postgresql://u:geheim@db/shop",
        "w=host=db password=geheim",
    ],
)
def test_a_refusal_shows_no_password(text: str) -> None:
    """Refusals end in logs."""
    with pytest.raises(InvalidOption) as refused:
        parsed("--postgres", text)
    assert "geheim" not in str(refused.value)


FILES = "Put password in PGPASSWORD, in the file that PGPASSFILE names, or in a service file"


@pytest.mark.parametrize(
    ("dsn", "way_out"),
    [
        ("postgresql://u:geheim@db/shop", FILES),
        ("postgresql://db/shop?password=geheim", FILES),
        ("host=db password=geheim", FILES),
        ("host=db sslkey=k sslpassword=geheim", "Put sslpassword in a service file"),
        ("host=db scram_client_key=geheim", "Put scram_client_key in a service file"),
    ],
)
def test_a_connection_string_with_a_password_is_refused_before_anything_connects(
    dsn: str, way_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake of an operator: every user of the host reads a command line in the list of processes, and the shell
    keeps it.
    """
    assert main(["--bootstrap-servers", "127.0.0.1:1", "verify", "orders", "--postgres", f"warehouse={dsn},t"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"EO-OPTION: .*--postgres warehouse holds", said) and way_out in said
    assert "geheim" not in said


def test_a_connection_string_that_only_says_where_the_password_is_is_taken() -> None:
    """A refusal of the way out that the refusal names."""
    for dsn in ("service=shop", "host=db passfile=/home/me/.pgpass", "postgresql://u@db/shop", "host=db password=''"):
        assert len(parsed("--postgres", f"warehouse={dsn},t")) == 1

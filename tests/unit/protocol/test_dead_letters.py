"""Dead letters, pure: the options, the number of a batch, and what a record says of its row."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.digest import RowDigest
from exactly_once.errors import InvalidOption, InvalidRecord, InvalidSchema
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka.digest_scope import PLAIN, place_of
from exactly_once.protocol.dead_letters import (
    CODE,
    DEFAULT_MOST,
    PREFIX,
    DeadLetterTopic,
    check_number,
    own_headers,
)
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import PreparedTransaction
from exactly_once.protocol.row_schema import HEADERS
from exactly_once.protocol.ticket import Part
from tests.unit.protocol.test_batch_headers import digest_of, record

OPTIONS = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1", "topic": "out"}
DEAD = DeadLetterTopic("dead", 3)


def parse(**given: str) -> DeadLetterTopic | None:
    options = {f"sink.dead.letter.{name}": value for name, value in given.items()}
    return SinkOptions.parse({**OPTIONS, **options}).dead_letters


def test_without_the_option_there_is_no_dead_letter_topic() -> None:
    """Guards against a topic that nobody named, and that rows vanish to."""
    assert parse() is None
    assert parse(topic="dead") == DeadLetterTopic("dead", DEFAULT_MOST)
    assert parse(topic="dead", max="7") == DeadLetterTopic("dead", 7)
    assert parse(topic="dead", origin="header:src") == DeadLetterTopic("dead", DEFAULT_MOST, "src")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max": "7"}, "sink.dead.letter.max is set, but sink.dead.letter.topic is not"),
        ({"origin": "header:src"}, "sink.dead.letter.origin is set, but sink.dead.letter.topic is not"),
        ({"topic": "dead", "origin": "src"}, "sink.dead.letter.origin=src does not name a header"),
        ({"topic": "dead", "origin": "header:"}, "sink.dead.letter.origin=header: does not name a header"),
        ({"topic": "dead", "origin": "json:src"}, "Use header:NAME"),
        ({"topic": "out"}, "is the topic of the rows too"),
        ({"topic": "eo.s.commit-log"}, "is the commit log of a sink"),
        ({"topic": "__consumer_offsets"}, "is a topic of Kafka's own"),
        ({"topic": "a b"}, "is not a name that Kafka allows"),
        ({"topic": "dead", "max": "0"}, "is not a whole number above 0"),
        ({"topic": "dead", "max": "-1"}, "is not a whole number above 0"),
        ({"topic": "dead", "max": "many"}, "is not a whole number above 0"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_its_name(given: dict[str, str], words: str) -> None:
    """Guards against a stream that finds out at its first bad row."""
    with pytest.raises(InvalidOption, match=r"sink\.dead\.letter") as refused:
        parse(**given)
    assert words in str(refused.value)


def test_rows_without_headers_cannot_say_where_they_came_from() -> None:
    """Guards against an option without effect: dead letters that do not name their input, and nobody knows why."""
    said = {"sink.dead.letter.topic": "dead", "sink.dead.letter.origin": "header:src"}
    value, headers = ("value", "string"), ("headers", HEADERS)
    with pytest.raises(InvalidSchema, match=r"no column 'headers', in which sink\.dead\.letter\.origin=header:src"):
        SinkOptions.parse({**OPTIONS, **said}).check_columns([value])
    assert SinkOptions.parse({**OPTIONS, **said}).check_columns([value, headers]) == {"value", "headers"}
    assert SinkOptions.parse(OPTIONS).check_columns([value]) == {"value"}


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_a_weaker_guarantee_has_no_dead_letters(guarantee: str) -> None:
    """Guards against a row that is in both topics, or in none."""
    with pytest.raises(InvalidOption, match=r"needs sink\.guarantee=exactly_once"):
        SinkOptions.parse({**OPTIONS, "sink.dead.letter.topic": "dead", "sink.guarantee": guarantee})


def part(number: int, dead: int, plan: Plan = Plan.WRITE) -> Part:
    handle = PreparedTransaction(f"eo:s:1:{number}:0.0", 1, 0, number, 10, dead=dead)
    refused = (f"row of part {number}", f"correct part {number}") if dead else ()
    return Part("x", "r", number, False, plan, (handle,), refused)  # type: ignore[arg-type]


def test_a_batch_may_have_as_many_dead_letters_as_the_option_says_over_all_its_parts() -> None:
    """Guards against a limit that each part has for itself: a batch of a thousand parts would have a thousand times as
    many.
    """
    check_number(DEAD, [part(0, 1), part(1, 2)])
    with pytest.raises(InvalidRecord) as refused:
        check_number(DEAD, [part(0, 0), part(1, 2), part(2, 2)])
    assert (refused.value.code, refused.value.safe) == ("EO-RECORD", InvalidRecord.default_safe)
    assert re.fullmatch(r"row of part 1; .*: 4 rows .* more than sink\.dead\.letter\.max=3", refused.value.what)
    assert re.fullmatch(r"correct part 1; or raise sink\.dead\.letter\.max, .* go to dead", refused.value.way_out)


def test_a_replay_has_as_many_as_it_needs() -> None:
    """Guards against a decided batch that a lower limit keeps from its end: its lost rows would stay lost."""
    check_number(DEAD, [part(0, 50, Plan.REPLAY)])
    check_number(None, [part(0, 0)])


OURS = [(CODE, b"EO-RECORD"), (f"{PREFIX}output.topic", b"t")]


@pytest.mark.parametrize(
    "own",
    [[], [("h", b"v"), ("h", None)], [(f"{PREFIX}message", b"a dead letter of before"), *OURS, ("", b"behind it")]],
    ids=["none", "some", "those of a dead letter that is sent again"],
)
def test_the_headers_of_a_row_are_told_from_those_of_the_sink(own: list[Any]) -> None:
    """Guards against a header of the row that is taken for the sink's word on it."""
    assert own_headers([*own, *OURS]) == (own, {"code": b"EO-RECORD", "output.topic": b"t"})


def letter(**chosen: str) -> Any:
    said = [(CODE, b"EO-RECORD"), *((f"{PREFIX}output.{name}", value.encode()) for name, value in chosen.items())]
    return record([("h", b"1"), *said], value=None)


@pytest.mark.parametrize("form", ["row+dead:dead", "row+partition+timestamp+dead:dead"])
def test_the_digest_of_a_dead_letter_is_that_of_its_row(form: str) -> None:
    """Guards against a part that verify calls corrupt, and against a replay of it that finds other rows: by then the
    very row may be one that can be written.
    """
    row = RowDigest()
    row.add(b"t", b"k", None, place_of(-3, [("h", b"1")], 7))
    assert digest_of(form, "dead", letter(topic="t", partition="-3", timestamp="7")) == row.text
    unplaced = RowDigest()
    unplaced.add(b"", b"k", None, place_of(-1, [("h", b"1")], 0))
    assert digest_of(form, "dead", letter()) == unplaced.text
    good = RowDigest()
    good.add(b"t", b"k", b"v", place_of(5 if "partition" in form else -1, [], 99 if "timestamp" in form else 0))
    assert digest_of(form, "t", record([])) == good.text


def test_of_keys_and_values_alone_the_digest_is_the_same_wherever_the_row_went() -> None:
    """Guards against a replay that cannot go on after the topic's limit was raised."""
    assert digest_of(PLAIN, "dead", letter(topic="t")) == digest_of(PLAIN, "t", record([], value=None))


def test_the_number_of_a_part_is_that_of_its_handles() -> None:
    """Guards against a part without a transaction that counts, and one with several outputs that counts twice."""
    assert part(0, 4).dead_letters == 4
    assert replace(part(0, 4), handles=()).dead_letters == 0

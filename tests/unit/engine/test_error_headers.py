"""The headers of a rejected record, as a reader takes them apart."""

from __future__ import annotations

import pytest

from exactly_once import error_headers
from exactly_once.error_headers import origin_in, reason_in


def headers(topic: str = "orders", partition: str = "3", offset: str = "17") -> list[tuple[str, bytes | None]]:
    pairs = {
        error_headers.EXCEPTION: "KeyError",
        error_headers.MESSAGE: "'amount'",
        error_headers.CODE: "EO-TRANSFORM",
        error_headers.TOPIC: topic,
        error_headers.PARTITION: partition,
        error_headers.OFFSET: offset,
    }
    return [(name, value.encode()) for name, value in pairs.items()]


def test_the_names_are_those_of_kafka_streams_under_a_prefix_of_ours() -> None:
    """Guards against a tool for Kafka's dead letters that finds nothing after its prefix was changed."""
    streams = ("exception", "message", "topic", "partition", "offset")
    ours = {name.removeprefix(error_headers.PREFIX) for name, _ in headers()}
    assert ours == {*streams, "code"} and error_headers.PREFIX == "__exactly_once.errors."


def test_a_record_that_was_rejected_twice_says_where_it_was_last() -> None:
    """Guards against a record that is sent again from a rejected topic, and then counted as the one of before."""
    assert origin_in(headers()) == ("orders", 3, 17)
    assert origin_in([*headers(), ("mine", b"x"), *headers("orders_rejected", "0", "4")]) == ("orders_rejected", 0, 4)


@pytest.mark.parametrize(
    "broken",
    [[], headers()[:-1], headers(partition="x"), [*headers(), (error_headers.OFFSET, None)], headers(offset="")],
)
def test_a_record_that_names_no_place_has_none(broken: list[tuple[str, bytes | None]]) -> None:
    """Guards against a reader that stops at the first record of somebody else."""
    assert origin_in(broken) is None


def test_the_reason_is_one_line_whatever_it_holds() -> None:
    """Guards against a table of reasons that a message with line breaks, or no text at all, tears apart."""
    assert reason_in(headers()) == "KeyError: 'amount'"
    assert reason_in([(error_headers.MESSAGE, b"two\n lines \xff")]) == "two lines \ufffd"
    assert reason_in([("mine", b"x")]) == "" == reason_in([(error_headers.MESSAGE, None)])

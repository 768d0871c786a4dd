"""Where a stream begins that continues an older one, or reads along with one."""

from __future__ import annotations

import pytest

import exactly_once
from dagster_exactly_once import Checks, KafkaTopic, exactly_once_stream
from dagster_exactly_once.streaming.source import after_older


def stream(**more):
    origin = Checks(origin=lambda topic, record: None)
    declare = exactly_once_stream(source="orders", outputs=["out"], name="green", checks=origin, **more)
    return declare(lambda events: events)


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the old sink."""
    found = []

    def starting_offsets(options, *more, beside=False):
        found.append((*more, beside))
        return "{}"

    monkeypatch.setattr(exactly_once, "starting_offsets", starting_offsets)
    return found


def test_a_stream_that_reads_along_begins_once_behind_what_the_old_one_has_decided(asked):
    """Loss: it begins where its topic begins. Duplicate: it begins again at its second start."""
    sources = {"orders": KafkaTopic("orders", options={"x": "1"})}
    green = stream(beside="blue")
    found, said = after_older(sources, green, {}, begun=False)
    assert asked == [("blue", "orders", True)] and "along with sink blue" in said
    assert found["orders"].options == {"x": "1", "startingOffsets": "{}"}
    assert after_older(sources, green, {}, begun=True) == (sources, "") and len(asked) == 1


def test_a_stream_that_has_read_along_asks_before_it_takes_over(asked):
    """Duplicate: launched before the old sink is retired, it would write beside that one into the same topic."""
    sources = {"orders": KafkaTopic("orders")}
    over = stream(continues="blue")
    assert after_older(sources, over, {}, begun=True) == (sources, "") and asked == [("blue", False)]
    _, said = after_older(sources, over, {}, begun=False)
    assert asked[1] == ("blue", "orders", False) and "continues sink blue" in said

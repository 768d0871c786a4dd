"""Input topics that were deleted and recreated, and input that a takeover would read again."""

from __future__ import annotations

import json
import re

import pytest

from exactly_once.errors import InputRecreated
from exactly_once.protocol.input_topics import check_inputs
from exactly_once.protocol.records import Decision

HEAD = "v1\n" + json.dumps({"batchWatermarkMs": 0})


def decision(query: str = "q", batch: int = 7, ids: dict[str, str] | None = None, **ends: int) -> Decision:
    """A decision whose batch ends at these offsets of partition 0 of each topic."""
    text = f"{HEAD}\n" + json.dumps({topic: {"0": end} for topic, end in ends.items()})
    return Decision(query, batch, 1, (), "d", 5, 0, offsets=text, input_ids=ids or {})


def refusal(last: Decision | None, ids: dict[str, str], *adopted: str) -> InputRecreated | None:
    try:
        check_inputs("orders", last, ids, lambda i: i in adopted)
    except InputRecreated as e:
        return e
    return None


@pytest.mark.parametrize(
    ("known", "now"),
    [
        pytest.param(None, {"in": "b"}, id="before the first decision"),
        pytest.param({}, {"in": "b"}, id="a decision of an earlier version"),
        pytest.param({"in": "a"}, {"in": "a"}, id="the same topic"),
        pytest.param({"in": "a"}, {}, id="a topic that is away, or on another cluster"),
        pytest.param({"in": "a"}, {"in": "a", "more": "b"}, id="a topic that joins"),
        pytest.param({"in": "a", "left": "b"}, {"in": "a"}, id="a topic that the batch does not read"),
    ],
)
def test_an_input_topic_is_that_of_the_last_decision_or_not_known(
    known: dict[str, str] | None, now: dict[str, str]
) -> None:
    """Guards against a refusal that nothing supports."""
    assert refusal(None if known is None else decision(ids=known), now) is None


def test_a_recreated_input_topic_is_refused_with_both_ids_the_old_offsets_and_each_way_out() -> None:
    """Invariant 10, a loss: the old offsets name other records of the new topic, and those before them are skipped."""
    refused = refusal(decision(ids={"in": "a", "other": "x"}, **{"in": 4000, "other": 5}), {"in": "b", "other": "x"})
    assert refused is not None
    assert re.search(r"'in' \(its id was a, .* b now\)", refused.what) and '{"in": {"0": 4000}}' in refused.what
    assert "'other'" not in refused.what and "batch 7 of sink 'orders'" in refused.what
    for way in ("sink.takeover=q for", "eo.orders", "sink.adopt=b for", "sink.input.offsets=false"):
        assert way in refused.way_out


def test_one_word_adopts_every_input_topic_that_was_recreated() -> None:
    """Guards against a refusal for each topic, one start after the other, and a word that forgets the one before."""
    last = decision(ids={"a": "1", "b": "2", "c": "3"})
    now = {"a": "10", "b": "20", "c": "3"}
    for adopted in ((), ("10",), ("20",)):
        refused = refusal(last, now, *adopted)
        assert refused is not None and "sink.adopt=10,20 for" in refused.way_out
    assert refusal(last, now, "10", "20") is None

"""A sink of another query: who may take it, and which records a takeover would write again."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from exactly_once.errors import CheckpointRewound, SinkOwned
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import WRITE, Claim, Decision
from exactly_once.protocol.takeover import check_binding, check_takeover, read_up_to

HEAD = "v1\n" + json.dumps({"batchWatermarkMs": 0})


def decision(batch: int, query: str = "old", ids: dict[str, str] | None = None, **ends: dict[str, int]) -> Decision:
    """A decision of an input that ends at these offsets."""
    return Decision(query, batch, 1, (), "d", 5, 0, offsets=f"{HEAD}\n{json.dumps(ends)}", input_ids=ids or {})


DECISIONS = (decision(0, orders={"0": 10, "1": 20}), decision(1, orders={"0": 30, "1": 20}))


def claim(query_id: str | None, checkpoint: str = "", operator: str = "") -> Claim:
    return Claim(1, query_id, 0, "stream", "h", 1, checkpoint, operator=operator)


@pytest.mark.parametrize(
    ("bound", "takeover"),
    [
        pytest.param(None, None, id="a new sink"),
        pytest.param("q", None, id="its own"),
        pytest.param("q", "old", id="its own, with sink.takeover left on"),
        pytest.param("old", "old", id="taken over by its name"),
    ],
)
def test_a_query_may_use_a_new_sink_its_own_and_one_that_it_names(bound: str | None, takeover: str | None) -> None:
    """A clean restart must not need a person."""
    check_binding("job", claim(bound), "q", "/c", takeover)


@pytest.mark.parametrize("takeover", [None, "", "q", "OLD", "older", "true"])
def test_a_sink_of_another_query_is_refused_with_both_names(takeover: str | None) -> None:
    """Two queries on one sink would fence each other forever; a deleted checkpoint would write everything again."""
    with pytest.raises(SinkOwned) as refusal:
        check_binding("job", claim("old", "/data/old"), "q", "/data/c", takeover)
    text = str(refusal.value)
    theirs, ours = r"query old \(checkpoint /data/old\)", r"checkpoint /data/c is of query q\b"
    assert re.match(rf"EO-SINK-OWNED: sink 'job' belongs to {theirs}, .*{ours}", text)
    assert "sink.takeover=old" in text


@pytest.mark.parametrize("bound", ["old", WRITE])
def test_a_refused_sink_says_who_operated_it_last(bound: str) -> None:
    """Two teams on one cluster chose one sink id: each has to know whom to talk to."""
    with pytest.raises(
        SinkOwned, match=r"EO-SINK-OWNED: sink 'job' \(last operated by dagster/prod/0a1b\) belongs to "
    ):
        check_binding("job", claim(bound, operator="dagster/prod/0a1b"), "q", "/data/c", None)


def test_a_refused_sink_says_where_its_decisions_end() -> None:
    """Mishap: "its last rows may be written again", said the refusal. All 4,000 of 4,000 were: the new query read from
    its startingOffsets on.
    """
    with pytest.raises(SinkOwned) as refused:
        check_binding("job", claim("old"), "q", "/c", None, DECISIONS)
    assert '(startingOffsets: {"orders": {"0": 30, "1": 20}})' in refused.value.way_out
    assert "is written again" in refused.value.way_out
    with pytest.raises(SinkOwned) as refused:
        check_binding("job", claim("old"), "q", "/c", None, [replace(DECISIONS[0], offsets="")])
    assert "the consumer group eo.job" in refused.value.way_out


def refusal(begins: dict[str, dict[int, int]], decisions: tuple[Decision, ...], **ids: str) -> CheckpointRewound | None:
    try:
        check_takeover("job", "old", Batch("q", 0, "d"), begins, decisions, ids, lambda: False)
    except CheckpointRewound as e:
        return e
    return None


@pytest.mark.parametrize(
    "begins",
    [
        pytest.param({"orders": {0: 30, 1: 20}}, id="where the decisions end"),
        pytest.param({"orders": {0: 30, 1: 20, 2: 0}}, id="a partition that is new"),
        pytest.param({"other": {0: 0}}, id="another topic"),
        pytest.param({}, id="an input that is not Kafka"),
    ],
)
def test_a_query_that_begins_where_the_decisions_end_takes_the_sink_by_one_word(
    begins: dict[str, dict[int, int]],
) -> None:
    """Guards against a second word where nothing would be written again, and nothing left out."""
    assert refusal(begins, DECISIONS) is None
    assert refusal({"orders": {0: 0}}, ()) is None


def test_a_query_that_begins_before_the_decisions_end_needs_the_word_of_its_batch() -> None:
    """A duplicate of all records, with exit code 0. The refusal names the partitions, and what to do."""
    refused = refusal({"orders": {0: 0, 1: 20}}, DECISIONS)
    assert refused is not None
    assert '{"orders": {"0": 0}}' in refused.what and '{"orders": {"0": 30, "1": 20}}' in refused.what
    assert "eo.job" in refused.way_out and "sink.adopt=q/0 for" in refused.way_out
    check_takeover("job", "old", Batch("q", 0, "d"), {"orders": {0: 0}}, DECISIONS, {}, lambda: True)


def test_a_query_that_begins_behind_the_decisions_end_needs_the_word_of_its_batch() -> None:
    """A loss with exit code 0: Spark's default startingOffsets, latest, leaves out what waited for the old query."""
    refused = refusal({"orders": {0: 31, 1: 20}}, DECISIONS)
    assert refused is not None
    assert '{"orders": {"0": 31}} behind' in refused.what and 'up to {"orders": {"0": 30}}' in refused.what
    assert "never be read" in refused.what and "sink.adopt=q/0 for" in refused.way_out
    check_takeover("job", "old", Batch("q", 0, "d"), {"orders": {0: 31, 1: 20}}, DECISIONS, {}, lambda: True)


@pytest.mark.parametrize(
    ("decisions", "begins", "committed", "said"),
    [
        pytest.param(DECISIONS, {"orders": {0: 31}}, {"orders": {0: 31}}, "lost decisions", id="where the group ends"),
        pytest.param(DECISIONS, {"orders": {0: 30}}, {"orders": {0: 31}}, "written again", id="where the log ends"),
        pytest.param(DECISIONS, {"orders": {0: 32}}, {"orders": {0: 31}}, "never be read", id="behind both"),
        pytest.param(DECISIONS, {"new": {0: 0}}, {"new": {0: 5}}, "written again", id="a topic of lost decisions"),
        pytest.param((), {"orders": {0: 0}}, {"orders": {0: 31}}, "written again", id="all decisions are lost"),
        pytest.param(DECISIONS, {"orders": {0: 30, 1: 20}}, {"orders": {0: 30}}, None, id="the log has lost nothing"),
    ],
)
def test_a_query_that_takes_a_sink_whose_log_has_lost_decisions_needs_the_word_of_its_batch(
    decisions: tuple[Decision, ...],
    begins: dict[str, dict[int, int]],
    committed: dict[str, dict[int, int]],
    said: str | None,
) -> None:
    """Duplicate: where the query began at the end of such a log, what it had lost was written again. And a loss: the
    group's word alone must let nobody skip, since others may write there.
    """

    def take(adopts: bool) -> None:
        check_takeover("job", "old", Batch("q", 0, "d"), begins, decisions, {}, lambda: adopts, lambda: committed)

    take(adopts=True)
    if said is None:
        return take(adopts=False)
    with pytest.raises(CheckpointRewound) as refused:
        take(adopts=False)
    assert said in refused.value.what and "sink.adopt=q/0" in refused.value.way_out


def test_a_topic_that_was_made_again_counts_as_new_whatever_the_group_says_of_it() -> None:
    """Guards against a refusal by offsets of the topic that is gone."""
    last = replace(DECISIONS[-1], input_ids={"orders": "before"})
    begins, group = {"orders": {0: 0}}, {"orders": {0: 31}}
    check_takeover("job", "old", Batch("q", 0, "d"), begins, [last], {"orders": "now"}, lambda: False, lambda: group)


def test_a_decision_without_its_offsets_allows_no_takeover_unseen() -> None:
    """Guards against thousands of partitions, whose offsets no decision keeps, written again in silence."""
    assert refusal({"orders": {0: 0}}, (replace(DECISIONS[1], offsets=""),)) is not None


def test_what_was_read_of_a_topic_that_was_recreated_is_not_read_again() -> None:
    """The way out of EO-INPUT-RECREATED: guards against a second word where the topic's records are all new."""
    known = decision(1, ids={"orders": "a"}, orders={"0": 30}, other={"0": 5})
    assert refusal({"orders": {0: 0}, "other": {0: 5}}, (known,), orders="b", other="x") is None
    assert refusal({"orders": {0: 0}}, (known,), orders="a") is not None
    assert refusal({"orders": {0: 0}}, (known,)) is not None  # nobody may say its id


def test_the_ends_of_all_queries_of_a_sink_count_the_newest_word_for_each_topic() -> None:
    """Guards against a third query that reads what the first one has decided, since the second read another topic."""
    log = (*DECISIONS, replace(decision(0, "second", other={"0": 7}), ended={"left": {0: 3}}))
    assert read_up_to(log) == {"orders": {0: 30, 1: 20}, "other": {0: 7}, "left": {0: 3}}

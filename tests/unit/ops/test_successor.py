"""Whether a sink may have a successor, and where that one begins: every verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.inspection.findings import Inspection, OpenTransaction, Owner, PendingDecision
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import WRITE, Claim, Decision, Retired
from exactly_once.tools.operation.rules import Refused
from exactly_once.tools.operation.successor import verdicts
from exactly_once.tools.operation.successor.verdicts import OldCheckpoint

QUERY = "8f3c"
CLAIM = Claim(7, QUERY, 0, "stream", "host-a", 4711, "/c")
HEAD = 'v1\n{"batchTimestampMs":1}\n'
TEXT = HEAD + '{"orders":{"0":120,"1":118}}'
LAST = Decision(QUERY, 41, 7, (), digest_of(TEXT), 5, 0, offsets=TEXT)
LOG = LogState(owner=CLAIM, decisions=(LAST,))
RETIRED = Retired(8, "orders-v2", QUERY, 41, {"orders": {"0": 120}}, 9)
CHECKPOINT = OldCheckpoint("/c", QUERY, 41)


def owned(works: bool | None, purpose: str = "stream") -> Inspection:
    """The sink with an owner that is alive, gone, or unknown."""
    return Inspection("orders", owner=Owner(replace(CLAIM, purpose=purpose), works), log=LOG)


def open_transaction(verdict: str = "undecided") -> OpenTransaction:
    return OpenTransaction("eo:orders:7:0:0.0", 0, "0.0", "Ongoing", 1, 1, 5.0, 900.0, (("out", 0),), verdict)


# -- the names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "log", "error", "says"),
    [
        # outage: the sink is retired, and nothing may ever start in its place
        ("orders", "orders", LOG, InvalidOption, r"its own successor.*'orders'"),
        # mishap: a typo in the old name, and a new query that begins anywhere
        ("ordres", "orders-v2", LogState(), InvalidOption, r"ordres.*has no claim"),
        # they name their rows themselves
        ("orders", "orders-v2", LogState(owner=replace(CLAIM, query_id=WRITE)), Refused, "batch writes"),
        # duplicate: two new queries continue after the same batch
        ("orders", "orders-v3", replace(LOG, retired=RETIRED), Refused, "retired already: sink 'orders-v2' continues"),
    ],
    ids=["itself", "of a sink that was never used", "of batch writes", "a second one"],
)
def test_a_sink_that_cannot_be_the_successor_is_refused_whatever_the_state(
    old: str, new: str, log: LogState, error: type[Exception], says: str
) -> None:
    """Each case says what it would cost."""
    with pytest.raises(error, match=says):
        verdicts.check_names(old, new, log)
    verdicts.check_names("orders", "orders-v2", replace(LOG, retired=RETIRED))


def test_without_a_decided_batch_there_is_nothing_to_continue_after() -> None:
    """Loss: a new query that begins at an offset nobody has decided."""
    assert verdicts.last_decided("orders", LOG) == LAST
    with pytest.raises(Refused, match=r"'orders' .*of its query other"):
        verdicts.last_decided("orders", replace(LOG, owner=replace(CLAIM, query_id="other")))


# -- at rest -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("works", "said"), [(True, "is alive"), (None, "may be alive")])
def test_a_driver_that_may_work_is_not_retired(works: bool | None, said: str) -> None:
    """Outage: a stream that runs would be fenced by somebody's preparations."""
    with pytest.raises(Refused, match=f"driver 4711 on host-a owns sink 'orders' and {said}") as refused:
        verdicts.check_at_rest(owned(works))
    assert "exactly-once recover orders" in refused.value.way_out and refused.value.phrase is None


@pytest.mark.parametrize("found", [owned(False), owned(True, "recovery"), Inspection("orders", log=LOG)])
def test_a_sink_whose_driver_is_gone_is_at_rest(found: Inspection) -> None:
    """Outage: nobody could retire the sink of a host that is gone, not even after a recovery."""
    verdicts.check_at_rest(found)


def test_an_open_batch_is_ended_first() -> None:
    """Loss and duplicate: an old batch becomes visible after the new one's first."""
    pending = PendingDecision(QUERY, 41, 7, 0, ("out",), ())
    for found in (
        replace(owned(False), decided=(pending,)),
        replace(owned(False), open=(open_transaction(),)),
        replace(owned(False), open=(open_transaction("log"),)),
    ):
        with pytest.raises(Refused, match=r"batch 41|1 transaction of sink 'orders' is open") as refused:
            verdicts.check_at_rest(found)
        assert "exactly-once recover orders" in refused.value.way_out


# -- history and state -------------------------------------------------------------------------------------------------


def test_a_log_that_has_lost_its_newest_decisions_is_not_continued() -> None:
    """Duplicate: the output holds batch 42, and the new query would write it again."""
    verdicts.check_history("orders", LAST, 41, CHECKPOINT)
    verdicts.check_history("orders", LAST, None, CHECKPOINT)
    with pytest.raises(Refused, match="says that batch 42 was decided"):
        verdicts.check_history("orders", LAST, 42, CHECKPOINT)


def test_batches_of_a_weaker_guarantee_are_not_written_again() -> None:
    """Duplicate: no decision names them, and the output has them."""
    verdicts.check_history("orders", LAST, None, replace(CHECKPOINT, last_commit=40))
    verdicts.check_history("orders", LAST, None, replace(CHECKPOINT, query_id="other", last_commit=99))
    with pytest.raises(Refused, match="counts batch 42 as done"):
        verdicts.check_history("orders", LAST, None, replace(CHECKPOINT, last_commit=42))


@pytest.mark.parametrize(
    ("checkpoint", "why"),
    [
        (replace(CHECKPOINT, operators=2), "keeps state in /c/state (2 operators)"),
        (OldCheckpoint("/c", fault="no client"), "cannot be read (no client)"),
        (OldCheckpoint("/c"), "cannot be read (there is none at this location)"),
        (OldCheckpoint("/c", "other"), "cannot be read (it is of query other)"),
    ],
    ids=["state", "unreadable", "gone", "of another query"],
)
def test_state_is_given_up_only_by_the_name_of_its_query(checkpoint: OldCheckpoint, why: str) -> None:
    """Loss: the open windows of the old query are in no output, and nobody was told."""
    for typed in ("", "yes", "orders"):
        with pytest.raises(Refused) as refused:
            verdicts.check_state(LAST, checkpoint, typed)
        assert why in refused.value.what and QUERY in refused.value.way_out
    verdicts.check_state(LAST, checkpoint, QUERY)
    verdicts.check_state(LAST, CHECKPOINT, "")


# -- where it begins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, {"orders": {0: 120, 1: 118}}),
        (HEAD + '{"orders":{"0":1}}\n{"refunds":{"0":2}}', {"orders": {0: 1}, "refunds": {0: 2}}),
        (HEAD + '{"orders":{"0":1}}\n{"orders":{"0":1}}', {"orders": {0: 1}}),
        (HEAD + '{"orders":{"0":1}}\n-', {"orders": {0: 1}, "refunds": {0: 5}}),
        ('v2\n{}\norders:{"orders":{"0":1}}\n1:{"refunds":{"0":2}}', {"orders": {0: 1}, "refunds": {0: 2}}),
    ],
    ids=["one source", "two", "one topic twice", "one that had no input yet", "by name"],
)
def test_it_begins_where_the_input_of_the_last_decided_batch_ended(text: str, expected: dict[str, Any]) -> None:
    """Invariant 2 over two sinks: each record of the input is in the output of one of them."""
    checkpoint = replace(CHECKPOINT, began={"orders": {0: 0}, "refunds": {0: 5}})
    assert verdicts.ends_of("orders", replace(LAST, offsets=text), checkpoint) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + '{"orders":{"0":1}}\n{"orders":{"0":2}}', "two sources"),
        (HEAD + '{"orders":{"0":1}}\n{"logOffset":3}', "source 1 of query 8f3c is not Kafka"),
        ("v2\n{}\nrates:7", "source rates of query 8f3c is not Kafka"),
        (HEAD + "-", "source 0 of query 8f3c is not Kafka, or has no input yet"),
    ],
)
def test_input_that_no_offset_of_kafka_names_is_refused(text: str, why: str) -> None:
    """Loss or duplicate: the new query would begin such a source anywhere."""
    with pytest.raises(Refused, match=why):
        verdicts.ends_of("orders", replace(LAST, offsets=text), CHECKPOINT)


def test_offsets_too_long_for_the_decision_come_from_the_checkpoint_if_they_are_those_decided() -> None:
    """Duplicate: offsets/41 of a checkpoint that was restored names another range than the decided one."""
    bare = replace(LAST, offsets="")
    assert verdicts.ends_of("orders", bare, replace(CHECKPOINT, offsets=TEXT)) == {"orders": {0: 120, 1: 118}}
    other = TEXT.replace("120", "121")
    for wrong in (CHECKPOINT, replace(CHECKPOINT, offsets=other), OldCheckpoint("/c", "x", 41, TEXT)):
        with pytest.raises(Refused, match=r"offsets/41 of .*not there .*decided"):
            verdicts.ends_of("orders", bare, wrong)


# -- a successor that has run already ----------------------------------------------------------------------------------


def ran(offsets: Mapping[int, int], **changed: Any) -> Inspection:
    """A successor that has decided a batch which ends at these offsets."""
    inside = ",".join(f'"{p}":{o}' for p, o in offsets.items())
    decision = replace(LAST, query_id="new", batch_id=3, offsets=f'{HEAD}{{"orders":{{{inside}}}}}')
    log = LogState(owner=replace(CLAIM, query_id="new"), decisions=(decision,))
    return replace(Inspection("orders-v2", owner=Owner(log.owner, False), log=log), **changed)


def test_a_successor_that_was_never_used_begins_at_these_offsets() -> None:
    """The usual case."""
    verdicts.check_takes_over({"orders": {0: 1}}, Inspection("orders-v2"))


def test_a_successor_that_has_begun_and_decided_nothing_is_refused() -> None:
    """Loss: its checkpoint may have fixed another beginning."""
    begun = Inspection("orders-v2", owner=Owner(CLAIM, False), log=LogState(owner=CLAIM))
    with pytest.raises(Refused, match="has decided nothing"):
        verdicts.check_takes_over({"orders": {0: 1}}, begun)


def test_a_successor_that_reads_along_takes_over_where_both_have_read_the_same() -> None:
    """Loss or duplicate: what one of the two has read further would be written by neither, or by both."""
    ends = {"orders": {0: 120, 1: 118}}
    verdicts.check_takes_over(ends, ran({0: 120, 1: 118}))
    for apart in ({0: 120, 1: 117}, {0: 121, 1: 118}, {0: 120}, {0: 120, 1: 118, 2: 1}):
        with pytest.raises(Refused, match="not read the same"):
            verdicts.check_takes_over(ends, ran(apart))
    with pytest.raises(Refused, match="is open"):
        verdicts.check_takes_over(ends, ran({0: 120, 1: 118}, open=(open_transaction(),)))
    with pytest.raises(Refused, match="is retired itself"):
        verdicts.check_takes_over(ends, ran({0: 120, 1: 118}, log=replace(LOG, retired=RETIRED)))


def test_a_sink_whose_input_topic_was_recreated_is_not_continued_at_its_old_offsets() -> None:
    """A loss: the successor would leave out the first records of the new topic, without a word."""
    last = replace(LAST, input_ids={"orders": "a", "other": "x"})
    with pytest.raises(Refused, match=r"\(orders\).*the deleted topic"):
        verdicts.check_input("orders", last, {"orders": "b", "other": "x"})
    for ids in ({"orders": "a"}, {}):
        verdicts.check_input("orders", last, ids)
    verdicts.check_input("orders", LAST, {"orders": "b"})

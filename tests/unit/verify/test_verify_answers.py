"""The four answers, and the balance: each offset of the output has one name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from exactly_once.kafka.admin import Partition, Watermarks
from exactly_once.protocol.records import Decision
from exactly_once.tools.verify import report as answers
from exactly_once.tools.verify.anomalies import Anomaly
from exactly_once.tools.verify.by_log.balance import BEGINS_ANYWHERE, judge_input, judge_log
from exactly_once.tools.verify.by_log.judge import OutputState, Verdict
from exactly_once.tools.verify.by_log.ledger import Answers, Copies, Ledger, balance_of, give
from exactly_once.tools.verify.report import NOT_JUDGED, RIGHT, WRONG, Answer
from testkit.read_back import QUERY, TOPIC, ReadBack, decided, log_of


def ends(out: ReadBack, low: int = 0) -> dict[Partition, Watermarks]:
    highs = Counter({b.where: 0 for b in out.batches})
    for b in out.batches:
        highs[b.where] = max(highs[b.where], b.last_offset + 1)
    return {where: Watermarks(low, high, high) for where, high in highs.items()}


def judged(out: ReadBack, *decisions: Decision, **more: Copies) -> tuple[Verdict, answers.TopicBalance]:
    ledger = out.ledger(*decisions, **more)
    found = judge_log(decisions, log_of(*decisions), ledger, out.ids, OutputState())
    whole = balance_of(ledger, ends(out), found.answers)
    assert whole.adds_up, whole
    return found, whole.total


def test_what_a_topic_holds_is_each_counted_once() -> None:
    """A record that has two answers, or none: then nobody knows whether "no anomalies" speaks of it."""
    out = ReadBack()
    right, lost = out.part(0), out.part(0, 1, commit=False)
    out.part(7, 5, attempt="9.9")
    out.write((-1, -1), ["p", "q"], transactional=False)
    out.write((901, 0), ["f"])
    out.end((901, 0))
    out.write((902, 0), ["open"])
    found, total = judged(out, decided(0, right, lost))
    assert {f.anomaly for f in found.findings} >= {Anomaly.LOST, Anomaly.TORN_BATCH}
    assert (total.right, total.wrong, total.aborted, total.markers) == (4, 4, 4, 7)
    assert total.not_judged == {answers.OTHERS: 3, answers.UNENDED: 1} and not total.not_proven
    assert total.as_json()["adds_up"] is True and sum(total.counts.values()) == total.offsets


def test_gaps_and_what_was_not_read_are_offsets_too() -> None:
    """A balance that only adds up where nobody compacts, and where all is read."""
    out = ReadBack()
    for n in range(4):
        out.write((-1, -1), [f"{n}"], transactional=False)
    out.batches = [b for b in out.batches if b.base_offset != 2]
    ledger = Ledger()
    ledger.begin((TOPIC, 0), 1)
    for batch in out.batches[1:]:
        ledger.add(batch)
    marks = {(TOPIC, 0): Watermarks(0, 6, 6), (TOPIC, 1): Watermarks(2, 5, 5)}
    found = balance_of(ledger, marks, {})
    one = found.topics[TOPIC]
    assert found.adds_up and one.offsets == 9
    assert (one.unread, one.compacted, one.not_judged) == (1 + 3, 1 + 2, {answers.OTHERS: 2})


def test_a_balance_that_does_not_add_up_says_so() -> None:
    """A sum that is made to fit."""
    out = ReadBack()
    out.write((-1, -1), ["a"], transactional=False)
    ledger = out.ledger()
    ledger.others[TOPIC] += 1
    found = balance_of(ledger, ends(out), {})
    assert not found.adds_up and found.topics[TOPIC].explained - found.topics[TOPIC].offsets == 1


def test_what_is_wrong_stays_wrong() -> None:
    """A later verdict that hides an anomaly."""
    out = ReadBack()
    part = out.part(0)
    spans, found = out.ledger(decided(0, part)).of((part.producer_id, part.epoch)), Answers()
    for answer in (Answer(RIGHT), Answer(WRONG), Answer(NOT_JUDGED, "why")):
        give(found, spans, answer)
    assert {a.kind for a in found.values()} == {WRONG}


# -- copies by other writers


def copied(out: ReadBack, *parts: list[str], writer: tuple[int, int] = (900, 0), apart: bool = True) -> None:
    """Write rows as another application's transactions of one producer and epoch, over two partitions each."""
    for n, rows in enumerate(parts):
        for partition in (0, 1):
            out.write(writer, rows[partition::2], partition)
        for partition in (0, 1):
            out.end(writer, partition, at_ms=30_000 + 100 * n + (partition if apart else 0))


ROWS = [f"0-0-{n}" for n in range(4)]


def test_a_foreign_transaction_with_the_rows_of_a_decided_part_is_a_duplicate() -> None:
    """A silent pass over a copy of a part, which the page on verification defines as a duplicate."""
    out = ReadBack()
    decision = decided(0, out.part(0))
    copied(out, ["x", "y"], ROWS, [*ROWS, "more"])
    found, total = judged(out, decision)
    (copy,) = found.findings
    assert (copy.anomaly, copy.batch, copy.records) == (Anomaly.DUPLICATE, "batch 0", 4) and len(copy.places) == 2
    assert (total.right, total.wrong, total.not_judged) == (4, 4, {answers.OTHERS: 2 + 5})


@pytest.mark.parametrize("copies", [Copies(("plain",), 4, 0), Copies(("plain",), 3, 100)])
def test_what_is_too_much_to_compare_is_said(copies: Copies) -> None:
    """Silence over transactions that nobody compared; a part that is larger than every decided one needs no look."""
    out = ReadBack()
    decision = decided(0, out.part(0))
    out.write((900, 0), ROWS)
    out.end((900, 0))
    found, total = judged(out, decision, copies=copies)
    assert not found.findings
    assert total.not_judged == {answers.UNCOMPARED if not copies.records else answers.OTHERS: 4}


def test_the_same_rows_in_a_topic_that_the_decision_does_not_name_are_no_copy() -> None:
    """A false alarm: two versions of a stream have the same output, each in a topic of its own."""
    out = ReadBack()
    decision = decided(0, out.part(0))
    copied(out, ROWS)
    out.batches = [replace(b, topic="other") if b.producer_id == 900 else b for b in out.batches]
    found, total = judged(out, decision)
    assert not found.findings and total.not_judged == {answers.OTHERS: 4}


# -- input that was decided twice


def batch(number: int, end: int, query: str = QUERY) -> Decision:
    part = ReadBack().part(number)
    return decided(number, part, query=query, offsets=f'v1\n{{}}\n{{"in":{{"0":{end}}}}}')


def twice(began: dict[str, int], *decisions: Decision) -> tuple[list[tuple[str, int]], int]:
    verdict = Verdict()
    judge_input(decisions, {query: {("in", 0): offset} for query, offset in began.items()}, verdict)
    assert all(f.anomaly is Anomaly.DUPLICATE and "input decided twice" in f.what for f in verdict.findings)
    return [(f.batch, f.records) for f in verdict.findings], verdict.unproven[BEGINS_ANYWHERE]


def test_input_that_two_queries_have_decided_is_a_duplicate() -> None:
    """A silent pass over a sink that was taken from a checkpoint that is gone: all rows are there twice."""
    old = [batch(1, 200), batch(2, 300)]
    assert twice({"r": 0}, *old, batch(0, 400, "r")) == ([("batch 0", 101)], 0)
    assert twice({"r": 300}, *old, batch(0, 400, "r")) == ([], 0), "it goes on where the other one ended"
    assert twice({}, *old, batch(0, 400, "r")) == ([], 1), "nothing says where it began"
    assert twice({}, *old, batch(0, 220, "r"), batch(1, 260, "r")) == ([("batch 1", 40)], 1)
    assert twice({}, *old) == twice({QUERY: 0}, *old) == ([], 0), "one query reads nothing twice"
    assert twice({}, batch(2, 300), decided(0, query="write:a")) == ([], 0)


def test_offsets_of_an_input_topic_that_was_made_again_are_other_input() -> None:
    """A false alarm: a new checkpoint reads the new topic from its beginning, under the offsets of the deleted one."""
    old = [replace(batch(n, end), input_ids={"in": "id-1"}) for n, end in ((1, 200), (2, 300))]
    new = batch(0, 400, "r")
    assert twice({"r": 0}, *old, replace(new, input_ids={"in": "id-2"})) == ([], 0)
    assert twice({"r": 0}, *old, replace(new, input_ids={"in": "id-1"})) == ([("batch 0", 101)], 0)

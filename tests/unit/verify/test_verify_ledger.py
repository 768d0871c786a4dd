"""The fold over the batches of an output: which records belong to which transaction, and how it ended."""

from __future__ import annotations

from dataclasses import replace

from exactly_once.participants.kafka.digest_scope import MIXED, SCOPES
from exactly_once.tools.verify.by_log.ledger import Ledger, digest_of
from testkit.read_back import TOPIC, ReadBack

OURS, AGAIN, THEIRS = (1, 0), (1, 1), (9, 0)


def folded(out: ReadBack, scopes=None, ours=frozenset({1})) -> Ledger:
    ledger = Ledger(scopes if scopes is not None else {OURS: "plain"}, ours)
    for batch in out.batches:
        ledger.add(batch)
    return ledger


def test_a_transaction_is_the_records_of_one_producer_and_epoch_up_to_its_marker() -> None:
    """A torn transaction that is none: records of two transactions of one producer taken for one."""
    out = ReadBack()
    out.write(OURS, ["a", "b"])
    out.write(OURS, ["c"])
    out.end(OURS, at_ms=77)
    out.write(OURS, ["d"])
    out.end(OURS, commit=False)
    first, second = folded(out).of(OURS)
    assert (first.where, first.writer, first.first, first.last, first.end) == ((TOPIC, 0), OURS, 0, 2, 3)
    assert (first.records, first.committed, first.marked_ms, first.place) == (3, True, 77, "out-0@0..2")
    assert (second.first, second.last, second.records, second.committed) == (4, 4, 1, False)
    assert first.digests.keys() == {"plain"}
    assert digest_of([first, second], "plain") == digest_of([second, first], "plain") != digest_of([first], "plain")


def test_an_epoch_that_begins_before_the_others_marker_is_another_transaction() -> None:
    """A decided transaction that grows by the records of the attempt that fenced it."""
    out = ReadBack()
    out.write(OURS, ["a"])
    out.write(AGAIN, ["b"])
    out.end(AGAIN)
    ledger = folded(out)
    (first,), (second,) = ledger.of(OURS), ledger.of(AGAIN)
    assert (first.records, first.committed) == (1, None) and (second.records, second.committed) == (1, True)
    assert (first.end, first.marked_ms) == (-1, -1)


def test_partitions_are_apart_and_producers_between_each_other_are_too() -> None:
    """A marker on one partition that ends the transaction on another one; or that of another producer."""
    out = ReadBack()
    out.write(OURS, ["a"])
    out.write((1, 0), ["b"], 1)
    out.write((2, 0), ["c"])
    out.end((2, 0))
    out.end(OURS, 1)
    ledger = folded(out, {OURS: "plain", (2, 0): "plain"}, frozenset({1, 2}))
    assert [(s.where[1], s.committed) for s in ledger.of(OURS)] == [(0, None), (1, True)]
    assert [s.committed for s in ledger.of((2, 0))] == [True]


def test_what_readers_do_not_get_is_counted_apart() -> None:
    """Loss: records that the leader hides, taken for visible."""
    out = ReadBack()
    out.write(OURS, ["a", "b"], hidden=True)
    out.write(OURS, ["c"], dated=True)
    out.write(OURS, ["d"])
    (span,) = folded(out).of(OURS)
    assert (span.records, span.hidden, span.visible, span.dated_by_broker) == (4, 2, 2, True)
    plain = ReadBack()
    plain.write(OURS, ["a"])
    assert not folded(plain).of(OURS)[0].dated_by_broker


def test_other_writers_records_are_counted_and_their_committed_transactions_forgotten() -> None:
    """Memory: a topic that others write to has any number of their transactions. What they aborted or have open counts
    for foreign aborts. Their records are not decoded, which takes time, and a codec that is perhaps not here.
    """
    out = ReadBack()
    out.write((-1, -1), ["a", "b"], transactional=False)
    out.write(THEIRS, ["c", "d", "e"])
    out.end(THEIRS)
    out.write(THEIRS, ["f"])
    out.end(THEIRS, commit=False)
    out.write((8, 0), ["g"])
    out.write((7, 0), ["h"])
    out.end((7, 0))
    for commit in (False, True):
        out.write((6, 0), ["i"])
        out.end((6, 0), commit=commit)
    out.batches = [replace(b, raw=b"in a codec that is not here") for b in out.batches]
    ledger = folded(out)
    assert ledger.others == {TOPIC: 2 + 3 + 1 + 1} and ledger.read == 10 and not ledger.strangers
    assert {w: [s.committed for s in spans] for w, spans in ledger.spans.items()} == {
        THEIRS: [False],
        (8, 0): [None],
        (6, 0): [False],
    }
    assert not ledger.of(THEIRS)[0].digests and not ledger.of(THEIRS)[0].matters


def test_a_marker_without_records_is_of_no_transaction() -> None:
    """An error over a log that retention has cut in the middle of a transaction."""
    out = ReadBack()
    out.end(OURS)
    out.end(THEIRS, commit=False)
    ledger = folded(out)
    assert ledger.spans == {} and ledger.read == 0 and not ledger.others


def test_digests_are_computed_only_in_the_forms_that_count() -> None:
    """A check that takes five times as long; a decided part that is compared in no scope."""
    scopes_of = Ledger({OURS: "row", (2, 0): "", (3, 0): "plain"}, frozenset({1, 2, 3, 4})).scopes_of
    assert scopes_of(OURS) == ("row",) and scopes_of((2, 0)) == SCOPES and scopes_of((4, 0)) == ("plain", "row")
    assert scopes_of(AGAIN) == ("plain", "row") and scopes_of(THEIRS) is None
    assert Ledger(ours=frozenset({4})).scopes_of((4, 0)) == SCOPES
    out = ReadBack()
    out.write(OURS, ["a"])
    assert not folded(out, {OURS: MIXED}).of(OURS)[0].digests
    assert folded(out, {OURS: MIXED}).of(OURS)[0].matters

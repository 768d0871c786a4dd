"""The fold over the commit log: who owns the sink, what is decided, what is open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactly_once.protocol.log_state import LogState, fold
from exactly_once.protocol.records import (
    ACCEPTED,
    COMMITTED,
    KEPT_DECISIONS,
    MANY_PARTS,
    WRITE,
    Claim,
    Completed,
    Decision,
    Entry,
    PreparedPart,
    PreparedTransaction,
    Record,
    Retired,
    key_of,
)


def claim(token: int, query: str | None = "q") -> Claim:
    return Claim(token, query, token, "stream", "h", 1)


def decision(batch: int, token: int = 1, query: str = "q") -> Decision:
    return Decision(query, batch, token, (), f"digest-{batch}", 5, 0)


def completed(batch: int, token: int = 1, query: str = "q") -> Completed:
    return Completed(query, batch, token, 0)


def entries(*records: Record, first: int = 0) -> list[Entry]:
    """As a log holds them: every transaction leaves a marker, so offsets have gaps."""
    return [Entry(r, first + 2 * i, 1_000 + i) for i, r in enumerate(records)]


HISTORY = entries(
    claim(1),
    decision(0),
    completed(0),
    decision(1),
    claim(2),
    completed(1, 2),
    decision(2, 2),
    claim(3, "other"),
    completed(2, 3),
    decision(0, 3, "other"),
)


def test_a_retirement_stands_whatever_follows_it() -> None:
    """Duplicate: a recovery of a retired sink, or a look at its log from some record on, brings the old stream back."""
    retired = Retired(3, "job-v2", "q", 2, {"in": {"0": 7}}, 9)
    state = fold([*HISTORY, *entries(retired, claim(4), completed(2, 4), first=100)])
    assert state.retired == retired and state.owner == claim(4)
    assert fold(entries(claim(5), first=200), state).retired == retired
    assert fold(HISTORY).retired is None


def test_an_empty_log_says_nothing() -> None:
    """A sink that was never used has no owner, so nobody is refused."""
    state = fold([])
    assert state == LogState()
    assert (state.owner, state.open_decisions, state.end, state.last_timestamp_ms) == (None, (), 0, -1)
    assert state.last_decision("q") is None


@pytest.mark.parametrize("cut", range(len(HISTORY) + 1))
def test_a_fold_that_is_continued_is_the_fold_from_the_start(cut: int) -> None:
    """The committing process folds its own writes on top of what it read; a difference would make it decide wrongly."""
    assert fold(HISTORY[cut:], fold(HISTORY[:cut])) == fold(HISTORY)


def test_a_fold_does_not_change_what_it_started_from() -> None:
    """A claim keeps the state before it, to know what its recovery may touch."""
    before = fold(HISTORY[:4])
    fold(HISTORY[4:], before)
    assert before == fold(HISTORY[:4])


def test_the_latest_claim_owns_the_sink() -> None:
    """Invariant 4: an older one that still decides would commit a batch twice."""
    assert [fold(HISTORY[:n]).owner for n in (0, 1, 5, 10)] == [None, claim(1), claim(2), claim(3, "other")]


def test_what_is_decided_and_not_marked_is_open_oldest_first() -> None:
    """A recovery completes these; one that is missing is swept: a decided batch lost."""
    state = fold(entries(claim(1), decision(3), decision(4), decision(5), completed(4)))
    assert state.open_decisions == (decision(3), decision(5))


def test_a_mark_of_another_query_closes_nothing() -> None:
    """After sink.takeover batch ids begin at 0 again; a mark of the old query must not hide an open decision of the
    new."""
    state = fold(entries(decision(0, 1, "old"), completed(0, 1, "old"), decision(0, 2, "new")))
    assert state.open_decisions == (decision(0, 2, "new"),)


@pytest.mark.parametrize(("token", "expected"), [(1, []), (2, [5]), (3, [5, 6]), (4, [5, 6, 7]), (99, [5, 6, 7])])
def test_a_recovery_touches_only_what_stands_before_its_own_claim(token: int, expected: list[int]) -> None:
    """A driver that was superseded inside its recovery must not send EndTxn for what its successor decided."""
    state = fold(entries(decision(4, 1), completed(4), decision(5, 1), decision(6, 2), decision(7, 3)))
    assert [d.batch_id for d in state.open_before(token)] == expected


def test_the_last_decision_is_the_one_of_the_highest_batch_of_that_query() -> None:
    """It says whether a batch is drained or written: the wrong one duplicates or loses a batch."""
    state = fold(entries(decision(9, 1, "old"), decision(0, 2, "q"), decision(2, 2, "q"), decision(1, 2, "q")))
    assert state.last_decision("q") == decision(2, 2, "q")
    assert state.last_decision("old") == decision(9, 1, "old")
    assert state.last_decision("nobody") is None


@pytest.mark.parametrize(("query", "batch", "decided"), [("q", 0, True), ("q", 1, False), ("p", 0, False)])
def test_decided_means_this_query_and_this_batch(query: str, batch: int, decided: bool) -> None:
    """abort() asks this after a failed commit; a wrong no aborts what will be committed: a torn batch."""
    made = decision(0)
    assert fold(entries(made)).is_decided_by(made.token, query, batch) is decided


def test_the_end_is_behind_the_last_record_and_its_time_is_the_brokers() -> None:
    """The time tells how far the driver's clock is off, by which transactions are judged alive."""
    state = fold(entries(claim(1), decision(0), first=40))
    assert (state.end, state.last_timestamp_ms) == (43, 1_001)


def compacted(log: list[Entry], cleaned_to: int) -> list[Entry]:
    """What Kafka's log cleaner leaves: of each key the last record up to ``cleaned_to``, and everything behind it."""
    last = {key_of(e.record): e.offset for e in log if e.offset <= cleaned_to}
    return [e for e in log if e.offset > cleaned_to or last[key_of(e.record)] == e.offset]


def test_a_compacted_log_says_the_same_as_the_whole_one() -> None:
    """Wherever the cleaner stands: a last decision that is gone duplicates a batch after a restart, and a decision
    that lost its mark is completed again, which after a week answers EO-EXPIRED, since the broker has forgotten the
    id."""
    records: list[Record] = [claim(1)]
    for batch in range(200):
        records += [decision(batch), completed(batch)]
    log = entries(*records, claim(2), decision(200, 2))
    full = fold(log)
    for cleaned_to in range(-1, log[-1].offset + 1, 3):
        state = fold(compacted(log, cleaned_to))
        assert (state.owner, state.last_decision("q"), state.end) == (full.owner, full.last_decision("q"), full.end)
        assert state.open_decisions == (decision(200, 2),)


def test_the_state_of_a_long_lived_driver_does_not_grow() -> None:
    """It is folded batch by batch; ten thousand kept decisions would slow every commit down."""
    state = fold([])
    for n, record in enumerate(r for b in range(1000) for r in (decision(b), completed(b))):
        state = fold([Entry(record, n, n)], state)
    assert [d.batch_id for d in state.decisions] == [*range(1000 - KEPT_DECISIONS, 1000)]
    assert len(state.marks) == len(state.decided_ms) == KEPT_DECISIONS
    assert state.open_decisions == ()


def test_a_decision_is_told_with_the_brokers_time() -> None:
    """What is shown to people and measured is the broker's clock, not a driver's."""
    state = fold([Entry(decision(3), 0, 1_000), Entry(completed(3), 1, 1_007)])
    assert (state.decided_ms["q", 3], state.marks["q", 3]) == (1_000, completed(3))


def test_a_batch_write_is_found_by_its_id() -> None:
    """Guards against writing a partition again."""
    done = replace(decision(0), query_id=f"{WRITE}day-1")
    state = fold(entries(done, decision(0)))
    assert (state.write("day-1"), state.write("day-2"), state.write("q")) == (done, None, None)


def test_a_compacted_log_keeps_the_last_decisions() -> None:
    """The audit trail, and what tells a rewound checkpoint from a new one."""
    log = entries(*(r for b in range(300) for r in (decision(b), completed(b))))
    assert [d.batch_id for d in fold(compacted(log, log[-1].offset)).decisions] == [*range(300 - KEPT_DECISIONS, 300)]


def handle(part: int) -> PreparedTransaction:
    return PreparedTransaction(f"eo:s:0:{part}:0.0", part, 0, part, 10)


WRITTEN = replace(decision(0), query_id=f"{WRITE}day-1", handles=(handle(0), handle(1)))
MANY = tuple(handle(part) for part in range(MANY_PARTS + 1))


OF_STREAM = replace(WRITTEN, query_id="q")
IN_FILES = PreparedPart("files", "eo:s:1:0:0:0.0", 0, 10)


@pytest.mark.parametrize(
    ("done", "how", "shortened"),
    [
        pytest.param(WRITTEN, COMMITTED, True, id="a write: it is kept forever"),
        pytest.param(OF_STREAM, COMMITTED, False, id="a batch of a stream: the last ones can be looked at by part"),
        pytest.param(replace(OF_STREAM, handles=MANY), COMMITTED, True, id="a batch of very many parts"),
        # a superseded driver asks by their names what it may abort: without them it would undo what is committed
        pytest.param(replace(WRITTEN, handles=(*WRITTEN.handles, IN_FILES)), COMMITTED, False, id="another output"),
        # without them, a hanging rest of what was given up looks like any undecided transaction: a duplicate
        pytest.param(WRITTEN, ACCEPTED, False, id="lost parts that a person accepted"),
        pytest.param(replace(WRITTEN, handles=()), COMMITTED, False, id="an empty batch"),
        pytest.param(WRITTEN.without_handles(1_000), COMMITTED, False, id="totals alone"),
    ],
)
def test_a_completed_decision_is_kept_without_the_handles_that_nobody_needs(
    done: Decision, how: str, shortened: bool
) -> None:
    """Guards against a log that grows for ever, and against handles that are gone when they are needed."""
    kept = fold([Entry(done, 0, 1_000)]).to_keep(Completed(done.query_id, done.batch_id, 1, 5, how=how))
    assert kept == (done.without_handles(1_000) if shortened else None)
    assert fold([]).to_keep(Completed(done.query_id, done.batch_id, 1, 5, how=how)) is None


@pytest.mark.parametrize("cleaned_to", range(-1, 5))
def test_a_decision_that_was_written_again_has_its_time_and_its_mark_wherever_the_cleaner_stands(
    cleaned_to: int,
) -> None:
    """A write that looks open is completed again by nobody: its handles are gone."""
    small = WRITTEN.without_handles(1_001)
    mark = Completed(WRITTEN.query_id, 0, 1, 5)
    log = entries(claim(1), WRITTEN, small, mark, claim(2))
    state = fold(compacted(log, cleaned_to))
    assert state.open_decisions == ()
    assert state.decided_ms[WRITTEN.query_id, 0] == 1_001
    assert state.write("day-1") == small
    assert fold(log[2:], fold(log[:2])) == fold(log), "the tail alone is enough for who knows the rest"

"""What a batch may do: written, drained or refused; and whose sink it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from exactly_once.errors import AlreadyDecided, CheckpointRewound
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch, Plan, check_published, check_undecided, plan_batch
from exactly_once.protocol.records import WRITE, Completed, Decision, PreparedTransaction


def decided(batch: int, digest: str = "d") -> Decision:
    return Decision("q", batch, 1, (), digest, 5, 0)


@pytest.mark.parametrize(
    ("batch", "last", "adopt", "plan"),
    [
        pytest.param(0, None, False, Plan.WRITE, id="the first batch of a new sink"),
        pytest.param(0, None, True, Plan.WRITE, id="the same, with sink.adopt left on"),
        pytest.param(7, None, True, Plan.WRITE, id="a checkpoint with history, adopted"),
        pytest.param(1, decided(0), False, Plan.WRITE, id="the next batch"),
        pytest.param(9, decided(0), False, Plan.WRITE, id="a gap: Spark may insert batches that no sink sees"),
        pytest.param(0, decided(0), False, Plan.DRAIN, id="a clean stop lost commits/0"),
        pytest.param(7, decided(7), False, Plan.DRAIN, id="a replay of a decided batch"),
        pytest.param(7, decided(7), True, Plan.DRAIN, id="adopt does not make a decided batch undecided"),
    ],
)
def test_a_batch_is_written_once_and_drained_ever_after(
    batch: int, last: Decision | None, adopt: bool, plan: Plan
) -> None:
    """Writing a decided batch is a duplicate, draining an undecided one a loss (invariants 2 and 7)."""
    assert plan_batch("job", Batch("q", batch, "d"), last, adopt) is plan


@pytest.mark.parametrize(
    ("batch", "last", "adopt", "says", "way_out"),
    [
        pytest.param(3, None, False, "no decision of query q", "sink.adopt=q/", id="the commit log is gone"),
        pytest.param(1, None, False, "no decision of query q", "sink.adopt=q/", id="at its first batch after 0"),
        pytest.param(6, decided(7), False, "batch 7 of query q is already decided", "newest checkpoint", id="rewound"),
        pytest.param(0, decided(7), True, "batch 7 of query q is already decided", "new sink.id", id="rewound, adopt"),
        pytest.param(7, decided(7, "x"), False, "offsets that differ", "Put back the checkpoint", id="other offsets"),
        pytest.param(7, decided(7, "x"), True, "offsets that differ", "new sink.id", id="other offsets, adopt"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_way_out(
    batch: int, last: Decision | None, adopt: bool, says: str, way_out: str
) -> None:
    """A rewound, restored, edited or foreign checkpoint either duplicates or loses; never decided silently (invariant
    7)."""
    with pytest.raises(CheckpointRewound) as refusal:
        plan_batch("job", Batch("q", batch, "d"), last, adopt)
    assert str(refusal.value).startswith("EO-REWOUND: ")
    assert says in refusal.value.what
    assert str(batch) in refusal.value.what
    assert way_out in refusal.value.way_out


def test_a_refusal_of_a_decided_batch_says_that_the_output_is_right() -> None:
    """The person on call must not "repair" what is not broken."""
    with pytest.raises(CheckpointRewound) as refusal:
        plan_batch("job", Batch("q", 6, "d"), decided(7), False)
    assert refusal.value.safe.startswith("The output is correct") and "nothing was written again" in refusal.value.safe


# -- a log that has lost its newest records


@pytest.mark.parametrize(
    ("batch", "last", "published"),
    [
        pytest.param(7, 6, None, id="a group that says nothing"),
        pytest.param(7, 6, 6, id="a log with all its decisions"),
        pytest.param(8, 7, 6, id="a group that was not told of the last decision"),
        pytest.param(8, 5, 7, id="decisions are lost, and the batch after them is undecided"),
        pytest.param(0, None, None, id="a new sink"),
    ],
)
def test_a_batch_that_no_decision_is_known_of_is_written(batch: int, last: int | None, published: int | None) -> None:
    """Guards against a refusal that nobody needs: the group stands behind wherever its offsets were refused."""
    check_published("job", Batch("q", batch, "d"), None if last is None else decided(last), published, never)


@pytest.mark.parametrize("last", [None, 5, 6])
def test_a_batch_of_whose_decision_only_the_group_knows_is_refused_unless_adopted(last: int | None) -> None:
    """Guards against a duplicate: a broker without the decision became the commit log's leader, the rows are visible,
    and nothing in the log says so.
    """
    known = None if last is None else decided(last)
    with pytest.raises(CheckpointRewound) as refusal:
        check_published("job", Batch("q", 7, "d"), known, 7, never)
    assert re.search(r"batch 7 of query q .*decided, .*consumer group eo\.job\b", refusal.value.what)
    assert "sink.adopt=q/7" in refusal.value.way_out
    check_published("job", Batch("q", 7, "d"), known, 7, lambda: True)


def never() -> bool:
    return False


# -- right before the decision is written ---------------------------------------------------------------------------


def proposed(batch_id: int, query_id: str = "q") -> Decision:
    return replace(decided(batch_id), query_id=query_id, token=9, handles=(PreparedTransaction("eo:a", 7, 0, 0, 1),))


def log_of(*decisions: Decision, completed: bool = False) -> LogState:
    marks = {(d.query_id, d.batch_id): Completed(d.query_id, d.batch_id, 1, 0) for d in decisions} if completed else {}
    return LogState(decisions=decisions, marks=marks)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(LogState(), id="an empty log"),
        pytest.param(log_of(decided(6), completed=True), id="the batch before"),
        pytest.param(log_of(replace(decided(9), query_id="another")), id="a later batch of another query"),
    ],
)
def test_a_batch_that_the_log_does_not_hold_is_decided(state: LogState) -> None:
    """Guards against a check that stops a healthy stream."""
    check_undecided("job", proposed(7), state)


@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("last", [7, 8])
def test_a_batch_is_not_decided_over_a_decision_of_it_or_of_a_later_one(last: int, completed: bool) -> None:
    """Whatever the plan was made from: a second decision of a batch commits its rows twice (invariant 2)."""
    with pytest.raises(AlreadyDecided) as refusal:
        check_undecided("job", proposed(7), log_of(decided(last), completed=completed))
    assert str(refusal.value).startswith(f"EO-DECIDED: batch {last} of sink 'job' is already decided, ")
    assert re.search(r"under claim \d", str(refusal.value))
    assert "nothing is written twice" in str(refusal.value)


def test_a_batch_write_is_not_decided_twice_and_its_error_names_it() -> None:
    """Two tries of one write at once: nobody knows a batch number of a write."""
    with pytest.raises(AlreadyDecided, match=r"write 'day-2' of sink .*Run the write again"):
        check_undecided("job", proposed(0, f"{WRITE}day-2"), log_of(replace(decided(0), query_id=f"{WRITE}day-2")))


def test_lost_parts_amend_the_decision_that_they_were_lost_from_and_no_other() -> None:
    """Guards against two replays of one loss, which would both be committed, and against one that is refused."""
    earlier = proposed(7)
    check_undecided("job", proposed(7), log_of(earlier), earlier)
    amended = replace(earlier, handles=(PreparedTransaction("eo:b", 8, 0, 0, 1),))
    for state in (log_of(amended), log_of(earlier, completed=True), log_of(earlier, decided(8))):
        with pytest.raises(AlreadyDecided):
            check_undecided("job", proposed(7), state, earlier)

"""What a task wrote beside what coordinator and leaders say is open: every contradiction forbids the decision."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.protocol.checksum import mismatch, not_whole
from exactly_once.protocol.records import OffsetRange, PreparedTransaction
from exactly_once.txn import leaders
from exactly_once.txn.coordinators import Description
from exactly_once.txn.leaders import LeadersAnswer, mismatches
from testkit.doubles import ask_the_double

T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)
WRITTEN = {T0: OffsetRange(100, 10), T1: OffsetRange(40, 5)}


def test_what_everybody_confirms_is_whole() -> None:
    """Guards against a healthy batch that is refused for ever."""
    assert mismatch(WRITTEN, [T1, T0]) == ""
    assert mismatch(WRITTEN, (T0, T1), dict(WRITTEN)) == ""


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ((T1,), "its coordinator does not name t-0, to which the task wrote"),
        ((), "its coordinator does not name t-0, to which the task wrote"),
        ((T0, T1, T2), "its coordinator names t-2, to which the task did not write"),
    ],
    ids=["ended between two requests", "a coordinator that knows nothing", "more than was written"],
)
def test_other_partitions_than_those_written_to_are_another_transaction(
    named: tuple[tuple[str, int], ...], says: str
) -> None:
    """Below transaction.version 2, somebody's EndTxn between two requests of a task makes the next one begin another
    transaction under the same epoch: the records before it are rolled back, and the rest would be committed."""
    assert mismatch(WRITTEN, named, dict(WRITTEN)) == says


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (None, "the leader of t-0 does not know it"),
        (
            OffsetRange(106, 10),
            "the leader of t-0 says that it begins at offset 106 instead of 100: records of the task are gone",
        ),
        (
            OffsetRange(94, 16),
            "the leader of t-0 says that it begins at offset 94 instead of 100: records of another writer are in it",
        ),
        (OffsetRange(100, 5), "the leader of t-0 counts 5 records instead of 10"),
        (OffsetRange(100, 11), "the leader of t-0 counts 11 records instead of 10"),
    ],
    ids=["all gone", "the head is gone", "somebody else's before it", "the tail is gone", "more than was written"],
)
def test_a_leader_that_holds_another_transaction_than_the_task_wrote_is_believed(
    held: OffsetRange | None, says: str
) -> None:
    """The coordinator says Ongoing, and answers the commit with success: what is gone would be lost in silence."""
    assert mismatch(WRITTEN, (T0, T1), {T0: held, T1: WRITTEN[T1]}) == says


def test_a_leader_that_was_not_asked_says_nothing() -> None:
    """Guards against a stream that stops for want of a right that it could do without."""
    assert mismatch(WRITTEN, (T0, T1), {}) == mismatch(WRITTEN, (T0, T1), {T1: WRITTEN[T1]}) == ""


def test_an_offset_that_no_broker_told_is_compared_with_nothing() -> None:
    """A batch that was sent again is acknowledged without its offset: a healthy batch must not fail over that. Its
    records still count."""
    written = {T0: OffsetRange(-1, 10)}
    assert mismatch(written, (T0,), {T0: OffsetRange(100, 10)}) == ""
    assert "counts 9 records" in mismatch(written, (T0,), {T0: OffsetRange(100, 9)})
    assert "does not know it" in mismatch(written, (T0,), {T0: None})


def test_sequence_numbers_that_wrapped_are_not_taken_for_a_loss() -> None:
    """The sequence number after 2,147,483,647 is 0: the leader counts the records of a large part from there anew."""
    for records in (2**31, 2**31 + 1, 2**33 + 7):
        held = OffsetRange(0, (records - 1) % 2**31 + 1)
        assert mismatch({T0: OffsetRange(0, records)}, (T0,), {T0: held}) == ""
        assert "counts" in mismatch({T0: OffsetRange(0, records + 1)}, (T0,), {T0: held})


def test_the_error_names_the_transaction_and_what_contradicts_its_task() -> None:
    """Guards against an error that sends a person to look at a time-out."""
    said = str(not_whole("eo:s:1:0:0.0", 0, "the leader of t-0 counts 5 records instead of 10"))
    assert said.startswith("EO-EXPIRING: the transaction eo:s:1:0:0.0 of part 0 is open, ") and "does not hold" in said
    assert "t-0 counts 5 records instead of 10" in said and "unclean.leader.election.enable" in said


# -- whom it asks -----------------------------------------------------------------------------------------------------

HANDLE = PreparedTransaction("eo:a", 7, 3, 0, 15, written=WRITTEN)


class Leaders:
    """Answers in turn, the last answer for ever: what the leaders hold of :data:`HANDLE`, or why none was asked. A
    partition that an answer leaves out has a silent leader; ``denied`` are those that may not be read.
    """

    def __init__(
        self, *answers: dict[tuple[str, int], OffsetRange | None] | str, denied: Collection[tuple[str, int]] = ()
    ):
        self.answers = list(answers)
        self.denied = denied
        self.deadline = Deadline(1)
        self.asked: list[list[tuple[str, int]]] = []

    def _producers_on(self, partitions: list[tuple[str, int]]) -> LeadersAnswer:
        self.asked.append(partitions)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise BrokerUnreachable(answer, "")
        found = {
            p: {(7, 3): e} if e else {(7, 2): OffsetRange(1, 1), (8, 3): OffsetRange(1, 1)} for p, e in answer.items()
        }
        heard = {p: found[p] for p in partitions if p in found and p not in self.denied}
        out = [p for p in partitions if p not in heard]
        return LeadersAnswer(heard, f"{out[0]} is silent" if out else "", bool(set(out) - set(self.denied)))


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_the_double(monkeypatch, leaders, "_producers_on")
    monkeypatch.setattr(leaders, "_SURE_S", 0.3)


def described(*partitions: tuple[str, int]) -> dict[str, Description]:
    return {"eo:a": Description("eo:a", "Ongoing", 7, 3, 60_000, 0, partitions, 1)}


def ask(*answers: Any, partitions: tuple[tuple[str, int], ...] = (T0, T1)) -> tuple[dict[str, str], str]:
    return mismatches(Leaders(*answers), [HANDLE], described(*partitions))  # type: ignore[arg-type]


def test_only_the_very_transaction_counts() -> None:
    """Guards against another epoch, or another producer, whose records are taken for those of the task."""
    assert ask(WRITTEN) == ({}, "")
    assert ask({**WRITTEN, T1: None}) == ({"eo:a": "the leader of t-1 does not know it"}, "")


def test_a_leader_that_has_been_deposed_is_asked_again() -> None:
    """Guards against a healthy batch that fails over an answer which is out of date."""
    assert ask({**WRITTEN, T1: None}, {**WRITTEN, T0: OffsetRange(100, 3)}, WRITTEN) == ({}, "")


def test_leaders_that_cannot_be_asked_forbid_nothing_and_take_back_nothing() -> None:
    """Silence is no word, neither for the transaction nor against it."""
    assert ask("no broker answered") == ({}, "no broker answered")
    assert ask({**WRITTEN, T1: None}, "no broker answered")[0] == {"eo:a": "the leader of t-1 does not know it"}


def test_the_silence_of_one_leader_takes_nothing_from_the_word_of_another() -> None:
    """Guards against a loss that goes unnoticed because a broker of some other partition is down, as after the failure
    that made another broker leader without the newest records.
    """
    assert re.match(r"the leader of t-1 .*begins at offset 41\b", ask({T1: OffsetRange(41, 5)})[0]["eo:a"])
    found, unasked = ask({T1: WRITTEN[T1]})
    assert found == {} and "is silent" in unasked


def test_a_silent_leader_is_asked_again_and_one_that_may_not_be_read_is_not() -> None:
    """Guards against a warning for a leader that was being elected, and against a pause before each decision for want
    of a right.
    """
    assert ask({T1: WRITTEN[T1]}, WRITTEN) == ({}, "")
    double = Leaders({T1: WRITTEN[T1]}, denied=[T0])
    found, unasked = mismatches(double, [HANDLE], described(T0, T1))  # type: ignore[arg-type]
    assert (found, len(double.asked)) == ({}, 1) and "is silent" in unasked


def test_the_coordinator_is_believed_before_any_leader_is_asked() -> None:
    """Guards against a decision whose only contradiction is forgotten because the leaders were silent."""
    assert "does not name t-1" in ask("no broker answered", partitions=(T0,))[0]["eo:a"]


def test_of_very_many_pairs_each_transaction_is_asked_for_somewhere() -> None:
    """Guards against a decision that takes seconds; what an answer holds beyond that is compared all the same."""
    handles = [replace(HANDLE, transactional_id=f"eo:{n}") for n in range(leaders._PAIRS)]
    double = Leaders({**WRITTEN, T0: OffsetRange(100, 9)})
    names = {h.transactional_id: described(T0, T1)["eo:a"] for h in handles}
    found, _ = mismatches(double, handles, names)  # type: ignore[arg-type]
    assert double.asked[0] == [T0] and set(found) == set(names)


def test_a_batch_without_rows_asks_nobody() -> None:
    """Guards against a warning about leaders with every empty batch."""
    assert mismatches(Leaders("never"), [], {}) == ({}, "")  # type: ignore[arg-type]

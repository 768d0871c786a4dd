"""The decision itself: what it keeps of earlier ones, and what is said when the log fails at it or behind it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.decide import amend, decide_and_complete, mark
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.resolve import complete_decided
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, NotAuthorized
from exactly_once.participant import Proposal
from exactly_once.participants.kafka import transactions as kafka_transactions
from exactly_once.participants.kafka.transactions import KEPT_TOPIC_IDS, kept_topic_ids
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Completed, Decision, PreparedTransaction, Record
from exactly_once.txn.coordinators import Description
from testkit.doubles import ask_the_double
from testkit.sessions import session_of

PARTS = tuple(PreparedTransaction(f"eo:job:1:{n}:0.0", 100 + n, 0, n, 5) for n in range(3))
EARLIER = Decision("q", 7, 1, PARTS, "d", 4, 0, topics=("a",))
AGAIN = replace(EARLIER, token=2, handles=(replace(PARTS[1], transactional_id="eo:job:2:1:0.0", producer_id=7),))


@pytest.mark.parametrize(("before", "now"), [(4, 5), (5, 4), (5, 5), (4, 4)])
def test_an_amended_decision_is_ended_with_a_version_that_all_its_parts_know(before: int, now: int) -> None:
    """After a feature upgrade in between, a retry of version 5 for what version 4 committed says INVALID_TXN_STATE; and
    version 5 must not be sent to brokers below it. Both are EO-EXPIRED where there is no other evidence."""
    amended = amend(
        replace(EARLIER, end_txn_version=before), replace(AGAIN, end_txn_version=now), {"kafka": {"1": [5, ""]}}
    )
    assert amended.end_txn_version == min(before, now)
    assert {h.part: h for h in amended.handles} == {0: PARTS[0], 1: AGAIN.handles[0], 2: PARTS[2]}


def test_the_ids_of_topics_that_come_and_go_do_not_grow_for_ever() -> None:
    """With a topic column, each decision would carry every topic ever written, until none fits into the log."""
    known: dict[str, str] = {}
    for n in range(3 * KEPT_TOPIC_IDS):
        known = kept_topic_ids(known, {"always": "id", f"t{n}": f"id{n}"})
    assert len(known) == KEPT_TOPIC_IDS
    assert known["always"] == "id"
    assert f"t{3 * KEPT_TOPIC_IDS - 1}" in known and f"t{2 * KEPT_TOPIC_IDS - 1}" not in known


def test_the_ids_of_the_topics_just_written_are_all_kept() -> None:
    """Whatever their number: they are what the next batch is compared with."""
    written = {f"t{n}": "new" for n in range(KEPT_TOPIC_IDS + 5)}
    assert kept_topic_ids({"t0": "old", "other": "x"}, written) == written


class Log:
    """The commit log of sink "job", with one decision in it that is not completed. It raises ``fails`` for records of
    the kind ``at``."""

    sink_id = "job"

    def __init__(self, decision: Decision, at: type[Record] | None = None, fails: ExactlyOnceError | None = None):
        self.decision, self.at, self.fails = decision, at, fails
        self.rewritten: list[int] = []
        """As it was added to the tally."""

    def begin(self, *_: Any) -> None:
        pass

    def own(self, token: int, deadline: Deadline) -> LogState:
        return LogState(decisions=(self.decision,))

    def append(self, record: Record, *_: Any, **__: Any) -> LogState:
        if self.fails is not None and type(record) is self.at:
            raise self.fails
        return LogState(decisions=(self.decision,))

    def tally(self, token: int, deadline: Deadline, rewritten: int = 0, **_: int) -> None:
        self.rewritten += [rewritten] * bool(rewritten)


class Leaders:
    """Answers what is asked before a decision; ``unasked`` is why leaders do not say what is open."""

    def __init__(self, unasked: str = ""):
        self.unasked = unasked

    def renew(self, budget_s: float) -> Leaders:
        return self

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        return {}

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return {t: f"id of {t}" for t in topics}

    def begin_asking(self, handles: object, topics: object) -> None:
        """Nobody answers at once."""

    def end_asking(self, begun: None) -> None:
        return begun

    def mismatches(self, handles: object, described: object, heard: None) -> tuple[dict[str, str], str]:
        return {}, self.unasked


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_the_double(monkeypatch, kafka_transactions, "describe", "begin_asking", "end_asking", "mismatches")


STATE = DriverState(2, Batch("q", -1, ""), 5, 900_000, 0)
EMPTY = replace(EARLIER, handles=())


def session(log: Log, control: Leaders | None = None) -> Session:
    return session_of(control or Leaders(), log)


def proposal(decision: Decision, last: Decision | None = None) -> Proposal:
    return Proposal("job", "/c", Batch("q", decision.batch_id, "d"), decision, last, 0, 900_000, 0, 0)


def decide_and_mark(sess: Session, proposed: Decision) -> None:
    mark(sess, decide_and_complete(sess, proposed, STATE))


NOT_KNOWN = "The driver cannot tell whether the batch is decided"
MARKED_LATER = "The batch is committed; the next start records that, and writes none of its rows again"


@pytest.mark.parametrize(
    ("at", "kind", "says"),
    [
        (Decision, BrokerUnreachable, NOT_KNOWN),
        (Completed, BrokerUnreachable, MARKED_LATER),
        (Completed, NotAuthorized, MARKED_LATER),
    ],
)
def test_a_log_that_fails_at_the_decision_or_behind_it_is_no_proof_that_nothing_was_written(
    at: type[Record], kind: type[ExactlyOnceError], says: str
) -> None:
    """ "Nothing was written" sends a person to write by hand what is committed, or may be: duplicates."""
    log = Log(EMPTY, at, kind("the log fails", "Look at it"))
    with pytest.raises(kind, match=says):
        decide_and_mark(session(log), replace(EMPTY, batch_id=8))


@pytest.mark.parametrize("kind", [BrokerUnreachable, NotAuthorized])
def test_a_log_that_fails_behind_an_earlier_drivers_decision_does_not_make_it_undone(
    kind: type[ExactlyOnceError],
) -> None:
    """The next driver commits it and cannot mark it: "Nothing was written" would be answered by writing it again."""
    log = Log(EMPTY, Completed, kind("the log fails", "Look at it"))
    with pytest.raises(kind, match=MARKED_LATER):
        complete_decided(session(log), 2, Consent(), Deadline(5))


def test_parts_that_were_written_again_are_counted_as_their_decision_is_completed_by_whoever_does_it() -> None:
    """Guards against a replay that is counted by every driver that tried it, or by none (invariant 9)."""
    again = replace(EMPTY, batch_id=8, rewritten=("kafka/0", "kafka/2"))
    tried = Log(EMPTY, Completed, BrokerUnreachable("the log fails", "Look at it"))
    with pytest.raises(BrokerUnreachable):
        decide_and_mark(session(tried), again)
    assert tried.rewritten == []

    done = Log(EMPTY)
    decide_and_mark(session(done), again)
    assert done.rewritten == [2]

    left = Log(again)
    complete_decided(session(left), 3, Consent(), Deadline(5))
    assert left.rewritten == [2]


def test_a_decision_keeps_no_more_topic_ids_than_fit() -> None:
    """Guards against a decision that carries every topic ever written."""
    earlier = replace(EMPTY, topic_ids={f"t{n}": f"id of t{n}" for n in range(KEPT_TOPIC_IDS)})
    kafka = session(Log(earlier)).kafka
    placed = kafka.confirm(proposal(replace(EMPTY, batch_id=8, topics=("new",)), earlier))
    assert len(placed.topic_ids) == KEPT_TOPIC_IDS
    assert placed.topic_ids["new"] == "id of new" and "t0" not in placed.topic_ids


def test_leaders_that_do_not_say_what_is_open_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Records that are gone go unnoticed then, and a lost transaction may be EO-EXPIRED, a person's affair. Who can
    prevent that has to hear of it before, and not with every batch."""
    kafka = session(Log(EMPTY), Leaders("this principal has no READ right on topic 'a'")).kafka
    with caplog.at_level(logging.WARNING):
        for batch_id in (8, 9):
            kafka.confirm(proposal(replace(EMPTY, batch_id=batch_id)))
    mine = [r.getMessage() for r in caplog.records if r.name.startswith("exactly_once")]  # not of other tests' clients
    assert [message.count("EO-WARN-PLACES") for message in mine] == [1]
    assert "READ right on topic 'a'" in caplog.text

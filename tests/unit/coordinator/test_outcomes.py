"""What an answer to EndTxn means, and what the sum of a batch's answers means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from exactly_once.coordinator.complete import complete as complete_session
from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    DatabaseUnusable,
    ExactlyOnceError,
    Expired,
    NotAuthorized,
    Unfinished,
)
from exactly_once.kafka.errors import RAISE, name_of
from exactly_once.participant import Scope
from exactly_once.participants.kafka import topics as kafka_topics
from exactly_once.participants.kafka import transactions as kafka_transactions
from exactly_once.participants.kafka.transactions import sweep
from exactly_once.protocol.names import SLOTS
from exactly_once.protocol.outcomes import Outcome, read_answer
from exactly_once.protocol.records import Decision, OffsetRange, PreparedTransaction
from exactly_once.txn.coordinators import Description, End, Listing
from exactly_once.txn.evidence import TransactionOutcome
from testkit.doubles import ask_the_double
from testkit.part_ids import part_id
from testkit.sessions import session_of

T = TypeVar("T")

DONE, RETRY, LOST = Outcome.DONE, Outcome.RETRY, Outcome.LOST
UNKNOWN, DENIED = Outcome.UNKNOWN, Outcome.DENIED

#: Kafka's error code, its name, and its meaning as an answer to EndTxn.
TABLE = [
    (0, "NONE", DONE),
    (14, "COORDINATOR_LOAD_IN_PROGRESS", RETRY),
    (15, "COORDINATOR_NOT_AVAILABLE", RETRY),
    (16, "NOT_COORDINATOR", RETRY),
    (51, "CONCURRENT_TRANSACTIONS", RETRY),
    (7, "REQUEST_TIMED_OUT", RETRY),
    (-1, "UNKNOWN", RETRY),
    (35, "UNSUPPORTED_VERSION", RETRY),
    (42, "INVALID_REQUEST", RETRY),
    (48, "INVALID_TXN_STATE", LOST),
    (90, "PRODUCER_FENCED", UNKNOWN),
    (47, "INVALID_PRODUCER_EPOCH", UNKNOWN),
    (49, "INVALID_PRODUCER_ID_MAPPING", UNKNOWN),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", DENIED),
]


@pytest.mark.parametrize(("code", "name", "meaning"), TABLE, ids=[row[1] for row in TABLE])
def test_an_answer_means_what_the_broker_knows(code: int, name: str, meaning: Outcome) -> None:
    """A lost transaction that is read as done is a loss nobody sees; a live one that is read as lost is written twice.

    The names are those that the client library gives: another spelling would fall through to RETRY.
    """
    assert name_of(code) == name
    assert read_answer(name) is meaning


def test_nothing_but_success_is_read_as_done_and_nothing_unheard_of_as_lost() -> None:
    """Invariant 9: an answer that is not understood proves nothing, in either direction."""
    meanings = {c: read_answer(name_of(c)) for c in range(-1, 200)}
    assert [c for c, m in meanings.items() if m is DONE] == [0]
    assert {c for c, m in meanings.items() if m in (LOST, UNKNOWN)} == {47, 48, 49, 90}


# -- the answers of a batch together --------------------------------------------------------------------------------

PARTS = tuple(PreparedTransaction(part_id("job", 1, p, "0.0"), 100 + p, 0, p, 10 + p) for p in range(4))
DECISION = Decision("q", 12, 1, PARTS, "d", 5, 0)


class Answers:
    """A control plane that gives one answer for each part, and keeps what it was sent."""

    def __init__(self, *outcomes: Outcome):
        self.outcomes = {h.transactional_id: o for h, o in zip(PARTS, outcomes, strict=True)}
        self.deadline = Deadline(1)
        self.sent: list[tuple[End, bool, int]] = []
        self.ids: dict[str, str] = {}
        self.leaderless: list[tuple[str, int]] = []
        self.evidence = {LOST: TransactionOutcome.ABORTED, UNKNOWN: TransactionOutcome.UNKNOWN}
        self.level = 2

    def transaction_level(self) -> int:
        return self.level

    def transaction_outcomes(self, handles: Sequence[PreparedTransaction]) -> dict[str, TransactionOutcome]:
        return {h.transactional_id: self.evidence[self.outcomes[h.transactional_id]] for h in handles}

    def renew(self, budget_s: float) -> Answers:
        return self

    def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        return asyncio.run(self._answer(question))

    run = ask

    def begin(self, question: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        return question()

    async def _answer(self, question: Callable[[], Awaitable[T]]) -> T:
        return await question()

    async def leaders(
        self, topics: Iterable[str], leaderless: list[tuple[str, int]], ids: dict[str, str]
    ) -> dict[int, list[tuple[str, int]]]:
        leaderless += self.leaderless
        ids.update({topic: found for topic, found in self.ids.items() if topic in set(topics)})
        return {}

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        """A coordinator that knows all of them as open."""
        handles = [h for h in PARTS if h.transactional_id in set(ids)]
        return {
            h.transactional_id: Description(h.transactional_id, "Ongoing", h.producer_id, h.epoch, 60_000, 0, (), 1)
            for h in handles
        }

    def end_all(self, ends: Sequence[End], commit: bool, version: int) -> dict[str, Outcome]:
        self.sent += [(e, commit, version) for e in ends]
        return {e.transactional_id: self.outcomes[e.transactional_id] for e in ends}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_the_double(
        monkeypatch,
        kafka_transactions,
        *("describe", "end_all", "end_txn_version", "transaction_outcomes", "list_transactions", "transaction_level"),
    )
    monkeypatch.setattr(kafka_transactions, "begin_check_seen", lambda admin, prefix: object())
    monkeypatch.setattr(kafka_transactions, "check_seen", lambda admin, prefix, begun: None)
    monkeypatch.setattr(kafka_transactions, "_end_hanging", lambda admin, handles: None)


def complete(control: Any, recovering: bool = False, decision: Decision = DECISION) -> Any:
    return complete_session(session_of(control), decision, recovering)


def completing(*outcomes: Outcome) -> Any:
    return complete(Answers(*outcomes))


def test_every_handle_is_committed_exactly_as_it_was_prepared() -> None:
    """By its own producer id and epoch, with the version in the decision: another version answers wrongly on a
    retry."""
    control = Answers(DONE, DONE, DONE, DONE)
    complete(control)
    assert sorted(control.sent) == [(End(h.transactional_id, h.producer_id, h.epoch), True, 5) for h in PARTS]


@pytest.mark.parametrize(
    ("outcomes", "error"),
    [
        ((UNKNOWN, LOST, DONE, DONE), Expired),
        ((UNKNOWN, DONE, DONE, DONE), Expired),
        ((DONE, RETRY, DONE, DONE), Unfinished),
        ((DONE, DONE, DENIED, DONE), NotAuthorized),
        ((DONE, RETRY, DENIED, DONE), NotAuthorized),
    ],
)
def test_a_batch_with_one_part_unproven_is_not_complete(
    outcomes: tuple[Outcome, ...], error: type[ExactlyOnceError]
) -> None:
    """Spark would write commits/N and never come back for the part (invariant 3)."""
    with pytest.raises(error, match=r"batch 12 of sink 'job'"):
        completing(*outcomes)


@pytest.mark.parametrize(
    ("version", "level", "way_out"),
    [
        (5, 0, RAISE),
        (5, 2, "Restart the brokers one after the other, those that are down first, and start the stream again"),
        (4, 0, "Once the brokers answer, start the stream again"),
    ],
)
def test_a_transaction_that_its_coordinator_does_not_end_names_the_level_of_the_cluster(
    version: int, level: int, way_out: str
) -> None:
    """Mishap: a person waits for brokers that answer, while readers wait for a restart of them."""
    control = Answers(DONE, RETRY, DONE, DONE)
    control.level = level
    with pytest.raises(Unfinished) as ended:
        complete_session(session_of(control), replace(DECISION, end_txn_version=version))
    assert ended.value.way_out.startswith(way_out)


def test_who_reads_of_parts_in_doubt_reads_of_those_that_are_lost_too() -> None:
    """sink.accept.lost goes past both: a part that the sentence left out would be lost without a word."""
    with pytest.raises(Expired) as ended:
        completing(UNKNOWN, LOST, DONE, DONE)
    assert re.search(r"2 of its parts .*in doubt.*1 of them", ended.value.what)
    assert all(h.transactional_id in ended.value.what for h in PARTS[:2])


@pytest.mark.parametrize("waiting", [RETRY, DENIED])
@pytest.mark.parametrize("gone", [LOST, UNKNOWN])
def test_a_lost_part_does_not_hide_one_that_may_still_be_committed(gone: Outcome, waiting: Outcome) -> None:
    """EO-EXPIRED promises that every other part is committed, and sink.accept.lost marks the batch as completed on the
    strength of it: the part that only gave no answer would then be swept, decided and alive as it is. Lost for good."""
    with pytest.raises((Unfinished, NotAuthorized)):
        completing(DONE, gone, waiting, DONE)


def test_a_part_that_is_proven_lost_is_handed_back_to_be_written_again() -> None:
    """Guards against a stop where the rows can be written again, and against one more part than was lost."""
    assert completing(DONE, LOST, DONE, LOST) == [PARTS[1], PARTS[3]]


def test_evidence_of_a_commit_is_a_commit() -> None:
    """Guards against a part that is written twice because its coordinator has forgotten it."""
    control = Answers(DONE, UNKNOWN, DONE, LOST)
    control.evidence = dict.fromkeys((LOST, UNKNOWN), TransactionOutcome.COMMITTED)
    assert complete(control) == []


def test_a_part_whose_markers_are_still_to_come_is_waited_for() -> None:
    """Guards against a verdict on a transaction that is just about to be committed."""
    control = Answers(DONE, UNKNOWN, DONE, DONE)
    control.evidence = {UNKNOWN: TransactionOutcome.OPEN}
    with pytest.raises(Unfinished):
        complete(control)


def test_what_is_in_doubt_is_named_with_its_part_records_and_the_way_out() -> None:
    """The person who repairs it needs to know which rows."""
    with pytest.raises(Expired) as error:
        completing(DONE, UNKNOWN, UNKNOWN, DONE)
    text = str(error.value)
    assert re.search(r"2 of its parts .*in doubt", text)
    assert f"part 1 (11 records, {PARTS[1].transactional_id})" in text
    assert "offsets/12" in text and "offsets/11" in text and "sink.accept.lost=12@" in text


def test_a_decided_batch_that_waits_says_that_it_is_safe() -> None:
    """EO-UNFINISHED is the moment at which an operator might be tempted to delete something."""
    with pytest.raises(Unfinished, match="the next start commits"):
        completing(RETRY, DONE, DONE, DONE)


# -- topics that were made again behind the decision ------------------------------------------------------------------

INTO_TWO = replace(DECISION, topics=("a", "b"), topic_ids={"a": "1", "b": "2", "other": "9"})


@pytest.mark.parametrize("now", [{"a": "1", "b": "3"}, {"a": "1"}, {"a": "3", "b": "4"}], ids=["one", "gone", "all"])
def test_a_batch_with_a_topic_that_was_made_again_is_aborted_as_a_whole(
    now: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 10: "done" speaks of the topics whose ids the decision holds. No replay would be right of a commit to
    some of the topics alone."""
    monkeypatch.setattr(kafka_topics, "_SURE_S", 0.0)
    control = Answers(DONE, LOST, DONE, DONE)  # LOST: it timed out, and the place of its first record proves it
    control.ids = now
    assert set(complete(control, decision=INTO_TWO)) == set(PARTS)
    assert {commit for _, commit, _ in control.sent} == {False}


@pytest.mark.parametrize("outcome", [TransactionOutcome.COMMITTED, TransactionOutcome.UNKNOWN])
def test_a_part_that_was_committed_before_one_of_its_topics_was_made_again_is_in_doubt(
    outcome: TransactionOutcome,
) -> None:
    """Its rows are in one topic and gone from the other: a replay would double them, and a mark would lose them."""
    control = Answers(DONE, LOST, DONE, DONE)
    control.ids, control.evidence = {"a": "1", "b": "3"}, {LOST: outcome}
    with pytest.raises(Expired, match=r"4 of its parts .*in doubt.*deleted since.*: b \(3 of them .*lost"):
        complete(control, decision=INTO_TWO)


@pytest.mark.parametrize("outcome", [LOST, UNKNOWN])
def test_a_part_of_which_all_topics_were_made_again_is_lost_however_it_ended(outcome: Outcome) -> None:
    """Nothing of it is in any topic of today."""
    control = Answers(*[outcome] * 4)
    control.ids, control.evidence = {"a": "3", "b": "4"}, dict.fromkeys((LOST, UNKNOWN), TransactionOutcome.COMMITTED)
    assert set(complete(control, decision=INTO_TWO)) == set(PARTS)


@pytest.mark.parametrize("known", [{}, {"a": "", "b": ""}, {"a": "1", "b": "2"}])
def test_topics_that_stand_or_whose_ids_are_not_known_are_committed_to(known: dict[str, str]) -> None:
    """Guards against an abort of what an older version decided, or brokers without topic ids."""
    control = Answers(DONE, DONE, DONE, DONE)
    control.ids = {"a": "1", "b": "2"}
    assert complete(control, decision=replace(INTO_TWO, topic_ids=known)) == []
    assert {commit for _, commit, _ in control.sent} == {True}


IN_TWO = tuple(replace(h, written={("ab"[n % 2], n): OffsetRange(0, 1)}) for n, h in enumerate(PARTS))


def commit_as_confirmed(control: Any) -> list[PreparedTransaction]:
    """Commit parts, two to each topic, that were confirmed a moment ago: the topics are asked for beside EndTxn."""
    handles = replace(INTO_TWO, handles=IN_TWO).parts_of("kafka")
    return kafka_transactions.commit_transactions("job", handles, control, 1, confirmed=True)


def test_parts_that_were_confirmed_a_moment_ago_are_in_doubt_where_their_topic_was_made_again_meanwhile() -> None:
    """Guards against a mark, and so a loss without a word: "done" speaks of the topic that is gone."""
    control = Answers(DONE, DONE, DONE, DONE)
    control.ids, control.evidence = {"a": "1", "b": "3"}, {DONE: TransactionOutcome.COMMITTED}
    with pytest.raises(Expired, match=r"2 of its parts .*in doubt.*deleted since.*: b:"):
        commit_as_confirmed(control)


def test_parts_that_were_confirmed_a_moment_ago_are_lost_where_all_topics_were_made_again() -> None:
    """Nothing of the batch is in any topic of today: the next start writes it once."""
    control = Answers(DONE, DONE, DONE, DONE)
    control.ids, control.evidence = {"a": "3", "b": "4"}, {DONE: TransactionOutcome.COMMITTED}
    assert {h.part for h in commit_as_confirmed(control)} == {0, 1, 2, 3}


def test_parts_whose_partition_lost_its_leader_while_they_ended_are_not_called_committed() -> None:
    """Guards against a mark behind which nobody looks for the end marker that Kafka left out there."""
    control = Answers(DONE, DONE, DONE, DONE)
    control.ids, control.leaderless = {"a": "1", "b": "2"}, [("b", 1)]
    with pytest.raises(Unfinished, match="b-1 had no leader"):
        commit_as_confirmed(control)


def test_topics_that_stand_are_asked_for_beside_the_commit_of_parts_that_were_confirmed_a_moment_ago() -> None:
    """The way of each batch."""
    control = Answers(DONE, DONE, DONE, DONE)
    control.ids = {"a": "1", "b": "2"}
    assert commit_as_confirmed(control) == []


class Failing(Answers):
    """Says nothing but ``error``, to whatever is asked after the decision."""

    def __init__(self, error: ExactlyOnceError):
        super().__init__(DONE, DONE, DONE, DONE)
        self.error = error

    def end_all(self, ends: Sequence[End], commit: bool, version: int) -> dict[str, Outcome]:
        raise self.error


@pytest.mark.parametrize("kind", [BrokerUnreachable, BrokerRefused])
def test_brokers_that_fail_after_the_decision_do_not_make_it_undone(kind: type[ExactlyOnceError]) -> None:
    """ "Nothing was written" after the decision sends a person to write the batch by hand (duplicates), and an error
    that no restart heals leaves the batch until its transactions time out."""
    with pytest.raises(Unfinished) as error:
        complete(Failing(kind("no broker answers", "Look at them")))
    assert re.fullmatch(r"batch 12 of sink 'job' .*not all .*: no broker answers", error.value.what)
    assert (error.value.code, error.value.safe) == ("EO-UNFINISHED", Unfinished.default_safe)
    assert error.value.way_out == "Look at them"


@pytest.mark.parametrize("kind", [NotAuthorized, DatabaseUnusable])
def test_no_error_after_the_decision_says_that_nothing_was_written(kind: type[ExactlyOnceError]) -> None:
    """Whatever a participant raises when it commits: it keeps its code, and says what is true of the batch."""
    with pytest.raises(kind, match=Unfinished.default_safe):
        complete(Failing(kind("refused", "Grant it")))


class HalfDone(Answers):
    """The first two parts are committed already."""

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        done = {h.transactional_id for h in PARTS[:2]}
        return {
            i: d._replace(state="CompleteCommit", producer_epoch=d.producer_epoch + 1) if i in done else d
            for i, d in super().describe(ids).items()
        }


def test_a_recovery_ends_first_what_is_still_to_be_ended() -> None:
    """Guards against a wedge: a budget that ends before the last part, spent at every start on the same first ones."""
    control = HalfDone(DONE, DONE, DONE, DONE)
    complete(control, recovering=True)
    assert [e.transactional_id for e, _, _ in control.sent] == [h.transactional_id for h in (*PARTS[2:], *PARTS[:2])]


def test_a_recovery_ends_all_when_it_cannot_find_out_which_are_open() -> None:
    """Guards against a coordinator that is away, and keeps the others from committing what they could."""

    class Silent(Answers):
        def describe(self, ids: Iterable[str]) -> dict[str, Description]:
            raise BrokerUnreachable("no answer", "Wait")

    control = Silent(DONE, DONE, DONE, DONE)
    assert complete(control, recovering=True) == []
    assert len(control.sent) == 4


# -- the sweep ------------------------------------------------------------------------------------------------------


class Cluster:
    """Open transactions under any ids; an abort ends them."""

    def __init__(self, ids: Sequence[str], answer: Outcome = DONE):
        self.open = dict.fromkeys(ids, (9, 3))
        self.answer = answer
        self.aborted: list[tuple[End, bool]] = []

    def renew(self, budget_s: float) -> Cluster:
        return self

    def list_transactions(self, prefix: str, states: Sequence[str], old_s: float = 0.0) -> list[Listing]:
        return [Listing(i, 9, "Ongoing", 1) for i in self.open if i.startswith(prefix)]

    def describe(self, ids: Sequence[str]) -> dict[str, Description]:
        return {i: Description(i, "Ongoing", *self.open[i], 60_000, 0, (), 1) for i in ids}

    def end_txn_version(self) -> int:
        return 5

    def end_all(self, ends: Sequence[End], commit: bool, version: int) -> dict[str, Outcome]:
        self.aborted += [(e, commit) for e in ends]
        for e in ends:
            del self.open[e.transactional_id]
        return dict.fromkeys((e.transactional_id for e in ends), self.answer)


def test_a_sweep_aborts_only_what_it_may_and_never_commits() -> None:
    """Not a neighbour's whose name extends ours, not the commit log's, not another slot's (invariant 6)."""
    mine = [part_id("job", 1, 0, "0.0"), part_id("job", 1, 1, "1.3")]
    others = [part_id("job", 2, 0, "0.0"), part_id("job.1", 1, 0, "0.0"), "eo:job:log", "eo:job:1:0", "job"]
    cluster = Cluster([*mine, *others])
    swept = sweep("job", cluster, lambda p: p.slot == 1)  # type: ignore[arg-type]
    assert [d.transactional_id for d in swept] == mine
    assert cluster.aborted == [(End(i, 9, 3), False) for i in mine]
    assert list(cluster.open) == others


@pytest.mark.parametrize("ids", [[], [part_id("job", 1, 0, "0.0")]], ids=["nothing is listed", "something is"])
def test_a_sweep_that_may_not_see_what_is_open_is_refused_and_ends_nothing(
    ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing right must not look like "nothing to abort": brokers leave out what the principal may not see."""

    def denied(admin: Any, prefix: str, begun: object) -> None:
        raise NotAuthorized("may not see", "grant it")

    monkeypatch.setattr(kafka_transactions, "check_seen", denied)
    cluster = Cluster(ids)
    with pytest.raises(NotAuthorized):
        sweep("job", cluster, lambda p: True)  # type: ignore[arg-type]
    assert cluster.aborted == []


def test_a_sweep_that_may_not_abort_says_which_right_is_missing() -> None:
    """A missing right must not look like "nothing to abort": readers stay blocked."""
    with pytest.raises(NotAuthorized, match=r"EO-DENIED: .*'job'.*Grant WRITE and DESCRIBE .*'eo:job:'"):
        sweep("job", Cluster([part_id("job", 1, 0, "0.0")], DENIED), lambda p: True)  # type: ignore[arg-type]


def test_a_sweep_spares_the_decided_transaction_and_not_a_later_one_of_the_same_id() -> None:
    """A task that outlived its driver began anew under the id: its rows hold readers back until their timeout, and no
    recovery would ever be clean. The decided transaction itself must stay, or it is lost."""
    ids = [part_id("job", 1, 0, "0.0"), part_id("job", 1, 1, "0.0")]
    cluster = Cluster(ids)  # both open as producer 9 at epoch 3
    spare = frozenset({End(ids[0], 9, 3), End(ids[1], 9, 1)})
    swept = sweep("job", cluster, lambda p: True, spare)  # type: ignore[arg-type]
    assert [d.transactional_id for d in swept] == [ids[1]]
    assert list(cluster.open) == [ids[0]]


@pytest.mark.parametrize(
    ("scope", "slots"),
    [
        (Scope("job", 3), {1, 2}),
        (Scope("job", 3, 3), {1, 2, 3}),
        (Scope("job", 0, 3, owner=4), {3}),
        (Scope("job", 0, 3, owner=3 + SLOTS // 2), set()),
    ],
    ids=["a claim", "a driver's own", "superseded", "superseded long ago"],
)
def test_kafka_sweeps_the_slots_of_the_claims_that_it_may(scope: Scope, slots: set[int]) -> None:
    """Slots come round again: a driver that was superseded long ago would abort what a living one writes (loss of its
    batch's time), and one that left its own open would hold readers back."""
    cluster = Cluster([part_id("job", token, 0, "0.0") for token in range(1, 6)])
    session_of(cluster).kafka.recover_and_abort(scope)
    assert {int(end.transactional_id.split(":")[2]) for end, _ in cluster.aborted} == slots
    assert not any(commit for _, commit in cluster.aborted)


def test_kafka_spares_what_is_decided_by_producer_id_and_epoch() -> None:
    """A sweep that spares by the id alone leaves what a late task has begun under it; one that spares nothing loses a
    decided part."""
    ids = [part_id("job", 2, part, "0.0") for part in range(2)]
    cluster = Cluster(ids)  # both open as producer 9 at epoch 3
    decided = PreparedTransaction(ids[0], 9, 3, 0, 1), PreparedTransaction(ids[1], 9, 1, 1, 1)
    assert session_of(cluster).kafka.recover_and_abort(Scope("job", 3, decided=decided)) == [ids[1]]


def test_every_part_is_ended_with_the_version_of_its_decision() -> None:
    """Version 5 for what version 4 committed says INVALID_TXN_STATE: a committed part would be written again."""
    control = Answers(DONE, DONE, DONE, DONE)
    complete_session(session_of(control), replace(DECISION, end_txn_version=4))
    assert {version for _, _, version in control.sent} == {4}

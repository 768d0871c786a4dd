"""What an operator may do: what would lose or duplicate records, or stop a driver at work, is refused unless the
consequence is typed out.
"""

import re
import shlex
from dataclasses import replace

import pytest

from exactly_once.inspection.findings import Owner, naming
from exactly_once.inspection.hanging import attribute
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import ACCEPTED, KEPT_DECISIONS, Claim, Completed, Decision, PreparedTransaction
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.rules import Refused, check_abort, check_commit, check_hanging, check_owner
from exactly_once.tools.operation.transactions import ABORT, COMMIT, TransactionParameters
from exactly_once.txn.coordinators import Description
from exactly_once.txn.leaders import Hanging

ID = "eo:s:3:1:0.0"
NOBODY = "127.0.0.1:1"


def transaction(state="Ongoing", producer_id=11, epoch=2):
    return Description(ID, state, producer_id, epoch, 60_000, 1_000, (("out", 1),), 1)


def log(*handles, query_id="q"):
    return LogState(decisions=(Decision(query_id, 4, 3, handles, "d", 5, 0),))


DECIDED = log(PreparedTransaction(ID, 11, 2, 1, 50))
#: What is typed out to abort its transaction.
ROLL_BACK = "roll back batch 4, 50 records; the next start writes them again"
ACCEPTED_LOSS = replace(DECIDED, marks={("q", 4): Completed("q", 4, 3, 0, how=ACCEPTED)})
COMPLETED = replace(DECIDED, marks={("q", 4): Completed("q", 4, 3, 0)})


def refusal(act, *arguments, **named):
    with pytest.raises(Refused) as refused:
        act(*arguments, **named)
    return refused.value


def test_a_decided_transaction_may_be_committed_and_not_aborted():
    """Mishap: an abort of what is decided; readers miss those rows until the next start writes them again."""
    decided = check_commit(transaction(), DECIDED)
    assert (decided.decision.batch_id, decided.handle.records) == (4, 50)
    with pytest.raises(Refused, match=r"decided \(batch 4, 50 records\); .*the next start"):
        check_abort(transaction(), DECIDED)
    with pytest.raises(Refused, match=r"\(batch 4, 1 record\)"):
        check_abort(transaction(), log(PreparedTransaction(ID, 11, 2, 1, 1)))


def test_an_undecided_transaction_may_be_aborted_and_not_committed():
    """Duplicate: its rows will be written again."""
    assert check_abort(transaction(), LogState()) is None
    with pytest.raises(Refused, match=r"not decided; .* would duplicate"):
        check_commit(transaction(), LogState())


@pytest.mark.parametrize("other", [{"producer_id": 12}, {"epoch": 3}])
def test_another_transaction_of_the_same_id_is_not_the_decided_one(other):
    """An id is used again after its slot came round: only producer id and epoch tell."""
    assert naming(transaction(**other), DECIDED) is None
    with pytest.raises(Refused):
        check_commit(transaction(**other), DECIDED)


@pytest.mark.parametrize("state", ["", "Empty", "CompleteCommit", "CompleteAbort"])
def test_what_is_not_under_way_is_neither_committed_nor_aborted_nor_forced(state):
    """Mishap: the id may serve the next batch by the time somebody has typed."""
    for check in (check_commit, check_abort):
        refused = refusal(check, transaction(state), DECIDED, force=ROLL_BACK)
        assert "no transaction under way" in refused.what and refused.phrase is None


@pytest.mark.parametrize("foreign", ["flights-feed", "eo:s:log", "eo.s.1.2", "other"])
def test_foreign_ids_are_refused_before_anything_is_asked(foreign):
    for operation in (COMMIT, ABORT):
        with pytest.raises(Refused, match=re.escape(f"{foreign!r} is not")):
            operation.apply(OperationContext(Connection(NOBODY)), TransactionParameters(id=foreign))


# -- typed consequences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "phrase"),
    [
        (1234, "duplicate 1234 records of out"),
        (1, "duplicate 1 record of out"),
        (None, "duplicate an unknown number of records of out"),
    ],
)
def test_a_commit_of_what_is_undecided_needs_the_duplicates_typed_out(written, phrase):
    refused = refusal(check_commit, transaction(), LogState(), written)
    assert refused.phrase == phrase and f"--force '{phrase}'" in str(refused)
    assert check_commit(transaction(), LogState(), written, f" {phrase.replace(' ', '  ')}") is None


def test_an_abort_of_what_is_decided_needs_the_roll_back_typed_out():
    """Mishap: "lose batch 3", typed out, and the next start wrote the rows again."""
    refused = refusal(check_abort, transaction(), DECIDED)
    assert refused.phrase == ROLL_BACK
    assert check_abort(transaction(), DECIDED, refused.phrase).decision.batch_id == 4
    write = log(PreparedTransaction(ID, 11, 2, 1, 50), query_id="write:2013-01-05")
    phrase = refusal(check_abort, transaction(), write).phrase
    assert phrase.startswith("roll back write 2013-01-05, 50 records; the next try")


@pytest.mark.parametrize(
    "typed",
    ["", "yes", "force", ROLL_BACK.replace("4", "5"), "lose batch 4, 50 records", "duplicate 50 records of out"],
)
def test_any_other_phrase_overrules_nothing(typed):
    """Mishap: a phrase copied from another incident."""
    assert refusal(check_abort, transaction(), DECIDED, force=typed).phrase == ROLL_BACK


def test_a_frozen_owner_is_refused_with_the_command_that_ends_it():
    """Mishap: "a running driver ends its own transactions", of one that a signal has stopped."""
    stopped = (Frozen(Process("host-a", "m", 4711, 1.0), State.STOPPED),)
    refused = refusal(check_owner, "s", replace(owner(True), frozen=stopped))
    assert f"is frozen: {stopped[0]}" in refused.what and "process 4711 on host-a" in refused.what
    assert "kill -9 4711" in str(refused) and refused.phrase == "fence the driver 4711 on host-a"


def owner(alive, purpose="stream", operator=""):
    return Owner(Claim(1, "q", 0, purpose, "host-a", 4711, operator=operator), alive)


@pytest.mark.parametrize("operator", ["", "dagster/prod/0a1b"])
@pytest.mark.parametrize(("alive", "says"), [(True, "is alive"), (None, "cannot tell whether that driver is alive")])
def test_nobody_acts_while_an_owner_lives_or_may_live_unless_its_name_is_typed_out(alive, says, operator):
    """Mishap: a healthy stream that is stopped by somebody who looked at the wrong sink; production, fenced from a
    laptop by somebody who took the driver for a container of their own; a driver on another host, taken for dead.
    """
    driver = f"the driver 4711 on host-a{f' (operated by {operator})' if operator else ''}"
    refused = refusal(check_owner, "s", owner(alive, operator=operator))
    assert refused.what.startswith(f"{driver} owns sink 's'") and says in refused.what
    assert refused.phrase == f"fence {driver}"
    for wrong in ("fence the driver 4712 on host-a", "fence the driver 4711 on host-a" if operator else "yes"):
        assert refusal(check_owner, "s", owner(alive, operator=operator), wrong)
    check_owner("s", owner(alive, operator=operator), refused.phrase)


def test_a_phrase_can_be_typed_whatever_blanks_the_operator_has():
    """Mishap: a sink that nobody can recover, since the message shows one blank where the claim has two."""
    odd = owner(None, operator="team  a\tb")
    shown = refusal(check_owner, "s", odd).way_out.partition("--force ")[2]
    check_owner("s", odd, shlex.split(shown)[0])


@pytest.mark.parametrize("free", [None, owner(False), owner(True, "recovery"), owner(None, "recovery")])
def test_a_dead_owner_and_a_recovery_stop_nobody(free):
    check_owner("s", free)


# -- hanging -----------------------------------------------------------------------------------------------------------


def hanging(producer_id=11, epoch=2, transactional_id=None):
    return Hanging("out", 1, producer_id, epoch, 0, 17, 1_000, transactional_id, 50)


@pytest.mark.parametrize(
    ("found", "whose", "sink_id", "decided"),
    [
        (hanging(), "ours", "s", True),
        (hanging(epoch=3), "ours", "s", False),
        (hanging(producer_id=12, transactional_id="eo:t:1:0:0.0"), "ours", "t", False),
        (hanging(producer_id=12, transactional_id="flights-feed"), "foreign", None, False),
        (hanging(producer_id=12), "unknown", None, False),
    ],
)
def test_whose_a_hanging_transaction_is_is_told_by_its_producer_id(found, whose, sink_id, decided):
    """Loss: somebody else's records, aborted because they stood in our topic."""
    attributed = attribute(found, {"s": DECIDED})
    assert (attributed.owner, attributed.sink_id, attributed.decided is not None) == (whose, sink_id, decided)


def test_only_our_own_hanging_transactions_are_ended_without_a_word():
    """Loss: a decided one that is aborted, as Kafka 4.3.1 may leave them; and somebody else's records."""
    logs = {"s": DECIDED}
    assert check_hanging(attribute(hanging(epoch=3), logs)) is False
    assert check_hanging(attribute(hanging(), {"s": COMPLETED})) is True
    assert "commit --hanging out-1@17" in str(
        refusal(check_hanging, attribute(hanging(), {"s": COMPLETED}), commit=False)
    )
    pending = refusal(check_hanging, attribute(hanging(), logs))
    assert pending.phrase is None and "exactly-once recover s" in str(pending), "it may have been rolled back"
    assert refusal(check_hanging, attribute(hanging(epoch=3), logs), commit=True).phrase is None
    for found, phrase in (
        (hanging(12, 2, "flights-feed"), "lose up to 50 records of foreign producer 12 on out-1"),
        (hanging(12), "lose up to 50 records of unknown producer 12 on out-1"),
    ):
        attributed = attribute(found, logs)
        assert refusal(check_hanging, attributed).phrase == phrase
        check_hanging(attributed, phrase)


@pytest.mark.parametrize("dropped", ["the decision", "its handles"])
def test_whether_a_hanging_transaction_was_decided_is_asked_when_the_log_may_have_dropped_it(dropped):
    """Loss: the log keeps 64 decisions, a few minutes of a stream, and a transaction is called hanging after fifteen.
    Nobody would hear again of decided records that were aborted without a word.
    """
    if dropped == "the decision":
        numbers, totals = range(KEPT_DECISIONS), {}
    else:
        numbers, totals = range(1), {"kafka": [2000, 50, 0]}
    later = LogState(decisions=tuple(Decision("q", n, 3, (), "d", 5, 2_000 + n, totals=totals) for n in numbers))
    found = attribute(hanging(transactional_id="eo:s:1:0:0.0"), {"s": later})
    lose = "lose up to 50 records on out-1, if they were decided"
    show = "show up to 50 records on out-1"
    assert refusal(check_hanging, found).phrase == lose and show in str(refusal(check_hanging, found))
    assert check_hanging(found, lose) is False
    assert check_hanging(found, show) is True
    assert refusal(check_hanging, found, commit=True).phrase == show
    fewer = replace(later, decisions=later.decisions[:-1])  # from the sink's first one on
    assert check_hanging(attribute(found.hanging, {"s": fewer})) is False, "the log would still name it"


def test_what_a_person_gave_up_as_lost_is_neither_shown_nor_aborted_without_a_word():
    """Duplicate: after sink.accept.lost a person writes the missing rows by hand, and a commit of the hanging rest
    would show them twice. Loss: the rest may be of a part that was committed.
    """
    found = attribute(hanging(), {"s": ACCEPTED_LOSS})
    show, lose = "show up to 50 records on out-1", "lose up to 50 records on out-1, unless written again"
    for wanted in (None, False):
        refused = refusal(check_hanging, found, commit=wanted)
        assert refused.phrase == lose and "sink.accept.lost" in refused.what
        assert check_hanging(found, lose, wanted) is False
    assert refusal(check_hanging, found, commit=True).phrase == show
    assert refusal(check_hanging, found, lose, commit=True).phrase == show
    assert refusal(check_hanging, found, show, commit=False).phrase == lose
    assert check_hanging(found, show) is check_hanging(found, show, commit=True) is True

"""Which transactions an operator may commit or abort: what would lose or duplicate records is refused."""

import pytest

from exactly_once.kafka.control import Description
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Decision, PreparedTransaction
from resources.transactions import Refused, TransactionAdmin, check_abort, check_commit, decided_as

ID = "eo:s:3:1:0.0"


def transaction(state="Ongoing", producer_id=11, epoch=2):
    return Description(ID, state, producer_id, epoch, 60_000, 1_000, (("out", 1),), 1)


def log(*handles):
    return LogState(decisions=(Decision("q", 4, 3, handles, "d", 5, 0),))


DECIDED = log(PreparedTransaction(ID, 11, 2, 1, 50))


def test_a_decided_transaction_may_be_committed_and_not_aborted():
    decided = check_commit(transaction(), DECIDED)
    assert (decided.decision.batch_id, decided.handle.records) == (4, 50)
    with pytest.raises(Refused, match=r"decided \(batch 4, 50 records\); aborting it would lose them"):
        check_abort(transaction(), DECIDED)


def test_an_undecided_transaction_may_be_aborted_and_not_committed():
    check_abort(transaction(), LogState())
    with pytest.raises(Refused, match=r"not decided; .* would duplicate"):
        check_commit(transaction(), LogState())


@pytest.mark.parametrize("other", [{"producer_id": 12}, {"epoch": 3}])
def test_another_transaction_of_the_same_id_is_not_the_decided_one(other):
    """An id is used again after its slot came round: only producer id and epoch tell."""
    assert decided_as(transaction(**other), DECIDED) is None
    with pytest.raises(Refused):
        check_commit(transaction(**other), DECIDED)


@pytest.mark.parametrize("state", ["", "Empty", "CompleteCommit", "CompleteAbort"])
def test_what_is_not_under_way_is_neither_committed_nor_aborted(state):
    for check in (check_commit, check_abort):
        with pytest.raises(Refused, match="no transaction under way"):
            check(transaction(state), DECIDED)


@pytest.mark.parametrize("foreign", ["flights-feed", "eo:s:log", "eo.s.1.2", "other"])
def test_foreign_ids_are_refused_before_anything_is_asked(foreign):
    admin = TransactionAdmin(bootstrap_servers="127.0.0.1:1")  # nobody listens there
    for act in (admin.commit, admin.abort):
        with pytest.raises(Refused, match="no transactional id of a sink's part"):
            act(foreign)

"""What an inspection concludes from the brokers' words and the commit log, for every way in which they can stand."""

import json

import pytest

from exactly_once.inspection.findings import Inspection, Owner, judge_transaction, sink_of, state_of
from exactly_once.participants.kafka.topics import Topics
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim, Decision, PreparedTransaction
from exactly_once.txn.coordinators import Description

ID = "eo:s:3:1:0.0"
HANDLE = PreparedTransaction(ID, 11, 2, 1, 50)


def described(state="Ongoing", producer_id=11, epoch=2, transactional_id=ID):
    return Description(transactional_id, state, producer_id, epoch, 60_000, 1_000, (("out", 1),), 1)


def decision(version=5):
    return Decision("q", 4, 3, (HANDLE,), "d", version, 2_000, topics=("out",))


@pytest.mark.parametrize(
    ("state", "epoch", "version", "truth"),
    [
        ("Ongoing", 2, 5, "decided"),
        ("Ongoing", 3, 5, "unknown"),
        ("PrepareCommit", 3, 5, "committed"),
        ("CompleteCommit", 3, 5, "committed"),
        ("CompleteCommit", 2, 5, "committed"),
        ("CompleteCommit", 4, 5, "unknown"),
        ("CompleteCommit", 2, 4, "committed"),
        ("CompleteCommit", 3, 4, "unknown"),
        ("CompleteAbort", 2, 5, "lost"),
        ("CompleteAbort", 3, 5, "lost"),
        ("CompleteAbort", 3, 4, "lost"),
        ("PrepareAbort", 3, 4, "lost"),
        ("CompleteAbort", 4, 5, "unknown"),
        ("Empty", 3, 5, "unknown"),
        ("", -1, 5, "unknown"),
    ],
)
def test_what_became_of_a_decided_part(state, epoch, version, truth):
    """Loss: an aborted part that looks committed would never be missed. Duplicate: the other way round."""
    assert state_of(HANDLE, decision(version), described(state, epoch=epoch)) == truth


def test_a_part_whose_id_has_another_producer_id_now_is_unknown():
    """The broker exchanges the producer id when its epochs are used up, and when the id expired."""
    assert state_of(HANDLE, decision(), described("CompleteCommit", producer_id=12, epoch=0)) == "unknown"
    assert state_of(HANDLE, decision(), None) == "unknown"


@pytest.mark.parametrize(
    ("state", "topics", "truth"),
    [
        ("Ongoing", Topics([], gone=frozenset({"out"})), "lost"),
        ("Ongoing", Topics([], recreated=frozenset({"out"})), "lost"),
        ("CompleteCommit", Topics([], recreated=frozenset({"out"})), "unknown"),
        ("CompleteCommit", Topics([], recreated=frozenset({"out"}), stand=False), "lost"),
        ("CompleteAbort", Topics([], recreated=frozenset({"out"})), "lost"),
        ("", Topics([], gone=frozenset({"out"})), "unknown"),
    ],
)
def test_a_decided_part_is_lost_with_its_topics(state, topics, truth):
    """Loss: a dry run that announces the commit of what a recovery finds lost."""
    assert state_of(HANDLE, decision(), described(state), topics) == truth


def test_an_open_transaction_is_decided_only_by_producer_id_and_epoch():
    """Duplicate: a later transaction of the same id that passes for the decided one would be committed."""
    log = LogState(decisions=(decision(),))
    found = judge_transaction(described(), log, 31_000)
    assert (found.verdict, found.batch_id, found.records, found.part, found.attempt) == ("decided", 4, 50, 1, "0.0")
    assert (found.age_s, found.timeout_s) == (30.0, 60.0)
    for other in (described(epoch=3), described(producer_id=12)):
        found = judge_transaction(other, log, 31_000)
        assert (found.verdict, found.batch_id, found.records) == ("undecided", None, None)
    assert judge_transaction(described(transactional_id="eo:s:log"), log, 31_000).verdict == "log"


def test_an_age_is_never_negative():
    """This machine's clock may be behind the broker's."""
    assert judge_transaction(described(), LogState(), 0).age_s == 0.0


@pytest.mark.parametrize(
    ("transactional_id", "sink_id"),
    [
        (ID, "s"),
        ("eo:s:log", "s"),
        ("eo:a.b-c:log", "a.b-c"),
        ("eo:s", None),
        ("eo::log", None),
        ("flights-feed", None),
    ],
)
def test_which_sink_an_id_belongs_to(transactional_id, sink_id):
    assert sink_of(transactional_id) == sink_id


@pytest.mark.parametrize(
    ("purpose", "alive", "works"),
    [
        ("stream", True, True),
        ("write", True, True),
        ("stream", None, None),
        ("stream", False, False),
        ("recovery", True, False),
        ("recovery", None, False),
    ],
)
def test_only_a_stream_or_a_write_that_lives_is_work_to_protect(purpose, alive, works):
    """Mishap: a recovery in a process that stays would lock everybody out forever."""
    assert Owner(Claim(1, "q", 0, purpose, "h", 1), alive).works is works


def test_an_inspection_is_plain_values_for_scripts():
    log = LogState(Claim(1, "q", 0, "stream", "h", 1), (decision(),))
    found = Inspection("s", Owner(log.owner, None), (judge_transaction(described(), log, 31_000),), log=log)
    plain = json.loads(json.dumps(found.as_json()))
    assert plain["open"][0]["partitions"] == ["out-1"] and plain["owner"]["alive"] is None
    assert found.oldest_s == 30.0 and not found.quiet and Inspection("s").quiet


def test_an_owner_names_its_operator_for_scripts_too():
    """Mishap: a script that finds out that a sink is fenced, and not by whom."""
    owner = Owner(Claim(1, "q", 0, "stream", "h", 1, operator="dagster/prod/0a1b"), None)
    plain = json.loads(json.dumps(Inspection("s", owner).as_json()))["owner"]
    assert (plain["operator"], plain["machine"], plain["alive"]) == ("dagster/prod/0a1b", "", None)

"""``exactly_once_run_failure``: what happens after each kind of end of a stream; and the gate that all sensors ask."""

from __future__ import annotations

import pytest

from dagster_exactly_once.runs.failures import failure
from dagster_exactly_once.runs.tags import (
    TAG_ATTEMPT,
    TAG_BESIDE,
    TAG_CAUSE,
    TAG_NOT_BEFORE,
    TAG_RESTART,
    TAG_RESTART_OF,
)
from dagster_exactly_once.sensors.incidents import NoticeSender
from dagster_exactly_once.sensors.recovery_requests import (
    HANDOVER_S,
    RecoveryNeed,
    Restart,
    ask,
    recovery_request,
    refusal,
)
from dagster_exactly_once.sensors.run_failure import SOON_S, _reaction, verdict
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once.inspection.findings import Owner
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.protocol.records import Claim
from testkit.dagster_runs import Receiver
from testkit.sensor_facts import HOPELESS, NOW, STREAM, history, recovery, restarted, run

STOPPED = (Frozen(Process("vm", "m", 7, 1.0), State.STOPPED),)

WATCH = WatchPolicy()
DEFAULT = RestartPolicy(jitter=0.0, end_frozen_after_s=0.0)
FENCED = failure("EO-FENCED", "a newer driver owns the sink", heals=False)
PREPARE = failure("EO-PREPARE", "a transaction was ended by another client", heals=True)


def fixed_delay(attempts, delay_s):
    return RestartPolicy(strategy="fixed-delay", attempts=attempts, delay_s=delay_s)


def owner(alive, purpose="stream"):
    return Owner(Claim(3, "q", 0, purpose, "h", 1), alive)


def judged(*streams, strategy=DEFAULT, by=None, **facts):
    return verdict(STREAM, history(*streams, **facts), strategy, WATCH, by)


@pytest.mark.parametrize(
    ("failed", "recoveries"),
    [
        # readers wait for its open transactions, however long the restart has to wait
        (run("r1", "FAILURE", at=NOW - 51, lived=50), ()),
        # Dagster's own failure sensor begins at the newest event: what failed while the daemon was away stays down
        (run("r1", "FAILURE", at=NOW - 900_000), ()),
        # a failure while a recovery ran would be lost
        (run("r1", "FAILURE", at=NOW - 60), (recovery("c", at=NOW - 80, restart_of="r0"),)),
        # a recovery of another sensor does not take the restart away
        (run("r1", "FAILURE"), (recovery("c"),)),
    ],
    ids=["just now", "long before the first tick", "during a recovery", "recovered by another sensor"],
)
def test_a_failed_stream_is_recovered_at_once_with_a_restart(failed, recoveries):
    request = judged(failed, recoveries=recoveries).requests[0]
    assert (request.tags[TAG_RESTART_OF], request.tags[TAG_ATTEMPT]) == ("r1", "1")


def test_the_next_run_is_requested_with_its_recovery():
    """Spark takes longer to start than a recovery to end: a tick between the two keeps readers waiting for seconds."""
    newest = run("r1", "FAILURE", at=NOW - 52, lived=50, config={"ops": {"x": 1}})
    found = judged(newest)
    assert (found.requests[1].job_name, found.requests[1].run_config) == ("stream", {"ops": {"x": 1}})
    tags = found.requests[1].tags
    assert (tags[TAG_BESIDE], found.requests[1].run_key) == (
        found.requests[0].run_key,
        f"restart/{found.requests[0].run_key}",
    )
    assert (tags[TAG_RESTART_OF], tags[TAG_ATTEMPT], tags[TAG_RESTART]) == ("r1", "1", "1 of 10")
    assert "next run" in found.message and "(restart attempt 1), which waits" in found.message


def test_a_long_pause_leaves_the_start_to_the_sensor_that_waits():
    """A JVM that waits for minutes would only hold memory, and the run would look started."""
    found = judged(run("r1", "FAILURE", at=NOW - 52, lived=50), strategy=fixed_delay(3, SOON_S + 10))
    assert len(found.requests) == 1
    assert "the sensor exactly_once_liveness then starts the stream" in found.message


def test_a_frozen_run_is_not_called_started_without_what_is_true():
    """Mishap: "Run r1 is STARTED" beside a process that a signal has stopped: a person believed it, and went to bed."""
    frozen = history(run("r1", frozen=STOPPED))
    said = verdict(STREAM, frozen, RestartPolicy(), WATCH).message
    assert said.startswith("Dagster still shows ") and " run r1 as STARTED, but " in said and "HEALTH-FROZEN" in said
    assert "exactly_once_liveness kills that process" in said and "frozen for 2 min" in said and "kill -9 7" in said
    assert "exactly_once_liveness" not in verdict(STREAM, frozen, DEFAULT, WATCH).message
    canceling = history(run("r1", "CANCELING", frozen=STOPPED))
    said = verdict(STREAM, canceling, RestartPolicy(), WATCH).message
    assert "as CANCELING" in said and "resumes a process" in said and "kill -CONT 7" in said


def test_a_recovery_that_an_older_release_queued_is_requested_again_as_this_release_takes_it():
    """Mishap: Dagster refuses its configuration, which has a sink_id alone, and the stream stays down."""
    refused = failure("PROCESS-GONE", "This run has been marked as failed from outside the execution context.")
    failed = run("r1", "FAILURE", at=NOW - 200)
    queued = recovery("c", "FAILURE", restart_of="r1", at=NOW - 100)
    found = history(failed, recoveries=(queued,), recovery_failure=refused)
    request = verdict(STREAM, found, DEFAULT, WATCH).requests[0]
    config = request.run_config["ops"]["inspect"]["config"]
    assert (config["stream"], config["restart"]) == ("stream", True)


@pytest.mark.parametrize(
    ("streams", "facts", "says"),
    [
        ([], {}, "no run yet"),
        ([run("r1", "STARTED")], {}, "STARTED"),
        ([run("r1", "QUEUED")], {}, "QUEUED"),
        ([run("r1", "SUCCESS")], {}, "SUCCESS"),
        ([run("r1", "CANCELED")], {}, "CANCELED"),
        ([run("r2", "CANCELED"), run("r1", "FAILURE")], {}, "CANCELED"),
        ([run("r1", "FAILURE")], {"why": failure("PROCESS-GONE", "", unwanted=True)}, "asked it to end"),
        ([run("r1", "FAILURE")], {"recoveries": (recovery("c", "STARTED", restart_of="r1"),)}, "is STARTED"),
        ([run("r1", "FAILURE")], {"recoveries": (recovery("c", "QUEUED"),)}, "is QUEUED"),
        ([run("r1", "FAILURE")], {"recoveries": (recovery("c", restart_of="r1"),)}, "liveness starts"),
        ([run("r1", "FAILURE")], {"recoveries": (recovery("c", "CANCELED", restart_of="r1"),)}, "canceled its"),
        ([run("r1", "FAILURE")], {"recoveries": (recovery("c", person=True),)}, "without a restart"),
        ([run("r1", "FAILURE")], {"recoveries": (recovery("c", "FAILURE", person=True),)}, "without a restart"),
    ],
)
def test_nothing_is_asked_for(streams, facts, says: str):
    """CANCELED is a person's decision; what is under way is not to be disturbed."""
    found = judged(*streams, **facts)
    assert not found.requests and found.why is None and says in found.message


def test_a_stream_that_a_person_took_over_from_stays_down():
    """The recovery was launched while the run worked, and is why it failed: a restart would undo what was asked."""
    taken = recovery("c", at=NOW - 80, person=True, config={"ops": {"inspect": {"config": {"take_over": True}}}})
    found = judged(run("r1", "FAILURE", at=NOW - 100), recoveries=(taken,), why=FENCED, by=owner(False, "recovery"))
    assert not found.requests and "without a restart" in found.message


def test_an_error_that_a_restart_cannot_heal_is_raised_and_not_retried():
    found = judged(run("r1", "FAILURE"), why=HOPELESS)
    assert not found.requests and found.why.subject == "r1"
    assert "EO-REWOUND" in found.message and "Restore it" in found.message


def test_a_person_s_strategy_none_is_kept():
    found = judged(run("r1", "FAILURE"), strategy=RestartPolicy(strategy="none"))
    assert not found.requests and found.why.subject == "r1" and "'none'" in found.message


def test_a_stream_that_is_given_up_says_cause_and_way_out_as_sentences():
    """Mishap: "no space left on device Fix the cause", without what to do."""
    full = failure("SPARK-STATE", "no space left on device", "Free the disk.")
    found = judged(run("r1", "FAILURE"), strategy=RestartPolicy(strategy="none"), why=full)
    assert f"{full.sentence}. {full.remedy} " in found.message and ".." not in found.message
    said = failure("EO-REWOUND", "EO-REWOUND: it was rewound. What to do: Restore it.", "Restore it")
    assert judged(run("r1", "FAILURE"), strategy=RestartPolicy(strategy="none"), why=said).message.count("Restore") == 1


def test_attempts_are_counted_from_the_run_that_a_person_launched():
    old = [run(f"old-{n}", "FAILURE", at=NOW - 9_000 - n) for n in range(5)]
    row = [restarted("r3", "FAILURE", at=NOW - 100), restarted("r2", "FAILURE", at=NOW - 200)]
    found = judged(*row, run("r1", "FAILURE", at=NOW - 300), *old, strategy=fixed_delay(3, 1.0))
    assert found.requests[0].tags[TAG_ATTEMPT] == "3"
    more = [restarted("r4", "FAILURE", at=NOW - 60), *row, run("r1", "FAILURE", at=NOW - 300)]
    found = judged(*more, strategy=fixed_delay(3, 1.0))
    assert not found.requests and found.why.subject == "r4" and "3 restarts in a row" in found.message


def test_a_failed_recovery_is_tried_again_by_the_same_strategy():
    """It has no other end: a recovery that fails at once would else be asked for at each tick."""
    failed = recovery("c1", "FAILURE", at=NOW - 3, lived=2.0, restart_of="r1")
    facts = {"recoveries": (failed,), "recovery_failure": failure("EO-UNREACHABLE", "no answer")}
    found = judged(run("r1", "FAILURE"), strategy=fixed_delay(3, 10.0), **facts)
    assert not found.requests and "recovery again in 9.0 s (restart attempt 2)" in found.message
    found = judged(run("r1", "FAILURE"), strategy=fixed_delay(3, 0.5), **facts)
    assert found.requests[0].tags[TAG_ATTEMPT] == "2"
    facts["recovery_failure"] = failure("EO-EXPIRED", "lost", "Say sink.accept.lost", heals=False)
    found = judged(run("r1", "FAILURE"), strategy=fixed_delay(3, 0.5), **facts)
    assert not found.requests and found.why.subject == "c1" and "sink.accept.lost" in found.message


@pytest.mark.parametrize(
    ("why", "by", "restarts"),
    [
        (FENCED, owner(True), False),
        (FENCED, owner(None), False),  # on another host: both would fence each other forever
        (FENCED, owner(False), True),
        (FENCED, None, False),
        (PREPARE, owner(True), False),
        (PREPARE, owner(None), True),
        (PREPARE, owner(False), True),
        (PREPARE, None, True),
        (PREPARE, owner(True, "recovery"), True),
    ],
)
def test_a_superseded_driver_does_not_take_the_sink_back_from_a_living_one(why, by, restarts: bool):
    """Two supervisors that each restart what the other one fenced never end."""
    found = judged(run("r1", "FAILURE"), why=why, by=by)
    assert bool(found.requests) == restarts, found


def test_a_failure_while_another_run_lives_restarts_nothing():
    found = judged(run("r2", "FAILURE", at=NOW - 60), run("r1", "STARTED", at=NOW - 500), why=PREPARE)
    assert not found.requests and "run r1 of stream is working" in found.message


# -- the gate --------------------------------------------------------------------------------------------------------

NEED = RecoveryNeed("in-doubt/7", "batch 7 is in doubt")


@pytest.mark.parametrize(
    ("found", "owner_works", "says"),
    [
        (history(run("r1", "QUEUED")), None, "QUEUED"),
        (history(run("r1", "STARTING", alive=None)), None, "r1 of stream is working"),
        (history(run("r1", "STARTED")), None, "r1 of stream is working"),
        (history(run("r1", "STARTED", alive=None)), None, "r1 of stream is working"),  # on another host
        (history(run("r1", "CANCELING")), None, "r1 of stream is working"),
        (history(run("r1", "STARTED", frozen=STOPPED)), None, "run r1 of stream is frozen"),
        (history(run("r1", "STARTED", frozen=STOPPED)), None, "kill -9 7"),
        (history(run("r1", "CANCELING", frozen=STOPPED)), None, "kill -CONT 7"),
        (history(recoveries=(recovery("c", "STARTED"),)), None, "recovery c is under"),
        (history(recoveries=(recovery("c", "NOT_STARTED"),)), None, "NOT_STARTED"),
        (history(others=(run("w", "STARTED", job="write"),)), None, "w of write is working"),
        (history(run("r1", "CANCELED")), True, "owner is alive"),
        (history(run("r1", "CANCELED"), recoveries=(recovery("c", "CANCELED"),)), False, "canceled recovery c"),
        (history(run("r1", "FAILURE", at=NOW - 70, lived=50)), False, "exactly_once_run_failure requests its"),
        (history(recoveries=tuple(recovery(f"c{n}", at=NOW - 100 - n) for n in range(3))), False, "circuit breaker"),
    ],
)
def test_the_gate_refuses(found, owner_works, says: str):
    """One recovery at a time, none beside a living owner, none against a person's decision, no storm."""
    assert says in (refusal(found, NEED, WATCH, owner_works) or "")


def test_the_gate_refuses_what_doing_it_again_does_not_heal():
    found = history(
        recoveries=(recovery("c", "FAILURE"),),
        recovery_failure=failure("EO-EXPIRED", "lost", "Say sink.accept.lost", heals=False),
    )
    assert "EO-EXPIRED" in (refusal(found, NEED, WATCH, False) or "")


@pytest.mark.parametrize("way_out", ["", "Say sink.accept.lost", "Restore it. Then start it."])
def test_a_refusal_is_a_sentence_with_one_full_stop(way_out):
    """Mishap: "a retry will not fix. .", of an error without a way out."""
    lost = failure("EO-EXPIRED", "lost", way_out, heals=False)
    _, said = ask(STREAM, history(recoveries=(recovery("c", "FAILURE"),), recovery_failure=lost), NEED, WATCH, None)
    assert said.endswith(f"{way_out.rstrip('.') or 'fix'}.") and ". ." not in said and ".." not in said


@pytest.mark.parametrize(
    "found",
    [
        history(),
        history(run("r1", "CANCELED")),
        history(run("r1", "STARTED", alive=False)),  # its process is gone
        history(run("r1", "FAILURE", at=NOW - 51 - HANDOVER_S)),  # the sensor exactly_once_run_failure is switched off
        history(run("r1", "FAILURE"), why=HOPELESS),
        history(recoveries=(recovery("c2", "STARTED", alive=False), recovery("c1"))),
        history(run("r2", "CANCELED", at=NOW - 5), recoveries=(recovery("c", "CANCELED"),)),  # of an older incident
        history(recoveries=tuple(recovery(f"c{n}", person=True) for n in range(9))),  # a person may do it at any time
    ],
)
def test_the_gate_lets_through(found):
    assert refusal(found, NEED, WATCH, None) is None


def test_the_key_of_a_request_is_the_same_until_a_recovery_was_launched():
    """Dagster drops a key that it has seen, forever: a second incident must have another one."""
    first = recovery_request(STREAM, history(), NEED).run_key
    assert first == recovery_request(STREAM, history(), NEED).run_key
    assert first != recovery_request(STREAM, history(recoveries=(recovery("c"),)), NEED).run_key


def test_a_request_carries_its_cause():
    """A page of runs must tell why a recovery ran."""
    failed = run("r1", "FAILURE")
    need = RecoveryNeed("failure/r1", "it failed", failed, Restart(NOW + 9, 2), 10)
    request = recovery_request(STREAM, history(failed), need)
    config = {"stream": "stream", "dry_run": False, "reason": "it failed", "restart": True}
    assert request.run_config == {"ops": {"inspect": {"config": config}}}
    assert request.tags[TAG_CAUSE] == "it failed"
    assert [request.tags[tag] for tag in (TAG_RESTART_OF, TAG_ATTEMPT, TAG_RESTART)] == ["r1", "2", "2 of 10"]
    assert float(request.tags[TAG_NOT_BEFORE]) == NOW + 9


def test_a_recovery_and_the_run_beside_it_count_as_one_failure():
    """Both fail of the same cause, such as brokers that are down: counted twice, restarts would end too soon."""
    by = {"dagster/sensor_name": "exactly_once_run_failure"}
    beside = run("r2", "FAILURE", at=NOW - 40, lived=30, tags={**by, TAG_BESIDE: "s/failure/r1"})
    first = run("r1", "FAILURE", at=NOW - 100)
    failed = recovery("c", "FAILURE", at=NOW - 45, restart_of="r1", key="s/failure/r1")
    assert [f.run_id for f in history(beside, first, recoveries=(failed,)).failures()] == ["r1", "r2"]
    alone = run("r2", "FAILURE", at=NOW - 40, lived=30, tags=by)
    assert len(history(alone, first, recoveries=(failed,)).failures()) == 3


# -- what a person is told -------------------------------------------------------------------------------------------


def told(*ticks, last=None):
    """What is sent while the stream's runs look like this."""
    receiver, memory = Receiver(), last or {}
    for at in ticks:
        memory = _reaction(STREAM, at, verdict(STREAM, at, DEFAULT, WATCH), memory, NoticeSender(receiver)).memory
    return [(n.code, n.incident, n.run_id, n.resolved) for n in receiver.taken]


def test_a_failure_is_told_once_and_once_that_the_stream_runs_again():
    """A page that nobody closes hides the next one; one that closes at once calls a person off too early."""
    failed, new = run("r1", "FAILURE"), run("r2", at=NOW - 30)
    hopeless = history(failed, why=HOPELESS)
    begun, runs = history(new, failed), history(run("r2", at=NOW - 61), failed)
    assert told(hopeless, hopeless, begun) == [("EO-REWOUND", "s/r1", "r1", False)]
    ends = [("EO-REWOUND", "s/r1", "r1", False), ("EO-REWOUND", "s/r1", "r2", True)]
    assert told(hopeless, begun, runs, runs) == ends
    assert told(hopeless, history(run("r2", "SUCCESS"), failed)) == ends  # it has caught up
    assert told(hopeless, history(run("r2", "CANCELED"), failed)) == ends[:1]  # the stream is down all the same
    assert told(runs, last={"raised": "r1", "notified": "r1"}) == [("UNCLASSIFIED", "s/r1", "r2", True)]  # an upgrade


def test_a_stream_that_fails_again_at_once_is_the_same_incident_and_a_later_failure_another():
    """The person who works on it sees that the remedy did not help; nobody else is woken for it."""
    first, second = run("r1", "FAILURE"), run("r2", "FAILURE")
    again = [history(first, why=HOPELESS), history(run("r2", at=NOW - 30), first), history(second, first, why=HOPELESS)]
    assert [(i, r) for _, i, r, _ in told(*again)] == [("s/r1", "r1"), ("s/r1", "r2")]
    later = [again[0], history(run("r2", at=NOW - 900), first), again[2]]
    assert [(i, r, over) for _, i, r, over in told(*later)] == [
        ("s/r1", "r1", False),
        ("s/r1", "r2", True),
        ("s/r2", "r2", False),
    ]


def test_restarts_that_are_given_up_and_a_recovery_that_failed_are_told():
    """Both end what the sensors can do."""
    given_up = history(*(restarted(f"r{n}", "FAILURE", at=NOW - 100 - n) for n in range(11)))
    assert [(i, over) for _, i, _, over in told(given_up)] == [("s/r0", False)]
    failed = recovery("c", "FAILURE", restart_of="r1")
    unhelped = history(run("r1", "FAILURE"), recoveries=(failed,), recovery_failure=HOPELESS)
    assert told(unhelped) == [("EO-REWOUND", "s/c", "c", False)]

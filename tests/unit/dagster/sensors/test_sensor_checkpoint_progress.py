"""``exactly_once_checkpoint_progress``: what Dagster knows of a stream's run, and what a tick asks for.

Which facts are which state is the matter of tests/unit/diagnosis.
"""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import dagster as dg
import pytest

from dagster_exactly_once.runs.operator import frozen, run_at_work, stream_facts, worker_of
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.sensors import checkpoint_progress
from dagster_exactly_once.sensors.checkpoint_progress import with_quiet_start
from dagster_exactly_once.sensors.observation import calm, transactions, trouble
from dagster_exactly_once.sensors.recovery_requests import need_of
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.sink_state import SinkState
from dagster_exactly_once.sensors.tick import Judged, Tick, read_cursor
from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.protocol.records import Claim
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, Thresholds, health, state_of
from exactly_once.tools.diagnosis.facts import StreamFacts, Worker
from testkit.sensor_facts import HEALS, HOPELESS, NOW, STREAM, history, recovery, run

LIMITS = Thresholds()
STOPPED = (Frozen(Process("vm", "m", 7982, 1.0), State.STOPPED),)


def test_a_cursor_of_another_version_or_none_is_no_cursor():
    """After an upgrade a tick begins anew instead of failing forever."""
    assert read_cursor(None) == read_cursor("rubbish") == read_cursor('{"version": 1, "lag": 1}') == {}
    assert read_cursor("[1]") == {}
    tick = Tick(dg.build_sensor_context(), [STREAM])
    tick.add(STREAM, Judged("m", memory={"lag": 1}))
    assert read_cursor(tick.result().cursor)["streams"] == {"s": {"lag": 1}}


def test_the_watch_policy_and_the_diagnosis_have_one_table_of_limits():
    """A limit of its own on one screen is another symptom there."""
    assert WatchPolicy().limits == Thresholds()
    assert WatchPolicy(stale_after_s=7.0).limits == Thresholds(stale_after_s=7.0)


# -- what needs a recovery -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "age_s", "evidence", "incident"),
    [
        ("HEALTH-IN-DOUBT", 60, {}, "in-doubt/99940.000"),
        ("HEALTH-IN-DOUBT", 5, {}, None),  # a recovery that is no Dagster run may be at it
        ("HEALTH-STALE-TRANSACTIONS", 301, {}, "stale-transactions/99699.000"),
        ("HEALTH-STALE-TRANSACTIONS", 31, {}, None),  # the failure of its run is about to be seen
        ("HEALTH-OWNER-LOST", 500, {"run": "run r1"}, "owner-lost/run r1"),
        ("HEALTH-OWNER-LOST", 5, {"run": "run r1"}, None),
        ("HEALTH-UNKNOWN-PARTS", 500, {}, None),  # comes with a batch in doubt
        ("HEALTH-STALLED", 500, {}, None),  # somebody works on it
        ("HEALTH-STOPPED", 500, {}, None),
    ],
)
def test_a_recovery_is_wanted_of_what_it_ends_and_what_has_lasted(code, age_s, evidence, incident):
    """A recovery beside a living stream would fence it; the key must be the same at each tick, and another one for what
    began at another time, or Dagster drops the request for that forever.
    """
    need = need_of(Diagnosis(code, Severity.ERROR, "s", "It is so", "", NOW - age_s, evidence), LIMITS, NOW)
    assert (need.incident if need else None) == incident
    assert need is None or need.cause == f"{code}: It is so."


# -- which run is at work --------------------------------------------------------------------------------------------


def claim_by(run_id: str = "", at: float = NOW, purpose: str = "stream") -> Claim:
    operator = f"dagster/i/{run_id}" if run_id else ""
    return Claim(3, "q", int(at * 1000), purpose, "host-a", 4711, operator=operator)


def worker(claim: Claim, *runs: Run, recoveries: tuple[Run, ...] = (), alive: bool = True) -> Worker:
    runs_now, owner = history(*runs, recoveries=recoveries), Owner(claim, alive)
    at_work = run_at_work(runs_now, owner)
    assert at_work is not None
    return worker_of(at_work, runs_now, owner)


def test_a_run_is_starting_until_it_claims_the_sink() -> None:
    """After kill -9, the predecessor's claim and its last batch made the new run look healthy for minutes."""
    new = run("r2", at=NOW - 33)
    found = worker(claim_by("r1", NOW - 400), new)
    assert (found.name, found.begun, found.age_s) == ("run r2", False, 33.0)
    assert worker(claim_by("r2", NOW - 1), new).begun
    assert worker(claim_by("r2", NOW - 34), new).begun  # by a clock that is behind
    assert worker(claim_by(at=NOW - 1), new).begun  # a driver that says nothing of its operator
    assert not worker(claim_by(at=NOW - 40), new).begun


def test_a_queued_run_waits_since_it_was_launched() -> None:
    """A run that waits for a free place forever looks like a stream that somebody stopped."""
    found = worker(claim_by("r1", NOW - 400), run("r2", "QUEUED", at=NOW - 500))
    assert (found.waits, found.begun, found.age_s, found.alive) == ("QUEUED", False, 500.0, False)


def test_a_run_that_starts_beside_a_recovery_has_not_lost_its_sink() -> None:
    """The recovery claims while Spark starts; "owner lost" would send a person to a stream that is well."""
    new, at_work = run("r2", at=NOW - 33), recovery("r3", "STARTED", restart_of="r1", at=NOW - 34)
    recovering = claim_by("r3", NOW - 5, "recovery")
    found = worker(recovering, new, recoveries=(at_work,))
    assert (found.owns, found.begun) == (None, False)
    assert worker(recovering, new, alive=False).owns is None  # it has just ended
    old = run("r1", at=NOW - 900)
    assert worker(recovering, old, alive=False).owns is False  # with take_over, it fenced the run


def test_a_stream_whose_next_run_starts_beside_it_is_not_starting() -> None:
    """A run that ends for its successor works until that one is ready."""
    old, new = run("r1", at=NOW - 900), run("r2", at=NOW - 33)
    found = worker(claim_by("r1", NOW - 890), new, old)
    assert (found.name, found.begun, found.owns) == ("run r1", True, True)
    gone = run("r1", at=NOW - 900, alive=False)
    found = worker(claim_by("r1", NOW - 890), new, gone)
    assert (found.name, found.begun) == ("run r2", False)


# -- the states that only runs tell ----------------------------------------------------------------------------------


def facts(found, owner: Owner | None = None, claimed_here: bool = False, **more) -> SinkFacts:
    nobody = Mock()
    nobody.get_records_for_run.return_value.records = []
    known = replace(stream_facts(nobody, STREAM, found, owner, **more), claimed_here=claimed_here)
    return SinkFacts(Inspection("s", owner, checked_ms=int(NOW * 1000)), stream=known)


def test_the_driver_of_a_run_that_has_just_failed_here_is_not_another_s() -> None:
    """Mishap: "stop it on its host", of this instance's own run, whose process was still ending."""
    ending = Owner(claim_by("r1", NOW - 400), True)
    failed = history(run("r1", "FAILURE", at=NOW - 500), why=HOPELESS)
    state = health(facts(failed, ending, claimed_here=True, lag=5))
    assert (state.code, state.severity) == ("HEALTH-FAILED", Severity.ERROR)
    assert state.evidence["failure"] == "EO-REWOUND" and "not ended yet" in state.sentence
    assert health(facts(failed, ending, lag=5)).code == "HEALTH-OPERATED-BY-ANOTHER"  # of another instance


def test_the_last_claim_is_not_the_owner_while_a_new_run_waits_for_its_first_batch() -> None:
    """Mishap: "it is gone", beside a live run: it was the driver before that run."""
    before = Owner(claim_by("r1", NOW - 400), False)
    waits = facts(history(run("r2", at=NOW - 133)), before, claimed_here=True)
    shown = transactions("a", SinkState(waits.sink, Checkpoint("")), waits, health(waits), "")
    said = str(shown.metadata["owner"].value)
    assert said.startswith("Run r2 claims ") and "its first batch. " in said and "The last claim: A" in said
    works = facts(history(run("r1", at=NOW - 500)), Owner(before.claim, True), claimed_here=True)
    shown = transactions("a", SinkState(works.sink, Checkpoint("")), works, health(works), "")
    assert str(shown.metadata["owner"].value).startswith("A stream: ")


@pytest.mark.parametrize(("status", "state"), [("STARTED", "starting"), ("QUEUED", "starting"), ("FAILURE", "failed")])
def test_a_first_run_is_starting_or_failed_and_its_sink_not_called_never_used(status, state) -> None:
    """Mishap: the check was amber, "never used", while Spark started; and told no cause when that failed."""
    assert state_of(health(facts(history(run("r1", status, at=NOW - 5)))).code) == state
    assert state_of(health(facts(history())).code) == "never used"


def test_a_failure_that_a_restart_heals_is_a_warning_and_one_that_was_wanted_is_none() -> None:
    gone = Owner(claim_by("r1", NOW - 400), False)
    failed = run("r1", "FAILURE", at=NOW - 500)
    assert health(facts(history(failed, why=HEALS), gone)).severity is Severity.WARN
    unwanted = history(failed, why=replace(HEALS, unwanted=True))
    assert health(facts(unwanted, gone)).code == "HEALTH-STOPPED"


def test_a_start_is_stalled_only_when_its_processes_use_no_processor(monkeypatch) -> None:
    """Mishap: on a slow host "Terminate the run if it hangs" came while Spark was starting: it would begin anew."""
    starts = run("r1", at=NOW - 500)
    found, used, kept = history(starts), [], {}
    monkeypatch.setattr(checkpoint_progress, "cpu_of", lambda run: used[-1])
    for second, cpu_s, quiet_s in ((0, 9.0, 0.0), (10, 14.0, 0.0), (20, 14.1, 10.0), (30, 14.2, 20.0), (40, 15.0, 0.0)):
        used.append(cpu_s)
        at = replace(found, now=NOW + second)
        now, kept = with_quiet_start(facts(at, lag=5, waited_s=500.0), at, kept)
        assert now.worker is not None and now.worker.quiet_s == quiet_s
        assert health(now).code == "HEALTH-SLOW-START"
    assert run_at_work(found, None) is starts
    used.append(None)  # on another host: its age alone tells
    elsewhere, kept = with_quiet_start(facts(found, lag=5, waited_s=500.0), found, kept)
    assert (health(elsewhere).code, kept) == ("HEALTH-STALLED", {})


def test_a_frozen_process_of_a_run_is_said_with_what_to_do_and_never_to_terminate_it() -> None:
    """Mishap: "Terminate stops the run gracefully" was the advice, and it blocked every stream of the code location."""
    found = health(facts(history(run("r1", at=NOW - 900, frozen=STOPPED)), Owner(claim_by("r1", NOW - 400), True)))
    assert found == replace(frozen("run r1", STOPPED, "s"), subject="s")
    assert (found.code, found.evidence["pids"]) == ("HEALTH-FROZEN", [7982])
    assert all(text in found.remedy for text in ("do not press Terminate", "kill -9 7982", "kill -CONT 7982"))


# -- of which states a person is told --------------------------------------------------------------------------------

GONE, OURS = Owner(claim_by("r1", NOW - 400), False), Owner(claim_by("r1", NOW - 400), True)
RUN = Worker("run r1", age_s=900.0)
STARTS = Worker("run r1", begun=False, age_s=100.0)


@pytest.mark.parametrize(
    ("owner", "known", "code"),
    [
        (OURS, StreamFacts(RUN, lag=10), None),
        (OURS, StreamFacts(RUN), None),
        (GONE, StreamFacts(replace(STARTS, age_s=5.0), lag=10), None),
        (GONE, StreamFacts(lag=9_999), None),  # a person ended it
        (GONE, StreamFacts(failed=HOPELESS, lag=9_999), None),  # which has a notice of its own
        (None, StreamFacts(), None),
        (GONE, StreamFacts(lag=9, managed=False), "HEALTH-STOPPED"),  # nothing else would say that its driver is gone
        (GONE, StreamFacts(managed=False), None),
        (OURS, StreamFacts(RUN, lag=300_000), "HEALTH-LAGGING"),
        (OURS, StreamFacts(RUN, lag=300_000, last_lag=400_000), "HEALTH-LAGGING"),  # the level tells whether it does
        (GONE, StreamFacts(STARTS, lag=10), "HEALTH-SLOW-START"),
        (OURS, StreamFacts(has_run=True), "HEALTH-OPERATED-BY-ANOTHER"),
        (OURS, StreamFacts(RUN, lag=10, waited_s=500.0), "HEALTH-STALLED"),
        (OURS, StreamFacts(replace(RUN, frozen=STOPPED)), "HEALTH-FROZEN"),
        (GONE, StreamFacts(replace(RUN, works=False), lag=10), "HEALTH-OWNER-LOST"),
    ],
)
def test_which_states_a_person_must_know_of(owner, known, code) -> None:
    found = SinkFacts(Inspection("s", owner, checked_ms=int(NOW * 1000)), stream=known)
    wrong = trouble(found, LIMITS)
    assert (wrong and wrong.code) == code
    assert wrong is None or calm(wrong) is False


@pytest.mark.parametrize(("waited_s", "lag", "wanted"), [(500.0, 5, True), (60.0, 5, False), (500.0, 0, False)])
def test_a_run_without_its_process_is_recovered_when_its_input_has_waited_for_too_long(waited_s, lag, wanted) -> None:
    """Until then exactly_once_liveness reports the run; where that sensor is off, nobody recovers the sink."""
    known = StreamFacts(replace(RUN, works=False), lag=lag, waited_s=waited_s)
    state = health(SinkFacts(Inspection("s", GONE, checked_ms=int(NOW * 1000)), stream=known))
    need = need_of(state, LIMITS, NOW)
    assert (state.code, need and need.incident) == ("HEALTH-OWNER-LOST", "owner-lost/run r1" if wanted else None)

"""``exactly_once_checkpoint_progress``: the state of a stream from what its checkpoint, commit log and input say."""

from __future__ import annotations

import pytest

from dagster_exactly_once.resources.checkpoints import compare
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.sensors.checkpoint_progress import ProgressFacts, facts, verdict
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.sink_state import SinkState
from dagster_exactly_once.sensors.tick import read_cursor, write_cursor
from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim
from testkit.sensor_facts import NOW, STREAM, recovery, run

POLICY = WatchPolicy(stall_after_s=120.0, lag_limit=1_000)
LIVE = {"run": "r1", "run_age_s": 900.0, "run_alive": True, "owner_is_run": True, "idle_s": 1.0}
NEW = {"run": "r2", "run_alive": True, "starting": "run r2 has been starting"}
QUEUED = {"starting": "run r2 has been QUEUED", "starting_s": 500.0}
TAKEN = {"elsewhere": "driver 7 on laptop holds the sink", "taken": True}


@pytest.mark.parametrize(
    ("facts", "state", "says"),
    [
        ({**LIVE, "lag": 500}, "healthy", "500 offsets behind"),
        ({**LIVE, "lag": 0, "idle_s": 3_600.0}, "idle", "read all its input"),
        ({**LIVE, "lag": 0, "idle_s": None}, "idle", "no batch is decided yet"),
        ({**LIVE, "lag": 5_000, "last_lag": 9_000}, "catching up", "4,000 fewer"),
        ({**LIVE, "lag": 5_000, "last_lag": 5_000}, "lagging", "does not shrink"),
        ({**LIVE, "lag": 5_000, "last_lag": 4_000}, "lagging", "above the limit of 1,000"),
        ({**LIVE, "lag": 5_000}, "lagging", "5,000 offsets behind"),
        ({**LIVE, "lag": 1, "waited_s": 121.0, "in_flight": 7}, "stalled", "batch 7 is in flight"),
        ({**LIVE, "lag": 1, "waited_s": 119.0}, "healthy", ""),
        ({**LIVE, "lag": 1, "waited_s": 999.0, "run_age_s": 60.0}, "healthy", ""),  # it has just started
        ({**LIVE, "lag": 1, "idle_s": 9_999.0, "waited_s": 5.0}, "healthy", ""),  # input after a long silence
        (
            {**LIVE, "lag": 1, "run_alive": False},
            "owner lost",
            "its process is gone. The sensor exactly_once_liveness, if it is on, reports that",
        ),
        ({**LIVE, "lag": 1, "owner_is_run": False, "owner": "driver 7 on b"}, "owner lost", "driver 7 on b has taken"),
        (
            {**LIVE, "lag": 1, "waited_s": 999.0, "frozen": "Process 7 on b is stopped. End it"},
            "frozen",
            "Process 7 on b",
        ),
        (
            {**LIVE, "lag": 0, "frozen": "Process 7 on b is stopped. End it"},
            "frozen",
            "run r1 is alive but does nothing",
        ),
        ({**TAKEN, "owner": "driver 7 on b", "frozen": "Process 7"}, "frozen", "the driver 7 on b is alive but does"),
        ({**LIVE, "lag": 1, "owner_is_run": None}, "healthy", ""),
        ({**LIVE, "lag": 1, "unproven": (7,), "unproven_age_s": 60.0}, "healthy", ""),  # its owner works on it
        ({"lag": 9}, "stopped", "9 offsets of input are waiting"),
        ({"undecided": 4}, "stopped", "4 undecided transactions are open"),
        ({"lag": 1, "undecided": 1}, "stopped", "1 offset of input is waiting, 1 undecided transaction is open"),
        ({**LIVE, "lag": 1}, "healthy", "1 offset behind"),
        ({"unproven": (7,), "unproven_age_s": 5.0}, "stopped", ""),  # somebody may be at it
        ({"unproven": (7, 8), "unproven_age_s": 60.0}, "in doubt", "batches 7, 8 were decided but"),
        ({**LIVE, "run_alive": False, "unproven": (7,), "unproven_age_s": 60.0}, "in doubt", "batch 7"),
        ({**LIVE, "run_alive": None, "unproven": (7,), "unproven_age_s": 60.0}, "idle", ""),  # on another host
        # the run after a kill -9: its predecessor's last batch says nothing of it
        ({**NEW, "lag": 9, "starting_s": 33.0, "idle_s": 339.0}, "starting", "run r2 has been starting for 33 s"),
        ({**NEW, "lag": 9, "starting_s": 33.0, "idle_s": 339.0, "waited_s": 339.0}, "starting", "9 offsets behind"),
        ({**NEW, "lag": 9, "starting_s": 91.0}, "slow start", "See the run's page"),
        ({**NEW, "lag": 9, "starting_s": 121.0, "waited_s": 300.0}, "stalled", "starting for 121 s"),
        ({**NEW, "lag": 0, "starting_s": 33.0}, "starting", ""),
        ({**NEW, "lag": 0, "starting_s": 91.0}, "idle", ""),  # without input, no batch begins
        ({**NEW, "lag": 9, "starting_s": 33.0, "run_alive": False}, "owner lost", "its process is gone"),
        ({"lag": 9, "starting": "run r2 has been QUEUED", "starting_s": 5.0}, "starting", "QUEUED for 5 s"),
        ({"starting": "run r2 has been QUEUED", "starting_s": 500.0}, "slow start", "QUEUED for 500 s"),
        ({**QUEUED, "lag": 9, "waited_s": 500.0}, "stalled", "its queue"),
        ({**QUEUED, "unproven": (7,), "unproven_age_s": 60.0}, "in doubt", "batch 7"),
        # a stream that this instance used to run
        ({**TAKEN, "lag": 9}, "operated by another", "driver 7 on laptop holds the sink"),
        ({**TAKEN, "lag": 9, "waited_s": 500.0}, "stalled", "Check the driver on its host"),
        ({**TAKEN, "lag": 9, "taken": False}, "healthy", "driver 7 on laptop"),  # it never ran here
    ],
)
def test_each_state(facts, state: str, says: str):
    found = verdict(ProgressFacts(**facts), POLICY)
    assert found.state == state and says in found.message, found


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"unproven": (7,), "unproven_age_s": 60.0}, "in-doubt/7"),
        ({**LIVE, "run_alive": False, "lag": 9, "waited_s": 500.0}, "owner-lost/r1"),
        ({**LIVE, "run_alive": False, "lag": 9, "waited_s": 5.0}, None),
        ({**LIVE, "lag": 9, "waited_s": 500.0}, None),  # stalled, and somebody works on it
        ({**LIVE, "lag": 99_999}, None),
        ({"lag": 99_999, "undecided": 4}, None),  # stopped by a person
    ],
)
def test_a_recovery_is_wanted_only_when_nobody_works_on_the_sink(facts, wanted):
    """A recovery beside a living stream would fence it."""
    assert verdict(ProgressFacts(**facts), POLICY).incident == wanted


def test_a_cursor_of_another_version_or_none_is_no_cursor():
    """After an upgrade a tick begins anew instead of failing forever."""
    assert read_cursor(None) == read_cursor("rubbish") == read_cursor('{"version": 1, "lag": 1}') == {}
    assert read_cursor("[1]") == {}
    assert read_cursor(write_cursor({"s": {"lag": 1}}))["streams"] == {"s": {"lag": 1}}


# -- which run is starting -------------------------------------------------------------------------------------------


def claim_by(run_id: str = "", at: float = NOW, purpose: str = "stream") -> Claim:
    operator = f"dagster/i/{run_id}" if run_id else ""
    return Claim(3, "q", int(at * 1000), purpose, "host-a", 4711, operator=operator)


def starting(claim: Claim, *runs: Run, recoveries: tuple[Run, ...] = (), alive: bool = True) -> ProgressFacts:
    checkpoint = Checkpoint("/c")
    sink_state = SinkState(Inspection("s", Owner(claim, alive)), checkpoint, compare(checkpoint, LogState()), 9)
    return facts(STREAM, sink_state, StreamHistory(NOW, runs, recoveries), None, 0.0)


def test_a_run_is_starting_until_it_claims_the_sink() -> None:
    """After kill -9, the predecessor's claim and its last batch made the new run look healthy for minutes."""
    new = run("r2", at=NOW - 33)
    found = starting(claim_by("r1", NOW - 400), new)
    assert (found.starting, found.starting_s) == ("run r2 has been starting", 33.0)
    assert starting(claim_by("r2", NOW - 1), new).starting == ""
    assert starting(claim_by("r2", NOW - 34), new).starting == ""  # by a clock that is behind
    assert starting(claim_by(at=NOW - 1), new).starting == ""  # a driver that says nothing of its operator
    assert starting(claim_by(at=NOW - 40), new).starting == "run r2 has been starting"


def test_a_queued_run_is_starting_since_it_was_launched() -> None:
    """A run that waits for a free place forever looks like a stream that somebody stopped."""
    found = starting(claim_by("r1", NOW - 400), run("r2", "QUEUED", at=NOW - 500))
    assert (found.run, found.starting, found.starting_s) == (None, "run r2 has been QUEUED", 500.0)


def test_a_run_that_starts_beside_a_recovery_has_not_lost_its_sink() -> None:
    """The recovery claims while Spark starts; "owner lost" would send a person to a stream that is well."""
    new, at_work = run("r2", at=NOW - 33), recovery("r3", "STARTED", restart_of="r1", at=NOW - 34)
    recovering = claim_by("r3", NOW - 5, "recovery")
    found = starting(recovering, new, recoveries=(at_work,))
    assert (found.owner_is_run, found.starting) == (None, "run r2 has been starting")
    assert starting(recovering, new, alive=False).owner_is_run is None  # it has just ended
    old = run("r1", at=NOW - 900)
    assert starting(recovering, old, alive=False).owner_is_run is False  # with take_over, it fenced the run


def test_a_stream_whose_next_run_starts_beside_it_is_not_starting() -> None:
    """A run that ends for its successor works until that one is ready."""
    old, new = run("r1", at=NOW - 900), run("r2", at=NOW - 33)
    found = starting(claim_by("r1", NOW - 890), new, old)
    assert (found.run, found.starting, found.owner_is_run) == ("r1", "", True)
    gone = run("r1", at=NOW - 900, alive=False)
    assert starting(claim_by("r1", NOW - 890), new, gone).starting == "run r2 has been starting"


def test_a_frozen_process_of_the_run_is_said_with_what_to_do_and_never_to_terminate_it() -> None:
    """Mishap: "Terminate stops the run gracefully" was the advice, and it blocked every stream of the code location."""
    stopped = (Frozen(Process("vm", "m", 7982, 1.0), State.STOPPED),)
    claim, at = claim_by("r1", NOW - 400), NOW - 900
    found = starting(claim, run("r1", at=at, frozen=stopped))
    assert found.frozen.startswith("Process 7982 on vm is stopped by a signal. Do not press Terminate")
    assert "kill -9 7982" in verdict(found, POLICY).message and "gracefully" not in verdict(found, POLICY).message
    assert "kill -CONT 7982" in starting(claim, run("r1", "CANCELING", at=at, frozen=stopped)).frozen
    checkpoint = Checkpoint("/c")
    owned = SinkState(Inspection("s", Owner(claim_by(), True, stopped)), checkpoint, compare(checkpoint, LogState()), 9)
    assert facts(STREAM, owned, StreamHistory(NOW), None, 0.0).frozen.endswith("End that process with kill -9 7982")

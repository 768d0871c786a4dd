"""Who owns a sink, and whether that process lives: what an operator is told before a command fences somebody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from exactly_once.coordinator import machine
from exactly_once.coordinator.claim import make_claim
from exactly_once.coordinator.machine import identity, this_machine
from exactly_once.inspection import processes
from exactly_once.inspection.processes import (
    Frozen,
    Process,
    State,
    alive,
    end_frozen,
    frozen_among,
    owner_alive,
    resume_stopped,
    state_of,
)
from exactly_once.inspection.sink import owner_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim
from testkit.processes import until

CLAIM = make_claim(LogState(), None, 0, "stream")


def test_a_recoverys_claim_names_its_own_process_and_follows_the_last_one() -> None:
    """A token that does not grow would not fence anybody."""
    before = Claim(6, "q", 0, "stream", "h", 1)
    claim = make_claim(LogState(before), "q", 5, "recovery")
    assert (claim.token, claim.pid, claim.purpose) == (7, psutil.Process().pid, "recovery")
    assert owner_alive(claim) is True


def test_a_process_of_another_machine_cannot_be_seen() -> None:
    """ "Dead" would let a command fence a stream that works."""
    claim = make_claim(LogState(), None, 0, "recovery")
    assert owner_alive(replace(claim, host="somewhere-else")) is None


def test_a_claim_of_an_older_version_is_not_called_dead_while_there_is_such_a_process() -> None:
    """An upgrade beside a running driver must not let a command fence it unasked."""
    claim = replace(make_claim(LogState(), None, 0, "recovery"), pid_started=0.0)
    assert owner_alive(claim) is None


def test_a_claim_says_who_operates_the_sink_and_on_which_machine() -> None:
    """A recovery by the wrong Dagster instance must be told from one by the right one, after the fact."""
    before = Claim(6, "q", 0, "stream", "h", 1, operator="dagster/prod/old")
    claim = make_claim(LogState(before), "q", 5, "recovery", operator="dagster/prod/new")
    assert (claim.operator, claim.machine) == ("dagster/prod/new", this_machine())
    assert make_claim(LogState(before), "q", 5, "recovery").operator == "", "an operator is not passed on"


def test_containers_with_one_host_name_cannot_see_each_others_processes() -> None:
    """Each has a process 1. "Gone" would let a recovery fence a stream that works in the container beside it."""
    claim = make_claim(LogState(), None, 0, "recovery")
    for pid_started in (claim.pid_started, claim.pid_started - 60):
        assert owner_alive(replace(claim, machine="another", pid_started=pid_started)) is None


def test_a_system_without_machine_identities_tells_machines_by_their_host_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a system other than Linux, a driver that died must still be found gone. Elsewhere a record without an identity
    may come from any container with this host name: "gone" would let a recovery fence a stream that works.
    """
    claim = make_claim(LogState(), None, 0, "recovery")
    gone = replace(claim, pid_started=claim.pid_started - 60)
    assert owner_alive(replace(claim, machine="")) is owner_alive(replace(gone, machine="")) is None
    monkeypatch.setattr(machine, "_BOOT_ID", "/proc/no/such/file")
    assert this_machine() == ""
    assert owner_alive(replace(gone, machine="")) is False
    assert owner_alive(gone) is None, "a claim with an identity may come from another machine"


def test_two_boots_and_two_process_namespaces_are_two_machines() -> None:
    """A reused host name after a restart elsewhere, or a container started anew: nobody here saw the process end."""
    places = [(boot, namespace) for boot in ("b1", "b2") for namespace in ("pid:[1]", "pid:[2]")]
    identities = {identity(*place) for place in places}
    assert len(identities) == 4 and all(len(i) == 16 for i in identities)
    assert identity("b1", "pid:[1]") == identity("b1", "pid:[1]")
    assert this_machine() == this_machine()


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("host", ["here", "somewhere-else"])
def test_who_operates_the_driver_is_asked_first_whether_it_lives(answer: bool, host: str) -> None:
    """On Kubernetes only the operator knows; a recovery that waits for a dead driver never comes."""
    claim = make_claim(LogState(), None, 0, "stream", operator="dagster/prod/0a1b")
    claim = claim if host == "here" else replace(claim, host=host)
    asked: list[str] = []

    def alive_of(claim: Claim) -> bool | None:
        asked.append(claim.operator)
        return answer

    owner = owner_of(LogState(claim), alive_of)
    assert owner is not None and owner.alive is answer
    assert asked == ["dagster/prod/0a1b"]


def test_an_operator_that_cannot_tell_leaves_it_to_what_this_host_sees() -> None:
    """An instance is asked about the run of another one: its "no such run" is no death."""
    claim = make_claim(LogState(), None, 0, "recovery", operator="dagster/prod/0a1b")
    gone = replace(claim, pid_started=claim.pid_started - 60)
    seen = [owner_alive(c, lambda _: None) for c in (claim, gone, replace(gone, host="somewhere-else"))]
    assert seen == [True, False, None]


def test_a_sink_that_was_never_claimed_has_no_owner_to_ask_about() -> None:
    """Guards against a question about nobody."""
    assert owner_of(LogState(), lambda claim: True) is None


def test_a_process_id_that_is_used_again_is_not_the_owner() -> None:
    """A dead stream that counts as alive is never recovered."""
    claim = make_claim(LogState(), None, 0, "recovery")
    assert owner_alive(replace(claim, pid_started=claim.pid_started - 60)) is False


def test_a_process_that_ended_is_dead_also_before_it_is_waited_for() -> None:
    """A zombie does no work."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.here(child.pid)
    assert alive(process)
    child.kill()
    until("the process is dead", lambda: not alive(process), 10)
    child.communicate()


# -- frozen ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[Process]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield Process.here(running.pid)
        running.kill()


def stop(process: Process) -> Frozen:
    os.kill(process.pid, signal.SIGSTOP)
    until("it is stopped", lambda: frozen_among([process]), 10)
    [found] = frozen_among([process])
    return found


def test_a_stopped_process_is_alive_and_frozen(child: Process) -> None:
    """Mishap: "it is alive and ends its own transactions", while it answers nothing, and readers wait for it."""
    assert frozen_among([child]) == () and state_of(child) is State.RUNS
    found = stop(child)
    assert (found.state, alive(child)) == (State.STOPPED, True)
    assert str(found).startswith(f"process {child.pid} on {child.host} is stopped")
    owner = owner_of(LogState(replace(CLAIM, pid=child.pid, pid_started=child.started)), lambda _: True)
    assert owner is not None and owner.frozen == (found,)
    assert resume_stopped(found) and state_of(child) is State.RUNS
    assert not resume_stopped(found), "it runs already"


def test_only_the_very_process_that_is_frozen_is_killed(child: Process) -> None:
    """Mishap: a healthy process that was given the same id, or that went on meanwhile, is killed."""
    found = stop(child)
    for other in (replace(child, started=child.started - 60), replace(child, machine="another")):
        assert frozen_among([other]) == () and not end_frozen(replace(found, process=other))
    os.kill(child.pid, signal.SIGCONT)
    until("it runs", lambda: state_of(child) is State.RUNS, 10)
    assert not end_frozen(found) and alive(child)
    assert end_frozen(stop(child))
    until("it is dead", lambda: alive(child) is False, 10)


@pytest.mark.parametrize(
    ("after", "switches", "state"),
    [
        (psutil.STATUS_DISK_SLEEP, (7, 7), State.STUCK),
        (psutil.STATUS_DISK_SLEEP, (7, 8), State.RUNS),  # it ran in between: it reads a lot
        (psutil.STATUS_SLEEPING, (7, 7), State.RUNS),
    ],
)
def test_a_process_that_waits_for_a_disk_is_not_stuck(
    after: str, switches: tuple[int, int], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mishap: a healthy driver is killed because one look met it in a read."""
    seen, counted = iter([psutil.STATUS_DISK_SLEEP, after]), iter(switches)
    monkeypatch.setattr(psutil.Process, "status", lambda self: next(seen))
    monkeypatch.setattr(psutil.Process, "num_ctx_switches", lambda self: next(counted))
    monkeypatch.setattr(processes, "_STUCK_AFTER_S", 0.0)
    assert state_of(Process.here()) is state

"""Who owns a sink, and whether that process lives: what an operator is told before a command fences somebody."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import psutil

from exactly_once.coordinator.claim import make_claim
from exactly_once.ops.processes import owner_alive, process_alive
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim
from tests.support.processes import until


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


def test_a_process_id_that_is_used_again_is_not_the_owner() -> None:
    """A dead stream that counts as alive is never recovered."""
    claim = make_claim(LogState(), None, 0, "recovery")
    assert owner_alive(replace(claim, pid_started=claim.pid_started - 60)) is False


def test_a_process_that_ended_is_dead_also_before_it_is_waited_for() -> None:
    """A zombie does no work."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = psutil.Process(child.pid).create_time()
    assert process_alive(child.pid, started)
    child.kill()
    psutil.Process(child.pid).status()
    until("the process is dead", lambda: not process_alive(child.pid, started), 10)
    child.communicate()

"""Processes of Dagster, in a round in which it operates the stream."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING

from faultlab.faults.fault import NOTHING, Fault
from faultlab.faults.processes import OneProcess

if TYPE_CHECKING:
    from faultlab.dagster_processes import Dagster
    from faultlab.lab import Lab


def dagster_of(lab: Lab) -> Dagster | None:
    """Dagster's processes, where it operates the stream."""
    return getattr(lab.system, "dagster", None)


class _Daemon(Fault):
    """A fault of Dagster's daemon, without which no sensor ticks and no run leaves the queue."""

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return dagster_of(lab) is not None

    def do(self, lab: Lab, random: Random) -> str:
        dagster = dagster_of(lab)
        assert dagster is not None
        if (pid := dagster.pid_of("daemon")) is None:
            return NOTHING
        self.strike(dagster)
        return f"process [{pid}]"

    def strike(self, dagster: Dagster) -> None:
        """Do it to the daemon, which runs."""
        raise NotImplementedError


class KillDaemon(_Daemon):
    """The daemon dies in whatever it does: a tick, a launch; the service manager starts it again."""

    name = "kill-daemon"
    what = "kill -9 of Dagster's daemon; it starts again"

    def strike(self, dagster: Dagster) -> None:
        dagster.kill("daemon")

    def undo(self, lab: Lab) -> None:
        dagster = dagster_of(lab)
        assert dagster is not None
        dagster.start("daemon")


class PauseDaemon(_Daemon):
    """A daemon that goes on with what it knew some seconds ago."""

    name = "pause-daemon"
    what = "SIGSTOP of Dagster's daemon, then SIGCONT"

    def strike(self, dagster: Dagster) -> None:
        dagster.pause_daemon()

    def undo(self, lab: Lab) -> None:
        dagster = dagster_of(lab)
        assert dagster is not None
        dagster.resume_daemon()


class KillRunWorker(OneProcess):
    """A run's own process is killed, for its memory or by a person; its JVM notices that later by itself."""

    name = "kill-run-worker"
    what = (
        "kill -9 of the process of one run of Dagster, of the stream or of a recovery; its JVM outlives it by a moment"
    )
    role, sent = "run", signal.SIGKILL

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return dagster_of(lab) is not None


class KillCodeServer(Fault):
    """The container of the code location goes with its runs; or its server alone, and its runs go on without it."""

    name = "kill-code-server"
    what = "kill -9 of Dagster's code server, with all runs in it or without them; it starts again"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return dagster_of(lab) is not None

    def do(self, lab: Lab, random: Random) -> str:
        dagster = dagster_of(lab)
        runs_too = random.random() < 0.5
        assert dagster is not None
        if (pid := dagster.pid_of("code")) is None:
            return NOTHING
        runs = len(lab.system.pids("run"))
        dagster.kill_code_server(runs_too)
        return f"process [{pid}] {'with' if runs_too else 'without'} {runs} runs"

    def undo(self, lab: Lab) -> None:
        dagster = dagster_of(lab)
        assert dagster is not None
        dagster.start("code")


DAGSTER = (KillDaemon, PauseDaemon, KillRunWorker, KillCodeServer)

"""The database that is one of the stream's outputs: killed, paused, failed over."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from faultlab.faults.fault import NOTHING, Fault

if TYPE_CHECKING:
    from faultlab.lab import Lab
    from testkit.postgres import PostgresServer


class _Postgres(Fault):
    """A fault of the PostgreSQL server."""

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return lab.outputs is not None

    def do(self, lab: Lab, random: Random) -> str:
        assert lab.outputs is not None
        self._server = lab.outputs.server
        self._strikes = not lab.outputs.struck
        if not self._strikes:
            return NOTHING
        prepared = len(self._server.prepared())
        lab.outputs.struck = True
        self.strike(self._server)
        return f"PostgreSQL with {prepared} prepared transactions"

    def strike(self, server: PostgresServer) -> None:
        """Do it to the server, which runs."""
        server.kill()

    def undo(self, lab: Lab) -> None:
        assert lab.outputs is not None
        if self._strikes:
            self.mend(self._server)
            lab.outputs.struck = False

    def mend(self, server: PostgresServer) -> None:
        """Take it back: the server runs and answers then."""
        server.start()


class KillPostgres(_Postgres):
    """The machine of the database goes and comes back."""

    name = "kill-postgres"
    what = "kill -9 of all processes of PostgreSQL; it starts again"


class PausePostgres(_Postgres):
    """A database that does not answer, and does later what it was asked."""

    name = "pause-postgres"
    what = "SIGSTOP of all processes of PostgreSQL, then SIGCONT"

    def strike(self, server: PostgresServer) -> None:
        server.freeze()

    def mend(self, server: PostgresServer) -> None:
        server.thaw()


class FailOverPostgres(_Postgres):
    """A standby that has everything takes over: prepared transactions come with it, on a new timeline."""

    name = "failover-postgres"
    what = "kill -9 of PostgreSQL; a standby with the same data is promoted"

    def mend(self, server: PostgresServer) -> None:
        server.become_standby()
        server.start()
        server.sql("SELECT pg_promote()")


STORES = (KillPostgres, PausePostgres, FailOverPostgres)

"""Faults of the lab's database that overlap."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from faultlab.faults.fault import NOTHING
from faultlab.faults.stores import KillPostgres, PausePostgres


class Server:
    """Keeps what was done to it; a frozen one answers nobody, for ever."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def prepared(self) -> set[str]:
        assert not self.done or self.done[-1] in ("start", "thaw"), "asked while it cannot answer"
        return {"one"}

    def __getattr__(self, name: str) -> Any:
        return lambda: self.done.append(name)


def test_a_database_that_a_fault_holds_is_not_struck_again() -> None:
    """Guards against a lab that waits for a paused server for ever, and against a pause that ends another fault."""
    server = Server()
    lab: Any = SimpleNamespace(outputs=SimpleNamespace(server=server, struck=False))
    pause, kill, later = PausePostgres(), KillPostgres(), KillPostgres()
    assert "1 prepared" in pause.do(lab, Random(0))
    assert kill.do(lab, Random(0)) == NOTHING
    kill.undo(lab)
    assert server.done == ["freeze"]
    pause.undo(lab)
    later.do(lab, Random(0))
    later.undo(lab)
    assert server.done == ["freeze", "thaw", "kill", "start"]

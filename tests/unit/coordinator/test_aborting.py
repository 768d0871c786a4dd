"""The abort of an execution: whose parts it may roll back after its record could not be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.coordinator import abort
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.errors import BrokerUnreachable, Fenced
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch

STATE = DriverState(1, Batch("q", 4, ""), 5, 60_000, 0, execution="e", finished=False)


class Log:
    """A log that takes no record; its second look, if ``taken``, finds a later claim."""

    def __init__(self, taken: bool):
        self.taken, self.looks = taken, 0

    def own(self, *_: Any) -> LogState:
        self.looks += 1
        if self.taken and self.looks > 1:
            raise Fenced("claim 1 is superseded", "Stop this driver")
        return LogState()

    def append(self, *_: Any) -> LogState:
        raise BrokerUnreachable("the log does not answer", "Wait")


@pytest.mark.parametrize("taken", [True, False])
def test_behind_a_record_that_could_not_be_written_the_log_is_asked_again_before_the_sweep(
    taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a superseded driver that sweeps as an owner: under a slot that may be another claim's by now."""
    swept: list[str] = []
    log = Log(taken)
    session: Any = SimpleNamespace(log=log, sink_id="s", sweep=lambda scope: swept.append("as owner") or {})
    monkeypatch.setattr(abort, "abandon", lambda *_: swept.append("superseded") or {})
    abort.abort_execution(session, STATE, 4, (), reported=True)
    assert swept == (["superseded"] if taken else ["as owner"]) and log.looks == 2

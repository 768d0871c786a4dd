"""A batch write that was done before."""

from __future__ import annotations

import pytest

from exactly_once.coordinator import batch_write
from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.options import SinkOptions
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import WRITE, Completed, Decision

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "sink.id": "orders", "topic": "out", "write.id": "day1"}


def test_a_write_that_is_done_says_that_it_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Loss: other rows under an id that was used before are not written, and nobody hears of it."""
    name = f"{WRITE}day1"
    done = LogState(decisions=(Decision(name, 0, 1, (), "", 5, 0),), marks={(name, 0): Completed(name, 0, 1, 0)})
    monkeypatch.setattr(batch_write, "read_log", lambda *_: done)
    coordinator = WriteCoordinator(SinkOptions.parse(OPTIONS, batch=True))
    assert coordinator.plan().plan is Plan.DRAIN
    [said] = caplog.messages
    assert "write 'day1' is complete, with 0 records, so this try writes nothing" in said

"""How often a verification reads before it reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once import deadline
from exactly_once.checkpoint import Checkpoint
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.tools.verify import Anomaly, Finding, Report, VerifyParameters, run, verify
from exactly_once.tools.verify.parameters import SETTLE_S

PASSES, STAYS = Finding(Anomaly.LOST, "a batch that is being committed"), Finding(Anomaly.CORRUPT, "another row")

#: Of a reading of a long output.
READING_S = 40.0


class Readings:
    """What each reading will find, the last one again and again; each takes long, by a clock of its own."""

    def __init__(self) -> None:
        self.found: list[list[Finding]] = []
        self.taken = 0
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def read(self, *_: Any) -> run._Reading:
        self.sleep(READING_S)
        self.taken += 1
        return run._Reading(Report("orders", tuple(self.found[min(self.taken, len(self.found)) - 1])))

    def verified(self, *found: list[Finding], settle_s: float = SETTLE_S) -> list[Finding]:
        self.found, self.taken = list(found), 0
        connection = Connection.from_options({"kafka.bootstrap.servers": "127.0.0.1:1"})
        return list(verify(connection, VerifyParameters("orders", settle_s=settle_s)).findings)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    made = Readings()
    clock = SimpleNamespace(monotonic=lambda: made.now_s, time=lambda: made.now_s, sleep=made.sleep)
    for module in (deadline, run):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(run, "_read", made.read)
    monkeypatch.setattr(run, "read_log", lambda *args, **more: LogState())
    return made


def test_a_reading_that_takes_longer_than_the_settling_time_is_followed_by_another(readings: Readings) -> None:
    """A false alarm over each live stream whose last batches take longer than 15 seconds to read: the batch that was
    being committed at the first look would be called lost.
    """
    assert readings.verified([PASSES], []) == []


def test_what_stays_is_reported_when_the_settling_time_is_over(readings: Readings) -> None:
    """A check that never ends over a sink that is broken."""
    assert readings.verified([PASSES]) == [PASSES] and readings.taken == 2


def test_what_cannot_pass_is_reported_at_once_and_so_is_all_without_a_settling_time(readings: Readings) -> None:
    """A second look could find a corrupt record gone, after retention; ``--settle 0`` asks for one look."""
    assert readings.verified([STAYS], []) == [STAYS]
    assert readings.verified([PASSES], [], settle_s=0) == [PASSES]


@pytest.mark.parametrize(
    ("text", "began"),
    [
        pytest.param('\0v1\n{"in":{"0":4}}', {"q": {("in", 0): 4}}, id="Kafka"),
        pytest.param("v1\n17", {}, id="another source"),
        pytest.param('\0v1\n{"in":{"0', {}, id="torn"),
    ],
)
def test_where_a_query_began_is_known_of_kafka_alone(
    text: str, began: dict[str, dict[tuple[str, int], int]], tmp_path: Path
) -> None:
    """Mishap: the checkpoint of a stream that reads files cannot be verified, since its source keeps no offsets."""
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text(text)
    connection = Connection.from_options({"kafka.bootstrap.servers": "127.0.0.1:1"})
    task = run._Task(connection, "s", VerifyParameters("s", str(tmp_path)))
    assert task.began(Checkpoint(str(tmp_path), "q")) == began

"""What Spark's short-lived driver processes share: there, or a new claim; never a wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exactly_once.coordinator import driver_state, micro_batch, weaker
from exactly_once.coordinator.driver_state import DriverState, FileStore, MemoryStore
from exactly_once.coordinator.micro_batch import settle
from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Batch

OPTIONS = SinkOptions.parse({"sink.id": "job", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"})
STATE = DriverState(7, "q", 5, 900_000, -12, 41, "ab" * 32, "e1", True, 1_700_000_000_000)


@pytest.fixture
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As Spark sets it: a folder for each application."""
    folder = tmp_path / "blockmgr-1"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},{tmp_path / 'blockmgr-2'}")
    return folder


def the_file(folder: Path) -> Path:
    [path] = folder.iterdir()
    return path


def test_the_committing_process_finds_what_the_planning_one_left(local_dir: Path) -> None:
    """They share no memory; a token that changed on the way makes the driver fence itself."""
    driver_state.save("job", "/c", STATE)
    assert driver_state.load("job", "/c") == STATE


def test_the_last_state_stands_and_nothing_lies_beside_it(local_dir: Path) -> None:
    """Written aside and renamed: a kill in between leaves the old one whole."""
    for batch in range(3):
        driver_state.save("job", "/c", replace(STATE, last_batch=batch))
    state = driver_state.load("job", "/c")
    assert state is not None and state.last_batch == 2
    assert the_file(local_dir).suffix == ".json"


@pytest.mark.parametrize(("sink", "checkpoint"), [("job.1", "/c"), ("job", "/c2")])
def test_another_sink_or_checkpoint_has_a_state_of_its_own(local_dir: Path, sink: str, checkpoint: str) -> None:
    """Several queries share one Spark application; one that took another's claim would write under its ids."""
    driver_state.save("job", "/c", STATE)
    driver_state.save(sink, checkpoint, replace(STATE, token=99))
    assert driver_state.load("job", "/c") == STATE


def test_another_application_has_a_state_of_its_own(
    local_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second driver must claim; with the first one's token both would be the owner (invariant 4)."""
    driver_state.save("job", "/c", STATE)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "blockmgr-9"))
    assert driver_state.load("job", "/c") is None


def test_without_sparks_folder_nothing_outlives_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the working folder would still be there for the next driver, which then takes a dead driver's token
    without a claim: no recovery, and two drivers started there are both the owner (invariant 4)."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        driver_state.save("job", "/c", STATE)
    except Exception as e:
        assert str(e).startswith("EO-")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"7", b"{}", b'{"token": 7}', b"\xff\xfe", b'{"token": 7, "of_a_newer_version": 1}'],
)
def test_a_lost_or_broken_state_means_a_new_claim(local_dir: Path, content: bytes) -> None:
    """Costs a claim, never correctness: the commit log decides."""
    driver_state.save("job", "/c", STATE)
    the_file(local_dir).write_bytes(content)
    assert driver_state.load("job", "/c") is None


def test_a_planned_execution_is_unfinished_until_somebody_says_so() -> None:
    """What did not go through makes the next batch begin with a claim: its tasks may still be alive."""
    planned = STATE.planned("e2", Batch("q", 42, "cd"), 1_700_000_001_000, {"in": {0: 7, 1: 9}})
    assert (planned.execution, planned.finished) == ("e2", False)
    assert (planned.batch, planned.planned_ms) == (Batch("q", 42, "cd"), 1_700_000_001_000)
    assert planned.input_offsets == {"in": {"0": 7, "1": 9}}
    before = {"execution": "e1", "batch_id": -1, "digest": "", "planned_ms": 0, "finished": True, "input_offsets": {}}
    assert replace(planned, **before) == STATE, "nothing else changes"


def test_a_state_that_was_never_written_is_none(local_dir: Path) -> None:
    """A new driver has to claim."""
    assert driver_state.load("job", "/c") is None


def test_a_query_that_has_ended_leaves_no_claim_to_the_next_one(local_dir: Path) -> None:
    """Mishap: somebody took the sink in between, and the start failed with EO-FENCED, which no restart heals."""
    store = FileStore("job", "/c")
    store.save(STATE)
    assert settle(OPTIONS, store, lambda: False) == {} and store.load() is None
    store.save(replace(STATE, execution="e2"))
    assert store.load() == replace(STATE, execution="e2"), "the next query's own"


def test_the_state_of_a_query_that_runs_again_is_not_retired(local_dir: Path) -> None:
    """Outage: the end of the run before is told late, when the next run has planned its first batch."""
    store = FileStore("job", "/c")
    store.save(STATE)
    assert settle(OPTIONS, store, lambda: True) == {} and store.load() == STATE

    def runs() -> bool:  # it begins and plans behind this look
        store.save(replace(STATE, execution="e2"))
        return False

    assert settle(OPTIONS, store, runs) == {}
    assert store.load() == replace(STATE, execution="e2")


@pytest.mark.parametrize(("operator", "claims"), [("dagster/prod/run-1", 0), ("dagster/prod/run-2", 1), ("", 1)])
@pytest.mark.parametrize("module", [micro_batch, weaker])
def test_a_run_of_another_operator_in_the_same_application_claims_under_its_own_name(
    module: Any, operator: str, claims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim would go on to name a run that is over: whoever asks about that run hears that the driver is gone, and
    a recovery fences a stream that works.
    """
    claimed: list[str] = []

    def claim(options: SinkOptions, *others: object, **more: object) -> DriverState:
        claimed.append(options.operator)
        return replace(STATE, operator=options.operator)

    monkeypatch.setattr(module, "batch_in_flight", lambda *where: Batch("q", 42, "cd" * 32))
    monkeypatch.setattr(micro_batch, "claim_for_stream", claim)
    monkeypatch.setattr(weaker, "_settled", claim)
    options = {"sink.id": "job", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"}
    store = MemoryStore(replace(STATE, operator="dagster/prod/run-1"))
    run = micro_batch.plan if module is micro_batch else weaker.plan_delivery
    run(SinkOptions.parse({**options, "sink.operator": operator}), store)
    assert claimed == [operator] * claims
    assert store.state is not None and store.state.operator == operator

"""Damaged checkpoints in the fault lab: the sink refuses them, the operator does what the error says, and the stream
goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faultlab.building import lab_of
from faultlab.settings import Settings
from faultlab.state import STORES
from tests.faults.lab import Fault, run_clean, shown, struck

FAULTS: dict[str, list[Fault]] = {
    "torn": [("checkpoint-torn", 1.0, None), ("checkpoint-torn", 1.0, "decided")],
    "deleted": [("checkpoint-deleted", 1.0, "all-prepared"), ("checkpoint-deleted", 1.0, None)],
    "older": [("checkpoint-older", 1.0, "decided"), ("checkpoint-older", 1.0, "all-prepared")],
    "rewound": [("checkpoint-rewound", 1.0, None), ("checkpoint-rewound", 1.0, "decided")],
    "foreign": [("checkpoint-foreign", 1.0, None), ("checkpoint-foreign", 1.0, "some-ended")],
}

#: Of the random numbers that each draws: which file, and what becomes of it.
SEEDS = {"torn": 1, "deleted": 1, "older": 1, "rewound": 2, "foreign": 2}


@pytest.mark.long
@pytest.mark.parametrize("damage", FAULTS)
def test_a_stream_gets_over_every_damage_of_its_checkpoint_by_what_its_errors_say(damage: str, tmp_path: Path) -> None:
    """Guards against a damaged checkpoint that costs records, or writes them twice, and against an error whose way out
    leads nowhere.
    """
    settings = Settings(rate=100, timeout_ms=60_000)
    with lab_of(settings, SEEDS[damage], tmp_path / "lab", shown) as lab:
        history = run_clean(lab, SEEDS[damage], FAULTS[damage])
    assert len(struck(history, f"checkpoint-{damage}")) == len(FAULTS[damage]), history


#: The second one strikes while a batch is decided that Spark has not committed: it runs again, on this state.
STATE: list[Fault] = [("checkpoint-state", 1.0, None), ("checkpoint-state", 1.0, "decided")]

#: A file that is cut off, and one that is empty or, in RocksDB, older.
STATE_SEEDS = dict(zip(STORES, (1, 1), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_a_stream_with_damaged_state_goes_on_from_a_copy_of_its_checkpoint(store: str, tmp_path: Path) -> None:
    """Guards against a stream that goes on with state that it cannot read in full: it writes again what it no longer
    knows, and drops what it never wrote. No judge of the output alone could tell.
    """
    settings = Settings(rate=100, timeout_ms=60_000, state=store)
    with lab_of(settings, STATE_SEEDS[store], tmp_path / "lab", shown) as lab:
        history = run_clean(lab, STATE_SEEDS[store], STATE, settings)
    assert len(struck(history, "checkpoint-state")) == len(STATE), history

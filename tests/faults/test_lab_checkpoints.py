"""Damaged checkpoints in the fault lab: the sink refuses them, the operator does what the error says, and the stream
goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faultlab.rounds import Settings, lab_of
from tests.support.lab import Fault, run_clean, shown, struck

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

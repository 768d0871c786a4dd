"""ARCHITECTURE.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exactly_once.protocol import too_long
from exactly_once.protocol.names import SLOTS, VARIANTS, older_slots

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TEXT = " ".join(ARCHITECTURE.split())


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (SLOTS, "token modulo {}"),
        (SLOTS, "Ids are bounded: {} slots"),
        (VARIANTS, "x parts x {} variants"),
        (round(too_long.SPARE * 100), "with {} % of its timeout to spare"),
    ],
)
def test_a_number_in_the_architecture_is_the_one_in_the_code(number: int, sentence: str) -> None:
    """Somebody computes broker memory, or a timeout, from it."""
    assert sentence.format(number) in TEXT


def test_the_number_of_swept_slots_in_the_architecture_is_the_one_in_the_code() -> None:
    """It is written out there."""
    assert len(older_slots(SLOTS, SLOTS)) == 8
    assert "the slots of the eight claims" in TEXT


def test_every_place_in_the_map_of_the_house_is_there() -> None:
    """The map is for a newcomer, who has nothing to compare it with."""
    house = ARCHITECTURE.split("\n## The house\n")[1].split("\n## ")[0]
    places = [
        p for line in house.splitlines() if line.startswith("| `") for p in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]
    assert len(places) > 8
    assert [p for p in places if not (ROOT / p).exists()] == []

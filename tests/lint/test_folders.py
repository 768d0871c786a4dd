"""The unit tests lie in folders like the packages that they test: whoever changes a module finds its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
HALF = ROOT / "dagster_exactly_once"

#: Of what is no package of the engine: the Dagster half, with its rooms below, and what else is in the repository.
OTHERS = {
    "benchmarks": "dev/benchmarks",
    "dagster": "dagster_exactly_once",
    "diagnosis": "exactly_once/tools/diagnosis",
    "duel": "dev/exactly_once_local/duel",
    "engine": "exactly_once",
    "example": "platform_assets",
    "lab": "dev/faultlab",
    "local": "dev/exactly_once_local",
    "operation": "exactly_once/tools/operation",
    "ops": "exactly_once/tools",
    "project": ".",
    "registry": "exactly_once/formats/registry",
    "testkit": "dev/testkit",
    "verify": "exactly_once/tools/verify",
}


def folders() -> Iterator[tuple[str, ...]]:
    """Every folder with unit tests, by its names below ``tests/unit``."""
    yield from sorted({path.parent.relative_to(UNIT).parts for path in UNIT.rglob("test_*.py")})


def test_every_folder_of_unit_tests_is_that_of_a_package() -> None:
    """Guards against a room that moves while its tests stay behind."""
    places = {parts: ROOT.joinpath(OTHERS.get(parts[0], f"exactly_once/{parts[0]}"), *parts[1:]) for parts in folders()}
    assert [parts for parts, place in places.items() if not place.is_dir()] == []


def test_a_test_beside_the_rooms_of_the_dagster_half_is_of_no_room() -> None:
    """Guards against thirty files in one list."""
    rooms = "|".join(path.name for path in HALF.iterdir() if path.is_dir())
    found = {
        path.name: re.findall(rf"^from dagster_exactly_once\.(?:{rooms})\b.*", path.read_text(encoding="utf-8"), re.M)
        for path in (UNIT / "dagster").glob("test_*.py")
    }
    assert len(found) > 3 and {name: imports for name, imports in found.items() if imports} == {}

"""How long a user may build on a name, and who says that it will be removed."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from exactly_once.deprecation import deprecated

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def old() -> None:
    """A public function that has got a successor."""
    deprecated("exactly_once.old()", "1.3", "exactly_once.new()")


def test_the_warning_names_the_successor_and_points_at_the_line_of_the_user() -> None:
    """Guards against a warning about a line of this package, which Python does not show and nobody can mend."""
    with pytest.warns(DeprecationWarning) as warned:
        old()
    [warning] = warned
    assert warning.filename == __file__
    told, way_out = str(warning.message).split(". ")
    assert told.startswith("exactly_once.old() is deprecated since 1.3, ") and "the next major release" in told
    assert way_out.startswith("Use exactly_once.new()")


def test_the_public_modules_are_these_and_the_reference_lists_them() -> None:
    """Guards against a user who builds on a module that may change with any release."""
    listed = REFERENCE.partition("## Public names\n")[2].partition("Also public")[0]
    names = set(re.findall(r"`([a-z_.]+)`", listed)) - {"__all__", "_"}
    assert names == {
        "exactly_once",
        "exactly_once.errors",
        "exactly_once.error_headers",
        "exactly_once.participant",
        "exactly_once.outputs.files",
        "exactly_once.outputs.postgres",
        "exactly_once.outputs.delta",
        "exactly_once.outputs.iceberg",
        "exactly_once.outputs.conformance",
        "dagster_exactly_once",
        "dagster_exactly_once.notify",
        "dagster_exactly_once.resources.spark",
    }
    assert all(import_module(name).__doc__ for name in names)
    promised = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("- the public modules: ")[1].partition(". ")[0]
    assert set(re.findall(r"`([\w.]+)`", promised)) == names

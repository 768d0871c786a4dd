"""The table of docs/upgrade.md is what the tests of upgrades run, row by row."""

from __future__ import annotations

import re

from testkit.syntax import ROOT

ROWS = ROOT / "tests" / "upgrades"

#: A patch release of Kafka or Spark.
RELEASE = re.compile(r"\b[34]\.\d+\.\d+\b")


def test_the_releases_of_the_table_are_those_of_the_rows() -> None:
    """Guards against a release in the table that nothing runs, and against a row that no user hears of."""
    table = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8").partition("## From the Python data source")[0]
    tests = "".join(path.read_text(encoding="utf-8") for path in ROWS.glob("test_*.py"))
    assert set(RELEASE.findall(table)) == set(RELEASE.findall(tests))


def test_every_row_is_part_of_a_promise() -> None:
    """Guards against a row that a change removes without a word to the users."""
    promises = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    for path in ROWS.glob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M):
            assert f"{path.relative_to(ROOT)}::{name}`" in promises, name

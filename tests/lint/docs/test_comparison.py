"""Each row of the comparison's table of failures names the tests that show what this sink does."""

from __future__ import annotations

import re

from testkit.syntax import ROOT
from tests.lint.docs.test_promises import defined

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


def test_each_failure_elsewhere_has_its_source_and_tests_that_are_there() -> None:
    """Guards against a claim about others that nobody can check, and against one about this sink that nobody tries."""
    section = PAGE.split("\n## What went wrong elsewhere\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    for where, _, _, shown in rows:
        assert re.search(r"\]\(https://github\.com/[\w./-]+/(issues|pull)/\d+\)", where), where
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert tests, where
        assert [test for test in tests if test[1] not in defined(test[0])] == []

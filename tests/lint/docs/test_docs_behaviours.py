"""Each behaviour of brokers and engines in docs/brokers-and-engines.md names what would notice that it changed."""

from __future__ import annotations

import ast
import re

import pytest

from testkit.syntax import ROOT

#: The behaviour, where it was seen, how, what the sink does about it, and its test or script.
CELLS = 5

#: So many rows are worth a page.
ROWS = 60

PAGE = (ROOT / "docs" / "brokers-and-engines.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| behaviour |")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def proof_is_there(named: str) -> bool:
    """Whether a test below ``tests``, by file and function, or a script of ``findings`` exists."""
    file, _, test = named.partition("::")
    if not test:
        return re.fullmatch(r"findings/[a-z0-9-]+\.sh", file) is not None and (ROOT / file).is_file()
    path = ROOT / "tests" / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return test in {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_there_are_enough_rows_for_a_page_of_its_own() -> None:
    assert len(LINES) >= ROWS


@pytest.mark.parametrize("line", LINES, ids=[re.sub(r"\W+", "-", line)[1:60] for line in LINES])
def test_each_behaviour_is_seen_somewhere_and_has_a_test_or_a_script_that_is_there(line: str) -> None:
    """Guards against a behaviour from memory, and against one whose test was renamed or removed."""
    row = cells(line)
    assert len(row) == CELLS and all(row), row
    assert re.fullmatch(r"`[^`]+`", row[-1]) and proof_is_there(row[-1].strip("`")), row[-1]


def test_a_test_or_a_script_that_is_not_there_is_found() -> None:
    """Guards against a check that passes whatever a row names."""
    here = "lint/docs/test_docs_behaviours.py"
    assert proof_is_there(f"{here}::test_there_are_enough_rows_for_a_page_of_its_own")
    assert not any(map(proof_is_there, (f"{here}::test_nothing", "lint/docs/no.py::test_x", "findings/no.sh", "x.sh")))


def test_each_table_has_the_same_columns() -> None:
    heads = re.findall(r"^\| behaviour \|.*$", PAGE, re.M)
    assert len(heads) == len(re.findall(r"^\|---", PAGE, re.M)) and {len(cells(h)) for h in heads} == {CELLS}

"""What tests assert of a message: its code and its facts, not its sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: The share of the tests that may assert a sentence: those of the place where it is made.
MOST = 1 / 20

#: Five words or more in a row. A number, an option or a pattern's ``.*`` between them ends the row.
PROSE = re.compile(r"(?:\b[A-Za-z][A-Za-z'-]*[,;:.]? ){4,}[A-Za-z]")


def asserted(test: ast.FunctionDef) -> Iterator[str]:
    """Every string in an ``assert`` statement of a test and in the argument ``match`` of its calls."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            places: list[ast.expr] = [node.test]
        elif isinstance(node, ast.Call):
            places = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        else:
            continue
        for place in places:
            for part in ast.walk(place):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def judged(source: str) -> list[tuple[str, bool]]:
    """Every test function of a file, and whether it asserts prose."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [(f.name, any(map(PROSE.search, asserted(f)))) for f in found if f.name.startswith("test")]


def test_few_tests_assert_a_sentence() -> None:
    """Guards against a sentence that nobody improves because ten tests repeat it. A test asserts the code of an error,
    or its class, and the facts in its message: names, numbers, ids, options and commands.
    """
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [(path, name, says) for path in paths for name, says in judged(path.read_text("utf-8"))]
    prose = [f"{path.relative_to(ROOT)}::{name}" for path, name, says in found if says]
    share = len(prose) / len(found)
    assert share <= MOST, "\n".join((f"{len(prose)} of {len(found)} tests assert a sentence:", *prose))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("assert told == 'the next start commits the batch'", True),
        ("assert f'{name} is not an option of this sink' in told", True),
        ("with pytest.raises(Refused, match='batch 3, which nobody has ever decided'): pass", True),
        ("assert (refused.code, refused.way_out) == ('EO-OPTION', 'Correct it')", False),
        ("assert 'batch 3 of sink orders' in told and 'sink.adopt=q/3' in told", False),
        ("with pytest.raises(Refused, match=r'part 1 .*in doubt.* 11 records'): pass", False),
        ("told = say('the next start commits the batch')", False),
    ],
)
def test_a_sentence_is_told_from_facts(statement: str, says: bool) -> None:
    """Guards against a count that finds nothing."""
    assert judged(f"def test_it():\n    {statement}") == [("test_it", says)]

"""Each promise of the documentation names the test that proves it."""

from __future__ import annotations

import ast
import re

import pytest

from testkit.syntax import ROOT

#: The pages that promise how the sink behaves.
PAGES = ("README.md", "docs/production.md", "SECURITY.md")

#: Name, promise, pages and tests.
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


def marked(page: str) -> set[str]:
    """Return the names of the promises that ``page`` marks."""
    return set(re.findall(r"<!-- promise: ([a-z0-9-]+) -->", (ROOT / page).read_text(encoding="utf-8")))


#: The tables and lists of which each row or item is a promise: page and heading.
LISTS = [
    ("README.md", "What is guaranteed", "|"),
    ("README.md", "Under Dagster", "-"),
    ("docs/production.md", "When something is lost", "|"),
    ("SECURITY.md", "What is not trusted", "-"),
    ("SECURITY.md", "Dependencies", "-"),
]


def items_of(text: str, begin: str) -> list[str]:
    """Return the rows of a section's tables, or the items of its lists, by the character with which they begin."""
    items = re.findall(rf"^{re.escape(begin)} .*(?:\n {{2,}}.*)*", text.partition("\n### ")[0], re.M)
    return items[1:] if begin == "|" else items  # a table has a header


@pytest.mark.parametrize(("page", "heading", "begin"), LISTS)
def test_each_guarantee_of_a_table_or_a_list_is_a_promise(page: str, heading: str, begin: str) -> None:
    """Guards against a line that somebody adds to what the sink guarantees, and that no test holds."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    items = items_of(text, begin)
    assert len(items) > 3 and [item for item in items if "<!-- promise: " not in item] == []


def defined(file: str) -> set[str]:
    """Return the names of the tests that ``file`` defines."""
    path = ROOT / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_promise_is_in_the_register_with_its_pages_and_no_other() -> None:
    """Guards against a promise that nobody tries, and against a row whose promise was taken back."""
    listed = {
        (name.strip("`"), page)
        for name, _, where, _ in ROWS
        for page in PAGES
        if f"{page.removeprefix('docs/')})" in where
    }
    assert listed == {(name, page) for page in PAGES for name in marked(page)}


def test_no_line_begins_with_a_mark() -> None:
    """Guards against half a sentence without its links and bold words: Markdown takes such a line for HTML."""
    assert [
        page for page in PAGES if re.search(r"^\s*<!-- promise", (ROOT / page).read_text(encoding="utf-8"), re.M)
    ] == []


def test_a_promise_has_one_row() -> None:
    """Guards against two rows of which one is never mended."""
    names = [row[0] for row in ROWS]
    assert len(names) > 40 and len(set(names)) == len(names)


def test_every_promise_names_tests_that_are_there() -> None:
    """Guards against a promise whose proof was renamed or deleted."""
    proofs = {name: re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests) for name, _, _, tests in ROWS}
    assert [name for name, tests in proofs.items() if not tests] == []
    assert [test for tests in proofs.values() for test in tests if test[1] not in defined(test[0])] == []

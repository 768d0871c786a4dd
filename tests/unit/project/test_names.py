"""One name, one thing: what a search by name finds, and calls that say what each value is."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: Tests and what they stand on name their classes for themselves, and so do programs for an image.
ON_THEIR_OWN = ("tests", "testkit", "deploy")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every Python file of the repository but those of tests."""
    for name in subprocess.check_output(("git", "ls-files", "*.py"), cwd=ROOT, text=True).split():
        if not name.startswith(ON_THEIR_OWN) and (ROOT / name).is_file():
            yield name, ast.parse((ROOT / name).read_text(encoding="utf-8"))


def test_a_class_has_a_name_of_its_own() -> None:
    """Guards against a search for ``class Verdict`` that finds eight, of which one is meant."""
    found = defaultdict(list)
    for name, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_judge_says_what_it_judges() -> None:
    """Guards against a search for ``def judge`` that finds six, each with another meaning."""
    found = defaultdict(list)
    for name, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("judge"):
                found[node.name].append(name)
    assert "judge" not in found
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


#: More values than a reader counts: from here on each says which field it is.
MANY = 9


def test_a_call_of_the_engine_with_many_values_names_them() -> None:
    """Guards against two numbers of a decision that change places, which no type notices."""
    found = [
        f"{name}:{node.lineno}: {len(node.args)} positional values for {ast.unparse(node.func)}"
        for name, tree in modules()
        if name.startswith("exactly_once/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) >= MANY
    ]
    assert found == []

"""One name, one thing: what a search by name finds, and calls that say what each value is."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Tests and what they stand on name their classes for themselves, and so do programs for an image.
ON_THEIR_OWN = ("tests", "dev/testkit", "deploy")


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Every Python file of the repository but those of tests."""
    names = subprocess.check_output(("git", "ls-files", "*.py"), cwd=ROOT, text=True).split()
    kept = [name for name in names if not name.startswith(ON_THEIR_OWN) and (ROOT / name).is_file()]
    return [(name, ast.parse((ROOT / name).read_text(encoding="utf-8"))) for name in kept]


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


#: Where the place says nothing: the columns of a row.
IN_ANY_NUMBER = ("F.struct",)


def test_a_call_with_many_values_names_them() -> None:
    """Guards against two numbers of a decision that change places, which no type notices."""
    found = [
        f"{name}:{node.lineno}: {len(node.args)} positional values for {ast.unparse(node.func)}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) >= MANY and ast.unparse(node.func) not in IN_ANY_NUMBER
    ]
    assert found == []


#: Words that a reader keeps in mind for some lines, and no longer.
SHORT_LIVED = {"found", "known", "said", "told"}

#: Lines from the first use of such a name to its last one.
LIFE = 10


def test_a_name_that_says_little_does_not_live_long() -> None:
    """Guards against a reader who has forgotten, a screen below, what was found."""
    long = []
    for name, tree in modules():
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
            lines = defaultdict(list)
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in SHORT_LIVED:
                    lines[node.id].append(node.lineno)
            long += [f"{name}:{min(at)}: {word}" for word, at in lines.items() if max(at) - min(at) > LIFE]
    assert [place for place in long if not place.startswith("dev/")] == []


#: Words that say nothing of what they name, or for which the field has another one.
VAGUE = {"around", "forms", "gate", "life", "look", "looked", "looks", "outbox", "turn", "unlooked", "weaker", "wish"}


#: What Java declares: a type, a method, a field or a parameter.
DECLARED = re.compile(r"\b(?:class|record|interface|enum) (\w+)|\b[A-Z]\w*(?:<[^;(){}]*>)?(?:\[\])? (\w+)(?= ?[;,()=])")


def names() -> Iterator[tuple[str, str]]:
    """Every file, and in it every class, function, parameter, constant and option; of the tests the files alone."""
    for name in subprocess.check_output(("git", "ls-files", "*.py", "*.java"), cwd=ROOT, text=True).split():
        yield name, Path(name).stem
        if name.endswith(".java") and (ROOT / name).is_file():
            found = DECLARED.finditer((ROOT / name).read_text(encoding="utf-8"))
            yield from ((name, one[1] or one[2]) for one in found)
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node.name
            elif isinstance(node, ast.arg):
                yield name, node.arg
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
                yield name, node.value
            elif isinstance(node, ast.Assign):
                yield from ((name, t.id) for t in node.targets if isinstance(t, ast.Name) and t.id.isupper())


def test_a_name_has_no_word_that_needs_a_second_reading() -> None:
    """Guards against ``look``, ``life`` and ``around``: a name that a reader has to open to know what it is."""
    found = [f"{file}: {name}" for file, name in names() if VAGUE & words(name)]
    assert found == []


def words(name: str) -> set[str]:
    """Return the words of an identifier, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


#: A docstring that begins so is half a sentence: of what?
ASKS = ("How ", "What ", "When ", "Where ", "Whether ", "Which ", "Who ", "Why ")


def test_a_docstring_begins_with_a_verb_or_with_what_it_is() -> None:
    """Guards against half a question as a contract: "Where the outputs end" does not say what comes out."""
    found = [
        f"{name}:{getattr(node, 'lineno', 1)}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith(ASKS)
    ]
    assert found == []

"""The model speaks of the code by name: what is renamed or moved there must be looked at here."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.model.code import RULES, TRANSITIONS
from tests.model.state import Rules

ROOT = Path(__file__).parents[2]

NAMES = sorted({name for names in TRANSITIONS.values() for name in names} | {n for _, ns in RULES.values() for n in ns})


def resolve(name: str) -> object:
    """The function or class ``exactly_once.<name>``, or the method ``java:<class>.<method>``."""
    if name.startswith("java:"):
        owner, method = name.removeprefix("java:").split(".")
        (source,) = (ROOT / "java").rglob(f"{owner}.java")
        return method_of(source.read_text(encoding="utf-8"), method)
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found: object = import_module(".".join(["exactly_once", *parts[:n]]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def method_of(source: str, name: str) -> object:
    """Something callable, if a method of this name is declared in ``source``."""
    declared = re.search(rf"^    [\w<>\[\]. ]+ {name}\(", source, re.MULTILINE)
    return declared.group if declared else None


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_stands_for_is_there(name: str) -> None:
    """A function that is renamed or taken apart may not do any more what the model says of it."""
    assert callable(resolve(name))


def test_every_rule_names_the_function_that_keeps_it() -> None:
    """A reader who finds a counterexample has to find the line."""
    assert set(RULES) == set(Rules._fields)
    assert all(text and names for text, names in RULES.values())
    assert all(TRANSITIONS.values())

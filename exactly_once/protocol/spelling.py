"""Guess what a misspelt option was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Likeness that a name keeps with one letter too many, too few or exchanged; two of Kafka's own names are often above
#: 0.7.
_ALIKE = 0.8


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``name`` looks like; None when it looks like none of them."""
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, _ALIKE)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the way out: the name that was meant; "" when ``name`` looks like none of ``known``."""
    found = meant(name, known)
    return f"Correct the name: did you mean {found}?" if found else ""

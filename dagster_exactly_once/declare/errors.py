"""The error of a wrong declaration."""

from __future__ import annotations

from datetime import date

import dagster as dg


class BadDeclaration(dg.DagsterInvalidDefinitionError):
    """A stream is declared in a way that cannot work; the message names the argument."""


def check_day(said: str, where: str) -> None:
    """Refuse a day that is none; ``where`` names the argument. Raises BadDeclaration."""
    try:
        day = date.fromisoformat(said).isoformat()
    except ValueError:
        day = ""
    if day != said:  # Python reads 20260131 too, Dagster does not
        raise BadDeclaration(f"{where}: {said!r} is not a day. Write it like 2026-01-31")

"""``exactly-once doctor``: its lines, for people and for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from exactly_once.tools.cli.tables import show_line, show_whole, wrapped
from exactly_once.tools.diagnosis import Diagnosis, Severity
from exactly_once.tools.diagnosis.model import worst

#: Name of each severity, in the table and in the document for scripts; and its colour.
_VERDICTS = {Severity.OK: ("ok", "green"), Severity.WARN: ("warn", "yellow"), Severity.ERROR: ("wrong", "bold red")}

#: The width of the column of verdicts.
_MARK = 7


def as_json(lines: Sequence[Diagnosis]) -> dict[str, Any]:
    checks = [
        {"check": _check(d), "verdict": _VERDICTS[d.severity][0], "sentence": d.sentence, "way_out": d.remedy}
        for d in lines
    ]
    verdict = _VERDICTS[worst(lines)][0]
    return {"verdict": verdict, "checks": checks, "diagnoses": [d.as_json() for d in lines]}


def _check(d: Diagnosis) -> str:
    """Return the subject of a line; for a symptom of a sink, the part that was examined."""
    if d.code.startswith("DOCTOR-"):
        return d.subject
    return "checkpoint" if "CHECKPOINT" in d.code else "transactions"


def show(lines: Sequence[Diagnosis], console: Console) -> None:
    """Print the lines, each with its remedy, and the number of lines with each verdict."""
    for line in lines:
        _show(line, console)
    counts = ", ".join(f"{sum(d.severity is s for d in lines)} {name}" for s, (name, _) in _VERDICTS.items())
    show_line(f"{counts}.", console)


def _show(d: Diagnosis, console: Console) -> None:
    verdict, style = _VERDICTS[d.severity]
    check, mark = _check(d), f"{verdict:<{_MARK}}"
    first, *rest = wrapped(f"{check}: {d.sentence}.", console.width, mark, " " * _MARK)
    text = Text(first)
    text.stylize(style, 0, _MARK)
    text.stylize("bold", _MARK, _MARK + len(check))
    console.print(text, soft_wrap=True)
    for more in rest:
        show_whole(more, console)
    if d.remedy:
        show_line(f"{' ' * _MARK}What to do ({d.code}): {d.remedy}.", console)

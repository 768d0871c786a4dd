"""``exactly-once doctor``: what a stream needs of this host, of its checkpoint and of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.ops.cli.tables import show_line, show_whole, wrapped
from exactly_once.ops.doctor.host import DoctorVerdict, Line, worst, wrong
from exactly_once.ops.doctor.probes import examine_checkpoint, examine_cluster, examine_host

_STYLES = {DoctorVerdict.OK: "green", DoctorVerdict.WARN: "yellow", DoctorVerdict.WRONG: "bold red"}

#: The width of the column of verdicts.
_MARK = 7


def examine(
    connect: Callable[[], Connection],
    sink_id: str | None,
    topics: Sequence[str],
    checkpoint: str | None,
    budget_s: float,
    timeout_ms: int | None = None,
) -> list[Line]:
    """Examine this host, the checkpoint if there is one, and the cluster that ``connect`` names: the other steps need
    none.
    """
    lines = examine_host()
    if checkpoint is not None:
        lines += examine_checkpoint(checkpoint, sink_id)
    try:
        connection = connect()
    except InvalidOption as e:
        return [*lines, wrong("cluster", f"{e.code}: {e.what}", e.way_out)]
    return lines + examine_cluster(connection, sink_id, topics, budget_s, timeout_ms)


def as_json(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the document for scripts."""
    return {"verdict": worst(lines).value, "checks": [line.as_json() for line in lines]}


def show(lines: Sequence[Line], console: Console) -> None:
    """Print the lines, each with its way out, and how many lines ask for somebody."""
    for line in lines:
        _show(line, console)
    counts = ", ".join(f"{sum(1 for line in lines if line.verdict is v)} {v.value}" for v in DoctorVerdict)
    show_line(f"{counts}.", console)


def _show(line: Line, console: Console) -> None:
    mark = f"{line.verdict.value:<{_MARK}}"
    first, *rest = wrapped(f"{line.check}: {line.sentence}.", console.width, mark, " " * _MARK)
    text = Text(first)
    text.stylize(_STYLES[line.verdict], 0, _MARK)
    text.stylize("bold", _MARK, _MARK + len(line.check))
    console.print(text, soft_wrap=True)
    for more in rest:
        show_whole(more, console)
    if line.way_out:
        show_line(f"{' ' * _MARK}What to do: {line.way_out}.", console)

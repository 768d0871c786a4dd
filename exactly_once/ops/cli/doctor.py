"""``exactly-once doctor``: one table of what a stream needs of this host, of its checkpoint and of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.ops.doctor import Line, Verdict, worst, wrong
from exactly_once.ops.doctor_looks import examine_checkpoint, examine_cluster, examine_host

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.WRONG: "bold red"}


def look(
    connect: Callable[[], Connection],
    sink_id: str | None,
    topics: Sequence[str],
    checkpoint: str | None,
    budget_s: float,
    timeout_ms: int | None = None,
) -> list[Line]:
    """Look at this host, at the checkpoint if there is one, and at the cluster that ``connect`` names: the other looks
    need none.
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
    """Print the table, and how many lines ask for somebody."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold")  # one wide column: an id or a path stays in one piece to be copied
    for line in lines:
        mark = Text(line.verdict.value, style=_STYLES[line.verdict])
        way_out = f"\nWhat to do: {line.way_out}." if line.way_out else ""
        table.add_row(mark, Text(line.check, "bold").append(f": {line.sentence}.{way_out}", "default"))
    console.print(table)
    counts = ", ".join(f"{sum(1 for line in lines if line.verdict is v)} {v.value}" for v in Verdict)
    console.print(Text(f"{counts}."))

"""The terminal's view of the main job: progress bars, and the table at the end."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from exactly_once.tools.cli import verify
from platform_assets.report.report import FlightReport

#: Seconds between two lines that a bar becomes in a log file.
LINE_EVERY_S = 15.0


class Bars:
    """Progress bars on a terminal; in a log file, a line now and then. A context manager."""

    def __init__(self, console: Console):
        self._console = console
        self._progress = Progress(
            TextColumn("  {task.description:<36}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[count]:>19}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._next_line = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def add(self, title: str) -> TaskID:
        """Add a bar of yet unknown length."""
        return self._progress.add_task(title, total=None, count="")

    def move(self, bar: TaskID, done: int, of: int | None = None, last: bool = False) -> None:
        """Move a bar to ``done``; ``last`` says that it stays there."""
        count = f"{done:,}" if of is None or done == of else f"{done:,} of {of:,}"
        self._progress.update(bar, completed=done, total=of, count=count)
        if not self._console.is_terminal and (last or time.monotonic() >= self._next_line):
            self._next_line = time.monotonic() + LINE_EVERY_S
            task = self._progress.tasks[bar]
            self._console.print(f"  {task.description:<36} {count:>19}   {task.elapsed or 0:.0f} s")


def show_report(console: Console, report: FlightReport) -> None:
    """Print the contents as a table, the report of ``exactly-once verify``, and the verdict."""
    f = report.contents
    table = Table(title="What an independent read_committed reader found", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column()

    def row(name: str, count: int, must_be: int | None = None) -> None:
        verdict = "" if must_be is None else ("[green]ok[/]" if count == must_be else "[bold red]WRONG[/]")
        table.add_row(name, f"{count:,}", verdict)

    row("records in (flights)", f.records_in, f.expected + f.foreign)
    row("out (flight_delays)", f.out, f.records_in - f.rejected)
    row("rejected (flight_delays_rejected)", f.rejected, None if f.foreign else 0)
    row("wrong content", f.faults.get("wrong", 0), 0)
    for name, rate in report.rates.items():
        table.add_row(f"records per second, {name}", f"{rate:,.0f}", "")
    console.print(table)
    console.print(f"What exactly-once verify {report.verification.sink_id} says:")
    verify.show(report.verification, console)
    if report.problems:
        console.print("[bold red]Not right:[/] " + "; ".join(report.problems))
        for example in f.examples:
            console.print(f"  {example}", highlight=False)
    else:
        console.print(f"[bold green]Exactly once:[/] all {f.records_in:,} records came out once, in order.")

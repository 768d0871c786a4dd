"""The duel in a terminal: both sinks side by side while it goes on, and one table at its end. In a log file, lines."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from exactly_once_local.duel.kills import Kills
from exactly_once_local.duel.score import Score, rows
from exactly_once_local.duel.sinks import SINKS

#: Interval between two lines of state in a log file.
LINE_EVERY_S = 10.0

#: Time that a kill stays on the screen after both were started again.
KILL_SHOWN_S = 2.0

#: Width of a bar; the live table then has 78 columns.
BAR_WIDTH = 24


class Screen:
    """A context manager; live while its block runs."""

    def __init__(self, console: Console):
        self._console = console
        self._began = time.monotonic()
        self._next_line = 0.0
        self._killed_at = float("-inf")
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, what: str) -> None:
        """Something that happened, with the time since the screen came up."""
        self._console.print(f"{self.seconds:5.1f} s  {what}")
        self._console.file.flush()  # a log file is read while it grows

    @property
    def seconds(self) -> float:
        """Seconds since the screen came up."""
        return time.monotonic() - self._began

    def killed(self, kills: Kills) -> None:
        """Note that both were killed just now."""
        self._killed_at = time.monotonic()
        of = f"{kills.struck} of {kills.wanted}"
        where = "in the middle of a batch" if kills.just_struck else "but a batch had just ended, which does not count"
        self.say(f"[bold red]kill -9[/] both, {where} ({of})")

    def show(self, scores: tuple[Score, Score], states: tuple[str, str], progress: float) -> None:
        """Show the scores and states of both sinks, and how much of the duel is over (from 0 to 1)."""
        if self._live:
            bar = Table.grid(padding=(0, 1))
            bar.add_row("duel", ProgressBar(total=1, completed=progress, width=2 * BAR_WIDTH), f"{progress:.0%}")
            self._live.update(Group(self._table(scores, states), bar), refresh=True)
        elif self.seconds >= self._next_line:
            self._next_line = self.seconds + LINE_EVERY_S
            self.say("; ".join(_line(*both) for both in zip(scores, states, strict=True)))

    def _table(self, scores: tuple[Score, Score], states: tuple[str, str]) -> Table:
        if time.monotonic() - self._killed_at < KILL_SHOWN_S:
            states = ("[bold red]killed[/]", "[bold red]killed[/]")
        table = _head(f"Both at the same time, {self.seconds:.0f} s", BAR_WIDTH)
        table.add_row("state", *states)
        table.add_row("", *(_bar(s) for s in scores))
        for what, attribute in (
            ("flights sent to both", "flights"),
            ("flights written", "distinct"),
            ("records in the topic", "records"),
            ("duplicates", "duplicates"),
            ("open transactions", "open_transactions"),
            ("killed with kill -9", "kills"),
        ):
            table.add_row(what, *(_number(s, attribute) for s in scores))
        # before the end, nobody can tell what is lost from that
        table.add_row("to come, or lost", *(_number(s, "missing") for s in scores))
        return table


def show_result(console: Console, scores: tuple[Score, Score]) -> None:
    """Print the final table, and what it says about this sink."""
    table = _head("What an independent read_committed reader found")
    for row in rows(scores):
        table.add_row(*row)
    console.print(table)
    for score in scores:
        verdict = ", ".join(score.problems)
        said = f"[bold red]{verdict}[/]" if verdict else "[bold green]each flight is there exactly once[/]"
        console.print(f"{score.sink.title}: {said}.", highlight=False)


def _head(title: str, width: int | None = None) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for sink in SINKS:
        table.add_column(f"{sink.title}\n[dim]{sink.format}[/]", justify="right", min_width=width)
    return table


def _bar(score: Score) -> RenderableType:
    return ProgressBar(total=max(1, score.flights), completed=score.distinct, width=BAR_WIDTH)


def _number(score: Score, attribute: str) -> str:
    number: int = getattr(score, attribute)
    return f"[bold red]{number:,}[/]" if attribute == "duplicates" and number else f"{number:,}"


def _line(score: Score, state: str) -> str:
    return (
        f"{score.sink.title}: {state}, {score.distinct:,} of {score.flights:,} flights, "
        f"{score.duplicates:,} duplicates, {score.open_transactions} open transactions"
    )

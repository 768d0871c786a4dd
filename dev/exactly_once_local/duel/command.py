"""``exactly-once demo``, carried out: a duel, its table and its picture."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from exactly_once.errors import ExactlyOnceError, InvalidOption
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.duel import picture
from exactly_once_local.duel.archive import prepare
from exactly_once_local.duel.departures import check_installed
from exactly_once_local.duel.duel import Terms, hold
from exactly_once_local.duel.score import markdown
from exactly_once_local.duel.screen import Screen, show_result
from exactly_once_local.duel.sinks import DuelFailed


def run(args: argparse.Namespace) -> int:
    """Hold a duel.

    Returns
    -------
    int
        0 when our sink wrote each flight exactly once and left nothing open, whatever Spark's did; else 1; 130 after
        Ctrl-C.

    Raises
    ------
    ExtraMissing
        The flights, or what reads them, is not installed.
    InvalidOption
        The command line names a cluster.
    """
    if args.bootstrap_servers:
        raise InvalidOption("the demo starts a broker of its own", "Leave out --bootstrap-servers")
    check_installed()
    console = Console(highlighter=None, soft_wrap=True)
    args.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="duel-", dir=args.out)).absolute()
    try:
        with _ends_like_an_interrupt():
            code = _duel(args, folder, console)
    except (DuelFailed, ExactlyOnceError, TimeoutError) as failure:
        console.print(f"[bold red]The duel failed:[/] {failure}. Logs are in {os.path.relpath(folder)}.")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        code = 130
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _duel(args: argparse.Namespace, folder: Path, console: Console) -> int:
    terms = Terms(args.rate, args.limit, args.batch, args.kills, args.seed, prepare(console.print))
    with Screen(console) as screen, EmbeddedBroker(folder / "broker") as broker:
        screen.say(f"Kafka is up; seed {args.seed}")
        scores, story = hold(terms, broker.bootstrap_servers, folder, screen)
    show_result(console, scores)
    for name, text in (("duel.svg", picture.draw(story, scores)), ("duel.md", markdown(scores))):
        (args.out / name).write_text(text, encoding="utf-8")
    console.print(f"Picture and table: {os.path.relpath(args.out)}/duel.svg, duel.md")
    return 1 if scores[1].problems else 0


@contextmanager
def _ends_like_an_interrupt() -> Iterator[None]:
    """Let a closed terminal end the block as Ctrl-C does: with nothing left behind."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.signal(s, signal.default_int_handler) for s in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

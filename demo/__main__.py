"""``make demo``: the same real flights through Spark's own Kafka sink and through ours, both killed with kill -9 at the
same moments; a table and a picture of what an independent reader found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from rich.console import Console

from demo import picture
from demo.archive import prepare
from demo.duel import Terms, hold
from demo.kills import draw
from demo.score import markdown
from demo.screen import Screen, show_result
from demo.sinks import DuelFailed
from exactly_once.errors import ExactlyOnceError
from platform_assets.constants import run_dir
from platform_assets.flights.departures import DEPARTURES
from resources.embedded_broker import EmbeddedBroker

#: Flights a second while both sinks are at work; both can follow on two cores.
RATE = 2_000

#: Five seconds of flights: large enough to catch up soon after a kill.
BATCH = 10_000

#: Each takes another start of Spark, and starts take most of the time.
KILLS = 2

#: The year of the flights: any number would do, but the same one makes runs comparable.
SEED = 2013


def main(argv: list[str] | None = None) -> int:
    """Hold a duel.

    Returns
    -------
    int
        0 when our sink wrote each flight exactly once and left nothing open, whatever Spark's did; else 1; 130 after
        Ctrl-C.
    """
    args = _arguments(argv)
    console = Console(highlighter=None, soft_wrap=True)
    args.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="duel-", dir=args.out))
    try:
        code = _duel(args, folder, console)
    except (DuelFailed, ExactlyOnceError) as failure:
        console.print(f"[bold red]No duel:[/] {failure}. Logs are in {os.path.relpath(folder)}.")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        code = 130
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _duel(args: argparse.Namespace, folder: Path, console: Console) -> int:
    terms = Terms(args.rate, args.limit, args.batch, tuple(draw(args.seed, args.kills)), prepare(console.print))
    with Screen(console) as screen, EmbeddedBroker(folder / "broker") as broker:
        screen.say(f"Kafka is up; seed {args.seed}")
        scores, story = hold(terms, broker.bootstrap_servers, folder, screen)
    show_result(console, scores)
    for name, text in (("duel.svg", picture.draw(story, scores)), ("duel.md", markdown(scores))):
        (args.out / name).write_text(text, encoding="utf-8")
    console.print(f"Picture and table: {os.path.relpath(args.out)}/duel.svg, duel.md")
    return 1 if scores[1].problems else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--rate", type=int, default=RATE, help="flights a second while both sinks write")
    parser.add_argument("--limit", type=int, default=DEPARTURES, help="flights in all, at most")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a micro-batch, at most")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=SEED, help="of the moments to kill at")
    parser.add_argument("--out", type=Path, default=run_dir() / "demo", help="folder of the picture and the table")
    return parser.parse_args(argv)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # A closed terminal ends it as Ctrl-C does: with nothing left behind.
    for wish in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(wish, _interrupt)
    sys.exit(main())

"""The command ``exactly-once demo``, which an entry point adds. Imported by every command, so it imports nothing that
takes time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from exactly_once_local.duel.departures import DEPARTURES
from exactly_once_local.run_folder import run_folder

#: Flights a second while both sinks are at work; both can follow on two cores.
RATE = 2_000

#: Flights of a batch, five seconds of them: enough to catch up soon after a kill.
BATCH = 10_000

#: Kills of each sink. Each takes another start of Spark, and starts take most of the time; three are no accident.
KILLS = 3

#: The year of the flights: any number would do, but the same one makes runs comparable.
SEED = 2013


def _above_zero(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def add_arguments(groups: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``demo``."""
    text = "send real flights through Spark's own sink and this one, kill both with kill -9, and count what arrived"
    demo: argparse.ArgumentParser = groups.add_parser(
        "demo",
        help=text,
        description=f"{text.capitalize()}. Starts a broker of its own; needs the extra demo.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--rate", type=_above_zero, default=RATE, help="flights a second while both sinks write")
    demo.add_argument("--limit", type=_above_zero, default=DEPARTURES, help="maximum number of flights")
    demo.add_argument("--batch", type=_above_zero, default=BATCH, help="maximum number of rows in a micro-batch")
    demo.add_argument("--kills", type=int, default=KILLS, help="kills that must strike both in the middle of a batch")
    demo.add_argument(
        "--seed",
        type=int,
        default=SEED,
        help="seed of the random time between a start and the search for a moment to kill",
    )
    demo.add_argument("--out", type=Path, default=run_folder() / "demo", help="folder for the picture and the table")
    demo.set_defaults(command="demo", main=_main)


def _main(args: argparse.Namespace) -> int:
    from exactly_once_local.duel.command import run

    return run(args)

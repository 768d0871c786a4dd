"""The command line of `make run`, `cluster` and `ui`: ``python -m platform_assets.cli run | cluster | ui``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

from rich.console import Console


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Returns
    -------
    int
        0 when all is right, 1 when something is not, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="platform_assets.cli", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="feed the flights, run the stream until it has caught up, report")
    commands.add_parser("cluster", help="run, from the beginning, with the tasks on a Spark standalone cluster")
    ui = commands.add_parser("ui", help="the same as a live stream, with Dagster's web server and daemon")
    ui.add_argument("--no-launch", action="store_true", help="start no job; launch them in the browser")
    args = parser.parse_args(argv)
    # A closed terminal and a service manager end it as Ctrl-C does: gracefully, without leftover processes. A script
    # that starts it in the background passes on an ignored SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(highlighter=None, soft_wrap=True)
    try:
        return _run(args, console)
    except KeyboardInterrupt:
        console.print("Stopped. The next start continues where this one ended.")
        return 130


def _run(args: argparse.Namespace, console: Console) -> int:
    from exactly_once.errors import ExactlyOnceError
    from platform_assets.local.environment import local_environment

    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    try:
        with local_environment("cluster" if args.command == "cluster" else "") as environment:
            where = "embedded broker" if environment.embedded else "brokers"
            console.print(f"Kafka: {where} at {environment.bootstrap_servers}")
            if args.command == "ui":
                from platform_assets.local.ui import serve

                return serve(environment, console, launch=not args.no_launch)
            if args.command == "cluster":
                from platform_assets.local.cluster import run_cluster

                return run_cluster(environment, console)
            from platform_assets.local.main_job import run_main_job

            return run_main_job(environment, console)
    except ExactlyOnceError as error:
        console.print(f"[bold red]{error.code}[/]{str(error).removeprefix(error.code)}")
        return 1


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

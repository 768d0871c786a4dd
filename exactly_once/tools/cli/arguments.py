"""The arguments of the command line, as a table of commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from exactly_once.errors import ExtraMissing
from exactly_once.tools.cli import commands, metrics, verify
from exactly_once.tools.cli.operations import Result, add_arguments
from exactly_once.tools.operation import operations
from exactly_once.tools.operation.model import Operation
from exactly_once.txn.leaders import OLDER_THAN_S

#: The entry-point group of other packages' commands. An entry point is a function that takes the subparsers, adds one,
#: and sets its default ``main``, which runs the command with the parsed arguments and returns the exit code.
COMMANDS_OF_OTHERS = "exactly_once.commands"

_ENVIRONMENT = (
    "The address of the cluster comes from --bootstrap-servers; otherwise from --command-config, a properties file "
    "as for Kafka's own tools; otherwise from KAFKA_BOOTSTRAP_SERVERS and, with security, the other KAFKA_* "
    "variables that docs/reference.md lists."
)
_CODES = "Exit codes: 0 all is well, 1 something is wrong or was refused, 2 wrong usage."
_LOCATION = "a path, or a URI (file, hdfs, s3, gs, abfs)"
_WITHOUT_JSON = ("metrics",)

#: A function that adds arguments to the parser of a command.
Adds = Callable[[Any], object]

#: Function that a command runs where no operation is chosen, what it does, and its arguments.
Command = tuple[Callable[[argparse.Namespace], Result] | None, str, *tuple[Adds, ...]]


def _argument(*names: str, **how: Any) -> Adds:
    return lambda parser: parser.add_argument(*names, **how)


def _seconds(text: str) -> float:
    if not (seconds := float(text)) >= 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return seconds


#: The commands that are no operations, by the words behind ``exactly-once``.
_COMMANDS: dict[str, Command] = {
    "transactions list": (
        commands.list_open,
        "list open transactions, each with its sink, its age and its verdict",
        _argument("--sink", metavar="S", help="only this sink; default: every sink on the cluster"),
        _argument("--all", action="store_true", help="also list transactional ids with no transaction under way"),
        _argument(
            "--hanging",
            action="store_true",
            help="also ask the partition leaders for transactions that no coordinator will ever end",
        ),
        _argument(
            "--older-than",
            metavar="SECONDS",
            type=_seconds,
            default=OLDER_THAN_S,
            help="hanging, and no coordinator knows the producer: only transactions at least this old, by the "
            "timestamp of the last record (default: %(default)g)",
        ),
    ),
    "transactions explain": (
        commands.explain_one,
        "explain one transaction, and what you may do about it",
        _argument("id", metavar="ID", help="a transactional id"),
    ),
    "checkpoint inspect": (
        commands.inspect_checkpoint,
        "show the progress of a stream, by its checkpoint",
        _argument("location", metavar="LOCATION", help=_LOCATION),
        _argument("--sink", metavar="S", help="compare with the commit log of this sink"),
    ),
    "log": (
        commands.list_log,
        "show the records of a sink's commit log and who wrote them, or undo one",
    ),
    "verify": (
        commands.verify_output,
        "check a sink's output from outside, and name everything that is not exactly-once",
        verify.add_arguments,
    ),
    "doctor": (
        commands.examine_all,
        "check this host, a checkpoint and the cluster; changes nothing",
        _argument("--sink", metavar="S", help="also check the rights, the commit log and the ids of this sink"),
        _argument("--checkpoint", metavar="LOCATION", help=f"also check this checkpoint: {_LOCATION}"),
        _argument(
            "--topic",
            metavar="T",
            action="append",
            default=[],
            help="also check this output topic; repeatable; with --sink, the topics of its decisions are always "
            "checked",
        ),
        _argument(
            "--transaction-timeout",
            metavar="MS",
            type=int,
            help="also check this kafka.transaction.timeout.ms; default: the timeout of the sink's transactions so "
            "far, or else the sink's default",
        ),
    ),
    "metrics": (
        commands.observe_sinks,
        "observe sinks, read-only, and serve their metrics to Prometheus until stopped",
        metrics.add_arguments,
    ),
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments; ``args.command`` names the command. Exits with 2 on wrong usage, with 0 after ``--help`` and
    ``--version``.
    """
    parser = build()
    args = parser.parse_args(argv)
    if args.json and args.command in _WITHOUT_JSON:
        parser.error(f"{args.command} does not take --json")
    return args


def build() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="exactly-once",
        description="Inspect the transactions and checkpoints of exactly-once sinks, and recover a sink.",
        epilog=f"{_ENVIRONMENT} {_CODES}",
    )
    parser.add_argument(
        "--version", action="version", version=f"exactly-once {sys.modules['exactly_once'].__version__}"
    )
    _everywhere(parser)
    # a flag that is not given behind the verb must not undo the one before it
    parser.set_defaults(bootstrap_servers=None, command_config=None, json=False)
    groups = parser.add_subparsers(required=True)
    verbs = {"": groups}
    rows = _COMMANDS | _operations()
    for words, (act, does, *arguments) in rows.items():
        group, _, name = words.rpartition(" ")
        if group not in verbs:
            names = [w.removeprefix(f"{group} ") for w in rows if w.startswith(f"{group} ")]
            of_group: argparse.ArgumentParser = groups.add_parser(group, help=", ".join(names))
            _everywhere(of_group)
            verbs[group] = of_group.add_subparsers(required=True, metavar=" | ".join(names))
        verb: argparse.ArgumentParser = verbs[group].add_parser(name, help=does, description=f"{does.capitalize()}.")
        _everywhere(verb, name not in _WITHOUT_JSON)
        for add in arguments:
            add(verb)
        verb.set_defaults(command=words, act=act)
    for entry in entry_points(group=COMMANDS_OF_OTHERS):
        entry.load()(groups)
    if "demo" not in groups.choices:
        demo = groups.add_parser("demo", help="needs the extra demo", prefix_chars="\0", add_help=False)
        demo.add_argument("arguments", nargs="*")  # options too: whatever is asked for, the answer is the same
        demo.set_defaults(command="demo", main=_name_the_extra_of_the_demo)
    groups.metavar = " | ".join(groups.choices)
    return parser


def _name_the_extra_of_the_demo(args: argparse.Namespace) -> int:
    raise ExtraMissing.of("the demo", "exactly-once-local", "demo")


def _operations() -> dict[str, Command]:
    """Return the commands that are operations, and those that show something where no operation is chosen."""
    by_verb: dict[str, list[Operation[Any]]] = {}
    for operation in operations():
        if operation.verb:
            by_verb.setdefault(operation.verb, []).append(operation)
    rows: dict[str, Command] = {}
    for verb, choices in by_verb.items():
        act, does, *_ = _COMMANDS.get(verb, (None, next((o.does for o in choices if o.does), "")))
        add = partial(add_arguments, choices=choices, required=act is None)
        rows[verb] = (act, does, add, partial(argparse.ArgumentParser.set_defaults, operations=choices))
    return rows


def _everywhere(parser: argparse.ArgumentParser, takes_json: bool = True) -> None:
    """Add the flags that name the cluster, and ``--json``: before and behind the verb."""
    parser.add_argument(
        "--bootstrap-servers",
        metavar="S",
        default=argparse.SUPPRESS,
        help="host:port,...; overrides the file and KAFKA_BOOTSTRAP_SERVERS",
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="a client.properties with bootstrap.servers, security.protocol, sasl.* and ssl.* (PEM files)",
    )
    if takes_json:
        does = "print one JSON document to standard output"
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=does)

"""The arguments of the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from exactly_once.ops.cli import metrics, verify
from exactly_once.txn.leaders import OLDER_THAN_S
from exactly_once_local.duel import arguments as demo

_ENVIRONMENT = (
    "The address of the cluster comes from --bootstrap-servers; otherwise from --command-config, a properties file "
    "as for Kafka's own tools; otherwise from KAFKA_BOOTSTRAP_SERVERS and, with security, the other KAFKA_* "
    "variables that docs/reference.md lists."
)
_CODES = "Exit codes: 0 all is well, 1 something is wrong or was refused, 2 wrong usage."
_LOCATION = "a path, or a URI (file, hdfs, s3, gs, abfs)"
_WITHOUT_JSON = ("metrics",)
_FORCE = "the phrase that the refusal prints, which states what will be lost, duplicated or stopped"


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
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="exactly-once",
        description="Inspect the transactions and checkpoints of exactly-once sinks, and recover a sink.",
        epilog=f"{_ENVIRONMENT} {_CODES}",
    )
    parser.add_argument("--version", action="version", version=f"exactly-once {_version()}")
    _everywhere(parser)
    _json(parser)
    # a flag that is not given behind the verb must not undo the one before it
    parser.set_defaults(bootstrap_servers=None, command_config=None, json=False)
    groups = parser.add_subparsers(
        dest="group",
        required=True,
        metavar="transactions | checkpoint | log | recover | verify | doctor | metrics | demo",
    )

    transactions = _group(groups, "transactions", "list, explain, commit, abort")
    verbs = transactions.add_subparsers(dest="verb", required=True, metavar="list | explain | commit | abort")
    listing = _verb(
        verbs, "list", "transactions.list", "list open transactions, each with its sink, its age and its verdict"
    )
    listing.add_argument("--sink", metavar="S", help="only this sink; default: every sink on the cluster")
    listing.add_argument("--all", action="store_true", help="also list transactional ids with no transaction under way")
    listing.add_argument(
        "--hanging",
        action="store_true",
        help="also ask the partition leaders for transactions that no coordinator will ever end",
    )
    _older_than(listing)
    explain = _verb(verbs, "explain", "transactions.explain", "explain one transaction, and what you may do about it")
    explain.add_argument("id", metavar="ID", help="a transactional id")
    _transaction_argument(_verb(verbs, "commit", "transactions.commit", "commit a transaction that is decided"))
    _transaction_argument(
        _verb(verbs, "abort", "transactions.abort", "abort an undecided transaction, by a recovery of its sink")
    )

    checkpoint = _group(groups, "checkpoint", "inspect, repair")
    checkpoint_verbs = checkpoint.add_subparsers(dest="verb", required=True, metavar="inspect | repair")
    inspect = _verb(
        checkpoint_verbs, "inspect", "checkpoint.inspect", "show the progress of a stream, by its checkpoint"
    )
    inspect.add_argument("location", metavar="LOCATION", help=_LOCATION)
    inspect.add_argument("--sink", metavar="S", help="compare with the commit log of this sink")
    repair = _verb(checkpoint_verbs, "repair", "checkpoint.repair", "show how to repair torn files, by the commit log")
    repair.add_argument("location", metavar="LOCATION", help=_LOCATION)
    repair.add_argument("--sink", metavar="S", required=True, help="the sink of the stream")
    repair.add_argument("--apply", action="store_true", help="make the changes, and keep a copy of every changed file")
    repair.add_argument(
        "--plan-anew",
        action="store_true",
        help="also make Spark plan the batch in flight again, unless it is decided; for use after EO-TOO-LONG",
    )
    repair.add_argument("--force", metavar="PHRASE", help=_FORCE)

    log = _verb(groups, "log", "log", "show the records of a sink's commit log and who wrote them, or undo one")
    log.add_argument("sink", metavar="SINK", help="a sink id")
    back = log.add_mutually_exclusive_group()
    back.add_argument(
        "--undo",
        metavar="OFFSET",
        type=int,
        help="undo this record: put the previous record of the same key in force again, for example after somebody "
        "forged this one",
    )
    back.add_argument(
        "--drop-foreign",
        action="store_true",
        help="drop every record under a key that no sink uses, for example after another program wrote to this "
        "topic by mistake",
    )
    log.add_argument("--force", metavar="PHRASE", help=_FORCE)

    recover = _verb(groups, "recover", "recover", "commit decided batches, abort undecided transactions, and verify")
    recover.add_argument("sink", metavar="SINK", help="a sink id")
    recover.add_argument("--dry-run", action="store_true", help="only show what a recovery would do")
    recover.add_argument("--force", metavar="PHRASE", help=_FORCE)

    verify.add_arguments(
        _verb(
            groups,
            "verify",
            "verify",
            "check a sink's output from outside, and name everything that is not exactly-once",
        )
    )

    doctor = _verb(groups, "doctor", "doctor", "check this host, a checkpoint and the cluster; changes nothing")
    doctor.add_argument("--sink", metavar="S", help="also check the rights, the commit log and the ids of this sink")
    doctor.add_argument("--checkpoint", metavar="LOCATION", help=f"also check this checkpoint: {_LOCATION}")
    doctor.add_argument(
        "--topic",
        metavar="T",
        action="append",
        default=[],
        help="also check this output topic; repeatable; with --sink, the topics of its decisions are always checked",
    )
    doctor.add_argument(
        "--transaction-timeout",
        metavar="MS",
        type=int,
        help="also check this kafka.transaction.timeout.ms; default: the timeout of the sink's transactions so far, or "
        "else the sink's default",
    )

    _everywhere(metrics.add_arguments(groups))
    demo.add_arguments(groups)
    return parser


def _version() -> str:
    """Return the version of the package, which names Spark's half and so is not imported from here."""
    return str(sys.modules["exactly_once"].__version__)


def _group(
    groups: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    group: argparse.ArgumentParser = groups.add_parser(name, help=text)
    _everywhere(group)
    _json(group)
    return group


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: str, text: str
) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=f"{text.capitalize()}.")
    _everywhere(verb)
    _json(verb)
    verb.set_defaults(command=command)
    return verb


def _everywhere(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the cluster: before and behind the verb."""
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


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print one JSON document to standard output",
    )


def _transaction_argument(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the transaction to end."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("id", metavar="ID", nargs="?", help="the transactional id of a part")
    which.add_argument(
        "--hanging", metavar="TOPIC-PARTITION@OFFSET", help="a hanging transaction, by its name in the list"
    )
    parser.add_argument("--force", metavar="PHRASE", help=_FORCE)
    _older_than(parser)


def _older_than(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--older-than",
        metavar="SECONDS",
        type=float,
        default=OLDER_THAN_S,
        help="hanging: only transactions at least this old, by the timestamp of the last record (default: %(default)g)",
    )

"""The arguments of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from exactly_once.kafka.leaders import OLDER_THAN_S
from exactly_once.ops.cli import metrics

_ENVIRONMENT = (
    "The cluster is taken from KAFKA_BOOTSTRAP_SERVERS and, with security, KAFKA_SECURITY_PROTOCOL, "
    "KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD, KAFKA_SSL_CA_LOCATION, "
    "KAFKA_SSL_IDENTITY_LOCATION, KAFKA_SSL_KEY_PASSWORD."
)
_CODES = "Exit codes: 0 all is well, 1 something is wrong or was refused, 2 wrong usage."
_LOCATION = "a path, or a URI (file, hdfs, s3, gs, abfs)"
_FORCE = "the phrase that the refusal prints, which states what will be lost, duplicated or stopped"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments; ``args.command`` names the command. Exits with 2 on wrong usage, with 0 after ``--help``."""
    return _parser().parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="exactly-once",
        description="Inspect the transactions and checkpoints of exactly-once sinks, and recover a sink.",
        epilog=f"{_ENVIRONMENT} {_CODES}",
    )
    parser.add_argument("--bootstrap-servers", metavar="S", help="host:port,...; instead of KAFKA_BOOTSTRAP_SERVERS")
    groups = parser.add_subparsers(dest="group", required=True, metavar="transactions | checkpoint | recover | metrics")

    transactions = groups.add_parser("transactions", help="list, explain, commit, abort")
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
    commit = _verb(verbs, "commit", "transactions.commit", "commit a transaction that is decided")
    commit.add_argument("id", metavar="ID", help="the transactional id of a part")
    commit.add_argument("--force", metavar="PHRASE", help=_FORCE)
    abort = _verb(verbs, "abort", "transactions.abort", "abort an undecided transaction, by a recovery of its sink")
    which = abort.add_mutually_exclusive_group(required=True)
    which.add_argument("id", metavar="ID", nargs="?", help="the transactional id of a part")
    which.add_argument(
        "--hanging", metavar="TOPIC-PARTITION@OFFSET", help="a hanging transaction, by its name in the list"
    )
    abort.add_argument("--force", metavar="PHRASE", help=_FORCE)
    _older_than(abort)

    checkpoint = groups.add_parser("checkpoint", help="inspect, repair")
    looks = checkpoint.add_subparsers(dest="verb", required=True, metavar="inspect | repair")
    inspect = _verb(looks, "inspect", "checkpoint.inspect", "show the progress of a stream, by its checkpoint")
    inspect.add_argument("location", metavar="LOCATION", help=_LOCATION)
    inspect.add_argument("--sink", metavar="S", help="compare with the commit log of this sink")
    mend = _verb(looks, "repair", "checkpoint.repair", "show how to repair torn files, by the commit log")
    mend.add_argument("location", metavar="LOCATION", help=_LOCATION)
    mend.add_argument("--sink", metavar="S", required=True, help="the sink of the stream")
    mend.add_argument("--apply", action="store_true", help="make the changes, and keep a copy of every changed file")
    mend.add_argument(
        "--plan-anew",
        action="store_true",
        help="also make Spark plan the batch in flight again, unless it is decided: the way out of EO-TOO-LONG",
    )
    mend.add_argument("--force", metavar="PHRASE", help=_FORCE)

    recover = _verb(groups, "recover", "recover", "commit decided batches, abort undecided transactions, and verify")
    recover.add_argument("sink", metavar="SINK", help="a sink id")
    recover.add_argument("--dry-run", action="store_true", help="only show what a recovery would do")
    recover.add_argument("--force", metavar="PHRASE", help=_FORCE)

    metrics.add_arguments(groups)
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: str, text: str
) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=f"{text.capitalize()}.")
    verb.add_argument("--json", action="store_true", help="print one JSON document to standard output")
    verb.set_defaults(command=command)
    return verb


def _older_than(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--older-than",
        metavar="SECONDS",
        type=float,
        default=OLDER_THAN_S,
        help="hanging: only transactions at least this old, by the timestamp of the last record (default: %(default)g)",
    )

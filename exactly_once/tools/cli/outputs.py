"""The flags that name a sink's outputs beside Kafka."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from exactly_once.errors import InvalidOption
from exactly_once.participant import Participant
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import KAFKA

#: The flags: what each takes, and its help.
_FLAGS = {
    "--files": ("NAME=URL", "also check the files that the participant NAME writes below URL; repeatable"),
    "--delta": (
        "NAME=URL",
        "also the Delta table at URL that the participant NAME writes; credentials come from the environment; "
        "repeatable",
    ),
    "--iceberg": (
        "NAME=CATALOG,TABLE",
        "also the Iceberg table that the participant NAME writes; CATALOG is a name in pyiceberg's configuration; "
        "repeatable",
    ),
    "--postgres": (
        "NAME=DSN,TABLE",
        "also check the table that the participant NAME writes; the role in the DSN needs SELECT on the table; "
        "give its password by PGPASSWORD, PGPASSFILE or a service file, never in the DSN; repeatable",
    ),
    "--shared": (
        "NAME",
        "other programs also write to this participant's table, or change its rows: do not report rows that no "
        "decision names; repeatable",
    ),
}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add ``--files``, ``--delta``, ``--iceberg``, ``--postgres`` and ``--shared``."""
    for flag, (takes, does) in _FLAGS.items():
        verb.add_argument(flag, metavar=takes, action="append", default=[], help=does)


def outputs_of(args: argparse.Namespace) -> list[Participant[Any]]:
    """Make the participants that the flags name; raise InvalidOption for a flag that is not written as its help says,
    holds a password or names an output twice, and ExtraMissing where the extra of an output is not installed.
    """
    outputs: list[Participant[Any]] = []
    for text in args.files:
        from exactly_once.outputs.files import FileParticipant

        outputs.append(FileParticipant(*_named(text, "--files", "archive=/data/orders")))
    for text in args.delta:
        from exactly_once.outputs.delta import DeltaParticipant

        outputs.append(DeltaParticipant(*_named(text, "--delta", "lake=s3://bucket/orders")))
    for text in args.iceberg:
        from exactly_once.outputs.iceberg import IcebergParticipant

        name, catalog, table = _of_table(text, "--iceberg", "ice=prod,shop.orders")
        outputs.append(IcebergParticipant(name, table, catalog))
    for text in args.postgres:
        from exactly_once.outputs.postgres import PostgresParticipant

        name, dsn, table = _of_table(text, "--postgres", "warehouse=host=db dbname=shop,orders")
        made = PostgresParticipant(name, dsn, table, shared=name in args.shared)
        _refuse_secrets(name, made.database.secrets)
        outputs.append(made)
    names = [output.name for output in outputs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidOption(f"the output {twice} is named twice", "Name each participant of the stream once")
    if unknown := sorted(set(args.shared) - {p.name for p in outputs if hasattr(p, "shared")}):
        raise InvalidOption(f"--shared {unknown[0]} names no output of --postgres", "Name a participant of --postgres")
    return outputs


def _refuse_secrets(name: str, secrets: Sequence[str]) -> None:
    """Refuse secrets: every user of the host may read a command line, and the shell keeps it."""
    if secrets:
        places = "PGPASSWORD, in the file that PGPASSFILE names, or in " if secrets == ("password",) else ""
        raise InvalidOption(
            f"the connection string of --postgres {name} holds {' and '.join(secrets)}: the list of processes and the "
            "shell's history show it",
            f"Put {' and '.join(secrets)} in {places}a service file (service=NAME), and leave it out here",
        )


def _named(text: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, place = text.partition("=")
    if not equals or not place or not name or set(name) & set(":/@"):  # not repeated here: it may hold a password
        raise InvalidOption(f"one {flag} does not begin with NAME=", f"Write the flag like {flag} '{example}'")
    return name, place


def _of_table(text: str, flag: str, example: str) -> tuple[str, str, str]:
    """Return the participant's name, the place of its table, and the table."""
    name, where = _named(text, flag, example)
    place, _, table = where.rpartition(",")
    if not table or not place:
        raise InvalidOption(f"{flag} {name}=... names no table", f"Write the flag like {flag} {shlex.quote(example)}")
    return name, place, table.strip()


def check_named(outputs: Sequence[Participant[Any]], log: LogState) -> None:
    """Raise InvalidOption for an output that no decision names: what is in it would count as unproven, and its parts as
    those of an output that was not given.
    """
    named = {name for decision in log.decisions for name in decision.counts}
    unknown = [output.name for output in outputs if output.name not in named]
    if named and unknown:
        others = ", ".join(sorted(named - {KAFKA}))
        way_out = f"Use the name of the stream's output: {others}" if others else "Leave it out"
        raise InvalidOption(f"no decision in the commit log names an output {unknown[0]!r}", way_out)

"""The cluster that a command works on: by its flags, by the file that they name, by the environment, in this order."""

from __future__ import annotations

import argparse
import shlex

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection, environment_options, unset
from exactly_once.tools.cli.client_properties import merge, read


def connection_of(args: argparse.Namespace) -> Connection:
    """Return the connection that ``args`` and the environment name; raise InvalidOption, with the variable or the line
    of the file, before anything connects.
    """
    file = read(args.command_config) if args.command_config else {}
    options = merge(environment_options(), file, args.bootstrap_servers)
    if not options.get("kafka.bootstrap.servers", "").strip():
        raise InvalidOption(
            f"{unset('KAFKA_BOOTSTRAP_SERVERS')} in the environment of this command, and no flag names a broker",
            "Set KAFKA_BOOTSTRAP_SERVERS, or --bootstrap-servers, to the brokers' host:port, separated by commas",
        )
    return Connection.from_options(options)


def program(args: argparse.Namespace) -> str:
    """Return the beginning of a command that the user can copy: it names the same cluster in the same way."""
    flags = {"--bootstrap-servers": args.bootstrap_servers, "--command-config": args.command_config}
    return "".join(["exactly-once", *(f" {flag} {shlex.quote(value)}" for flag, value in flags.items() if value)])

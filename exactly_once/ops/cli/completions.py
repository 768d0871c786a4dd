"""``exactly-once completions``: the script with which a shell completes commands, verbs, flags and paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from exactly_once.errors import ExtraMissing

#: Each was tried; shtab knows more.
SHELLS = ("bash", "zsh", "tcsh")

#: What a shell offers for an argument, by the name that the help gives it.
_PATHS = {"FILE": "file", "LOCATION": "directory", "OUT": "directory"}

_HOW = (
    "bash and tcsh: write the script to a file, and source the file in ~/.bashrc or ~/.tcshrc. zsh: write it to a file "
    "named _exactly-once in a folder of $fpath."
)


def add_arguments(groups: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``completions``."""
    text = "print the script with which a shell completes this command"
    completions: argparse.ArgumentParser = groups.add_parser(
        "completions", help=text, description=f"{text.capitalize()}. Needs the extra completions.", epilog=_HOW
    )
    completions.add_argument("shell", choices=SHELLS)
    completions.set_defaults(command="completions")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for one of :data:`SHELLS` that completes the arguments of ``parser``.

    Raises
    ------
    ExtraMissing
    """
    try:
        import shtab
    except ImportError as e:
        raise ExtraMissing(
            f"completions need the package {e.name!r}, which is not installed",
            "Install the extra: pip install 'pyspark-kafka-exactly-once[completions]'",
        ) from e
    for action in _actions(parser):
        if kind := _PATHS.get(str(action.metavar or action.dest.upper())):
            action.complete = shtab.CHOICE_FUNCTIONS[kind]  # type: ignore[attr-defined]  # how shtab is told
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every argument of a parser and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from _actions(subcommand)
        else:
            yield action

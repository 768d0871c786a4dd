"""The operations at the terminal: flags from their parameters, and one way to run and print them all."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from exactly_once.errors import InvalidOption
from exactly_once.tools.cli.cluster import connection_of, program
from exactly_once.tools.cli.tables import NAMED, show_line, show_text, show_whole, show_wrong
from exactly_once.tools.operation.model import Operation, OperationContext, OperationOutcome, ResultTable, parameters_of


@dataclass(frozen=True)
class Result:
    """The result of a command: for scripts, for people, and as an exit code."""

    document: Mapping[str, Any]
    show: Callable[[Console], None]
    code: int = 0


def add_arguments(verb: argparse.ArgumentParser, choices: Sequence[Operation[Any]], required: bool = True) -> None:
    """Add the flags of the operations behind one verb; of those that choose the operation, a person gives one, or none
    where that is not ``required``.
    """
    one_of = verb.add_mutually_exclusive_group(required=required) if len(choices) > 1 else None
    for operation in choices:
        add_parameters(verb, operation.parameters, one_of)


def add_parameters(verb: argparse.ArgumentParser, kind: type, one_of: Any = None) -> None:
    """Add the flags of a parameters class; those that choose the operation go into the group ``one_of``."""
    for one, how in parameters_of(kind):
        if how.flags and one.name not in {action.dest for action in verb._actions}:
            to = one_of if how.chooses and one_of is not None else verb
            names = how.flags if how.flags[0].startswith("-") else (one.name,)
            to.add_argument(*names, **_settings(one.name, one.default, one.type, how, one_of is not None))


def _settings(name: str, default: Any, kind: object, how: Any, several: bool) -> dict[str, Any]:
    keywords: dict[str, Any] = {"help": how.help.replace("%", "%%")}
    flag = how.flags[0].startswith("-")
    if flag:
        keywords["dest"] = name
    if isinstance(default, bool):
        return {**keywords, "action": "store_false" if default else "store_true"}
    if how.metavar:
        keywords["metavar"] = how.metavar
    if how.choices:
        keywords["choices"] = how.choices
    if isinstance(default, tuple):
        return {**keywords, "action": "append", "default": []}
    numbers = {"int": int, "float": float}
    keywords |= {"type": numbers[w]} if (w := str(kind).split(" ", maxsplit=1)[0]) in numbers else {}
    if default is MISSING:
        keywords |= {"required": True} if flag else {}
    elif flag or several:
        keywords["default"] = default
    if isinstance(default, int | float):
        keywords["help"] += " (default: %(default)g)"
    return {**keywords, "nargs": "?"} if several and not flag and default is not MISSING else keywords


def chosen(args: argparse.Namespace) -> Operation[Any] | None:
    """Return the operation that the arguments choose; None: they name a command that is none."""
    choices: Sequence[Operation[Any]] = getattr(args, "operations", ())
    if len(choices) == 1:
        return choices[0]
    for operation in choices:
        choosing = (one for one, how in parameters_of(operation.parameters) if how.chooses)
        if any(getattr(args, one.name) != one.default for one in choosing):
            return operation
    return None


def run(operation: Operation[Any], args: argparse.Namespace) -> Result:
    """Run an operation: examine it on a dry run, else apply it."""
    p = given(operation.parameters, args, operation.preset)
    context = OperationContext(connection_of(args))
    if getattr(p, "dry_run", False):
        examined = operation.examine(context, p)
        refused = examined.refusal
        document = {
            "dry_run": True,
            **examined.document,
            "refused": refused.what if refused else None,
            "force": getattr(refused, "phrase", None),
        }
        anew: dict[str, Any] = {"dry_run": False, **({"force": ""} if hasattr(p, "force") and refused else {})}
        command = operation.command(program(args), replace(p, **anew)) if examined.to_do else ""
        return Result(document, partial(show_plan, examined, command), 1 if refused or not examined.ok else 0)
    done = operation.apply(context, p)
    return Result(done.document, partial(show_outcome, done), 0 if done.ok else 1)


def given(kind: type, args: argparse.Namespace, preset: Mapping[str, Any]) -> Any:
    """Return an instance of a parameters class, as a person gave it; raise InvalidOption for a number out of range."""
    known = {one.name: how for one, how in parameters_of(kind) if how.flags}
    for name, how in known.items():
        number, flag = getattr(args, name), how.flags[0]
        if how.least is not None and number is not None and not number >= how.least:
            raise InvalidOption(f"{flag} {number:g} is out of range", f"Give {flag} {how.least:g} or more")
    return kind(**{**preset, **{name: getattr(args, name) for name in known}})


def show_plan(examined: OperationOutcome, command: str, console: Console) -> None:
    """Print the result of a dry run, and the command that does it."""
    refusal, phrase = examined.refusal, getattr(examined.refusal, "phrase", None)
    act = {"To do it": command}
    if refusal is not None:  # a script must not take the last line for what is to be
        examined = replace(examined, facts={n: v for n, v in examined.facts.items() if not isinstance(v, Mapping)})
        forced = f"{command} --force {shlex.quote(phrase)}" if phrase else ""
        act = {"Refused": refusal.what, "To force it": forced} if phrase else {"What to do": f"{refusal.way_out}."}
    lines = (f"  {how + ':':<14}{what}" for how, what in act.items() if what)
    show_outcome(examined, console, ["Nothing was changed.", *lines])


def show_outcome(outcome: OperationOutcome, console: Console, more: Sequence[str] = ()) -> None:
    """Print the sentence, the facts, what to do next and ``more``; a mapping comes last, for scripts that take that
    line.
    """
    show_line(outcome.sentence, console)
    for name, value in outcome.facts.items():
        title = name.replace("_", " ")
        if isinstance(value, ResultTable):
            _show_table(title, value, console)
        elif isinstance(value, bool):
            show_line(f"  {title}: {'yes' if value else 'no'}", console)
        elif value and not isinstance(value, Mapping) and str(value) not in outcome.sentence:
            show_line(f"  {title}: {value}", console)
    show_wrong(outcome.diagnoses, console)
    if outcome.remedy:
        show_text(outcome.remedy, console)
    for line in more:
        show_line(line, console)
    for value in outcome.facts.values():
        if isinstance(value, Mapping):
            show_whole(json.dumps(value, separators=(",", ":")), console)


def _show_table(title: str, table: ResultTable, console: Console) -> None:
    """Print the rows that there are, each name on a line of its own, to be copied; and how many more."""
    if table.rows:
        show_line(f"  {title}: {len(table.rows)}", console)
    for row in table.rows[:NAMED]:
        show_whole(f"    {row[0]}", console)
        rest = zip(table.columns[1:], row[1:], strict=True)
        cells = ", ".join(f"{column.replace('_', ' ')} {cell}" for column, cell in rest if cell not in ("", "0"))
        if cells:
            show_text(cells, console, "      ", "        ")
    if len(table.rows) > NAMED:
        show_line(f"    and {len(table.rows) - NAMED} more", console)

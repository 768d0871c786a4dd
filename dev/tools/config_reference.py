"""Write the generated parts of docs/reference.md: what a person may configure, from the models that Dagster checks, and
the commands, from their parser; and of docs/errors.md: the symptoms, from their register.

``python dev/tools/config_reference.py`` rewrites the files. A part begins with ``<!-- generated: NAME -->`` and ends
with ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import dagster as dg
from pydantic import BaseModel
from pydantic.fields import FieldInfo

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from dagster_exactly_once import notify  # noqa: E402
from dagster_exactly_once.backfill.resend import ResendParameters  # noqa: E402
from dagster_exactly_once.declare import config  # noqa: E402
from dagster_exactly_once.resources.checkpoints import CheckpointReader  # noqa: E402
from dagster_exactly_once.resources.kafka import KafkaResource  # noqa: E402
from dagster_exactly_once.resources.spark import SparkSessionResource  # noqa: E402
from dagster_exactly_once.resources.transactions import TransactionAdmin  # noqa: E402
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy  # noqa: E402
from exactly_once.tools.cli import arguments  # noqa: E402
from exactly_once.tools.diagnosis.registry import SYMPTOMS  # noqa: E402
from exactly_once.tools.diagnosis.thresholds import Thresholds  # noqa: E402
from exactly_once.tools.doctor.host import DOCTOR_CODES  # noqa: E402
from exactly_once.tools.operation import operations  # noqa: E402
from platform_assets.flights.asset import FeedConfig  # noqa: E402
from platform_assets.flights.streams import DelayByHourConfig  # noqa: E402

REFERENCE, ERRORS = PROJECT / "docs" / "reference.md", PROJECT / "docs" / "errors.md"
WIDTH = 120

#: Each part: a model, and what stands before the names of its fields. With a prefix, a field is a variable.
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "StreamConfig": (config.StreamConfig, ""),
    "Once": (config.Once, ""),
    "BackfillConfig": (config.BackfillConfig, ""),
    "ResendConfig": (config.config_of(ResendParameters), ""),
    "CloseConfig": (config.CloseConfig, ""),
    **{c.__name__: (c, "") for o in operations() if o.job for c in [config.config_of(o.parameters)]},
    "ReconcileConfig": (config.ReconcileConfig, ""),
    "PolicyConfig": (config.PolicyConfig, ""),
    "FreshnessConfig": (config.FreshnessConfig, ""),
    "SideTopicConfig": (config.SideTopicConfig, ""),
    "VerifyConfig": (config.VerifyConfig, ""),
    "RestartPolicy": (RestartPolicy, "EXACTLY_ONCE_RESTART_"),
    "WatchPolicy": (WatchPolicy, "EXACTLY_ONCE_WATCH_"),
    "SparkSessionResource": (SparkSessionResource, "EXACTLY_ONCE_SPARK_"),
    "KafkaResource": (KafkaResource, ""),
    "TransactionAdmin": (TransactionAdmin, ""),
    "CheckpointReader": (CheckpointReader, ""),
    "WebhookNotifier": (notify.WebhookNotifier, ""),
    "EmailNotifier": (notify.EmailNotifier, ""),
    "FeedConfig": (FeedConfig, ""),
    "DelayByHourConfig": (DelayByHourConfig, ""),
}

#: The part that lists the commands instead.
COMMANDS = "commands"

#: The part that lists the symptoms of a sink, and the one that lists the codes of the doctor.
SYMPTOM_CODES, DOCTOR = "symptoms", "doctor"

#: Where the facts that symptoms need are read: those of the inspection on every screen, others on some.
_SCREENS = {
    "": "Each look at the sink: `transactions list` and `explain`, `recover`, `doctor`, `verify`, `metrics`, Dagster",
    "hanging": "`transactions list --hanging`, `verify`, the sensor `exactly_once_stale_transactions`",
    "standing": "`verify`, the end of `recover`, the check `last_stable_offset_is_high_watermark`",
    "checkpoint": "`checkpoint inspect`, `doctor`, `verify`, the check `checkpoint_equals_commit_log`",
    "verify": "`verify`, the check `verified`",
    "stream": "Dagster, which knows the runs",
}

#: What "Flags of every command" explains.
EVERYWHERE = {"help", "version", "bootstrap_servers", "command_config", "json"}

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def main() -> int:
    """Rewrite the pages."""
    for page in (REFERENCE, ERRORS):
        page.write_text(generated(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def generated(text: str) -> str:
    """Return ``text`` with its parts as the models are now."""
    return _PART.sub(lambda m: f"{m[1]}\n{part(m[2])}\n{m[3]}", text)


def parts(text: str) -> list[str]:
    """Return the names of the parts of ``text``."""
    return [m[2] for m in _PART.finditer(text)]


def part(name: str) -> str:
    """Return the list of a model's own fields, or that of the commands, of the symptoms, of the doctor's codes."""
    if name == SYMPTOM_CODES:
        return "\n".join(f"{screens}:\n\n{''.join(_symptoms(needs))}" for needs, screens in _SCREENS.items())
    if name == DOCTOR:
        return "".join(_item(f"- `{code}`: {meaning}") for code, (_, meaning) in sorted(DOCTOR_CODES.items()))
    return "".join(_command(arguments.build(), {}) if name == COMMANDS else _items(*PARTS[name]))


def _symptoms(needs: str) -> Iterator[str]:
    for one in sorted(SYMPTOMS.values(), key=lambda s: -s.severity.rank):
        if one.needs == needs:
            limit = f", `{one.threshold}` {getattr(Thresholds(), one.threshold):,g}" if one.threshold else ""
            yield _item(f"- `{one.code}` ({one.severity.value}{limit}): {one.meaning}")


def _items(model: type[BaseModel], prefix: str) -> Iterator[str]:
    inherited = {name for base in model.__bases__ for name in getattr(base, "model_fields", {})}
    for name, field in model.model_fields.items():
        if name in inherited:
            continue
        shown = f"{prefix}{name.upper()}" if prefix else name
        said = " ".join((field.description or "").split()).replace("<", "\\<")  # Markdown would take it for a tag
        value = "" if " Default: " in said else _default(field)
        yield _item(f"- `{shown}`{f' ({value})' if value else ''}. {said}")


def _item(line: str, indent: str = "") -> str:
    broken = textwrap.fill(
        line,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{broken}\n"


def _command(parser: argparse.ArgumentParser, known: dict[str, str], text: str = "") -> Iterator[str]:
    """Yield the lines of a command and of those below it; ``known``: the arguments that earlier lines explain."""
    own = [a for a in parser._actions if a.dest not in EVERYWHERE]
    groups = [a for a in own if isinstance(a, argparse._SubParsersAction)]
    for group in groups:
        texts = {choice.dest: choice.help or "" for choice in group._choices_actions}
        for name, verb in group.choices.items():
            yield from _command(verb, known, texts[name])
    if not groups:
        yield _item(f"- `{parser.prog}`: {text}.")
        said = {_usage(action): _help(action) for action in own}
        again = [usage for usage in said if known.get(usage) == said[usage]]
        yield from (_item(f"- {usage}: {said[usage]}.", "  ") for usage in said if usage not in again)
        if again:
            yield _item(f"- {', '.join(again)}: as above.", "  ")
        known |= said


def _usage(action: argparse.Action) -> str:
    """Return an argument as a person types it."""
    value = f"{action.metavar or action.dest.upper()}"
    if not action.option_strings:
        return f"`{value}`"
    flag = action.option_strings[0] if action.nargs == 0 else f"{action.option_strings[0]} {value}"
    return f"`{flag}` (required)" if action.required else f"`{flag}`"


def _help(action: argparse.Action) -> str:
    said = (action.help or "") % {**vars(action), "prog": ""}
    shows = isinstance(action.default, int) and not isinstance(action.default, bool) and "default" not in said
    return f"{said} (default: {action.default})" if shows else said


def _default(field: FieldInfo) -> str:
    """Return a default as a person writes it; empty where there is nothing to say."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (int, float)):
        return f"{value:,g}" if value < 1_000_000 and value != int(value) else f"{int(value):,}"
    if isinstance(value, str) and value:
        return f"`{value}`"
    assert value is None or isinstance(value, (str, dict, dg.Config)), f"how does a person write {value!r}?"
    return ""


if __name__ == "__main__":
    sys.exit(main())

"""Write the generated parts of docs/reference.md: what a person may configure, from the models that Dagster checks.

``python tools/config_reference.py`` rewrites the file. A part begins with ``<!-- generated: NAME -->`` and ends with
``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import dagster as dg
from pydantic import BaseModel
from pydantic.fields import FieldInfo

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from dagster_exactly_once import config  # noqa: E402
from dagster_exactly_once.resources.spark import SparkSessionResource  # noqa: E402
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy  # noqa: E402

REFERENCE = PROJECT / "docs" / "reference.md"
WIDTH = 124

#: Each part: a model, and what stands before the names of its fields. With a prefix, a field is a variable.
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "StreamConfig": (config.StreamConfig, ""),
    "Once": (config.Once, ""),
    "BackfillConfig": (config.BackfillConfig, ""),
    "RecoveryConfig": (config.RecoveryConfig, ""),
    "RepairConfig": (config.RepairConfig, ""),
    "ReconcileConfig": (config.ReconcileConfig, ""),
    "PolicyConfig": (config.PolicyConfig, ""),
    "FreshnessConfig": (config.FreshnessConfig, ""),
    "RestartPolicy": (RestartPolicy, "EXACTLY_ONCE_RESTART_"),
    "WatchPolicy": (WatchPolicy, "EXACTLY_ONCE_WATCH_"),
    "SparkSessionResource": (SparkSessionResource, "EXACTLY_ONCE_SPARK_"),
}

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def main() -> int:
    """Rewrite the reference."""
    REFERENCE.write_text(generated(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def generated(text: str) -> str:
    """Return ``text`` with its parts as the models are now."""
    return _PART.sub(lambda m: f"{m[1]}\n{part(m[2])}\n{m[3]}", text)


def parts(text: str) -> list[str]:
    """Return the names of the parts of ``text``."""
    return [m[2] for m in _PART.finditer(text)]


def part(name: str) -> str:
    """Return the list of a model's fields."""
    model, prefix = PARTS[name]
    return "".join(_items(model, prefix))


def _items(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        shown = f"{prefix}{name.upper()}" if prefix else name
        value = _default(field)
        said = " ".join((field.description or "").split())
        line = f"- `{shown}`{f' ({value})' if value else ''}. {said}"
        yield textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


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

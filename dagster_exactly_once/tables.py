"""Facts and tables as the UI shows them, and days and ranges of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import dagster as dg

from exactly_once.tools.operation.model import ResultTable


def as_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Render the facts of an outcome: tables as tables, mappings as JSON."""
    return {name: _rendered(value) for name, value in facts.items()}


def _rendered(value: Any) -> Any:
    if isinstance(value, ResultTable):
        return table(value.columns, value.rows)
    return dg.MetadataValue.json(value) if isinstance(value, Mapping) else value


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> dg.TableMetadataValue:
    """Make a table of texts; Dagster needs its columns even without rows."""
    schema = dg.TableSchema([dg.TableColumn(c, "string") for c in columns])
    return dg.MetadataValue.table([dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows], schema)


def next_day(day: str) -> str:
    """Return the day behind one, both as ``2026-01-31``."""
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()


def ranges(names: Iterable[str], follows: Callable[[str, str], bool], shown: str = "{} to {}") -> str:
    """Return names in words: those that each ``follows`` the one before, by the first and the last, as ``shown``."""
    rows = list[list[str]]()
    for name in names:
        if rows and follows(rows[-1][-1], name):
            rows[-1].append(name)
        else:
            rows.append([name])
    return ", ".join(row[0] if len(row) == 1 else shown.format(row[0], row[-1]) for row in rows)

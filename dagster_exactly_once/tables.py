"""Tables about the transactions of a sink, as the UI shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.words import utc as when
from exactly_once.operation.model import ResultTable
from exactly_once.operation.tables import ROWS, open_transactions

__all__ = ["ROWS", "as_metadata", "open_table", "table", "when"]


def as_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Render the facts of an outcome: tables as tables, mappings as JSON."""
    return {name: _rendered(value) for name, value in facts.items()}


def _rendered(value: Any) -> Any:
    if isinstance(value, ResultTable):
        return table(value.columns, value.rows)
    return dg.MetadataValue.json(value) if isinstance(value, Mapping) else value


def open_table(found: Inspection) -> dg.TableMetadataValue:
    """Make the table of open transactions, oldest first, each with its age against its timeout."""
    shown = open_transactions(found)
    return table(shown.columns, shown.rows)


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> dg.TableMetadataValue:
    """Make a table of texts; Dagster needs its columns even without rows."""
    schema = dg.TableSchema([dg.TableColumn(c, "string") for c in columns])
    return dg.MetadataValue.table([dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows], schema)

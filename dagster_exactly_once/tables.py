"""Tables about the transactions of a sink, as the UI shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg

from exactly_once.inspection.findings import Inspection, OpenTransaction

#: Rows of each table; a sink has an open transaction for each part of its batch.
ROWS = 30

# Few and narrow columns: a table that is wider than the page pushes the ends of the sentences beside it out of sight.
_OPEN = ("transactional_id", "state", "verdict", "batch", "age", "partitions")


def open_table(found: Inspection) -> dg.TableMetadataValue:
    """Make the table of open transactions, oldest first, each with its age against its timeout."""
    return table(_OPEN, [_open_row(t) for t in found.open[:ROWS]])


def when(ms: int | None) -> str:
    """Format a moment for people, in UTC; empty for none."""
    return "" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> dg.TableMetadataValue:
    """Make a table of texts; Dagster needs its columns even without rows."""
    schema = dg.TableSchema([dg.TableColumn(c, "string") for c in columns])
    return dg.MetadataValue.table([dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows], schema)


def _open_row(t: OpenTransaction) -> tuple[str, ...]:
    of_timeout = f" of {t.timeout_s:.0f} s ({100 * t.age_s / t.timeout_s:.0f} %)" if t.timeout_s > 0 else " s"
    batch = "" if t.batch_id is None else str(t.batch_id)
    partitions = ", ".join(f"{topic}-{p}" for topic, p in t.partitions)
    return t.transactional_id, t.state, t.verdict, batch, f"{t.age_s:.0f}{of_timeout}", partitions

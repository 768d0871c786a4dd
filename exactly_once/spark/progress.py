"""The progress that Spark reports of a query: of its batches, and of a query that waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Progress = TypeVar("Progress", bound=Mapping[str, Any])


def ran(progress: Mapping[str, Any]) -> bool:
    """Return whether a progress is that of a batch that ran, with or without rows. A query that waits reports progress
    too, since Spark 3.5 under the id of the batch that will be the next: without ``addBatch`` among its durations.
    """
    return "addBatch" in progress["durationMs"]


def last_ended(progress: Mapping[str, Any]) -> int:
    """Return the id of the newest batch that had ended when Spark made a progress; -1 before the first one."""
    return int(progress["batchId"]) - (not ran(progress))


def of_batches(progress: Iterable[Progress]) -> list[Progress]:
    """Return the progress of the batches that ran, oldest first; where several have one id, the newest."""
    newest = {p["batchId"]: p for p in progress if ran(p)}
    return [newest[batch] for batch in sorted(newest)]

"""Batches that take too long for their transactions: the limit, the count in a row, and the ways out."""

from __future__ import annotations

import math

from exactly_once.errors import BatchTooLong, ExactlyOnceError, Expiring
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import WRITE

#: Share of the timeout that a decision must leave, so that the next driver has time to start and complete if this one
#: dies right after it.
SPARE = 0.3

#: Times in a row that the same batch is too long before the stream stops for a person. The first time may have been a
#: cold start or a slow broker; the second time, the batch is the cause.
TIMES = 2

#: Factor of a proposed timeout, so that the batch has room to be slower the next time.
_ROOM = 1.5


def limit_ms(timeout_ms: int) -> int:
    """Return the greatest age of a transaction at which its batch may be decided."""
    return int(timeout_ms * (1 - SPARE))


def times_too_long(state: LogState, batch: Batch) -> int:
    """Return how many executions of this very batch in a row were too long, according to the commit log."""
    last = state.aborted
    same = last is not None and (last.query_id, last.batch_id, last.offsets_digest) == (
        batch.query_id,
        batch.batch_id,
        batch.offsets_digest,
    )
    return last.too_long if last is not None and same else 0


def timeout_that_would_do(took_ms: float, timeout_ms: int) -> int:
    """Propose a transaction.timeout.ms for a batch that took at least ``took_ms``: whole seconds, and at least twice
    the current one, since a part that gave up early does not know how long it would have taken.
    """
    return max(2 * timeout_ms, math.ceil(_ROOM * took_ms / (1 - SPARE) / 1000) * 1000)


def too_long_error(
    sink_id: str,
    checkpoint: str,
    batch: Batch,
    why: str,
    took_ms: float,
    timeout_ms: int,
    before: int,
    longest_ms: int | None,
) -> ExactlyOnceError:
    """Make the error for a batch that is too old to be decided.

    Parameters
    ----------
    why : str
        The reason, as a clause.
    took_ms : float
        How long the batch has taken so far.
    before : int
        How many executions of it in a row, before this one, were too long.
    longest_ms : int or None
        The brokers' transaction.max.timeout.ms, if known.
    """
    write_id = batch.query_id.removeprefix(WRITE) if batch.query_id.startswith(WRITE) else ""
    name = f"write {write_id!r} of sink {sink_id!r}" if write_id else f"batch {batch.batch_id} of sink {sink_id!r}"
    again = "write" if write_id else "stream"
    limit = f"{limit_ms(timeout_ms) / 1000:g} s, {1 - SPARE:.0%} of kafka.transaction.timeout.ms={timeout_ms}"
    raise_it = _raise_timeout(timeout_that_would_do(took_ms, timeout_ms), longest_ms)
    if before + 1 < TIMES:
        return Expiring(
            f"{name} takes too long: {why}, but it must be decided within {limit}",
            f"Start the {again} again: this time it may be faster; if it takes too long again, {raise_it}"
            + ("" if write_id else "; a lower maxOffsetsPerTrigger affects later batches only: this one is planned"),
        )
    smaller = (
        "write fewer rows at a time, in several writes, each with its own write.id"
        if write_id
        else "lower maxOffsetsPerTrigger, make Spark plan the batch again with exactly-once checkpoint repair "
        f"{checkpoint} --sink {sink_id} --plan-anew (in Dagster: the job exactly_once_checkpoint_repair with "
        f"plan_anew), and "
        "start the stream"
    )
    return BatchTooLong(
        f"{name} took too long {before + 1} times in a row: {why}, but it must be decided within {limit}",
        f"Either {raise_it} and start the {again} again; or {smaller}",
    )


def _raise_timeout(wanted_ms: int, longest_ms: int | None) -> str:
    if longest_ms is not None and wanted_ms > longest_ms:
        return (
            f"raise transaction.max.timeout.ms on the brokers (now {longest_ms}) and kafka.transaction.timeout.ms to "
            f"{wanted_ms}"
        )
    known = f" (the brokers allow up to {longest_ms})" if longest_ms is not None else ""
    return f"raise kafka.transaction.timeout.ms to {wanted_ms}{known}"

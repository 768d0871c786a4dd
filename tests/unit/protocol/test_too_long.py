"""A batch that takes too long: healing once, a person's affair the second time, and advice that can help."""

from __future__ import annotations

import re
from typing import Any

import pytest

from exactly_once.coordinator.driver_state import DriverState
from exactly_once.errors import BatchTooLong, Expiring
from exactly_once.protocol.log_state import LogState, fold
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Entry
from exactly_once.protocol.too_long import limit_ms, timeout_that_would_do, times_too_long, too_long_error

BATCH = Batch("q", 7, "digest")
STATE = DriverState(4, Batch("q", 7, "digest"), 5, 10_000, 0, execution="e", planned_ms=1_000_000)


def error(before: int, longest_ms: int | None = 900_000, batch: Batch = BATCH) -> Any:
    why = "its part 3 has been writing for 7.5 s"
    return too_long_error("job", "/c", batch, why, 7_500, 10_000, before, longest_ms)


def test_the_second_time_in_a_row_is_no_restarts_affair() -> None:
    """Guards against sensors that restart a stream forever over a batch which is as long each time."""
    assert (type(error(0)), type(error(1)), type(error(2))) == (Expiring, BatchTooLong, BatchTooLong)
    assert error(0).restart_heals and not error(1).restart_heals
    assert "3 times" in error(2).what


def test_the_way_out_names_what_helps_the_batch_that_is_planned() -> None:
    """Guards against advice without effect: Spark has planned the batch, and a lower maxOffsetsPerTrigger changes only
    those after it.
    """
    first, second = error(0).way_out, error(1).way_out
    assert re.search(r"raise kafka\.transaction\.timeout\.ms to 20000 \(.* up to 900000\)", first)
    assert "affects later batches only" in first
    assert "raise kafka.transaction.timeout.ms to 20000" in second
    assert "exactly-once checkpoint repair /c --sink job --plan-anew" in second
    assert "(in Dagster: the job" in second and "exactly_once_checkpoint_repair" in second


def test_a_timeout_above_the_brokers_maximum_is_not_advised_alone() -> None:
    """Guards against a start that is refused with EO-TIMEOUT: the brokers' maximum has to go up with it."""
    assert "raise transaction.max.timeout.ms on the brokers (now 15000) and" in error(1, 15_000).way_out
    assert "brokers" not in error(1, None).way_out


def test_a_batch_write_is_advised_to_be_split_not_to_repair_a_checkpoint_that_it_has_not() -> None:
    """Guards against a way out that does not exist for df.write."""
    found = error(1, batch=Batch("write:day-1", 0, ""))
    assert "write 'day-1'" in found.what
    assert "checkpoint" not in found.way_out and re.search(r"several writes, .*own write\.id", found.way_out)


@pytest.mark.parametrize("took_ms", [7_000, 9_000, 30_000])
def test_the_advised_timeout_is_enough_for_what_the_batch_took(took_ms: int) -> None:
    """Guards against a value with which the same batch is too long again."""
    assert limit_ms(timeout_that_would_do(took_ms, 10_000)) > took_ms


def test_executions_count_while_the_same_batch_is_too_long_one_after_the_other() -> None:
    """Guards against a count that a shorter failure, or another batch, does not end."""

    def log(state: DriverState, after_ms: int) -> LogState:
        return fold([Entry(state.aborted(1_000_000 + after_ms), 0)])

    first = log(STATE, 7_000)
    assert first.aborted is not None and (first.aborted.took_ms, first.aborted.limit_ms) == (7_000, 7_000)
    assert times_too_long(first, BATCH) == 1
    again = DriverState(**{**vars_of(STATE), "too_long": 1})
    assert times_too_long(log(again, 8_000), BATCH) == 2
    assert times_too_long(log(again, 6_999), BATCH) == 0
    assert times_too_long(first, Batch("q", 8, "digest")) == 0
    assert times_too_long(first, Batch("q", 7, "planned anew")) == 0
    assert times_too_long(LogState(), BATCH) == 0


def vars_of(state: DriverState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in DriverState.__slots__}

"""A retired sink is refused by name, and its successor begins where the old query's input ended."""

from __future__ import annotations

import json

import pytest

from exactly_once.errors import SinkRetired
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Retired
from exactly_once.protocol.takeover import check_not_retired, ends_of, option

RETIRED = Retired(3, "orders-v2", "q", 41, {"orders": {"0": 120, "10": 7}}, 9)


def test_a_start_of_a_retired_sink_names_its_successor_in_one_sentence() -> None:
    """Duplicate: the old job is started again by habit, and writes what the new one has written."""
    with pytest.raises(SinkRetired) as refused:
        check_not_retired("orders", LogState(retired=RETIRED))
    assert refused.value.what == "sink 'orders' is retired: sink 'orders-v2' continues after its batch 41"
    assert "sink.id=orders-v2" in refused.value.way_out and not refused.value.restart_heals
    check_not_retired("orders", LogState())


@pytest.mark.parametrize(
    ("sizes", "topics", "expected"),
    [
        ({}, (), {"orders": {"0": 120, "10": 7}}),
        ({"orders": 11}, (), {"orders": {"0": 120, "10": 7}}),
        ({"orders": 13}, (), {"orders": {"0": 120, "10": 7, "11": -2, "12": -2}}),
        ({"orders": 11, "new": 2}, ("new",), {"new": {"0": -2, "1": -2}}),
        ({"orders": 11, "new": 2}, ("orders", "new"), {"new": {"0": -2, "1": -2}, "orders": {"0": 120, "10": 7}}),
    ],
    ids=["input elsewhere", "as it was", "more partitions", "another topic", "one more topic"],
)
def test_the_option_names_every_partition_that_spark_will_find(
    sizes: dict[str, int], topics: tuple[str, ...], expected: dict[str, dict[str, int]]
) -> None:
    """Loss: a partition that was added meanwhile has rows that the old query never read. Spark refuses an option that
    leaves it out. A partition in the middle that is missing is one that the old query was not assigned.
    """
    assert json.loads(option(ends_of(RETIRED), sizes, topics)) == expected

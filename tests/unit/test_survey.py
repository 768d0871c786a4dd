"""Which consumer groups wait: one that cannot be asked hides none of the others, and what is missing is said."""

from collections import namedtuple

import pytest
from kafka.errors import GroupAuthorizationFailedError

from exactly_once.deadline import Deadline
from exactly_once.kafka.survey import Survey

Position = namedtuple("Position", "offset")


class Cluster(Survey):
    """Consumer groups by name: their position on every partition, or None when they may not be asked."""

    def __init__(self, groups, budget_s=60.0):
        self.groups, self.asked, self._deadline = groups, 0, Deadline(budget_s)

    def _retry(self, coro):
        return sorted(self.groups)

    def _offsets(self, groups, wanted):
        self.asked += 1
        if any(self.groups[g] is None for g in groups):
            raise GroupAuthorizationFailedError
        return {g: dict.fromkeys(wanted, Position(self.groups[g])) for g in groups}


def test_groups_with_a_committed_offset_are_named():
    assert Cluster({"b": 0, "a": 7, "never": -1}).readers([("t", 0)], 60) == ({("t", 0): ("a", "b")}, True)


def test_no_partition_asks_nobody():
    assert Cluster({"a": 0}).readers([], 60) == ({}, True)


@pytest.mark.parametrize("others", [1, 150])
def test_a_group_that_cannot_be_asked_hides_no_other(others):
    """Mishap: "no group waits", since one of a hundred belongs to somebody else."""
    found = Cluster({"secret": None} | {f"g{n}": 0 for n in range(others)}).readers([("t", 0)], 60)
    assert len(found.groups["t", 0]) == others and not found.complete


def test_a_spent_budget_is_said():
    cluster = Cluster({"a": 0})
    assert cluster.readers([("t", 0)], 0.0) == ({("t", 0): ()}, False) and cluster.asked == 0

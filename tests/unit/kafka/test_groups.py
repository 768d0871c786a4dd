"""Which consumer groups wait: one that cannot be asked hides none of the others, and what is missing is said."""

import asyncio
from collections import namedtuple
from types import SimpleNamespace as NS

import pytest
from kafka.errors import GroupAuthorizationFailedError

from exactly_once.deadline import Deadline
from exactly_once.kafka.groups import find_readers, published_offsets

Position = namedtuple("Position", "offset")


class Cluster:
    """Consumer groups by name: their position on every partition, or None when they may not be asked. An Admin and its
    client in one."""

    def __init__(self, groups):
        self.groups, self.asked, self.client = groups, 0, self

    def renew(self, budget_s):
        self.deadline = Deadline(budget_s)
        return self

    def call(self, act):
        return [{"group_id": name} for name in self.groups]

    def list_group_offsets(self, wanted):
        self.asked += 1
        if any(self.groups[g] is None for g in wanted):
            raise GroupAuthorizationFailedError
        return {g: dict.fromkeys(partitions, Position(self.groups[g])) for g, partitions in wanted.items()}


class Answering:
    """An Admin whose group has these words beside its offsets, one on each partition."""

    def __init__(self, words):
        self.words = words

    def ask(self, question, begun=None):
        return asyncio.run(question())

    async def group_coordinator(self, group):
        return 1

    async def send(self, request, node):
        places = [NS(partition_index=n, committed_offset=1, metadata=w, error_code=0) for n, w in enumerate(self.words)]
        return NS(groups=[NS(error_code=0, topics=[NS(name="t", partitions=places)])])


def test_groups_with_a_committed_offset_are_named():
    assert find_readers(Cluster({"b": 0, "a": 7, "never": -1}), [("t", 0)], 60) == ({("t", 0): ("a", "b")}, True)


def test_no_partition_asks_nobody():
    assert find_readers(Cluster({"a": 0}), [], 60) == ({}, True)


@pytest.mark.parametrize("others", [1, 150])
def test_a_group_that_cannot_be_asked_hides_no_other(others):
    """Mishap: "no group waits", since one of a hundred belongs to somebody else."""
    found = find_readers(Cluster({"secret": None} | {f"g{n}": 0 for n in range(others)}), [("t", 0)], 60)
    assert len(found.groups["t", 0]) == others and not found.complete


def test_a_spent_budget_is_said():
    cluster = Cluster({"a": 0})
    assert find_readers(cluster, [("t", 0)], 0.0) == ({("t", 0): ()}, False) and cluster.asked == 0


def test_the_last_batch_of_each_query_is_read_from_the_words_beside_the_offsets():
    """Loss or a refusal for nothing: offsets of people, of earlier versions and of earlier queries stand there too."""
    words = ["q/7", "q/12\0", "older/40", "", None, "q/x", "q/1/2", "anything", "q/" + "9" * 30]
    cluster = Answering(words)
    assert published_offsets(cluster, "g").batches == {"q": 12, "older": 40}
    cluster.words = []
    assert published_offsets(cluster, "g").batches == {}

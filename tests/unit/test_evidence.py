"""What the partitions' leaders say of transactions, before a decision and after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.kafka.evidence import Fate, read_marker
from exactly_once.kafka.leaders import Beginnings, read_beginnings
from exactly_once.kafka.transactions import Description
from exactly_once.protocol.records import Place, PreparedTransaction

T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)
HANDLE = PreparedTransaction("eo:a", 7, 3, 0, 5, place=Place("t", 0, 100))


def described(name: str = "eo:a", producer_id: int = 7, partitions: tuple[tuple[str, int], ...] = (T0, T1)) -> Any:
    return Description(name, "Ongoing", producer_id, 3, 60_000, 0, partitions, 1)


def test_a_transaction_begins_on_the_first_of_its_partitions_that_was_asked() -> None:
    """Guards against the place of another transaction, by which a lost part is proven committed."""
    answers = {T0: {(8, 3): 5, (7, 2): 6}, T1: {(7, 3): 40}}
    assert read_beginnings([described(partitions=(T1,))], answers, 9).places == {"eo:a": Place("t", 1, 40)}
    answers[T0][7, 3] = 10
    assert read_beginnings([described()], answers, 9) == Beginnings({"eo:a": Place("t", 0, 10)}, {})


@pytest.mark.parametrize("there", [{}, {(7, 2): 10}, {(8, 3): 10}], ids=["nothing", "another epoch", "somebody else"])
def test_a_leader_that_was_asked_and_knows_no_such_transaction_is_believed(there: dict[tuple[int, int], int]) -> None:
    """The coordinator says Ongoing, and answers the commit with success: the rows of that partition would be lost in
    silence."""
    found = read_beginnings([described()], {T0: {(7, 3): 10}, T1: there}, 9)
    assert found.missing == {"eo:a": T1}


def test_a_leader_that_could_not_be_asked_says_nothing() -> None:
    """Guards against a stream that stops for want of a right that it could do without."""
    assert read_beginnings([described()], {}, 9, "no right") == Beginnings({}, {}, "no right")
    assert read_beginnings([described()], {T0: {(7, 3): 10}}, 9).missing == {}


def test_a_partition_beyond_those_that_were_asked_proves_nothing() -> None:
    """Of very many transactions only some partitions are asked: the rest was asked for others."""
    found = read_beginnings([described(partitions=(T0, T2))], {T0: {(7, 3): 10}, T2: {}}, 1)
    assert found.missing == {}


@dataclass
class Records:
    """A batch of records, or an end marker."""

    producer_id: int
    base_offset: int
    commit: bool | None = None
    producer_epoch: int = 3
    is_transactional: bool = True
    magic: int = 2
    left: list[Any] = field(default_factory=list)

    @property
    def is_control_batch(self) -> bool:
        return self.commit is not None

    def __next__(self) -> Any:
        return SimpleNamespace(commit=self.commit is True, abort=self.commit is False)


def batches(*found: Records) -> Iterator[Any]:
    return iter(found)


@pytest.mark.parametrize(("commit", "fate"), [(True, Fate.COMMITTED), (False, Fate.ABORTED)])
def test_the_first_end_marker_of_the_producer_tells_how_its_transaction_ended(commit: bool, fate: Fate) -> None:
    """Guards against the marker of somebody else, and against that of the producer's next transaction."""
    ended = [
        Records(7, 100),
        Records(9, 105),
        Records(9, 106, commit=not commit),
        Records(7, 107, commit=commit, producer_epoch=4),
        Records(7, 108),
        Records(7, 109, commit=not commit),
    ]
    assert read_marker(batches(*ended), HANDLE) is fate


def test_without_a_marker_the_transaction_is_open() -> None:
    """Its markers are on their way."""
    assert read_marker(batches(Records(7, 100), Records(9, 101, commit=True)), HANDLE) is Fate.OPEN


@pytest.mark.parametrize(
    "first",
    [Records(7, 101), Records(8, 100), Records(7, 100, producer_epoch=4), Records(7, 100, commit=True), None],
    ids=["compacted away", "somebody else's", "another transaction", "a marker", "nothing"],
)
def test_a_marker_proves_nothing_where_the_first_record_is_not_found(first: Records | None) -> None:
    """After a truncation or a topic that was made again, another transaction's end stands there."""
    found = [first] if first else []
    assert read_marker(batches(*found, Records(7, 110, commit=True)), HANDLE) is Fate.UNKNOWN

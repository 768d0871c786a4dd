"""What the records themselves say of how a transaction ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.protocol.records import Place, PreparedTransaction
from exactly_once.txn.evidence import TransactionOutcome, read_marker

HANDLE = PreparedTransaction("eo:a", 7, 3, 0, 5, place=Place("t", 0, 100))


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


@pytest.mark.parametrize(
    ("commit", "outcome"), [(True, TransactionOutcome.COMMITTED), (False, TransactionOutcome.ABORTED)]
)
def test_the_first_end_marker_of_the_producer_tells_how_its_transaction_ended(
    commit: bool, outcome: TransactionOutcome
) -> None:
    """Guards against the marker of somebody else, and against that of the producer's next transaction."""
    ended = [
        Records(7, 100),
        Records(9, 105),
        Records(9, 106, commit=not commit),
        Records(7, 107, commit=commit, producer_epoch=4),
        Records(7, 108),
        Records(7, 109, commit=not commit),
    ]
    assert read_marker(batches(*ended), HANDLE) is outcome


def test_without_a_marker_the_transaction_is_open() -> None:
    """Its markers are on their way."""
    assert read_marker(batches(Records(7, 100), Records(9, 101, commit=True)), HANDLE) is TransactionOutcome.OPEN


@pytest.mark.parametrize(
    "first",
    [Records(7, 101), Records(8, 100), Records(7, 100, producer_epoch=4), Records(7, 100, commit=True), None],
    ids=["compacted away", "somebody else's", "another transaction", "a marker", "nothing"],
)
def test_a_marker_proves_nothing_where_the_first_record_is_not_found(first: Records | None) -> None:
    """After a truncation or a topic that was made again, another transaction's end stands there."""
    found = [first] if first else []
    assert read_marker(batches(*found, Records(7, 110, commit=True)), HANDLE) is TransactionOutcome.UNKNOWN

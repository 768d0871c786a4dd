"""The findings of a comparison by origin: grouped by batch, counted, with the first places of each."""

from __future__ import annotations

import re

import numpy as np
import pytest

from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly
from exactly_once.tools.verify.by_origin import counts as c
from exactly_once.tools.verify.by_origin.content import Arrivals
from exactly_once.tools.verify.by_origin.tails import batch_of
from exactly_once.tools.verify.by_origin.tally import FOREIGN, FindingTally
from exactly_once.tools.verify.expected import BatchRange

IN, OUT = ("in", 0), ("out", 2)
RANGES = [BatchRange("batch 4", {IN: (10, 20)}), BatchRange("batch 5", {IN: (20, 30), ("in", 1): (0, 0)})]


def of(*offsets: int) -> np.ndarray:
    return np.array(offsets, np.int64)


def flags(*which: int) -> np.ndarray:
    return np.array(which, np.bool_)


def arrived(*offsets: int, at: int = 100) -> Arrivals:
    """Output records of these input records, from the output offset ``at`` on."""
    count = len(offsets)
    return Arrivals(OUT, IN, of(*offsets), of(*[-1] * count), np.arange(at, at + count), np.zeros(count, np.uint64))


@pytest.fixture
def tally() -> FindingTally:
    """Two batches of ten input records each are known; input before them is of older ones."""
    return FindingTally(RANGES)


def test_missing_records_are_grouped_by_their_batch(tally: FindingTally) -> None:
    """Loss: an operator must know which batch to write again, and which input."""
    tally.missing(Anomaly.LOST, IN, of(9, 10, 19, 20))
    found = tally.findings()
    assert [(f.batch, f.records, f.places) for f in found] == [
        ("batch 4", 2, ("in-0@10", "in-0@19")), ("batch 5", 1, ("in-0@20",)), ("", 1, ("in-0@9",)),
    ]  # fmt: skip
    assert re.fullmatch("input records of in-0 .*not in the outputs: 2", found[0].what) and found[0].transaction == ""
    tally.missing(Anomaly.LOST, IN, of(11, 30))
    assert [f.records for f in tally.findings()] == [3, 1, 2]
    tally.missing(Anomaly.LOST, ("in", 9), of(0))
    assert tally.findings()[-1].batch == "", "no batch has read of that partition"


def test_what_is_held_back_is_told_from_what_is_lost(tally: FindingTally) -> None:
    """Unseen called lost: somebody would write it a second time."""
    tally.missing(Anomaly.UNSEEN, IN, of(12))
    (found,) = tally.findings()
    assert found.anomaly is Anomaly.UNSEEN and "readers cannot reach yet: 1" in found.what


def test_only_the_first_places_are_kept_and_all_records_are_counted(tally: FindingTally) -> None:
    """Memory: a lost day has millions of records."""
    tally.missing(Anomaly.LOST, IN, np.arange(100, 5_100))
    tally.missing(Anomaly.LOST, IN, np.arange(6_000, 6_002))
    (found,) = tally.findings()
    assert found.records == 5_002 and found.what.endswith(": 5,002")
    assert found.places == tuple(f"in-0@{o}" for o in range(100, 100 + MOST_PLACES))


def test_duplicates_name_the_input_and_the_place_of_the_second_copy(tally: FindingTally) -> None:
    """Duplicate: what a person deletes must be the copy, not the first one."""
    tally.duplicates(arrived(10, 11, 25, 40), flags(1, 0, 1, 1))
    found = {f.batch: f for f in tally.findings()}
    assert {b: f.places for b, f in found.items()} == {
        "batch 4": ("in-0@10", "out-2@100..100"), "batch 5": ("in-0@25", "out-2@102..102"),
        "": ("in-0@40", "out-2@103..103"),
    }  # fmt: skip
    assert all(f.records == 1 and f.anomaly is Anomaly.DUPLICATE for f in found.values())
    tally.duplicates(arrived(12, 13), flags(0, 0))
    assert sum(f.records for f in tally.findings()) == 3
    many = FindingTally([])
    many.duplicates(arrived(*range(30)), flags(*[1] * 30))
    assert many.findings()[0].records == 30 and len(many.findings()[0].places) == MOST_PLACES


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (c.OF_NO_RECORD, "holds no record"), (c.OF_ABORTED, "aborted input"), (c.BEFORE, "first offset"),
        (c.BEYOND, "no decided batch has read"), (c.TOO_MANY, "fewer outputs"),
    ],
)  # fmt: skip
def test_phantoms_say_what_they_came_from(tally: FindingTally, kind: int, says: str) -> None:
    """Phantom: the way out is another one for each cause."""
    tally.phantoms(arrived(90, 91, 92), flags(0, 1, 1), kind)
    (found,) = tally.findings()
    assert found.anomaly is Anomaly.PHANTOM and says in found.what and found.batch == ""
    assert found.places == ("out-2@101..101", "in-0@91", "out-2@102..102") and found.records == 2
    tally.phantoms(arrived(93), flags(0), kind)
    assert tally.findings() == [found], "nothing was added"
    tally.phantoms(arrived(*range(40)), flags(*[1] * 40), kind)
    assert tally.findings()[0].records == 42 and len(tally.findings()[0].places) == MOST_PLACES


def test_foreign_records_where_nobody_else_may_write_are_phantoms(tally: FindingTally) -> None:
    """Phantom: without an origin, its only trace is its place."""
    tally.foreign(1_234, ["out-0@5"])
    (found,) = tally.findings()
    assert (found.anomaly, found.records, found.places) == (Anomaly.PHANTOM, 1_234, ("out-0@5",))
    assert found.what == f"{FOREIGN}: 1,234"


def test_a_record_out_of_order_is_named_with_the_one_before_it(tally: FindingTally) -> None:
    """Key reorder: both sides of the swap are needed to see whose fault it is."""
    tally.out_of_order(arrived(15, 12), 1, 15)
    (found,) = tally.findings()
    assert found.anomaly is Anomaly.KEY_REORDER and found.records == 1
    assert found.places == ("out-2@101..101", "in-0@12", "in-0@15")


def test_a_batch_with_and_without_outputs_is_torn(tally: FindingTally) -> None:
    """Torn batch: readers have a part of it. One that is lost whole, or not at all, is not torn."""
    tally.missing(Anomaly.LOST, IN, of(12, 13, 25))
    sums = {(10, 20): (10, 8), (20, 30): (9, 0)}
    tally.torn(lambda source, start, stop: sums[start, stop])
    (torn,) = (f for f in tally.findings() if f.anomaly is Anomaly.TORN_BATCH)
    assert (torn.batch, torn.records, torn.places) == ("batch 4", 2, ("in-0@10..19",))
    assert torn.what.startswith("8 of the 10 input records")


def test_a_batch_of_two_partitions_is_summed_and_empty_ranges_are_left_out() -> None:
    """A torn batch called whole: one partition has it, the other has not. An input without new records has no place."""
    other, empty = ("in", 1), ("in", 2)
    tally = FindingTally([BatchRange("batch 1", {IN: (0, 4), empty: (7, 7), other: (5, 6)})])
    tally.missing(Anomaly.LOST, other, of(5))
    tally.torn(lambda source, start, stop: {IN: (4, 4), other: (1, 0)}[source])
    torn = tally.findings()[-1]
    assert torn.anomaly is Anomaly.TORN_BATCH and torn.records == 1 and torn.places == ("in-0@0..3", "in-1@5..5")


def test_a_whole_batch_is_not_asked_for_and_not_torn(tally: FindingTally) -> None:
    """Time: to count a batch again that lacks nothing opens its packed blocks."""

    def never(source: object, start: int, stop: int) -> tuple[int, int]:
        raise AssertionError("asked")

    tally.missing(Anomaly.LOST, IN, of(1, 2))
    tally.torn(never)
    assert [f.anomaly for f in tally.findings()] == [Anomaly.LOST]


def test_a_torn_batch_names_no_more_places_than_a_person_looks_at() -> None:
    """A report of megabytes over a batch of a thousand input partitions."""
    tally = FindingTally([BatchRange("batch 1", {("in", p): (0, 2) for p in range(MOST_PLACES + 5)})])
    tally.missing(Anomaly.LOST, IN, of(0))
    tally.torn(lambda source, start, stop: (2, 1))
    assert len(tally.findings()[-1].places) == MOST_PLACES


def test_the_batch_of_a_record_is_the_one_whose_range_holds_it() -> None:
    """Output that retention removed would be called lost, or the other way round."""
    names = [batch.batch if (batch := batch_of(RANGES, IN, o)) else None for o in (9, 10, 19, 20, 29, 30)]
    assert names == [None, "batch 4", "batch 4", "batch 5", "batch 5", None]
    assert batch_of(RANGES, ("in", 1), 0) is None and batch_of(RANGES, ("in", 9), 0) is None


def test_findings_come_in_the_order_of_the_catalogue(tally: FindingTally) -> None:
    """A report in which losses stand behind a thousand lines about order."""
    tally.missing(Anomaly.LOST, IN, of(12))
    tally.out_of_order(arrived(15, 12), 1, 15)
    tally.torn(lambda source, start, stop: (10, 9))
    tally.duplicates(arrived(11), flags(1))
    assert [f.anomaly.value for f in tally.findings()] == ["lost", "duplicate", "torn batch", "key reorder"]

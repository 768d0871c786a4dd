"""Whose a record is and which day it belongs to: arithmetic that must leave no gap and no overlap."""

from datetime import date

import pytest

from dagster_exactly_once.backfill.days import (
    DayRecords,
    NoBoundary,
    before_stream,
    days_found,
    oldest_missing,
    start_ms,
    write_id,
)
from dagster_exactly_once.backfill.writes import of_a_write
from dagster_exactly_once.streaming.source import OffsetSpan, from_start, worth_reading
from dagster_exactly_once.tables import next_day
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.admin import Watermarks
from exactly_once_local.duel.departures import departures
from platform_assets.flights.streams import flight_delays


def marks(**by_partition):
    """p0=(low, high): nothing is under way."""
    return {int(name[1:]): Watermarks(low, high, high) for name, (low, high) in by_partition.items()}


def test_what_is_written_beside_a_stream_is_written_without_the_topic_of_its_whole_batches():
    """A backfill, or a job that sends again, that is refused (EO-OPTION) since its stream publishes whole batches."""
    assert of_a_write({"Sink.Progress.Topic": "progress", "kafka.linger.ms": "5"}) == {"kafka.linger.ms": "5"}


@pytest.mark.parametrize(
    ("began", "input_now", "share"),
    [
        pytest.param({0: 40}, marks(p0=(0, 100)), {0: OffsetSpan(0, 40)}, id="the stream began in the middle"),
        pytest.param({0: 0}, marks(p0=(0, 100)), {0: OffsetSpan(0, 0)}, id="the stream began at the earliest offset"),
        pytest.param({0: 100}, marks(p0=(0, 100)), {0: OffsetSpan(0, 100)}, id="the stream began at the end"),
        pytest.param({0: 0}, marks(p0=(0, 0)), {0: OffsetSpan(0, 0)}, id="an empty partition"),
        pytest.param({0: 40}, marks(p0=(20, 100)), {0: OffsetSpan(20, 40)}, id="retention took a part of the share"),
        pytest.param({0: 40}, marks(p0=(60, 100)), {0: OffsetSpan(60, 60)}, id="retention took the stream's start"),
        pytest.param(
            {0: 5},
            marks(p0=(0, 9), p1=(0, 9)),
            {0: OffsetSpan(0, 5), 1: OffsetSpan(0, 0)},
            id="a partition was added later",
        ),
    ],
)
def test_the_backfill_owns_every_offset_before_the_streams_start_and_none_after_it(began, input_now, share):
    """Guards against a record with two owners (written twice) or with none (lost)."""
    assert before_stream(began, input_now) == share


def test_a_backfill_before_the_streams_first_start_is_refused():
    """The stream might start at the earliest offset afterwards, and write everything again."""
    with pytest.raises(NoBoundary) as refused:
        before_stream({}, marks(p0=(0, 100)))
    assert refused.value.code == "EO-BACKFILL-EARLY" and "not started yet" in str(refused.value)
    assert "Nothing was written" in str(refused.value)


def test_a_checkpoint_of_another_topic_of_the_same_name_is_refused():
    """Its offsets mean nothing in the new topic: a backfill by them would write a part of the stream's share."""
    with pytest.raises(CheckpointUnusable, match="topic has been recreated"):
        before_stream({0: 101}, marks(p0=(0, 100)))


@pytest.mark.parametrize(
    ("share", "since", "left"),
    [
        pytest.param(OffsetSpan(0, 40), 10, OffsetSpan(10, 40), id="older input is passed over"),
        pytest.param(OffsetSpan(20, 40), 10, OffsetSpan(20, 40), id="not what retention took"),
        pytest.param(OffsetSpan(0, 40), 50, OffsetSpan(40, 40), id="all of it is the stream's"),
        pytest.param(OffsetSpan(0, 40), None, OffsetSpan(40, 40), id="nothing since then"),
        pytest.param(OffsetSpan(0, 0), 0, OffsetSpan(0, 0), id="an empty partition"),
    ],
)
def test_only_what_can_hold_the_days_is_read(share, since, left):
    assert worth_reading({0: share}, {0: since}) == {0: left}


def test_a_partition_that_the_brokers_do_not_name_has_nothing_to_read():
    assert worth_reading({0: OffsetSpan(0, 5), 1: OffsetSpan(0, 5)}, {0: 0}) == {
        0: OffsetSpan(0, 5),
        1: OffsetSpan(5, 5),
    }


def test_the_first_offsets_of_a_span_are_within_it():
    assert from_start({0: OffsetSpan(5, 9), 1: OffsetSpan(5, 100)}, 10) == {0: OffsetSpan(5, 9), 1: OffsetSpan(5, 15)}


def records_of_days(stamps, share):
    """Every record of one partition with the day that writes it, as the pass over the input and the writes see them."""
    found = {}
    for offset in range(share.start, share.end):
        found.setdefault(stamps[offset], []).append(offset)
    rows = [DayRecords(day, 0, offsets[0], offsets[-1], len(offsets)) for day, offsets in found.items()]
    days = ["2013-01-01", "2013-01-02", "2013-01-03"]
    return {
        day.key: [o for o in range(*day.spans[0]) if stamps[o] == day.key] for day in days_found(days, rows, {0: share})
    }, [day.records for day in days_found(days, rows, {0: share})]


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([1, 1, 1, 2, 2, 3, 3, 3], id="in order"),
        pytest.param([1, 2, 1, 3, 2, 1, 3, 2], id="out of order"),
        pytest.param([3, 3, 2, 2, 1, 1], id="backwards"),
        pytest.param([1, 1, 1], id="days without a record"),
        pytest.param([], id="an empty partition"),
    ],
)
@pytest.mark.parametrize("began", [0, 1, 3, 8])
def test_days_are_disjoint_and_together_the_whole_share_whatever_the_order(order, began):
    """Guards against a late record that is written with two days, or with none."""
    stamps = [f"2013-01-0{day}" for day in order]
    share = OffsetSpan(0, min(began, len(stamps)))
    by_day, counts = records_of_days(stamps, share)
    assert sorted(offset for offsets in by_day.values() for offset in offsets) == list(range(*share))
    assert counts == [len(offsets) for offsets in by_day.values()]


def test_a_day_without_records_in_a_partition_reads_nothing_of_it():
    """Its empty span lies at the share's end, which retention reaches last."""
    found = [DayRecords("2013-01-01", 0, 3, 7, 4)]
    (day,) = days_found(["2013-01-01"], found, {0: OffsetSpan(0, 40), 1: OffsetSpan(0, 50)})
    assert day.spans == {0: OffsetSpan(3, 8), 1: OffsetSpan(50, 50)}
    assert day.records == 4


def test_a_day_begins_at_midnight_utc_and_ends_where_the_next_one_begins():
    assert start_ms("1970-01-02") == 24 * 3600 * 1000
    assert next_day("2013-02-28") == "2013-03-01" and next_day("2013-12-31") == "2014-01-01"
    assert write_id("a", "2013-01-01") != write_id("a", "2013-01-02") != write_id("b", "2013-01-02")


def test_every_departure_belongs_to_one_of_the_days():
    """The last New York evening of 2013 lies in 2014 by UTC: with the days of 2013 alone it would never be filled."""
    declared = flight_delays.backfill
    scheduled = departures()["scheduled"]
    assert (scheduled.min().date(), scheduled.max().date()) == tuple(
        date.fromisoformat(day) for day in (declared.start, declared.end)
    )


@pytest.mark.parametrize(
    ("have", "most", "asked"),
    [
        ([], 2, ["a", "b"]),
        (["a"], 2, ["b", "c"]),
        (["b"], 3, ["a"]),  # a range is one piece: what is there is not asked for again
        (["a", "c"], 3, ["b"]),
        (["a", "b", "c", "d"], 3, []),
        (["a", "b", "c"], 3, ["d"]),
    ],
)
def test_the_oldest_missing_days_are_asked_for_in_one_piece(have, most, asked):
    assert oldest_missing(["a", "b", "c", "d"], have, most) == asked

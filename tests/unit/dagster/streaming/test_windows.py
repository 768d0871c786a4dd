"""Reports of a stream: by the commit log, each batch once, under names that plots can rely on."""

import pytest
from pyspark.sql import Row

from dagster_exactly_once.streaming.windows import ReportWindow, committed_batches
from exactly_once.protocol.records import Count, Decision, PreparedTransaction


def decision(batch_id, records=100, decided_ms=1_000):
    handles = tuple(PreparedTransaction(f"eo:s:1:{p}:0.0", p, 0, p, records // 2) for p in range(2))
    return Decision("q", batch_id, 1, handles, "digest", 5, decided_ms)


def progress(batch_id, rejected=0, batch_ms=500):
    return {
        "batchId": batch_id,
        "durationMs": {"triggerExecution": batch_ms, "addBatch": batch_ms - 50},
        "observedMetrics": {"input": Row(rejected=rejected, note="not a number")},
    }


def test_a_batch_counts_what_was_decided_and_knows_its_durations():
    (batch,) = committed_batches([decision(4)], {4: 1_060}, {4: progress(4, rejected=3)})
    assert (batch.records, batch.transactions, batch.observed) == (100, 2, {"rejected": 3})
    assert (batch.batch_ms, batch.sink_ms, batch.commit_ms) == (500, 450, 60)


def test_what_a_query_observes_is_read_from_rows_and_from_the_dictionaries_of_spark_3_5():
    """The first report of a stream with an observation ended its run there."""
    observed = {"input": {"rejected": 3, "note": "not a number"}}
    (batch,) = committed_batches([decision(4)], {4: 1_060}, {4: {**progress(4), "observedMetrics": observed}})
    assert batch.observed == {"rejected": 3}


def test_a_batch_that_spark_has_not_marked_is_left_for_the_next_window():
    assert [b.batch_id for b in committed_batches([decision(4), decision(5)], {4: 1_060}, {})] == [4]


def test_a_drained_batch_counts_once_and_its_downtime_is_no_commit_duration():
    """Decided by a run that crashed, marked by the next one an hour later."""
    (batch,) = committed_batches([decision(4)], {4: 3_601_000}, {4: progress(4)})
    assert batch.records == 100 and batch.commit_ms is None


def test_rows_behind_the_watermark_are_counted_over_all_stateful_operators():
    """They are in no window: a number that nobody sees would be a silent loss."""
    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}]
    told = {4: {**progress(4), "stateOperators": operators}, 5: progress(5)}
    window = ReportWindow(committed_batches([decision(4), decision(5)], {4: 1_060, 5: 1_060}, told), 0, 0, 1.0)
    assert [b.late for b in window.batches] == [3, 0] and window.late == 3


def test_a_batch_without_progress_has_no_durations():
    (batch,) = committed_batches([decision(4)], {4: 1_060}, {})
    assert (batch.batch_ms, batch.commit_ms, batch.observed) == (None, None, {})


def test_a_window_counts_each_output_also_by_batches_that_the_log_no_longer_has():
    """The log keeps 64 batches, a report of an old run covers a quarter of an hour: only the sum knows the others."""
    before, after = Count({"a": 100, "b": 10}, 5), Count({"a": 1_100, "b": 40, "c": 7}, 5)
    window = ReportWindow(committed_batches([decision(900)], {900: 1_060}, {}), 0, 0, 1.0, before, after)
    assert window.records_of(("a", "b", "c")) == [1_000, 30, 7] and window.records == 1_037
    assert window.totals_of(("a", "b", "c")) == [1_100, 40, 7]
    assert window.totals_of(("a", "b")) == [1_107, 40]  # what is no declared output, or untold, is the first one's


def test_the_first_window_of_a_stream_and_one_of_a_log_that_was_made_again_count_all():
    after = Count({"a": 1_100}, 5)
    for before in (None, Count({"a": 2_000}, 4)):
        assert ReportWindow((), 0, 0, 1.0, before, after).records == 1_100
    assert ReportWindow((), 0, 0, 1.0).totals_of(("a",)) is None


def test_a_batch_that_the_log_no_longer_has_is_still_a_batch_of_its_window():
    """What Spark observed in it counts too: dropped rows that nobody sees would be a silent loss."""
    told = {n: {**progress(n, rejected=1), "stateOperators": [{"numRowsDroppedByWatermark": 1}]} for n in range(100)}
    window = ReportWindow(committed_batches([decision(99)], {98: 1_040, 99: 1_060}, told), 0, 0, 1.0)
    assert (len(window.batches), window.late, window.observed) == (100, 100, {"rejected": 100})
    assert [b.records for b in window.batches[-2:]] == [None, 100]


def test_an_event_of_a_batch_that_spark_has_not_marked_is_left_too():
    assert committed_batches([], {}, {5: progress(5)}) == ()


PLOTS = {"records_committed", "records_per_second", "lag_offsets", "batches", "open_transactions"}
DURATIONS = {"batch_duration_ms", "sink_duration_ms", "commit_duration_ms"}


@pytest.mark.parametrize("decisions", [[], [decision(1), decision(2)]])
def test_plots_have_the_same_names_and_are_numbers_whatever_happened(decisions):
    """Dagster draws a line for each name; a name or type that comes and goes tears it. Only a duration that no batch
    had is left out: as a zero it would be a false point.
    """
    marked = {d.batch_id: d.decided_ms + 20 for d in decisions}
    told = {d.batch_id: progress(d.batch_id) for d in decisions}
    window = ReportWindow(committed_batches(decisions, marked, told), lag=7, open_transactions=1, seconds=10.0)
    plots = window.plots(window.records)
    assert plots.keys() == (PLOTS | DURATIONS if decisions else PLOTS)
    assert all(isinstance(value, int | float) for value in plots.values())
    assert (plots["lag_offsets"], plots["open_transactions"]) == (7, 1)


def test_a_window_is_told_in_one_line():
    marked = {1: 1_020, 2: 1_040}
    window = ReportWindow(
        committed_batches([decision(1), decision(2)], marked, {2: progress(2, rejected=5)}), 0, 0, 10.0
    )
    assert window.sentence() == (
        "batch 2: 200 records committed in 10 s by 2 batches (5 rejected); 0 offsets behind, 0 open transactions"
    )
    counted = ReportWindow(window.batches, 0, 0, 10.0, Count({"a": 1_000}, 5), Count({"a": 1_200}, 5))
    assert ", 1,200 in all; 0 offsets behind" in counted.sentence()
    assert "no batch" in ReportWindow((), 12, 0, 10.0).sentence()

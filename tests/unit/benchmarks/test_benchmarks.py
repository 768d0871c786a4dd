"""The benchmark without Kafka and Spark: generators, the steady part of a run, JSON lines, ratios, tables, the plot."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import bars, report, streams
from benchmarks.common import OURS, SPARKS
from benchmarks.compare import BATCH, BATCHES, batch_of
from benchmarks.distance import FarRun, ratios, round_trips
from benchmarks.flink_sql import STATEMENTS, script
from benchmarks.monitor import Sample, end_of, steady
from benchmarks.results import Conditions, Lines, Throughput, read
from benchmarks.torn import bursts
from benchmarks.workloads import JSON, LEAST_AMOUNT, PASS, WORKLOADS, bid_records, text_records
from testkit.far import Asked, one_after_the_other

CONDITIONS = Conditions("Linux", 2, 8.0, "4.2.0", "4.3.1", "4.2.0", None, None, None, "17", "3.11")


def run(system: str, number: int, rate: float, **changed: Any) -> Throughput:
    fields: dict[str, Any] = {
        "measurement": "compare",
        "round": number,
        "system": system,
        "workload": PASS,
        "records": 1000,
        "record_bytes": 100,
        "partitions_in": 4,
        "partitions_out": 4,
        "batch_records": 200,
        "interval_s": None,
        "visible_offsets": 1000,
        "counted": None,
        "seconds": 2.0,
        "rate": rate / 2,
        "steady_share": 0.7,
        "steady_seconds": 1.0,
        "steady_rate": rate,
        "processor_us": {"JVM": 3.0, "all": 3.0},
        "steady_processor_us": {"JVM": 2.0, "all": 2.0},
        "peak_mib": {"JVM": 900.0, "broker": 300.0},
    }
    return Throughput(**{**fields, **changed})


def lines_of(folder: Path, *runs: Any) -> list[dict[str, Any]]:
    lines = Lines(folder / "benchmark.jsonl", CONDITIONS)
    for r in runs:
        lines.add(r)
    return read(lines.path)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "flights"])
def test_the_same_call_gives_the_same_records(name: str) -> None:
    """All systems read the same input, in every run of the benchmark."""
    records = WORKLOADS[name].records
    assert list(records(50, 100)) == list(records(50, 100))
    assert len(list(records(50, 100))) == 50


def test_a_text_record_has_the_wanted_size_with_its_key() -> None:
    assert all(len(k or b"") + len(v) == 1000 for k, v in text_records(20, 1000))


def test_the_expected_output_of_json_is_what_the_filter_lets_through() -> None:
    for count in (1, 499, 501, 1000, 1777, 2500):
        amounts = [json.loads(v)["amount"] for _, v in WORKLOADS[JSON].records(count, 100)]
        assert WORKLOADS[JSON].expected(count) == sum(a >= LEAST_AMOUNT for a in amounts)


def test_bids_come_in_the_order_of_their_event_time() -> None:
    times = [json.loads(v)["dateTime"] for _, v in bid_records(30_000, 0)]
    assert times == sorted(times)
    assert times[0] == "2026-01-01T00:00:00.000Z" and times[-1] == "2026-01-01T00:00:02.999Z"


def test_a_run_has_at_least_five_batches_and_none_is_larger_than_fits() -> None:
    assert batch_of(1000) == 1000 // BATCHES
    assert batch_of(100_000_000) == BATCH


def sample(at: float, visible: int, cpu: float = 0.0) -> Sample:
    return Sample(at, visible, {"JVM": cpu}, {"JVM": 1.0})


def test_the_steady_part_begins_with_two_fifths_of_the_output_and_ends_with_all_of_it() -> None:
    """The start, up to 5 s, and the time after the end, from 9 s on, do not count."""
    samples = [sample(0, 0), sample(5, 40, 3), sample(7, 70, 5), sample(9, 100, 8), sample(12, 100, 9)]
    part = steady(samples)
    assert part is not None
    assert (part.share, part.seconds, part.cpu_s) == (pytest.approx(0.6), 4, {"JVM": 5})
    end = end_of(samples)
    assert end is not None and end.at == 9


def test_a_sink_that_shows_rows_and_one_that_shows_batches_are_equally_fast_when_their_batches_are() -> None:
    """Guards against a figure that counts a pause between batches more often for one of the two. A batch takes 2 s, of
    which the last half second is a pause.
    """
    looks = [tenth / 10 for tenth in range(101)]
    batches = [sample(at, int(at / 2) * 20) for at in looks]
    rows = [sample(at, int(at / 2) * 20 + round(min(at % 2, 1.5) / 1.5 * 20)) for at in looks]
    shown = [part.share / part.seconds for part in map(steady, (batches, rows)) if part is not None]
    assert shown[0] == pytest.approx(0.1) and shown[1] == pytest.approx(0.1, rel=0.02)


def test_output_that_became_visible_at_once_has_no_steady_part() -> None:
    assert steady([sample(0, 0), sample(5, 100)]) is None
    assert end_of([sample(0, 0), sample(5, 0)]) is None


def test_a_part_of_a_batch_is_visible_between_the_looks_that_bound_it() -> None:
    """Batches begin at 0, 4, 8 and 12 s. The second is seen in part at 4.0 and 4.2 s and whole at 4.3 s; the third is
    seen at once. The outer two do not count.
    """
    looks = [(-1.0, 0), (0.0, 5), (0.1, 10), (3.9, 10), (4.0, 15), (4.2, 18), (4.3, 20), (7.9, 20), (8.0, 30)]
    second, third = bursts([*looks, (11.9, 30), (12.0, 35)])
    assert (second.least_s, second.most_s, second.offsets) == (pytest.approx(0.2), pytest.approx(0.4), 10)
    assert (third.least_s, third.most_s, third.offsets) == (0.0, pytest.approx(0.1), 10)


def test_a_ratio_compares_runs_of_the_same_round(tmp_path: Path) -> None:
    """Rounds differ when other work on the machine does; and a round that lacks one of both does not count."""
    runs = [run(OURS, 1, 100), run(SPARKS, 1, 50), run(OURS, 2, 200), run(SPARKS, 2, 150), run(SPARKS, 3, 1)]
    lines = lines_of(tmp_path, *runs)
    ours, theirs = ([line for line in lines if line["system"] == s] for s in (OURS, SPARKS))
    assert report.ratio(theirs, ours) == (0.625, 0.5, 0.75)
    assert report.ratio(theirs, []) is None


def test_every_line_has_its_kind_and_the_conditions(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, run(OURS, 1, 100))
    assert line["kind"] == "throughput" and line["conditions"]["compression"] == "lz4"


def test_the_table_has_a_row_for_each_system_with_the_memory_of_its_processes(tmp_path: Path) -> None:
    text = report.markdown(lines_of(tmp_path, run(OURS, 1, 100), run(SPARKS, 1, 50)))
    assert "| pass-through | exactly once | 100 | 1 | 2.00 | 900 (JVM 900) |" in text
    assert "| pass-through | Spark's own sink | 50 | 0.50 (0.50 to 0.50) | 2.00 | 900 (JVM 900) |" in text


def test_the_plot_is_well_formed_and_says_its_figures() -> None:
    picture = bars.draw({PASS: {OURS: 1234.0, SPARKS: 617.0}})
    root = ET.fromstring(picture)
    assert "1,234" in root.attrib["aria-label"]
    widths = [float(r.attrib["width"]) for r in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert all(a == pytest.approx(2 * b) for a, b in pairwise(widths))


@pytest.mark.parametrize("workload", STATEMENTS)
def test_only_exactly_once_names_transactional_ids(workload: str) -> None:
    """Flink refuses the prefix of ids that are not used, and exactly once without it."""
    made = {g: script(workload, "b:9092", "in", "out", g, "run-1") for g in ("exactly-once", "at-least-once")}
    assert "'sink.transactional-id-prefix' = 'run-1'" in made["exactly-once"]
    assert "transactional-id" not in made["at-least-once"]
    assert "'scan.bounded.mode' = 'latest-offset'" in made["exactly-once"]


def test_only_batches_of_the_measured_time_count_for_the_streams_of_one_driver() -> None:
    """Batches of the start, and of the time in which the queries are stopped, are others."""
    began = datetime(2026, 11, 27, 3, 0, tzinfo=UTC)

    def batch(second: float, took_ms: int, rows: int = 100) -> dict[str, Any]:
        moment = (began + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")
        return {"timestamp": moment, "durationMs": {"triggerExecution": took_ms}, "numInputRows": rows}

    progress = [batch(-0.1, 50), batch(0, 700), batch(1, 800), batch(2, 0, rows=0), batch(9.5, 900), batch(10.1, 4000)]
    query: Any = SimpleNamespace(recentProgress=progress)
    assert streams._within(query, began.timestamp(), began.timestamp() + 10) == [700, 800]


def test_a_query_that_waits_for_a_batch_has_not_ended_it() -> None:
    """What is measured from there on would begin with the batch, not behind it."""
    steps = {"triggerExecution": 3}
    query: Any = SimpleNamespace(lastProgress={"batchId": 4, "durationMs": steps})
    assert streams._last(query) == 3
    query.lastProgress = {"batchId": 4, "durationMs": {**steps, "addBatch": 2}}
    assert streams._last(query) == 4


def far_run(system: str, number: int, round_trip_ms: float, batch_ms: float) -> FarRun:
    return FarRun(system, number, round_trip_ms, round_trip_ms + 1, 60, batch_ms, batch_ms - 20, {})


def test_round_trips_are_the_slope_of_each_round_and_ratios_pair_the_runs_of_a_round() -> None:
    """False screen: a slow hour between two rounds is taken for distance, or for this sink."""
    runs = [
        *(far_run(SPARKS, n, ms, 80 * n + 5 * ms) for n in (1, 2) for ms in (0, 2, 10)),
        *(far_run(OURS, n, ms, 100 * n + 9 * ms) for n in (1, 2) for ms in (0, 2, 10)),
    ]
    assert [round(slope, 6) for slope in round_trips(runs, OURS)] == [9, 9]
    assert ratios(runs, OURS, 10) == [190 / 130, 290 / 210]
    assert round_trips(runs[:1], SPARKS) == []


def test_requests_at_once_are_one_wait() -> None:
    """False screen: requests are counted, and not what somebody waits for."""
    asked = [Asked("c", api, 1, sent, answered) for api, sent, answered in (("a", 0, 2), ("b", 1, 3), ("c", 2, 4))]
    assert [a.api for a in one_after_the_other(reversed(asked))] == ["a", "c"]

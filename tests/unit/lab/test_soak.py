"""The soak and the side by side without Kafka and Spark: pieces, sums, plans, the picture, times, the table."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from faultlab.flink import newest_checkpoint, statements
from faultlab.side_by_side import (
    ComparedLine,
    WatchSample,
    failed_starts,
    first_visible,
    longest_hold,
    longest_silence,
    table,
)
from faultlab.side_by_side import append as append_line
from faultlab.side_by_side import read as read_lines
from faultlab.soak import picture
from faultlab.soak.piece import LONGER, SoakSettings, plan_of
from faultlab.soak.results import Piece, Rest, SoakSample, append, begins_at, read, total

SAMPLES = (
    SoakSample(5.0, visible=100, driver=400, threads=80),
    SoakSample(10.0),
    SoakSample(15.0, visible=300, driver=500, threads=90),
)


def piece(number: int, **changed: object) -> Piece:
    fields: dict[str, object] = {
        "number": number,
        "seed": 100 + number,
        "rate": 3000,
        "seconds": 1800.0,
        "records": 1000,
        "batches": 10,
        "starts": 2,
        "faults": {"kill-driver": 1},
        "input_end": {0: 1000 * (number + 1)},
        "output_end": {0: 1010 * (number + 1)},
        "rest": Rest(5, 40, 66, 60),
        "samples": SAMPLES,
        "history": ((7.5, "kill-driver"),),
    }
    return Piece(**(fields | changed))  # type: ignore[arg-type]


# -- pieces


def test_a_piece_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A partition that comes back as text would make the next piece judge its whole input again, as duplicates."""
    path = tmp_path / "soak.jsonl"
    assert read(path) == []
    for one in (piece(0), piece(1, anomalies={"lost": 2}, examples={"lost": ["a", "b"]})):
        append(path, one)
    assert read(path) == [piece(0), piece(1, anomalies={"lost": 2}, examples={"lost": ["a", "b"]})]


def test_a_piece_begins_where_the_last_judged_one_ended() -> None:
    """What a piece wrote that could not be drained must be judged by the next one, or a loss in it is never seen."""
    assert begins_at([]) == ({}, {})
    assert begins_at([piece(0)]) == ({0: 1000}, {0: 1010})
    broken = piece(1, failed="Stopped: not drained", input_end={}, output_end={})
    assert begins_at([piece(0), broken]) == ({0: 1000}, {0: 1010})


def test_a_piece_that_was_not_judged_is_not_clean() -> None:
    """A soak whose stream never came back must not end green for want of anomalies."""
    assert piece(0).clean
    assert not piece(0, failed="Stopped").clean
    assert not piece(0, anomalies={"duplicate": 1}).clean


def test_the_sum_of_a_soak_names_every_kind_of_fault_and_anomaly() -> None:
    """An anomaly of one piece among a hundred must not drown in the sum."""
    summed = total([piece(0), piece(1, faults={"kill-driver": 2, "net-cut": 1}, anomalies={"lost": 3}), piece(2)])
    assert (summed.pieces, summed.hours, summed.records, summed.batches, summed.starts) == (3, 1.5, 3000, 30, 6)
    assert summed.faults == {"kill-driver": 4, "net-cut": 1}
    assert "5 faults (kill-driver 4, net-cut 1)" in str(summed) and str(summed).endswith("3 lost")
    assert str(total([piece(0)])).endswith("no anomaly")
    assert "1 piece(s) were judged" in str(total([piece(0, failed="Stopped")]))
    assert total([piece(0), piece(3)]).failed == 2


def test_each_piece_has_a_plan_of_its_own_that_fills_it() -> None:
    """With one plan for all, hours of a soak try what its first minutes tried."""
    settings = SoakSettings(240.0, 3000, 7, Path())
    first, again, second = (plan_of(settings, n, ["kill-driver", "net-cut"], ["decided"]) for n in (0, 0, 1))
    assert first == again != second
    moments = [step.at_s for step in first.steps]
    assert moments == sorted(moments) and max(moments) <= 240.0
    assert min(b - a for a, b in pairwise(moments)) >= LONGER * 0.25


def test_the_picture_shows_each_fault_and_breaks_where_a_process_was_away() -> None:
    """A line drawn through a killed driver would show memory that nobody had."""
    drawn = picture.draw([piece(0), piece(1)])
    root = ET.fromstring(drawn)
    names = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert names == ["kill-driver", "kill-driver"]
    assert "no anomaly" in root.attrib["aria-label"]
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 2 * 2 * 2 + 1  # two figures are known, in two pieces, each with a gap; and the ids


# -- the side by side


def test_readers_are_held_from_the_look_that_saw_them_stand_to_the_one_that_saw_them_move() -> None:
    """Records behind an open transaction are the price of exactly once: too short a time would hide it."""
    ends = [(10, 10), (10, 15), (10, 20), (20, 25), (25, 25)]
    samples = [WatchSample(float(at), {0: end, 1: (0, 0)}) for at, end in enumerate(ends)]
    assert longest_hold(samples) == 2.0
    assert longest_hold([WatchSample(0.0, {0: (5, 9)}), WatchSample(30.0, {0: (5, 9)})]) == 30.0
    assert longest_hold([]) == 0.0


def test_a_start_that_failed_is_an_end_of_a_stream_that_did_not_run() -> None:
    """The table would charge a system's failed starts to the faults, or its deaths to its starts."""
    assert failed_starts([]) == failed_starts(["started", "do", "ended", "started"]) == 0
    assert failed_starts(["ended", "started", "ended", "ended", "do", "ended", "started"]) == 3


def test_silence_begins_with_the_first_visible_record_and_the_start_has_a_figure_of_its_own() -> None:
    """A cold start would be charged to the faults, which come after it; or a late first record to nothing at all."""
    looks = ((0, 0), (8, 0), (9, 5), (10, 9), (13, 9), (14, 12), (30, 12))
    samples = [WatchSample(float(at), {0: (visible, visible)}) for at, visible in looks]
    assert first_visible(samples, 2.0) == 7.0
    assert longest_silence(samples) == 4.0
    assert first_visible([], 0.0) == longest_silence([]) == 0.0


def test_the_table_sums_up_a_system_and_shows_its_worst_time(tmp_path: Path) -> None:
    """A mean over the seeds would make one bad run look like none."""
    path = tmp_path / "some" / "compare.jsonl"
    for line in (
        ComparedLine("ours", 1, 60, 600_000, {"kill-driver": 2}, 1000, held_s=4.5, starts=3, first_s=6.5),
        ComparedLine("Spark's own sink", 1, 60, None, {"kill-driver": 2}, 1000, {"duplicate": 70}, silent_s=9.0),
        ComparedLine(
            "ours", 2, 60, 600_000, {"kill-driver": 1}, 900, held_s=2.5, starts=2, first_s=7.5, failed="EO-FENCED"
        ),
    ):
        append_line(path, line)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table(read_lines(path)).splitlines()]
    assert rows[0] == ["", "ours", "Spark's own sink"]
    by = {row[0]: row[1:] for row in rows[2:]}
    assert by["seeds"] == ["1, 2", "1"]
    assert by["records in"] == ["1,900", "1,000"]
    assert by["duplicated"] == ["0", "70"] and by["lost"] == ["0", "0"]
    assert by["starts by the operator"] == ["5", "0"]
    assert [by[name] for name in by if name.startswith("readers stood still")] == [["4.5", "0.0"]]
    assert [by[name] for name in by if "first visible record" in name] == [["7.5", "0.0"]]
    assert by["runs without an end"] == ["1", "0"]


# -- Flink


def test_flink_goes_on_from_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    """From an older one it would repeat, and that would be our operator's fault and not Flink's."""
    assert newest_checkpoint(tmp_path) is None
    for number, text in ((7, "complete"), (8, "complete"), (9, "")):
        made = tmp_path / "job" / f"chk-{number}" / "_metadata"
        made.parent.mkdir(parents=True)
        made.write_text(text)
    assert newest_checkpoint(tmp_path) == tmp_path / "job" / "chk-8"


@pytest.mark.parametrize("checkpoint", [None, Path("/somewhere/chk-8")])
def test_flink_reads_committed_records_and_writes_exactly_once(checkpoint: Path | None) -> None:
    """With another setting the comparison would blame Flink for what it was not asked to do."""
    sql = statements("in-1", "out-1", "broker:1", "flink-1", 60_000, checkpoint)
    assert "'properties.isolation.level' = 'read_committed'" in sql
    assert "'sink.delivery-guarantee' = 'exactly-once'" in sql
    assert "'properties.transaction.timeout.ms' = '60000'" in sql
    assert ("execution.state-recovery.path" in sql) == (checkpoint is not None)

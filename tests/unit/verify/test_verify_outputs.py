"""``verify`` on files: each anomaly is planted in a real folder and found by its name, and what is right is clean."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactly_once.errors import Unfinished
from exactly_once.outputs.files import FileParticipant
from exactly_once.participant import Participant, PartName
from exactly_once.protocol.records import PreparedPart
from exactly_once.tools.verify.by_log.judge import NO_DIGEST, UNDER_WAY
from testkit.planted_outputs import LOG, SINK, Planted


@pytest.fixture(params=["jsonl", "parquet"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Planted:
    made = Planted(FileParticipant("archive", str(tmp_path / "archive"), request.param))
    for number in range(3):
        made.batch(number)
    return made


def published(tmp_path: Path, batch: int, output: str = "archive") -> list[Path]:
    return sorted((tmp_path / output).glob(f"batch={batch:020d}-*/*"))


def test_published_batches_are_proven_by_number_and_digest(sink: Planted) -> None:
    """A false alarm over a healthy output, or a part that nobody has compared."""
    verdict = sink.verdict()
    assert verdict.findings == [] and not verdict.unproven
    assert (verdict.batches, verdict.parts, verdict.records) == (3, 6, 18)
    assert sink.verdict(since=2).parts == 2


def test_a_deleted_file_is_lost_and_its_batch_torn(sink: Planted, tmp_path: Path) -> None:
    published(tmp_path, 1)[0].unlink()
    assert sink.anomalies() == {"lost": 1, "torn batch": 1, "outcome lie": 1}
    lost = sink.finding("lost")
    assert lost.batch == "batch 1" and lost.records == 3 and "part 0 of batch 1 in archive" in lost.what
    assert sink.verdict().batches == 2


def test_a_truncated_file_is_found(sink: Planted, tmp_path: Path) -> None:
    path = published(tmp_path, 1)[1]
    path.write_bytes(path.read_bytes()[:-5])
    assert sink.anomalies() == {"lost": 1}
    said = sink.finding("lost")
    assert "of its 3 rows" in said.what and said.places == (str(path),)
    assert "the middle of row 3" in said.what or "read as Parquet" in said.what


def test_a_changed_row_is_corrupt(tmp_path: Path) -> None:
    """The number of rows and the size of the file are as decided."""
    sink = Planted(FileParticipant("archive", str(tmp_path / "archive")))
    sink.batch(0)
    path = published(tmp_path, 0)[0]
    path.write_bytes(path.read_bytes().replace(b'"w1"', b'"w7"'))
    assert sink.anomalies() == {"corrupt": 1}
    assert "not have the contents" in sink.finding("corrupt").what


def test_a_file_among_those_of_a_batch_is_a_phantom(sink: Planted, tmp_path: Path) -> None:
    """Engines read every file of the directory, whatever its name; hidden ones they skip."""
    one = published(tmp_path, 2)[0]
    (one.parent / "_SUCCESS").touch()
    assert sink.anomalies() == {}
    shutil.copy(one, one.parent / f"by-hand{one.suffix}")
    assert sink.anomalies() == {"phantom": 1}
    assert sink.finding("phantom").records == 3 and "by-hand" in sink.finding("phantom").what


def test_a_batch_that_is_published_twice_is_a_duplicate(sink: Planted, tmp_path: Path) -> None:
    directory = published(tmp_path, 1)[0].parent
    shutil.copytree(directory, directory.parent / f"{directory.name[:-4]}0000")
    assert sink.anomalies() == {"duplicate": 2}
    assert [len(f.places) for f in sink.verdict().findings] == [2, 2]


def test_a_part_that_stays_staged_after_its_completed_mark_is_unseen(sink: Planted) -> None:
    """A sink that marks what it has not committed."""
    sink.batch(3, commit=False)
    assert sink.anomalies() == {"unseen": 2, "outcome lie": 1}


def test_a_batch_on_its_way_is_no_anomaly(sink: Planted) -> None:
    """A false alarm over every live stream: one batch is decided and not committed, the next one prepared."""
    (archive,) = sink.outputs
    sink.batch(3, commit=False, mark=False)
    sink.part(archive, 4, 0)
    verdict = sink.verdict()
    assert verdict.findings == [] and verdict.batches == 3
    assert verdict.unproven == {UNDER_WAY: 2}


def test_the_first_batch_on_its_way_is_no_anomaly_and_no_error(tmp_path: Path) -> None:
    """A false alarm, or a traceback, over every stream that has just begun: a part is prepared, and nothing is decided
    yet.
    """
    sink = Planted(FileParticipant("archive", str(tmp_path / "archive")))
    sink.part(sink.outputs[0], 0, 0)
    verdict = sink.verdict()
    assert verdict.findings == [] and verdict.batches == verdict.parts == 0


def test_what_a_superseded_driver_left_staged_lingers(sink: Planted) -> None:
    """The sweep of the new driver has not found it."""
    (archive,) = sink.outputs
    left = sink.part(archive, 3, 0)
    assert sink.anomalies() == {}
    sink.claim(4)
    assert sink.anomalies() == {"lingering": 1}
    assert sink.finding("lingering").transaction == left.name


def test_files_of_other_sinks_outputs_and_logs_are_not_this_ones(sink: Planted, tmp_path: Path) -> None:
    """A false alarm where several sinks share a folder, or a deleted log's files remain."""
    (archive,) = sink.outputs
    other = FileParticipant("other", str(tmp_path / "archive"))
    mine = PartName(SINK, 3, 1, 0, "0.1", LOG, "archive")
    for name, output in (
        (mine._replace(sink_id="orders-late"), archive),
        (mine._replace(participant="other"), other),
        (mine._replace(incarnation="a" * 10), archive),
        (mine._replace(token=2, batch_id=1), archive),  # of a query whose decisions the log may have dropped
    ):
        writer = output.begin(name)
        writer.write(pa.RecordBatch.from_pylist([{"id": 1}]))
        handle = writer.pre_commit()
        assert isinstance(handle, PreparedPart) and output.commit([handle]) == []
    assert sink.anomalies() == {}


def test_files_of_earlier_versions_are_counted_and_parquet_is_compared(tmp_path: Path) -> None:
    """Their handles have no checksum: JSON lines do not keep the columns' types, Parquet does."""
    outputs = [
        FileParticipant("lines", str(tmp_path / "l")),
        FileParticipant("columns", str(tmp_path / "c"), "parquet"),
    ]
    sink = Planted(*outputs)
    decision = sink.batch(0)
    old = [
        replace(h, data={k: v for k, v in h.data.items() if k != "checksum"})
        for h in decision.handles
        if isinstance(h, PreparedPart)
    ]
    sink.records[sink.records.index(decision)] = replace(decision, handles=tuple(old))
    verdict = sink.verdict()
    assert verdict.findings == [] and verdict.parts == 2
    assert verdict.unproven == {NO_DIGEST: 2}


def test_another_folder_than_that_of_the_stream_proves_no_loss(sink: Planted, tmp_path: Path) -> None:
    """A wrong URL or a disk that is not mounted must not look like lost data."""
    verdict = sink.verdict(FileParticipant("archive", str(tmp_path / "elsewhere")))
    assert verdict.findings == [] and verdict.batches == 0
    assert list(verdict.unproven.values()) == [6] and "is not the directory" in next(iter(verdict.unproven))


class Mute(FileParticipant):
    """An output of one's own without the optional method; or one that does not answer."""

    def __init__(self, url: str, error: Exception | None = None):
        super().__init__("archive", url)
        self.error = error

    def found(self, sink_id: str, handles: Any) -> Any:
        if self.error is not None:
            raise self.error
        return Participant.found(self, sink_id, handles)


@pytest.mark.parametrize(
    ("error", "says"),
    [(None, "cannot report what its readers see"), (Unfinished("the disk hangs", "Wait"), "EO-UNFINISHED")],
)
def test_an_output_that_cannot_tell_is_unproven(
    sink: Planted, error: Exception | None, says: str, tmp_path: Path
) -> None:
    """Silence must count neither as proof nor as loss."""
    verdict = sink.verdict(Mute(str(tmp_path), error))
    assert verdict.findings == [] and verdict.batches == verdict.parts == 0
    assert list(verdict.unproven.values()) == [6] and says in next(iter(verdict.unproven))


def test_the_digest_of_parquet_comes_back_for_the_types_that_spark_has(tmp_path: Path) -> None:
    """A type that Parquet gives back in another form would make a right file of an earlier version unproven."""
    instant = dt.datetime(2026, 7, 8, 9, 10, 11, 123456)
    values: dict[str, tuple[pa.DataType, Any]] = {
        "i8": (pa.int8(), -1), "i64": (pa.int64(), 2**60), "f32": (pa.float32(), 0.1), "f64": (pa.float64(), -0.0),
        "flag": (pa.bool_(), True), "text": (pa.string(), "ü"), "raw": (pa.binary(), b"\x00"),
        "day": (pa.date32(), instant.date()), "local": (pa.timestamp("us"), instant),
        "at": (pa.timestamp("us", "Europe/Berlin"), instant.replace(tzinfo=dt.UTC)),
        "cents": (pa.decimal128(10, 2), Decimal("1.50")), "took": (pa.duration("us"), dt.timedelta(seconds=1)),
        "list": (pa.list_(pa.int32()), [1, None]), "pair": (pa.struct([("x", pa.string())]), {"x": "y"}),
        "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    }  # fmt: skip
    output = FileParticipant("columns", str(tmp_path), "parquet")
    schema = pa.schema([(name, kind) for name, (kind, _) in values.items()])
    output.check(SINK, schema)
    writer = output.begin(PartName(SINK, 3, 1, 0, "0.1", LOG, "columns"))
    row = {name: value for name, (_, value) in values.items()}
    writer.write(pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema))
    handle = writer.pre_commit()
    assert isinstance(handle, PreparedPart) and output.commit([handle]) == []
    old = replace(handle, data={k: v for k, v in handle.data.items() if k != "checksum"})
    assert [f.digest for f in output.found(SINK, [old])] == [handle.digest]

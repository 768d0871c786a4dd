"""Checkpoints of queries with named sources: files as PySpark 4.2 writes them for ``readStream.name("orders")``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader, lag
from exactly_once.checkpoint import batch_in_flight, first_offsets, read_checkpoint
from exactly_once.errors import CheckpointRewound, CheckpointUnusable
from exactly_once.kafka.admin import Watermarks
from exactly_once.protocol.checkpoint_text import digest_of, fault_of, kafka_offsets, source_lines
from exactly_once.tools.operation.repair.files import read_files
from tests.unit.ops.test_checkpoint_repair import Site

HEAD = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795518251298,"conf":'
    '{"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"},"sourceMetadataInfo":{}}'
)
FIRST = ['refunds_2:{"refunds":{"0":4}}', 'orders:{"orders":{"0":0,"1":4}}']
SECOND = ['refunds_2:{"refunds":{"0":6}}', 'orders:{"orders":{"0":0,"1":6}}']


def text(lines: list[str], version: str = "v2") -> str:
    return "\n".join([version, HEAD, *lines])


def write(root: Path, *batches: list[str], committed: int, version: str = "v2") -> str:
    """A checkpoint with these batches, of which those up to ``committed`` went through."""
    site = Site(root)
    for n, lines in enumerate(batches):
        site.write(f"offsets/{n}", text(lines, version))
    for n in range(committed + 1):
        site.write(f"commits/{n}", 'v1\n{"nextBatchWatermarkMs":0}')
    site.write("sources/orders/0", '\0v1\n{"orders":{"0":0,"1":0}}')
    site.write("sources/orders/.0.crc", "crc")
    site.write("sources/refunds_2/0", '\0v1\n{"refunds":{"0":2}}')
    return str(root)


@pytest.mark.parametrize(
    "line", ['orders:{"orders":{"0":0,"1', "orders:", "orders", "ord", "[1,", '{"orders":{"0":1}}']
)
def test_a_line_of_a_named_source_that_is_cut_off_is_torn(line: str, tmp_path: Path) -> None:
    """Loss: a torn ``offsets/N`` that counts as whole is compared, kept and drained as if it were the decided plan."""
    torn = text([FIRST[0], line])
    assert str(fault_of("offsets/0", torn.encode())).endswith("is cut off")
    location = write(tmp_path, FIRST, [FIRST[0], line], committed=0)
    assert [*read_checkpoint(location).torn] == ["offsets/1"]
    assert read_files(location).offsets[1].fault and read_files(location).offsets[1].digest == ""
    with pytest.raises(CheckpointUnusable, match=r"offsets/1 is torn.*checkpoint repair"):
        batch_in_flight(location)


@pytest.mark.parametrize("lines", [FIRST, ['0:{"orders":{"0":1}}'], ["files:-", "rate:17", "own:a:b"]])
def test_lines_with_a_name_or_a_number_are_whole(lines: list[str]) -> None:
    """Mishap: a healthy stream that is not started any more."""
    assert fault_of("offsets/0", text(lines).encode()) is None
    assert fault_of("offsets/0", (text(lines) + "\n").encode()) is None


def test_where_a_named_source_began_is_found(tmp_path: Path) -> None:
    """Without it a stream looks as if it had not begun: no lag, nothing to check, and a start with other topics."""
    location = write(tmp_path, FIRST, committed=0)
    assert first_offsets(location) == {"orders": {0: 0, 1: 0}, "refunds": {0: 2}}


def test_progress_and_group_offsets_of_named_sources_are_those_of_their_topics(tmp_path: Path) -> None:
    """A name that is taken for a topic would reach the consumer group, where lag tools read it."""
    location = write(tmp_path, FIRST, SECOND, committed=0)
    batch = batch_in_flight(location)
    assert kafka_offsets(batch.sources) == {"orders": {0: 0, 1: 6}, "refunds": {0: 6}}
    assert batch.offsets == text(SECOND) and batch.offsets_digest == digest_of(text(SECOND))


def test_a_topic_that_had_nothing_yet_stands_where_it_began(tmp_path: Path) -> None:
    """Version 2 leaves such a source out, where version 1 has a dash: its topic would show all records as lag."""
    location = write(tmp_path, [FIRST[1]], committed=0)
    found = CheckpointReader(root="").committed_offsets(location)
    assert found == {"orders": {0: 0, 1: 4}, "refunds": {0: 2}}


@pytest.mark.parametrize("tidied", [False, True], ids=["the first batch is there", "Spark has deleted it"])
def test_nothing_waits_in_a_topic_that_was_dropped_and_its_first_offset_is_not_its_place(
    tidied: bool, tmp_path: Path
) -> None:
    """Guards against a lag of all its records, a stream that is called late, and a person who is woken for it."""
    location = write(tmp_path, FIRST, SECOND, SECOND[1:], committed=2)
    if tidied:
        (tmp_path / "offsets" / "0").unlink()
    found = CheckpointReader(root="").committed_offsets(location)
    assert found == {"orders": {0: 0, 1: 6}, "refunds": {}}
    ends = {0: Watermarks(0, 500, 500), 1: Watermarks(0, 7, 7)}
    assert (lag(found, "refunds", ends), lag(found, "orders", ends)) == (0, 501)


def test_a_topic_that_was_added_and_dropped_again_is_found_behind_the_first_batch(tmp_path: Path) -> None:
    """Guards against a look at the first batch alone, which did not have it."""
    location = write(tmp_path, [FIRST[1]], SECOND, SECOND[1:], committed=2)
    assert CheckpointReader(root="").committed_offsets(location)["refunds"] == {}


def test_the_digest_is_that_of_the_named_input_and_not_of_the_settings() -> None:
    """The name decides which offsets a source gets, so another name is another input."""
    other_settings = text(FIRST).replace("1795518251298", "5")
    renamed = text([FIRST[0].replace("refunds_2", "refunds_3"), FIRST[1]])
    assert source_lines(text(FIRST)) == FIRST
    assert digest_of(other_settings) == digest_of(text(FIRST)) != digest_of(renamed)


def test_a_repair_rebuilds_the_offsets_of_a_named_source(tmp_path: Path) -> None:
    """The decision's copy of the text must be accepted as whole and as decided."""
    site = Site(tmp_path)
    write(tmp_path, FIRST, SECOND, committed=0)
    for n, lines in enumerate((FIRST, SECOND)):
        site.decide(n, text(lines))
    site.write("offsets/1", text(SECOND)[:-3])
    (finding,) = site.judge()
    assert (finding.name, finding.action.value, finding.content) == ("offsets/1", "rebuild", text(SECOND))


MORE = 'more:{"more":{"0":7}}'


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([*SECOND, MORE], id="one more"),
        pytest.param(SECOND[::-1], id="another order"),
        pytest.param(SECOND[1:], id="one less"),
        pytest.param([*SECOND, 'again:{"orders":{"0":1}}'], id="a second reader of a topic"),
        pytest.param([*SECOND, 'files:{"logOffset":0}'], id="a source that is not Kafka"),
    ],
)
def test_a_source_may_be_added_where_the_offsets_name_theirs(later: list[str], tmp_path: Path) -> None:
    """Mishap: a stream that must begin anew for one more topic, though Spark knows which offsets are whose."""
    batch = batch_in_flight(write(tmp_path, FIRST, later, committed=0))
    assert batch.offsets == text(later)
    assert batch.sources == tuple(line for line in later if line.startswith(("orders", "refunds")))


def test_a_renamed_source_is_refused_since_it_reads_its_topic_from_the_beginning(tmp_path: Path) -> None:
    """Duplicates, in silence: Spark looks offsets up by name, so a new name begins at startingOffsets."""
    renamed = [SECOND[0].replace("refunds_2", "refunds_3"), SECOND[1]]
    location = write(tmp_path, FIRST, renamed, committed=0)
    with pytest.raises(CheckpointRewound) as refusal:
        batch_in_flight(location, "job")
    said = str(refusal.value)
    assert "refunds_3" in said and ".name('refunds_2')" in said
    assert f"exactly-once checkpoint repair {location} --sink job --plan-anew" in said


def test_an_old_file_that_is_torn_refuses_no_topic_that_is_new(tmp_path: Path) -> None:
    """Mishap: a stream that does not start for a file that Spark reads no more."""
    location = write(tmp_path, FIRST, FIRST, FIRST, [*SECOND, MORE], committed=2)
    (tmp_path / "offsets" / "0").write_bytes(b"\xff\0")
    assert batch_in_flight(location).offsets == text([*SECOND, MORE])


def test_the_first_batch_and_a_batch_behind_a_missing_file_have_nothing_to_compare_with(tmp_path: Path) -> None:
    """Mishap: a start that fails since Spark has tidied up."""
    location = write(tmp_path, FIRST, SECOND, committed=0)
    (tmp_path / "offsets" / "0").unlink()
    assert batch_in_flight(location).batch_id == 1

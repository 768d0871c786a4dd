"""Where a stream began, as Spark leaves it in the checkpoint."""

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from exactly_once.errors import CheckpointUnusable


@pytest.fixture
def checkpoint(tmp_path):
    """Three batches planned, two committed; the first is forgotten."""
    for folder in ("offsets", "commits", "sources/0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for batch in (1, 2, 3):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":5}}\n{{"t":{{"0":{batch}0,"1":7}}}}')
    (tmp_path / "offsets" / ".3.crc").write_text("")
    for batch in (1, 2):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    (tmp_path / "sources/0/0").write_bytes(b'\0v1\n{"t":{"0":4,"1":7}}')
    return str(tmp_path)


@pytest.fixture
def reader(tmp_path):
    return CheckpointReader(root=str(tmp_path))


def test_where_the_stream_began_is_in_its_first_source(reader, checkpoint):
    assert reader.first_offsets(checkpoint) == {"t": {0: 4, 1: 7}}


def test_a_stream_that_never_started_has_not_begun(reader, tmp_path):
    assert reader.first_offsets(str(tmp_path / "none")) == {}


def test_a_beginning_that_cannot_be_read_is_no_beginning_at_zero(reader, checkpoint, tmp_path):
    """Taken for 0, a backfill would write nothing and call its days done."""
    (tmp_path / "sources/0/0").write_bytes(b"")
    with pytest.raises(CheckpointUnusable, match="sources/0/0"):
        reader.first_offsets(checkpoint)


@pytest.mark.parametrize("look", ["first_offsets", "committed_offsets", "marked_ms"])
def test_a_store_that_cannot_be_asked_is_an_error_with_a_code_and_a_way_out(look, reader):
    """An object store without an answer raised its client's bare error: a check failed without a word of advice."""
    arguments = {"marked_ms": (0,)}.get(look, ())
    with pytest.raises(CheckpointUnusable, match="nosuch://bucket/streams"):
        list(getattr(reader, look)("nosuch://bucket/streams", *arguments))

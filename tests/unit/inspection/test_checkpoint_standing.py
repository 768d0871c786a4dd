"""What a checkpoint and the commit log say together, for every way in which they can stand to each other."""

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader, compare, lag, parse_offsets
from exactly_once.checkpoint import Checkpoint
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.admin import Watermarks
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim, Decision


def checkpoint(planned=None, marked=None, query_id="q"):
    return Checkpoint("/c", query_id, planned, marked, None if planned is None else 1_000)


def log(decided=None, query_id="q", completed=True):
    if query_id is None:
        return LogState()
    decisions = (Decision(query_id, decided, 1, (), "d", 5, 0),) if decided is not None else ()
    done = frozenset({(query_id, decided)}) if completed and decided is not None else frozenset()
    return LogState(Claim(1, query_id, 0, "stream", "h", 1), decisions, done)


@pytest.mark.parametrize(
    ("state", "found", "truth"),
    [
        ("unused", checkpoint(query_id=None), log(query_id=None)),
        ("unused", checkpoint(), log(query_id=None)),
        ("settled", checkpoint(5, 5), log(5)),
        ("in flight", checkpoint(5, 4), log(4)),
        ("in flight", checkpoint(0), log(query_id=None)),
        ("in doubt", checkpoint(5, 4), log(5)),
        ("in doubt", checkpoint(0), log(0, completed=False)),
        ("checkpoint lost", checkpoint(query_id=None), log(5)),
        ("checkpoint lost", checkpoint(4, 4), log(5)),
        ("checkpoint lost", checkpoint(), log(5)),
        ("foreign", checkpoint(5, 5, query_id="other"), log(5)),
    ],
)
def test_the_standing_of_a_stream(state, found, truth):
    assert compare(found, truth).state == state


def test_open_decisions_are_named():
    progress = compare(checkpoint(5, 4), log(5, completed=False))
    assert progress.open_decisions == (5,)
    assert progress.as_metadata()["open_decisions"] == [5]
    assert "batch_started_ms" not in compare(checkpoint(), log(query_id=None)).as_metadata()


def test_of_a_checkpoint_that_is_gone_the_last_decided_batch_is_told():
    """Mishap: "batch 5 is decided", and beside it that none is."""
    assert compare(checkpoint(query_id=None), log(5)).last_decided == 5


OFFSETS = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1795271372066,"conf":{}}
{"flights":{"0":25428,"1":24814}}
"""


def test_offsets_are_read_as_spark_writes_them_in_both_versions():
    expected = {"flights": {0: 25428, 1: 24814}}
    assert parse_offsets(OFFSETS) == expected
    assert parse_offsets(OFFSETS.replace('{"flights"', '0:{"flights"')) == expected
    assert parse_offsets('v1\n{"batchTimestampMs":1}\n-\n') == {}


def test_lag_is_counted_to_the_last_stable_offset_from_what_is_still_there():
    marks = {0: Watermarks(0, 100, 120), 1: Watermarks(40, 90, 90), 2: Watermarks(0, 5, 5)}
    committed = {"flights": {0: 70, 1: 10}}
    assert lag(committed, "flights", marks) == (100 - 70) + (90 - 40) + 5


def test_the_reader_reads_a_checkpoint_folder(tmp_path):
    reader = CheckpointReader(root=str(tmp_path))
    location = reader.location("cluster", "sink")
    assert location == f"{tmp_path}/cluster/sink"
    assert reader.read(location).query_id is None
    assert reader.committed_offsets(location) == {} and reader.marked_ms(location, -1) == {}
    folder = tmp_path / "cluster" / "sink"
    for name, text in {
        "metadata": '{"id":"q"}',
        "offsets/0": OFFSETS,
        "offsets/1": OFFSETS.replace("25428", "30000"),
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "commits/.0.crc": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert reader.read(location).in_flight == 1
    assert (
        reader.committed_offsets(location)["flights"][0] == 25428
    )  # of the batch that Spark marked, not the planned one
    assert reader.marked_ms(location, -1).keys() == {0} and reader.marked_ms(location, 0) == {}


def test_a_checkpoint_that_lost_a_file_is_named(tmp_path):
    reader = CheckpointReader(root=str(tmp_path))
    for name, text in {"metadata": '{"id":"q"}', "offsets/1": OFFSETS, "commits/0": "v1\n{}"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointUnusable, match="offsets/0"):
        reader.committed_offsets(str(tmp_path))

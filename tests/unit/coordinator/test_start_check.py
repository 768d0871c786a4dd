"""What a start refuses of a checkpoint before Spark starts: the same as the first batch, which may never come."""

import json

import pytest

from exactly_once.commitlog.log_reader import Holder
from exactly_once.coordinator.start import check_mode, check_start
from exactly_once.errors import CheckpointRewound, SinkOwned, UnsupportedMode
from exactly_once.options import SinkOptions
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim, Decision

QUERY = "6f1f6bb0-4d3c-4b5e-9a57-0d0d3cbb6a01"
HEAD = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": {}})


def offsets(batch):
    return f'v1\n{HEAD}\n{{"t":{{"0":{batch + 1}0}}}}'


@pytest.fixture
def checkpoint(tmp_path):
    """``checkpoint(planned, committed)``: the newest batches of the query; returns its location."""

    def make(planned, committed):
        for folder in ("offsets", "commits"):
            (tmp_path / folder).mkdir()
        (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
        for batch in range(planned + 1):
            (tmp_path / "offsets" / str(batch)).write_text(offsets(batch))
        for batch in range(committed + 1):
            (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
        return tmp_path

    return make


def log(decided=None, query_id=QUERY):
    decisions = (Decision(query_id, decided, 1, (), digest_of(offsets(decided)), 5, 0),) if decided is not None else ()
    return LogState(Claim(1, query_id, 0, "stream", "h", 1), decisions)


def started(location, state, holder=None, **options):
    ours = {"kafka.bootstrap.servers": "b:1", "sink.id": "s", "topic": "out", "checkpointLocation": str(location)}
    check_start(SinkOptions.parse({**ours, **options}), state, holder)


@pytest.mark.parametrize(
    ("planned", "committed", "decided"),
    [
        pytest.param(5, 5, 5, id="at rest"),
        pytest.param(5, 4, 4, id="a batch in flight"),
        pytest.param(5, 4, 5, id="a batch that is decided and not marked"),
        pytest.param(0, -1, None, id="before the first decision"),
        pytest.param(1, 0, None, id="a driver that decides while the log is read"),
        pytest.param(4, 4, 5, id="a decided batch that Spark has to plan again: its digest will tell"),
    ],
)
def test_a_checkpoint_of_the_sink_may_start(checkpoint, planned, committed, decided):
    started(checkpoint(planned, committed), log(decided))


def test_a_first_start_may_start(tmp_path):
    started(tmp_path / "none", LogState())


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_checkpoint_of_another_query_is_refused_without_a_batch(checkpoint, tmp_path, has_checkpoint):
    """A run until caught up, without new input, ended well on a foreign checkpoint, and on a deleted one."""
    location = checkpoint(5, 5) if has_checkpoint else tmp_path / "none"
    says = f"is of query {QUERY}" if has_checkpoint else "there is no checkpoint"
    with pytest.raises(SinkOwned, match=f"{says}.*") as refused:
        started(location, log(5, "other"))
    assert "sink.takeover=other" in refused.value.way_out
    started(location, log(5, "other"), **{"sink.takeover": "other"})


def test_a_checkpoint_with_a_history_that_the_log_does_not_know_is_refused(checkpoint):
    with pytest.raises(CheckpointRewound, match=f"no decision of query {QUERY}") as refused:
        started(location := checkpoint(5, 5), LogState())
    assert f"sink.adopt={QUERY}/6" in refused.value.way_out
    started(location, LogState(), **{"sink.adopt": f"{QUERY}/6"})
    started(location, LogState(), **{"sink.guarantee": "at_least_once"})


def test_a_checkpoint_that_was_rewound_or_edited_is_refused(checkpoint):
    location = checkpoint(5, 4)
    with pytest.raises(CheckpointRewound, match="already decided"):
        started(location, log(9))
    (location / "offsets" / "5").write_text(offsets(7))
    with pytest.raises(CheckpointRewound, match="source offsets that differ"):
        started(location, log(5))


def held(query_id):
    """Another sink has decided batches of the query."""
    assert query_id == QUERY
    return Holder("o3", 5)


@pytest.mark.parametrize("state", [LogState(), log(5, "other")], ids=["a new sink", "a sink of another query"])
def test_the_sink_that_holds_the_checkpoints_query_is_named(checkpoint, state):
    """Mishap: sink.id was changed by a slip, and the refusal spoke of a deleted log and of sink.adopt alone."""
    with pytest.raises((CheckpointRewound, SinkOwned), match="Sink o3 holds batch 5 of this query") as refused:
        started(checkpoint(5, 5), state, held)
    assert refused.value.way_out.startswith("Set sink.id back to o3.")


def test_a_first_batch_that_another_sink_has_decided_is_refused(checkpoint):
    """Duplicates: batch 0 is decided under o3 and has no commits/0; another sink id would write all of it again."""
    with pytest.raises(CheckpointRewound, match="sink o3 holds batch 5 of this query") as refused:
        started(location := checkpoint(0, -1), LogState(), held)
    assert "Set sink.id back to o3" in refused.value.way_out
    started(location, LogState(), held, **{"sink.adopt": f"{QUERY}/0"})
    started(location, LogState(), lambda query_id: None)


def test_a_sink_that_knows_the_query_asks_no_other_log(checkpoint, tmp_path):
    """Guards against a healthy start that reads every commit log of the cluster."""

    def never(query_id):
        raise AssertionError("the search has a price")

    started(checkpoint(5, 4), log(4), never)
    started(tmp_path / "none", LogState(), never)


@pytest.mark.parametrize("mode", ["update", "Complete"])
def test_a_mode_that_the_format_does_not_have_is_refused_with_the_way_that_has_it(mode):
    """Spark's own refusal of Update has neither a code nor a way out."""
    with pytest.raises(UnsupportedMode, match=r"foreachBatch\(exactly_once\.foreach_batch\(options\)\)"):
        check_mode(mode)
    check_mode("append")


@pytest.mark.parametrize(("mode", "meant"), [("appnd", "append"), ("updated", "update"), ("Complet", "complete")])
def test_a_misspelt_mode_is_refused_with_the_one_that_was_meant(mode, meant):
    """Mishap: check() passes, and start() fails with a Java IllegalArgumentException."""
    with pytest.raises(UnsupportedMode, match=f"did you mean {meant}"):
        check_mode(mode)
    with pytest.raises(UnsupportedMode, match="Use append"):
        check_mode("overwrite")

"""Which input must be in the outputs, which offsets of it hold records, and what is held back: without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.checkpoint import Checkpoint
from exactly_once.errors import CheckpointUnusable, InvalidOption, UnknownTopic
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import WRITE, Decision
from exactly_once.tools.verify import expected
from exactly_once.tools.verify.anomalies import MOST_PLACES
from exactly_once.tools.verify.by_origin.input import _Reader
from exactly_once.tools.verify.by_origin.output import Foreign, _aborted, bytes_at_once
from exactly_once.tools.verify.expected import Expected, expected_input, newest_window
from testkit.read_back import TOPIC, decided, log_of

P, Q = ("in", 0), ("in", 1)


def offsets(p: int, q: int | None = None, topic: str = "in") -> str:
    ends = {"0": p} if q is None else {"0": p, "1": q}
    return f"v1\n{{}}\n{json.dumps({topic: ends})}"


def batch(number: int, p: int, q: int | None = None, **more: Any) -> Decision:
    return decided(number, offsets=offsets(p, q), **more)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stream by its log and its checkpoint; call it for the input that it has worked off."""
    made = SimpleNamespace(log=LogState(), began={}, progress=Checkpoint("/c", "q"), files={}, beginnings={})

    def text(location: str, name: str) -> str:
        if name not in made.files:
            raise CheckpointUnusable(name, "x")
        return str(made.files[name])

    monkeypatch.setattr(expected, "read_log", lambda *a: made.log)
    monkeypatch.setattr(expected, "read_checkpoint", lambda location: made.progress)
    monkeypatch.setattr(expected, "first_offsets", lambda location: made.began)
    monkeypatch.setattr(expected, "read_text", text)
    beginnings = lambda connection, end, began, budget_s: {} if began else made.beginnings  # noqa: E731
    monkeypatch.setattr(expected, "_beginnings", beginnings)

    def call(checkpoint: str | None = "/c", inputs: tuple[str, ...] = (), last: int | None = None) -> Expected:
        none: Any = None
        return expected_input(none, "s", checkpoint, inputs, last=last)

    made.expected = call
    return made


def test_input_up_to_the_last_completed_batch_must_be_there_and_up_to_the_last_decided_may(stream: Any) -> None:
    """A false loss over the batch whose commit is under way; and a loss that passes for one."""
    stream.began = {"in": {0: 5, 1: 0}}
    stream.log = log_of(batch(0, 10, 3), batch(1, 20, 6), batch(2, 30, 9), marked=(0, 1))
    found = stream.expected()
    assert found.first == {P: 5, Q: 0} and found.end == {P: 20, Q: 6} and found.reach == {P: 30, Q: 9}
    assert [(b.batch, dict(b.offsets)) for b in found.batches] == [
        ("batch 0", {P: (5, 10), Q: (0, 3)}), ("batch 1", {P: (10, 20), Q: (3, 6)}),
        ("batch 2", {P: (20, 30), Q: (6, 9)}),
    ]  # fmt: skip
    assert found.topics == (TOPIC,)


def test_a_batch_is_known_only_where_the_one_before_it_is(stream: Any) -> None:
    """A torn batch that is none: a range that begins where an older batch ended is that of two batches."""
    stream.began = {"in": {0: 0}}
    stream.log = log_of(batch(4, 40), batch(5, 50), batch(7, 70), batch(8, 80))
    assert [b.batch for b in stream.expected().batches] == ["batch 5", "batch 8"]
    stream.log = log_of(batch(0, 10), batch(1, 20))
    assert [b.batch for b in stream.expected().batches] == ["batch 0", "batch 1"]
    stream.began = {}
    stream.beginnings = {P: 2}
    found = stream.expected(None, ("in",))
    assert [b.batch for b in found.batches] == ["batch 1"] and found.first == {P: 2}


def test_a_partition_that_came_later_begins_at_its_first_offset(stream: Any) -> None:
    """Loss: input of a partition that was added goes unread, and nobody asks for it."""
    stream.began = {"in": {0: 3}}
    stream.log = log_of(batch(0, 10), batch(1, 20, 6))
    found = stream.expected()
    assert found.first == {P: 3, Q: 0} and found.end == {P: 20, Q: 6}
    assert dict(found.batches[1].offsets) == {P: (10, 20), Q: (0, 6)}
    stream.log = log_of(batch(0, 10), batch(1, 20, 6), marked=(0,))
    found = stream.expected()
    assert found.end == {P: 10} and found.reach == {P: 20, Q: 6} and found.first == {P: 3, Q: 0}


def test_the_query_that_wrote_last_counts_and_batch_writes_do_not(stream: Any) -> None:
    """A false phantom over all input, after a stream began anew; a write has no input of Kafka's."""
    stream.began = {"in": {0: 0}}
    write = decided(0, query=f"{WRITE}day", offsets=offsets(99))
    stream.log = log_of(batch(9, 90, query="before"), batch(1, 20), batch(0, 10), write)
    found = stream.expected()
    assert found.end == found.reach == {P: 20} and [b.batch for b in found.batches] == ["batch 0", "batch 1"]


def test_only_the_inputs_that_were_named_are_compared(stream: Any) -> None:
    """A false loss of an input that the stream joins and does not pass on."""
    stream.began = {"in": {0: 0}, "other": {0: 0}}
    both = f"v1\n{{}}\n{json.dumps({'in': {'0': 5}})}\n{json.dumps({'other': {'0': 7}})}"
    stream.log = log_of(decided(0, offsets=both))
    found = stream.expected("/c", ("other",))
    assert found.end == {("other", 0): 7} and found.first == {("other", 0): 0}
    assert dict(found.batches[0].offsets) == {("other", 0): (0, 7)}
    with pytest.raises(UnknownTopic, match="nothing of a, b"):
        stream.expected("/c", ("a", "b"))


def test_a_topic_that_named_sources_have_dropped_is_expected_up_to_where_it_ended(stream: Any) -> None:
    """A false phantom over all of its records, and a loss among them that nobody looks for."""
    stream.began = {"in": {0: 5}, "other": {0: 2}}
    both = f"v2\n{{}}\na:{json.dumps({'in': {'0': 9}})}\nb:{json.dumps({'other': {'0': 7}})}"
    alone = f"v2\n{{}}\na:{json.dumps({'in': {'0': 12}})}"
    ended = {"other": {0: 7}}
    old = decided(0, offsets=both, ended={})
    stream.log = log_of(old, decided(1, offsets=alone, ended=ended), decided(2, offsets=alone, ended=ended))
    found = stream.expected()
    assert found.first == {P: 5, ("other", 0): 2}
    assert found.end == found.reach == {P: 12, ("other", 0): 7}
    assert [dict(b.offsets) for b in found.batches] == [
        {P: (5, 9), ("other", 0): (2, 7)}, {P: (9, 12), ("other", 0): (7, 7)},
        {P: (12, 12), ("other", 0): (7, 7)},
    ]  # fmt: skip


def test_without_decisions_sparks_word_counts(stream: Any) -> None:
    """Duplicate: a weaker guarantee is judged by its checkpoint; what is planned may be there."""
    stream.began = {"in": {0: 0}}
    stream.progress = Checkpoint("/c", "q", 3, 2, source_offsets=('{"in":{"0":40}}',))
    stream.files["offsets/2"] = offsets(30)
    found = stream.expected()
    assert found.end == {P: 30} and found.reach == {P: 40} and found.batches == ()
    stream.log = log_of(batch(2, 30))
    assert stream.expected().reach == {P: 30}, "the decisions count as far as they go"
    stream.progress = Checkpoint("/c", "q", 0, None, source_offsets=('{"in":{"0":40}}',))
    stream.log = LogState()
    found = stream.expected()
    assert found.end == {P: 0} and found.reach == {P: 40}, "the first batch"


def test_a_batch_without_offsets_in_the_log_has_them_in_the_checkpoint(stream: Any) -> None:
    """Loss: input of three thousand partitions is longer than the log keeps; another checkpoint must not stand in."""
    from exactly_once.protocol.checkpoint_text import digest_of

    stream.began = {"in": {0: 0}}
    long = Decision("q", 1, 1, (), digest_of(offsets(20)), 2, 0)
    stream.log = log_of(batch(0, 10), long)
    assert stream.expected().end == {P: 0}, "Spark has dropped the file: nothing of it must be there"
    stream.files["offsets/1"] = offsets(20)
    assert stream.expected().end == {P: 20}
    stream.files["offsets/1"] = offsets(21)
    with pytest.raises(CheckpointUnusable, match=r"offsets/1 of the checkpoint /c is not.*decided"):
        stream.expected()
    with pytest.raises(InvalidOption, match="the decision of batch 1 keeps no offsets"):
        stream.expected(None, ("in",))


def test_what_nothing_tells_is_refused_with_a_way_out(stream: Any) -> None:
    """A comparison with nothing looks clean."""
    with pytest.raises(InvalidOption, match="stream of sink 's' began"):
        stream.expected(None)
    with pytest.raises(CheckpointUnusable, match="names Kafka input"):
        stream.expected()


# -- which offsets hold records


def some(first: int, last: int) -> Any:
    return SimpleNamespace(base_offset=first, last_offset=last)


def test_a_batch_of_records_that_goes_over_a_block_comes_in_both() -> None:
    """Loss that is none: the second half of a batch would be no input, and its outputs phantoms."""

    def read() -> Iterator[Any]:
        yield from (some(0, 3), some(4, 11), some(12, 14), some(15, 15), some(16, 30))

    reader = _Reader(0, read())

    def until(stop: int) -> list[tuple[int, int]]:
        return [(b.base_offset, b.last_offset) for b in reader.until(stop)]

    assert until(8) == [(0, 3), (4, 11)] and reader.at == 8
    assert until(10) == [(4, 11)] and until(12) == [(4, 11)]
    assert until(15) == [(12, 14)]
    assert until(16) == [(15, 15)]
    assert until(40) == [(16, 30)] and until(50) == []


# -- what is held back


def test_the_next_marker_of_its_producer_says_whether_a_batch_was_aborted() -> None:
    """Unseen called lost, or the other way round: one producer has many transactions behind the last stable offset."""
    ends = {7: [(10, True), (20, False), (30, True)], 8: [(5, False)]}
    outcomes = [_aborted(SimpleNamespace(producer_id=7, last_offset=at), ends) for at in (3, 9, 11, 25, 31)]  # type: ignore[arg-type]
    assert outcomes == [False, False, True, False, False]
    assert not _aborted(SimpleNamespace(producer_id=9, last_offset=1), ends)  # type: ignore[arg-type]


def test_records_of_others_are_counted_and_the_first_places_kept() -> None:
    """Memory: another application may have written a billion records to the topic."""
    foreign = Foreign()
    for offset in range(MOST_PLACES + 5):
        foreign.add((TOPIC, 1), offset)
        foreign.add((TOPIC, 2), offset, "no origin")
    assert foreign.count == 2 * (MOST_PLACES + 5) and foreign.unreadable == MOST_PLACES + 5
    assert len(foreign.first) == len(foreign.places) == MOST_PLACES
    assert foreign.first[:2] == ["out-1@0", "out-2@0"] and foreign.places[0] == "out-2@0: no origin"


def test_many_partitions_share_the_memory_that_few_may_have() -> None:
    """Memory: a topic of a thousand partitions read in step; and one partition must not get all of it."""
    mb = 1024 * 1024
    assert [bytes_at_once(n) for n in (0, 1, 16, 32, 10_000)] == [8 * mb, 8 * mb, 8 * mb, 4 * mb, 64 * 1024]


def test_the_window_ends_with_what_is_completed_and_goes_back_as_far_as_log_and_checkpoint(stream: Any) -> None:
    """Loss that is none: the window must not hold a batch that is under way; and it must not skip one in between."""
    stream.began = {"in": {0: 0}}
    stream.log = log_of(batch(5, 50), batch(6, 60), batch(7, 70), marked=(5, 6))
    stream.files = {f"offsets/{n}": offsets(n * 10) for n in (1, 3, 4, 5)}
    found = stream.expected(last=99)
    assert found.end == {P: 60} and found.window.batches == (4, 6)
    assert found.wanted == {P: 30} and "batch 3 began" in found.window.cut, "nothing says where batch 2 ended"
    assert stream.expected(last=10).window.batches == (6, 6) and stream.expected().window is None
    assert stream.expected(None, ("in",), last=99).window.batches == (6, 6), "the log alone"
    stream.log = log_of()
    stream.progress = Checkpoint("/c", "q", last_commit=4, last_offsets=5, source_offsets=('{"in": {"0": 50}}',))
    found = stream.expected(last=10)
    assert found.end == {P: 40} and found.wanted == {P: 30} and found.window.batches == (4, 4), "the checkpoint alone"


def test_a_topic_that_joins_a_later_batch_is_compared_from_where_the_stream_began(stream: Any) -> None:
    """Taken from offset 0, everything from before the stream's start would count as lost."""
    stream.began = {"in": {0: 10}, "other": {0: 40}}
    both = f"v1\n{{}}\n{json.dumps({'in': {'0': 12}})}\n{json.dumps({'other': {'0': 45}})}"
    stream.log = log_of(batch(0, 10), decided(1, offsets=both))
    found = stream.expected(last=99)
    assert found.wanted == {P: 10, ("other", 0): 40} and found.window.offsets == 2 + 5


# -- the newest part of it


@pytest.mark.parametrize(
    ("ends", "began", "last", "first", "since", "batches", "cut"),
    [
        pytest.param([(2, 30), (1, 20), (0, 10)], 0, 25, 10, 10, (1, 2), "", id="the newest whole batches"),
        pytest.param([(2, 30), (1, 20), (0, 10)], 0, 99, 0, 0, (0, 2), "", id="all there is"),
        pytest.param([(0, 50)], 40, 99, 40, 40, (0, 0), "", id="from where the stream began"),
        pytest.param([(1, 50), (0, 10)], 0, 5, 45, 10, (1, 1), "alone is longer", id="a batch above the limit"),
        pytest.param([(9, 50), (8, 40)], 0, 99, 40, 40, (9, 9), "batch 8 began", id="older batches are forgotten"),
        pytest.param([(9, 50)], 0, 99, 50, 50, (9, 9), "batch 9 began", id="only one batch is left"),
    ],
)
def test_the_window_is_the_newest_that_fits_and_says_when_it_is_smaller(ends, began, last, first, since, batches, cut):
    """A sample that is smaller than a person asked for, and does not say so, is taken for proof of more."""
    window = newest_window(((n, {P: end}) for n, end in ends), {P: began}, last)
    assert (window.first, window.since) == ({P: first}, {P: since})
    assert (window.batches, window.offsets, window.last) == (batches, ends[0][1] - first, last)
    assert cut in window.cut and bool(cut) == bool(window.cut)


def test_a_stream_without_a_batch_has_an_empty_window():
    window = newest_window(iter(()), {P: 7}, 10)
    assert (window.first, window.offsets) == ({P: 7}, 0) and window.cut


def test_a_partition_that_was_added_later_is_compared_from_its_first_offset():
    """Loss: input of a partition that was added goes unread, and nobody asks for it."""
    window = newest_window(iter([(1, {P: 20, Q: 5}), (0, {P: 10})]), {P: 0}, 99)
    assert window.first == {P: 0, Q: 0} and window.offsets == 25

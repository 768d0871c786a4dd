"""Batch writes (``df.write``, ``write.id``): tried again, killed anywhere, at once: the rows are there once."""

from __future__ import annotations

import pytest

import exactly_once
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import code_in
from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import PATIENCE_S, Refused, SparkDriver

ROWS = 40
EXPECTED = [(f"k{n}", f"w-{n}") for n in range(ROWS)]


def options(bench: Bench, write_id: str = "day-1", **more: str) -> dict[str, str]:
    """The options of a write of its own into the bench's sink."""
    kept = {k: v for k, v in bench.job.options.items() if k != "checkpointLocation"}
    return {**kept, "write.id": write_id, **{k.replace("_", "."): v for k, v in more.items()}}


@pytest.mark.long
def test_a_second_write_with_the_same_id_writes_nothing_and_another_id_does(bench: Bench, warm: SparkDriver) -> None:
    """Guards against the duplicates of a partition that is run again."""
    for write_id in ("day-1", "day-1", "day-2"):
        assert warm.write_batch(options(bench, write_id), ROWS).failure is None

    bench.assert_exactly(EXPECTED * 2)
    assert read_log(bench.connection, bench.sink_id).write("day-1").records == ROWS
    assert read_log(bench.connection, bench.sink_id).write("day-3") is None
    assert exactly_once.written(bench.job.options, "day-1") and not exactly_once.written(bench.job.options, "day-3")
    owner = bench.log().owner
    assert owner is not None and owner.token == 2, "a try of what is done claims nothing, and so fences nobody"


@pytest.mark.long
def test_a_write_without_rows_is_decided_too(bench: Bench, warm: SparkDriver) -> None:
    """A partition without input must count as done, or a schedule asks for it forever."""
    assert warm.write_batch(options(bench), 0).failure is None
    assert read_log(bench.connection, bench.sink_id).write("day-1").records == 0
    bench.assert_exactly([])


@pytest.mark.long
@pytest.mark.parametrize("point", ["claimed", "before-begin", "mid-write", "all-prepared"])
def test_a_write_that_died_before_its_decision_is_written_once_by_the_next_try(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a partition half written, and against readers blocked by open transactions of a dead write."""
    killed_at(point, bench, driver())
    assert bench.visible() == []

    assert warm.write_batch(options(bench), ROWS).failure is None
    bench.assert_exactly(EXPECTED)


@pytest.mark.long
@pytest.mark.parametrize("point", ["decided", "some-ended", "all-ended", "completed"])
def test_a_write_that_died_after_its_decision_is_completed_by_the_next_try(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against the duplicate of a decided write, and against its loss when the next try is of another id."""
    killed_at(point, bench, driver())

    assert warm.write_batch(options(bench, "day-2"), 0).failure is None, "it completes what it finds decided"
    bench.assert_exactly(EXPECTED)
    assert warm.write_batch(options(bench), ROWS).failure is None
    bench.assert_exactly(EXPECTED)


@pytest.mark.long
def test_of_two_writes_at_once_one_goes_through(bench: Bench, driver: StartDriver, warm: SparkDriver) -> None:
    """Guards against the duplicates of a backfill that is launched twice."""
    first = driver()
    first.arm("all-prepared", "sleep 8")
    outcome = first.send_batch(options(bench), ROWS)
    until("the first write has prepared", lambda: first.has_reached("all-prepared"), PATIENCE_S)

    assert warm.write_batch(options(bench), ROWS).failure is None
    with pytest.raises(Refused) as refused:
        outcome()

    assert code_in(str(refused.value)) == "EO-FENCED"
    bench.assert_exactly(EXPECTED)


@pytest.mark.long
def test_a_write_that_lost_a_part_holds_up_no_other_write_and_its_own_next_try_makes_it_good(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a backfill that stands still on one bad day, told to start a stream that does not exist."""
    killed_at("decided", bench, driver())
    bench.abort_parts(bench.log().decisions[-1], 2)

    second = warm.write_batch(options(bench, "day-2"), 4)
    assert second.failure is None, second.sentence
    assert [d.write_id for d in bench.log().open_decisions] == ["day-1"]
    assert len(bench.visible()) == ROWS - ROWS // 4 + 4

    assert warm.write_batch(options(bench), ROWS).failure is None
    assert sorted(bench.visible()) == sorted([*EXPECTED, *EXPECTED[:4]])
    bench.assert_settled()


@pytest.mark.long
def test_a_write_that_is_done_is_not_written_again_and_fences_nobody(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a retry of what is done that throws another write out in the middle of its work."""
    assert warm.write_batch(options(bench, "day-0"), 4).failure is None
    other = driver()
    other.arm("all-prepared", "sleep 8")
    ends = other.send_batch(options(bench), ROWS)
    until("the other write has prepared", lambda: other.has_reached("all-prepared"), PATIENCE_S)

    assert warm.write_batch(options(bench, "day-0"), 4).failure is None
    ends()

    assert sorted(bench.visible()) == sorted([*EXPECTED, *EXPECTED[:4]])
    bench.assert_settled()


@pytest.mark.long
def test_a_sink_belongs_to_a_stream_or_to_batch_writes(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a backfill that fences the live stream, and the other way round."""
    bench.complete(warm)
    assert warm.write_batch(options(bench)).code == "EO-SINK-OWNED"
    assert warm.write_batch(options(bench, sink_id=f"{bench.sink_id}.backfill")).failure is None
    bench.input.add(1)
    taken = bench.job.having(sink_id=f"{bench.sink_id}.backfill")
    assert warm.run(taken).code == "EO-SINK-OWNED"

    warm.complete(bench.job)
    bench.assert_exactly([*bench.input.expected(slice(0, 1)), *EXPECTED, *bench.input.expected(slice(1, 2))])


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "mode", "code"), [({"write_id": ""}, "append", "EO-OPTION"), ({}, "overwrite", "EO-MODE")]
)
def test_what_a_batch_write_cannot_be_is_refused(
    change: dict[str, str], mode: str, code: str, bench: Bench, warm: SparkDriver
) -> None:
    """Without a name a second try cannot be told from another write; and a log cannot be overwritten."""
    assert warm.write_batch(options(bench, **change), mode=mode).code == code
    assert bench.log().owner is None, "refused before anything is written"


def killed_at(point: str, bench: Bench, driver: SparkDriver) -> None:
    """Begin a write and kill everything of its driver at ``point``."""
    driver.arm(point)
    driver.send_batch(options(bench), ROWS)
    until(f"the write comes to {point}", lambda: driver.has_reached(point), PATIENCE_S)
    driver.kill9()

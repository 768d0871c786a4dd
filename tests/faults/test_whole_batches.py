"""Readers have whole batches of a stream whose driver is killed between the commits of its parts, and behind them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from testkit import broker as brokers
from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import Job, SparkDriver
from testkit.whole_batches import RECIPES, Recipes

pytestmark = pytest.mark.long

TOPIC = "sink.progress.topic"


def rows(bench: Bench, batches: int) -> list[str]:
    """Return the values of the first so many batches."""
    return sorted(value for _, value in bench.input.expected(slice(0, batches)))


def of(bench: Bench, job: Job, driver: SparkDriver) -> Recipes:
    """Return the recipes for readers of the stream."""
    return Recipes(bench.connection, bench.topic, bench.sink_id, job.options[TOPIC], driver)


def kill_at(point: str, bench: Bench, job: Job, driver: SparkDriver) -> None:
    """Run ``job`` until two batches are marked as completed and the third one is at ``point``; kill -9 everything."""
    bench.hold_third_batch(driver, job, point)
    driver.kill9()


@pytest.mark.parametrize(("point", "parts"), [("decided", 0), ("some-ended", 0), ("all-ended", 4), ("marking", 4)])
def test_a_batch_is_whole_for_readers_when_the_next_start_has_completed_it_and_not_before(
    point: str, parts: int, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Half a batch, a batch that comes twice, and one that is never told since its driver died before it could."""
    job = bench.job.having(sink_progress_topic=brokers.fresh_name("progress"))
    kill_at(point, bench, job, driver())
    readers = of(bench, job, warm)
    seen = len(rows(bench, 2)) + parts * bench.input.rows
    # of some-ended: an open part at lower offsets hides one that was committed, and EndTxn of all parts is sent at once
    until("what a plain reader gets", lambda: len(bench.visible()) >= seen)
    assert readers.all_of_them() == dict.fromkeys(RECIPES, rows(bench, 2))

    bench.input.add()  # where Spark wrote commits/2 beside the mark, the next start claims with its next batch alone
    bench.complete_exactly_once(warm, job, batches=0)
    assert readers.all_of_them() == dict.fromkeys(RECIPES, rows(bench, 4))
    assert readers.told()["batch"] == 3


def test_a_batch_with_several_outputs_is_whole_when_all_of_them_are_committed(
    bench: Bench, driver: StartDriver, warm: SparkDriver, tmp_path: Path
) -> None:
    """Half a batch for whoever joins the topic with the files: Kafka was committed, and they were not."""
    archive = {
        "class": "exactly_once.outputs.files:FileParticipant",
        "name": "archive",
        "url": str(tmp_path / "archive"),
    }
    named = bench.job.having(sink_progress_topic=brokers.fresh_name("progress"))
    job = Job(**{**asdict(named), "participants": [archive]})
    kill_at("commit-archive", bench, job, driver())
    readers = of(bench, job, warm)
    until("all of it for a plain reader", lambda: len(bench.visible()) == len(rows(bench, 3)))
    assert readers.python() == rows(bench, 2)

    bench.complete_exactly_once(warm, job, batches=0)
    assert readers.python() == rows(bench, 3)

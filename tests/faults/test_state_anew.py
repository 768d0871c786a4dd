"""State of a batch that Spark plans a second time, with another input than the first time."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from faultlab.state import STORES, TRANSFORM, settings_of
from testkit import repair
from testkit.fixtures import Bench, StartDriver

pytestmark = pytest.mark.long

#: The files that Spark's maintenance writes of the whole state.
SNAPSHOTS = dict(zip(STORES, ("*.snapshot", "*.zip"), strict=True))


@pytest.mark.parametrize("store", STORES)
def test_a_batch_that_is_planned_again_with_another_input_leaves_the_state_of_that_one(
    store: str, bench: Bench, driver: StartDriver
) -> None:
    """The state of the first plan has ids of records that are not in the output: kept, it drops them as duplicates. A
    loss of power that takes the newest offsets, and not the state, leads here.
    """
    job = replace(bench.job, transform=TRANSFORM)
    bench.input.add()
    first = driver(conf=settings_of(store))
    first.complete(job)
    first.arm("all-prepared")  # behind the last row of each task, and so behind its state
    bench.input.add()
    run = first.start(job.until_stopped())
    run.await_true("all-prepared", lambda: first.has_reached("all-prepared"))
    first.kill9()

    offsets = bench.checkpoint / "offsets"
    shutil.copy(offsets / "0", offsets / "1")
    (offsets / ".1.crc").unlink(missing_ok=True)
    second = driver(conf=settings_of(store))
    second.complete(replace(job, trigger={"once": True}))
    second.complete(job)
    assert sorted(bench.visible()) == sorted(bench.input.expected())
    bench.assert_settled()


@pytest.mark.parametrize("store", STORES)
def test_the_state_of_a_plan_that_is_gone_is_removed_before_spark_plans_the_batch_anew(
    store: str, bench: Bench, driver: StartDriver
) -> None:
    """Guards against duplicates: Spark writes the deltas of the new plan over those of the old one, and then loads the
    old plan's snapshot, which lacks the ids of all rows that only the new plan has.
    """
    often = {"minDeltasForSnapshot": "1", "maintenanceInterval": "100ms"}
    job = replace(bench.job, transform=TRANSFORM)
    bench.input.add()
    first = driver(conf={**settings_of(store), **{f"spark.sql.streaming.stateStore.{k}": v for k, v in often.items()}})
    first.complete(job)
    first.arm("all-prepared")
    bench.input.add()
    run = first.start(job.until_stopped())
    run.await_true("all-prepared", lambda: first.has_reached("all-prepared"))
    state = bench.checkpoint / "state"
    run.await_true("a snapshot of it", lambda: any(p.name.startswith("2") for p in state.rglob(SNAPSHOTS[store])))
    first.kill9()

    for name in ("1", ".1.crc"):
        (bench.checkpoint / "offsets" / name).unlink(missing_ok=True)
    bench.input.add()
    second = driver(conf=settings_of(store))
    if store == STORES[0]:  # with RocksDB, commits name the files of the state (checkpoint format 2)
        assert second.run(job).code == "EO-CHECKPOINT"
        assert repair.mend(bench).whole
    second.complete(job)
    second.kill9()
    owed = bench.input.expected()
    bench.input.add_rows(bench.input.batches[-1])
    driver(conf=settings_of(store)).complete(job)
    assert sorted(bench.visible()) == sorted(owed)
    bench.assert_settled()

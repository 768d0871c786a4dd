"""State of a batch that Spark plans a second time, with another input than the first time."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from faultlab.state import STORES, TRANSFORM, settings_of
from testkit.fixtures import Bench, StartDriver

pytestmark = pytest.mark.long


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

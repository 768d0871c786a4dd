"""The copy of a checkpoint that the lab's operator keeps, and when the next one may be made."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from faultlab import remedy as way_out
from faultlab.faults.fault import NOTHING, Fault
from faultlab.faults.topics import TOPICS
from faultlab.lab import Lab
from faultlab.system import SparkSystem


class Stopped:
    """A system of which only the checkpoint is asked."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "checkpoint"
        self.checkpoint = str(self.path)
        self.options: dict[str, str] = {"sink.guarantee": "exactly_once"}

    def kill(self) -> None:
        """Nothing runs."""

    def write(self, batches: int, query: str = "q") -> SparkSystem:
        """A checkpoint with so many batches, all committed."""
        shutil.rmtree(self.path, ignore_errors=True)
        for log in ("offsets", "commits"):
            (self.path / log).mkdir(parents=True)
            for n in range(batches):
                (self.path / log / str(n)).write_text('v1\n{"nextBatchWatermarkMs":0}\n{"in":{"0":1}}')
        (self.path / "metadata").write_text(json.dumps({"id": query}))
        return cast(SparkSystem, self)


def test_a_checkpoint_is_damaged_again_only_when_the_stream_has_got_over_the_last_damage(tmp_path: Path) -> None:
    """Guards against a copy of a damaged checkpoint, which nobody could put back: the round would say that the sink
    cannot be drained.
    """
    system = Stopped(tmp_path)
    assert not way_out.is_past(system.write(0))
    assert way_out.is_past(system.write(3))
    way_out.keep(system.write(3))
    assert not way_out.is_past(system.write(3))
    assert not way_out.is_past(system.write(9, "another query"))
    assert way_out.is_past(system.write(4))


def test_the_copy_is_put_back_unless_the_stream_went_on_without_it(tmp_path: Path) -> None:
    """Guards against an operator who rewinds a stream that works."""
    system = Stopped(tmp_path)
    way_out.keep(system.write(3))
    assert way_out._put_back(system.write(1)) and (system.path / "commits" / "2").exists()
    assert way_out._put_back(system.write(9, "another query"))
    assert json.loads((system.path / "metadata").read_text()) == {"id": "q"}
    assert not way_out._put_back(system.write(4)) and (system.path / "commits" / "3").exists()


def test_the_copy_is_put_back_for_state_that_cannot_be_read_although_a_batch_is_planned_since(tmp_path: Path) -> None:
    """Guards against an operator who starts a stream again and again on state that nobody can read."""
    system = Stopped(tmp_path)
    way_out.keep(system.write(3))
    planned = system.write(3)
    (system.path / "offsets" / "3").write_text((system.path / "offsets" / "2").read_text())
    assert not way_out._put_back(planned)
    assert way_out._put_back(planned, state=True) and not (system.path / "offsets" / "3").exists()
    assert not way_out._put_back(system.write(4), state=True)


def test_an_input_that_was_made_again_is_read_by_a_new_checkpoint_which_takes_the_sink(tmp_path: Path) -> None:
    """Guards against an operator who goes on at offsets of a topic that is gone, or who puts its checkpoint back."""
    system = Stopped(tmp_path)
    way_out.keep(system.write(3))
    stopped = system.write(3)
    assert "a new checkpoint" in way_out._go_on(stopped, "EO-INPUT-RECREATED")
    assert system.options == {"sink.guarantee": "exactly_once", "sink.takeover": "q"}
    assert system.checkpoint != str(system.path) and not Path(system.checkpoint).exists()
    assert not way_out._put_back(stopped)


@pytest.mark.parametrize("fault", TOPICS)
def test_a_topic_is_made_again_at_most_once_in_a_run(fault: type[Fault]) -> None:
    """Guards against a round that only begins again and again, and judges what nobody had the time to write."""
    lab = SimpleNamespace(system=object.__new__(SparkSystem), history=SimpleNamespace(done=Counter({fault.name: 1})))
    assert fault().do(cast(Lab, lab), Random(1)) == NOTHING

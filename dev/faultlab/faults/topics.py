"""Topics that a person deletes and makes again under the same name, while the stream is down."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

from faultlab import remedy as way_out
from faultlab.faults.fault import NOTHING, Fault
from faultlab.system import SparkSystem
from testkit.processes import Timeout, until

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: For a driver that starts meanwhile, and the batch that comes to the point.
REACH_S = 60.0

#: A new input with fewer records than the old one is refused by Spark, too; one with more, by nobody but the sink.
SHARES = (0.3, 1.5)


class _Recreated(Fault):
    """The driver is killed at a point of a batch, and a topic is made again before it starts; at most once in a run.

    Where records name their origin, a place in the input stands for two records, or the output lacks what the person
    has deleted: these rounds are left to the lab's own reader, and to the checker by its log.
    """

    #: Where the batch is when the driver is killed.
    where: ClassVar[str]

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        """Return whether the stream is exactly-once, and its only output is a topic."""
        plain = lab.outputs is None and not getattr(lab.system, "origin", False)
        return plain and way_out.fits(lab.system, lab.sink_id)

    def do(self, lab: Lab, random: Random) -> str:
        system = lab.system
        assert isinstance(system, SparkSystem)
        if lab.history.done[self.name]:
            return NOTHING
        system.arm(self.where, "hang")
        try:
            until(f"a batch at {self.where}", lambda: system.has_reached(self.where), REACH_S)
        except Timeout:
            return NOTHING
        finally:
            system.disarm(self.where)
        system.kill()
        with lab.operator.away():
            system.kill()
            return f"behind {self.where}: {self.recreate(lab, random)}"

    def recreate(self, lab: Lab, random: Random) -> str:
        """Make the topic again; nothing of the stream runs. Return what is gone with it."""
        raise NotImplementedError


class RecreateOutput(_Recreated):
    """Somebody empties a topic by making it again, and does not know that a batch is decided and not in it yet."""

    name = "output-recreated"
    what = "kill -9 of the driver behind a decision; the output topic is deleted and made again; at most once in a run"
    where = "decided"

    def recreate(self, lab: Lab, random: Random) -> str:
        return f"{lab.recreate_output()} records of the output are gone"


class RecreateInput(_Recreated):
    """Somebody makes the input again: its offsets begin at 0, and those of the checkpoint name other records."""

    name = "input-recreated"
    what = (
        "kill -9 of the driver before a decision; the input topic is deleted and made again, with fewer or with more "
        "records; at most once in a run"
    )
    where = "all-prepared"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        # the way out is a new checkpoint, and the state of the old one is not in it
        return super().fits(lab) and not getattr(lab.system, "state", "")

    def recreate(self, lab: Lab, random: Random) -> str:
        assert lab.sink_id is not None
        gone, new = lab.workload.recreate(lab.sink_id, random.choice(SHARES))
        return f"{gone} records of the input were not decided and are gone, {new} are new"


TOPICS = (RecreateOutput, RecreateInput)

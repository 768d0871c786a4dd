"""Which process of ``make test`` takes which test file: the session's Spark starts in two of them alone."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: The processes with a Spark of their own: one for each of two cores.
_WITH_SPARK = ("gw0", "gw1")

#: How a test asks for the session's Spark (``testkit.fixtures.warm``).
_ASKS = re.compile(r"\bwarm\b")


class FewDrivers(LoadFileScheduling):
    """Give the test files that need the session's Spark to two processes, and the others to the others, while some are
    left.

    To start a Spark, and to let it meet all its code for the first time, takes 100 s of processor time.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        with_spark = self.numnodes <= len(_WITH_SPARK) or node.gateway.id in _WITH_SPARK
        fitting = next(
            (file for file in self.workqueue if _needs_spark(self.config.rootpath / file) == with_spark), None
        )
        if fitting is not None:
            self.workqueue.move_to_end(fitting, last=False)
        super()._assign_work_unit(node)


@cache
def _needs_spark(file: Path) -> bool:
    return file.is_file() and bool(_ASKS.search(file.read_text()))

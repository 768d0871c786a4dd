"""The end of a long run: when the next one, with the code that is deployed now, has its Spark session."""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once.runs.process import WORKING
from dagster_exactly_once.runs.tags import TAG_CONTINUES, TAG_READY, TAG_ROTATES

#: A run starts within a minute or two, also on a pod for which a node must be added.
PATIENCE_S = 600.0


class Rotation:
    """Asks the sensor ``exactly_once_liveness`` for the next run, and says when this one may end.

    A next run that does not come, or whose code does not load, stops nothing: this run goes on, and tries again after
    as long as before.

    Parameters
    ----------
    after_s : float
        Age of the run at which it asks.
    """

    def __init__(self, context: dg.AssetExecutionContext, after_s: float):
        self._log, self._instance, self._run_id = context.log, context.instance, context.run.run_id
        self._after_s, self._next_s = after_s, after_s
        self._asked_s: float | None = None
        self._attempts = 0

    def due(self, age_s: float) -> bool:
        """Return whether the run is to end now, at the age of ``age_s`` seconds."""
        if age_s < self._next_s:
            return False
        if self._asked_s is None:
            self._ask(age_s)
        if self._successor_ready():
            self._log.info("This run ends after the batch in flight; the next one is ready and continues.")
            return True
        if age_s - (self._asked_s or 0.0) > PATIENCE_S:
            self._log.warning(
                f"No run was ready to continue this one within {PATIENCE_S:.0f} s, so this run continues. Check that "
                "the sensor exactly_once_liveness is on, that the newest run of the job starts, and that the "
                "instance has room for one more run."
            )
            self._asked_s, self._next_s = None, age_s + self._after_s
        return False

    def _ask(self, age_s: float) -> None:
        self._attempts += 1
        self._asked_s = age_s
        self._instance.add_run_tags(self._run_id, {TAG_ROTATES: f"{self._run_id}/{self._attempts}"})
        self._log.info(
            "This run is old enough to be replaced: the sensor exactly_once_liveness starts the next one, and this "
            "run continues until that one is ready."
        )

    def _successor_ready(self) -> bool:
        runs = self._instance.get_runs(dg.RunsFilter(statuses=WORKING, tags={TAG_CONTINUES: self._run_id}))
        return any(run.tags.get(TAG_READY) == run.run_id for run in runs)

"""All names of Dagster that are not public and that this package uses: an upgrade has one file to check."""

import os
import time
import warnings

from dagster import BetaWarning, DagsterInstance

# Knows the name of the code location, where a server loads its definitions.
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext

# The type of what dg.define_asset_job returns; Dagster exports no name for it.
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

# What Dagster says of a name that it does not take: asset keys become names of inputs and results of ops.
from dagster._core.definitions.utils import check_valid_name

# Tells a step whose process was asked to end from one whose code failed: the first heals by a restart.
from dagster._core.execution.plan.objects import ErrorSource

# What the daemon keeps of each sensor, whose ticks share its threads.
from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType, SensorInstigatorData

# Dagster's own reason of a failure outside any step, which no event says; how a request names a range of days; the
# repository and the code location of a run; what tells a run that the instance's run_retries launched; and the key of
# a sensor's request on the run that it became.
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    REPOSITORY_LABEL_TAG,
    RETRY_NUMBER_TAG,
    RUN_FAILURE_REASON_TAG,
    RUN_KEY_TAG,
)

# Whether Dagster's daemon can run a schedule at this: a wrong one is refused with the stream's name.
from dagster._utils.schedules import is_valid_cron_schedule

__all__ = [
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "REPOSITORY_LABEL_TAG",
    "RETRY_NUMBER_TAG",
    "RUN_FAILURE_REASON_TAG",
    "RUN_KEY_TAG",
    "ErrorSource",
    "UnresolvedAssetJobDefinition",
    "check_valid_name",
    "instance_id",
    "is_valid_cron_schedule",
    "loading_location",
    "may_hold_a_thread",
]

#: Seconds after which a sensor that ticks every few of them is one of a code location that is gone.
_TICKS_S = 60.0

# Dagster copies each sensor when it resolves its jobs, and warns of the owners that it gives the copy: an empty list.
warnings.filterwarnings("ignore", r"Parameter `owners` of initializer `SensorDefinition", BetaWarning)


def loading_location() -> str:
    """Return the name of the code location whose server this process is; "" where it is none, or was not told."""
    known = DefinitionsLoadContext.get().code_location_name if DefinitionsLoadContext.is_set() else None
    return known or ""


def instance_id(instance: DagsterInstance) -> str:
    """Return what tells an instance from every other one: the id that its run storage made for itself.

    ``EXACTLY_ONCE_INSTANCE`` names an instance whose storage has no such id.
    """
    storage = instance.run_storage
    made = storage.get_run_storage_id() if hasattr(storage, "get_run_storage_id") else ""
    return os.environ.get("EXACTLY_ONCE_INSTANCE") or str(made)


def may_hold_a_thread(instance: DagsterInstance, sensor: str) -> bool:
    """Return whether each tick of the sensors of that name may wait: with one in every code location where it ticks,
    they hold at most a quarter of the threads that evaluate the instance's sensors. Never where one thread evaluates
    all of them.
    """
    settings = instance.get_settings("sensors") or {}
    if not settings.get("use_threads"):
        return False
    states = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    named = (state for state in states if state.instigator_name == sensor)
    ticking = {s.selector_id for s in named if s.status is not InstigatorStatus.STOPPED and _ticked(s.instigator_data)}
    return 4 * max(1, len(ticking)) <= int(settings.get("num_workers", 4))


def _ticked(data: object) -> bool:
    """Return whether a sensor has ticked of late: the daemon keeps those of code locations that are gone."""
    began = data.last_tick_start_timestamp if isinstance(data, SensorInstigatorData) else None
    return began is not None and time.time() - began < _TICKS_S

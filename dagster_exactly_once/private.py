"""All names of Dagster that are not public and that this package uses: an upgrade has one file to check."""

import os
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
]

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

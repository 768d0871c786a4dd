"""The code location of a run: each location looks at its own runs, since jobs, streams and sinks have names that are
unique in a location, and not in an instance.

A location is named as Dagster labels its runs, ``<repository>@<location>``. The name is "" where Dagster does not tell:
of a run that no location launched (``dagster job execute``, ``execute_in_process``), which counts for every location,
and while a code server evaluates a schedule without ``--location-name``, which then sees the runs of all.
"""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once.private import REPOSITORY_LABEL_TAG, loading_location


def location_of(run: dg.DagsterRun) -> str:
    """Return the location that launched a run."""
    if run.remote_job_origin is not None:
        return run.remote_job_origin.repository_origin.get_label()
    return run.tags.get(REPOSITORY_LABEL_TAG, "")


def location_of_tick(context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext) -> str:
    """Return the location whose sensor or schedule is evaluated."""
    if isinstance(context, dg.SensorEvaluationContext):
        origin, repository = context.code_location_origin, context.repository_name
        return f"{repository}@{origin.location_name}" if origin is not None and repository else ""
    name = loading_location()
    return f"{context.repository_def.name}@{name}" if name else ""


def name_of(location: str) -> str:
    """Return the name of a location for people, without its repository."""
    return location.partition("@")[2]


def is_of(run: dg.DagsterRun, location: str) -> bool:
    """Return whether a run counts for a location."""
    return not location or location_of(run) in ("", location)

"""A stream under another name: its sink is new, and would write all of its input again."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from dagster_exactly_once.runs.location import is_of, location_of
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_SINK, TAG_STREAM
from exactly_once.errors import ExactlyOnceError, SinkOwned
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.takeover import read_up_to

#: Runs that are looked through: those of a stream that was renamed are among the newest.
_NEWEST = 500


def check_not_renamed(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    stream: StreamSpec,
    sink_id: str,
    has_job: Callable[[str], bool],
    read: Callable[[str], LogState],
) -> None:
    """Raise SinkOwned before the first start of ``sink_id`` where a job that this code location does not have any more
    wrote the same output from the same input, under another sink.

    Parameters
    ----------
    has_job
        Whether the code location of ``run`` has a job of this name.
    read
        Sink id -> its commit log; one that cannot be read is left out.
    """
    for old, job in _without_job(instance, run, sink_id, has_job).items():
        try:
            log = read(old)
        except ExactlyOnceError:  # of another sink: it must not stop this one
            continue
        wrote = {topic for d in log.decisions for topic in d.topics}
        both = read_up_to(log.decisions).keys() & set(stream.sources), wrote & set(stream.outputs)
        if log.retired is None and all(both):
            its_input, its_output = (", ".join(sorted(topics)) for topics in both)
            raise SinkOwned(
                f"sink {old!r} has written {its_output} from {its_input}, by the job {job}, which this code location "
                f"does not have any more; sink {sink_id!r} is new, and would write all of that input again",
                f"If the stream was renamed, declare it with sink_id={old!r}: it goes on behind the last batch. If it "
                "is another one, launch it once with start_from, such as earliest",
            )


def _without_job(
    instance: dg.DagsterInstance, run: dg.DagsterRun, sink_id: str, has_job: Callable[[str], bool]
) -> dict[str, str]:
    """Return the other sinks of streams' runs whose job is gone, each with its job."""
    here = location_of(run)
    return {
        sink: one.job_name
        for one in instance.get_runs(limit=_NEWEST)
        if (sink := one.tags.get(TAG_SINK)) not in (None, sink_id)
        and TAG_STREAM in one.tags
        and is_of(one, here)
        and not has_job(one.job_name)
    }

"""The description of a stream for its sensors; tags that link runs."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_exactly_once.resources.run_process import HIDDEN, SHOWN

#: The stream that a run works for: on each run of its job, and on a run that Materialize started once it is at work.
TAG_STREAM = f"{SHOWN}stream"
#: On each run of a stream's job: the job. dagster.yaml lets one run at a time begin for each value.
TAG_JOB = f"{HIDDEN}job"
#: Why a run was launched: a sentence.
TAG_CAUSE = f"{SHOWN}cause"
#: Which restart in a row a run is, for people: ``2 of 10``.
TAG_RESTART = f"{SHOWN}restart"
#: On a recovery and on the stream run that follows it: the run of the stream that failed. On a recovery it requests a
#: restart of the stream.
TAG_RESTART_OF = f"{HIDDEN}restart_of"
#: Restarts in a row, from 1.
TAG_ATTEMPT = f"{HIDDEN}attempt"
#: On a run of the stream that was launched while a recovery of its sink was in progress: that recovery. Spark starts
#: beside it, the query after it.
TAG_BESIDE = f"{HIDDEN}beside"
#: On a long run that wants to be continued by a new one: its own id, and a number that counts its attempts.
TAG_ROTATES = f"{HIDDEN}rotates"
#: On the run that continues it: the long run. Spark starts beside that run, the query after it.
TAG_CONTINUES = f"{HIDDEN}continues"
#: On that run once its session is open: its own id.
TAG_READY = f"{HIDDEN}ready"
#: On a run whose turn has come, which may write: its own id.
TAG_TURN = f"{HIDDEN}turn"
#: On a run that ended for the next one to continue.
TAG_ROTATED = f"{HIDDEN}rotated"
#: On every recovery that a sensor requests: its sink. dagster.yaml lets one of them run at a time for each sink.
TAG_RECOVERS = f"{HIDDEN}recovers"


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A stream, by names.

    Attributes
    ----------
    name : str
        The stream's own name, unique in the code location.
    job, op : str
        The job that runs it, and the op of that job.
    sink_id : str
        The identity of its sink on the cluster.
    sources : tuple of str
        The topics of the input, for the lag.
    source_keys : tuple of str
        The keys of their assets, in the same order.
    outputs : tuple of str
        The topics that the sink writes.
    asset_keys : tuple of str
        The keys of the outputs' assets, each as text like ``shop/orders``.
    managed : bool
        Whether this code location runs it; False for a stream that runs elsewhere and is only observed.
    asset : str
        Key of the asset on which observations of the sink's transactions are kept.
    """

    name: str
    job: str
    op: str
    sink_id: str
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    asset_keys: tuple[str, ...] = ()
    source_keys: tuple[str, ...] = ()
    asset: str
    managed: bool = True

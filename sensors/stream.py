"""The description of a stream for its sensors; tags that link runs."""

from __future__ import annotations

from dataclasses import dataclass

#: Why a run was launched: a sentence.
TAG_CAUSE = "exactly_once/cause"
#: On a recovery and on the stream run that follows it: the run of the stream that failed. On a recovery it requests a
#: restart of the stream.
TAG_RESTART_OF = "exactly_once/restart_of"
#: Restarts in a row, from 1.
TAG_ATTEMPT = "exactly_once/attempt"
#: On every recovery: dagster.yaml lets one of them run at a time.
TAG_RECOVERS = "exactly_once/recovers"


@dataclass(frozen=True)
class StreamSpec:
    """A stream and its recovery, by name.

    Attributes
    ----------
    recovery_op : str
        The op of the recovery job that takes the configuration.
    topic : str
        The input, for the lag.
    outputs : tuple of str
        The topics that the sink writes.
    asset : str
        Key of the asset on which observations of the sink's transactions are kept.
    """

    job: str
    recovery_job: str
    recovery_op: str
    sink_id: str
    topic: str
    outputs: tuple[str, ...]
    asset: str

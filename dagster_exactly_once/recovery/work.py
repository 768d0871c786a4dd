"""The data that the steps of a recovery pass on, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Owner
from exactly_once.operation.rules import Refused, check_owner
from exactly_once.participant import Participant

#: Keeps the audit trail of sinks that this code location does not declare.
UNKNOWN_SINKS = "exactly_once_other_sinks"


class SinkBusy(ExactlyOnceError):
    """A live process works on the sink."""

    code = "EO-SINK-BUSY"
    restart_heals = True
    default_safe = "Nothing was changed"


class SinkOperated(ExactlyOnceError):
    """Somebody else operates the driver that holds the sink."""

    code = "EO-SINK-OPERATED"
    default_safe = "Nothing was changed"


def consented(sink_id: str, owner: Owner, fence: str, field: str) -> None:
    """Make sure that a person typed out what fencing the owner does.

    Raises
    ------
    SinkOperated
        Names the phrase, and the ``field`` of the configuration that takes it.
    """
    try:
        check_owner(sink_id, owner, fence or None)
    except Refused as refused:
        raise SinkOperated(
            f"{owner.claim.title} holds sink {sink_id}, and this Dagster instance does not operate that driver",
            f"Stop the {owner.claim.process} first. To fence it anyway, launch with {field} set to: {refused.phrase}",
        ) from None


@dataclass(frozen=True)
class Audit:
    """The audit trail of one run of a job, on the asset of a sink's transactions.

    Attributes
    ----------
    asset : str
        The key of the asset.
    job, prefix : str
        The entry that tells the stage of the run, and what the names of the entries ``_by`` and ``_reason`` begin with.
    by, reason : str
        The person or sensor that launched the run, and why.
    """

    asset: str
    job: str
    prefix: str
    by: str
    reason: str

    def began(self, context: dg.OpExecutionContext, stage: str, said: str, metadata: Mapping[str, Any]) -> None:
        """Write what the first step found; ``stage`` is ``began`` or ``dry run``."""
        context.log.info(f"{said} Launched by {self.by}: {self.reason}")
        context.log_event(dg.AssetObservation(self.asset, description=said, metadata=self._all(stage, metadata)))

    def ended(self, context: dg.OpExecutionContext, said: str, metadata: Mapping[str, Any]) -> None:
        """Write what the run did: as a materialization, which is easy to find among a stream's many observations."""
        context.log.info(said)
        context.log_event(dg.AssetMaterialization(self.asset, description=said, metadata=self._all("ended", metadata)))

    def _all(self, stage: str, more: Mapping[str, Any]) -> dict[str, Any]:
        return {self.job: stage, f"{self.prefix}_by": self.by, f"{self.prefix}_reason": self.reason, **more}


class SinkRegistry:
    """The sinks that the streams of a code location and their backfills write through.

    Parameters
    ----------
    streams : iterable of StreamSpec
        A job can run each of them that is managed, so a recovery can request its restart.
    backfills : iterable of StreamSpec
        Nothing restarts these.
    others : mapping of str to callable
        By sink id, what makes its outputs beside Kafka.
    continued : mapping of str to str
        Sink id -> the sink of an older version, whose place it takes.
    """

    def __init__(
        self,
        streams: Iterable[StreamSpec],
        backfills: Iterable[StreamSpec] = (),
        others: Mapping[str, Callable[[], tuple[Participant[Any], ...]]] | None = None,
        continued: Mapping[str, str] | None = None,
    ):
        self._continued = continued or {}
        self._others = others or {}
        self._streams = {s.sink_id: s for s in streams}
        self._backfills = {s.sink_id: s for s in backfills}

    def stream(self, sink_id: str) -> StreamSpec | None:
        """Return the stream of a sink that this code location can start again; None without one."""
        spec = self._streams.get(sink_id)
        return spec if spec is not None and spec.managed else None

    def asset(self, sink_id: str) -> str:
        """Return the asset with the audit trail of a sink."""
        spec = self._streams.get(sink_id) or self._backfills.get(sink_id)
        return spec.asset if spec else UNKNOWN_SINKS

    def others(self, sink_id: str) -> tuple[Participant[Any], ...]:
        """Make the outputs beside Kafka of a sink; none for a sink that this code location does not know."""
        make = self._others.get(sink_id)
        return make() if make is not None else ()

    def continues(self, sink_id: str) -> str:
        """Return the sink whose place this one takes; "" when its declaration names none."""
        return self._continued.get(sink_id, "")

    def topics(self, sink_id: str) -> tuple[str, ...]:
        """Return the topics that the stream of a sink declares as its outputs; none for a sink without one."""
        spec = self._streams.get(sink_id) or self._backfills.get(sink_id)
        return spec.outputs if spec else ()

    def sink_ids(self) -> dict[str, str]:
        """Return the sink id of each stream and backfill, by its name."""
        return {s.name: s.sink_id for s in (*self._streams.values(), *self._backfills.values())}

"""Incidents: trouble of a stream that stays. A person is told of each once, and once more when it is over.

The sensors keep an incident in their cursor. A failed run is an incident of its own (:mod:`.run_failure`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagster_exactly_once.notify import CRITICAL, Notice, Notifier, NotSent
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.tick import Memory
from exactly_once.deadline import Deadline

#: Trouble that has been away for this long is over: several ticks of the slowest sensor in which it was not seen twice.
OVER_AFTER_S = 60.0

#: For all notices of one tick. Dagster gives up a tick after 60 s; asking the brokers takes 8 s, and the last notice
#: 5 s more.
TELL_BUDGET_S = 10.0


@dataclass(frozen=True)
class Trouble:
    """A trouble that a tick sees and that a person must end, should it stay.

    Attributes
    ----------
    code : str
        For the notice.
    severity : str
        ``WARNING`` or ``CRITICAL`` of :mod:`dagster_exactly_once.notify`.
    level : float or None
        A figure that falls while the trouble mends by itself: each new low begins the wait anew.
    at_once : bool
        It cannot mend by itself, so nobody waits for it.
    """

    code: str
    severity: str = CRITICAL
    level: float | None = None
    at_once: bool = False


def follow(trouble: Trouble | None, last: Memory, now: float) -> dict[str, Any]:
    """Return what to keep of an incident after a tick: empty without one.

    Parameters
    ----------
    trouble : Trouble or None
        What the tick saw.
    last : mapping
        What was kept of the tick before.

    Returns
    -------
    dict
        ``began``, and ``critical`` while the trouble is; ``level``, its lowest; ``gone``, since when the trouble is
        away; ``told``, the severity of the last notice, and its ``code``. Times in seconds since the epoch.
    """
    if trouble is None:
        return {**last, "gone": last.get("gone", now)} if last.get("told") else {}
    kept: dict[str, Any] = {"began": now, **last}
    kept.pop("gone", None)
    lowest = last.get("level")
    if trouble.level is not None:
        if lowest is not None and trouble.level < lowest and not kept.get("told"):
            kept["began"] = now
        kept["level"] = trouble.level if lowest is None else min(lowest, trouble.level)
    if trouble.severity == CRITICAL:
        kept.setdefault("critical", now)
    else:
        kept.pop("critical", None)
    return kept


def due(trouble: Trouble | None, kept: Memory, after_s: float, now: float) -> bool:
    """Return whether a person is to be told now: of trouble that stayed for ``after_s``, once, and once more when it
    stayed as critical after a warning.
    """
    if trouble is None or kept.get("told") in (CRITICAL, trouble.severity):
        return False
    since = kept["critical"] if trouble.severity == CRITICAL else kept["began"]
    return bool(trouble.at_once or now - since >= after_s)


def over(kept: Memory, now: float) -> bool:
    """Return whether a person who was told is to be told that it is over."""
    return "gone" in kept and bool(now - kept["gone"] >= OVER_AFTER_S)


class Teller:
    """Sends the notices of one tick, and never keeps the tick from its work.

    Parameters
    ----------
    kind : str
        Which of a stream's incidents they are about: the sensors keep one each.
    after_s : float
        How long trouble must stay.
    """

    def __init__(self, notifier: Notifier, kind: str = "", after_s: float = 0.0):
        self._notifier, self._kind, self._after_s = notifier, kind, after_s
        self._deadline: Deadline | None = None
        self._refused = ""

    def tell(
        self, stream: StreamSpec, trouble: Trouble | None, message: str, last: Memory, now: float
    ) -> tuple[dict[str, Any], str]:
        """Follow an incident, and send what is due: return what to keep, and what the tick adds to its sentence."""
        kept, said = follow(trouble, last, now), ""
        incident = f"{stream.sink_id}/{self._kind}/{kept['began']:.0f}" if kept else ""
        if trouble is not None and due(trouble, kept, self._after_s, now):
            what = f"{message} Open the asset {stream.asset} in Dagster."
            said = self.send(
                Notice(stream.name, stream.sink_id, what, trouble.code, incident, severity=trouble.severity)
            )
            if not said:
                kept |= {"told": trouble.severity, "code": trouble.code}
        elif over(kept, now):
            said = self.send(
                Notice(stream.name, stream.sink_id, message, kept["code"], incident, "", kept["told"], resolved=True)
            )
            if not said:
                kept = {}
        return kept, said

    def send(self, notice: Notice) -> str:
        """Send a notice; return "" when it was taken, else what the tick says about it."""
        self._deadline = self._deadline or Deadline(TELL_BUDGET_S)
        if not self._refused and self._deadline.over:
            self._refused = f"the notices of this tick took longer than {TELL_BUDGET_S:g} s"
        if not self._refused:  # a receiver that is down would take its whole time for each stream
            try:
                self._notifier.send(notice)
                return ""
            except NotSent as error:
                self._refused = str(error)
            except (
                Exception
            ) as error:  # of a notifier that somebody else wrote: the stream must be recovered all the same
                self._refused = f"the notifier failed ({type(error).__name__})"
        return f" Nobody was notified: {self._refused}; the next tick tries again."

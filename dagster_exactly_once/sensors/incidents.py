"""Incidents: trouble of a stream that stays. A person is told once, and once more when it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_exactly_once.notify import CRITICAL, Notice, Notifier, NotSent, urgency
from dagster_exactly_once.runs.location import name_of
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.tick import Memory
from exactly_once.deadline import Deadline
from exactly_once.tools.diagnosis import Diagnosis
from exactly_once.tools.diagnosis.registry import SYMPTOMS

#: Seconds without trouble after which an incident is over: several ticks of the slowest sensor.
OVER_AFTER_S = 60.0

#: Seconds for all notices of one tick. Dagster gives up a tick after 60 s; asking the brokers takes 8 s, and the last
#: notice 5 s more.
NOTICES_BUDGET_S = 10.0


def follow(trouble: Diagnosis | None, last: Memory, now: float) -> dict[str, Any]:
    """Return what to keep of an incident after a tick that saw ``trouble`` and after which ``last`` was kept.

    That is empty without an incident; else ``began``, and ``critical`` while the trouble is; ``level``, its lowest:
    each new low of the figure that its symptom names begins the wait anew; ``gone``, since when the trouble is away;
    ``told``, the severity of the last notice, and its ``code``. Times in seconds since the epoch.
    """
    if trouble is None:
        return {**last, "gone": last.get("gone", now)} if last.get("told") else {}
    kept: dict[str, Any] = {"began": now, **last}
    kept.pop("gone", None)
    lowest = last.get("level")
    if level := SYMPTOMS[trouble.code].level:
        figure = trouble.evidence[level]
        if lowest is not None and figure < lowest and not kept.get("told"):
            kept["began"] = now
        kept["level"] = figure if lowest is None else min(lowest, figure)
    if urgency(trouble) == CRITICAL:
        kept.setdefault("critical", now)
    else:
        kept.pop("critical", None)
    return kept


def due(trouble: Diagnosis, kept: Memory, after_s: float, now: float) -> bool:
    """Return whether a person is to be told now: of trouble that stayed for ``after_s`` (at once of what never mends by
    itself), once, and once more when it stayed as critical after a warning.
    """
    if kept.get("told") in (CRITICAL, urgency(trouble)):
        return False
    since = kept["critical"] if urgency(trouble) == CRITICAL else kept["began"]
    return bool(SYMPTOMS[trouble.code].at_once or now - since >= after_s)


class NoticeSender:
    """Sends the notices of one tick, about trouble of one ``kind`` that stayed for ``after_s``, of the streams of one
    code ``location``; never raises.
    """

    def __init__(self, notifier: Notifier, kind: str = "", after_s: float = 0.0, location: str = ""):
        self._notifier, self._kind, self._after_s, self._location = notifier, kind, after_s, name_of(location)
        self._deadline: Deadline | None = None
        self._refused = ""

    def report(
        self,
        stream: StreamSpec,
        trouble: Diagnosis | None,
        message: str,
        last: Memory,
        now: float,
        more: str = "",
        hold: bool = False,
    ) -> tuple[dict[str, Any], str]:
        """Follow an incident, and send what is due: return what to keep, and what the tick adds to its sentence.

        The notice that it is over has the ``message``; the others have the trouble's own, and ``more``. With ``hold``
        it is not over, although this trouble is away: the stream is down, and its input waits.
        """
        kept, notice = follow(trouble, last, now), None
        if hold:
            kept.pop("gone", None)
        if kept and not last and self._location:
            kept["location"] = self._location  # an older version's incident ends by the name that it began with
        its = [kept.get("location"), stream.sink_id, self._kind, f"{kept.get('began', 0):.0f}"]
        incident = "/".join(filter(None, its)) if kept else ""
        if trouble is not None and due(trouble, kept, self._after_s, now):
            more = f"{more} Open the asset {stream.asset} in Dagster."
            notice = Notice.of(trouble, stream.name, stream.sink_id, incident, more)
        elif "gone" in kept and now - kept["gone"] >= OVER_AFTER_S:
            before = (kept["code"], incident, "", kept["told"])
            notice = Notice(stream.name, stream.sink_id, message, *before, resolved=True)
        said = self.send(notice) if notice is not None else ""
        if notice is not None and not said:
            kept = {} if notice.resolved else kept | {"told": notice.severity, "code": notice.code}
        return kept, said

    def send(self, notice: Notice) -> str:
        """Send a notice; return "" when it was taken, else what the tick says about it."""
        self._deadline = self._deadline or Deadline(NOTICES_BUDGET_S)
        if not self._refused and self._deadline.over:
            self._refused = f"the notices of this tick took longer than {NOTICES_BUDGET_S:g} s"
        if not self._refused:  # a receiver that is down would take its whole time for each stream
            try:
                self._notifier.send(replace(notice, location=self._location))
                return ""
            except NotSent as error:
                self._refused = str(error)
            except Exception as error:  # of somebody else's notifier: the stream must be recovered all the same
                self._refused = f"the notifier failed ({type(error).__name__})"
        return f" Nobody was notified: {self._refused}; the next tick tries again."

"""Tells people when a stream needs one: by a webhook of Slack, PagerDuty, or any other receiver."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass

import dagster as dg
from pydantic import Field

#: A tick sends the notice, and a slow receiver must not delay the daemon.
SEND_BUDGET_S = 5.0

#: How much a notice wants: somebody soon, or somebody now. The words are PagerDuty's.
WARNING, CRITICAL = "warning", "critical"


@dataclass(frozen=True)
class Notice:
    """A message that tells a person what to know and to do.

    Attributes
    ----------
    stream, sink_id : str
        What it is about.
    what : str
        What happened, and the next step.
    code : str
        The error's stable code, or ``HEALTH-`` and the state of the stream.
    incident : str
        The same for every notice of one incident, so that a receiver can join them.
    run_id : str
        The failed run; empty without one.
    severity : str
        :data:`WARNING` or :data:`CRITICAL`.
    resolved : bool
        The incident is over: the last notice of it.
    """

    stream: str
    sink_id: str
    what: str
    code: str
    incident: str
    run_id: str = ""
    severity: str = CRITICAL
    resolved: bool = False


class NotSent(Exception):
    """The receiver did not take the notice; the next tick tries again."""


class Notifier(dg.ConfigurableResource):
    """The receiver of notices when a stream needs a person. This one sends nothing: the sensors only record the notice.

    Give ``exactly_once_definitions(..., notify=...)`` another one.
    """

    def send(self, notice: Notice) -> None:
        """Send one notice.

        Raises
        ------
        NotSent
            The receiver did not accept the notice; the next tick sends it again.
        """


class WebhookNotifier(Notifier):
    """Posts each notice as JSON: as it is, or as Slack's incoming webhooks or PagerDuty's Events API v2 take it."""

    url: str = Field(description='Address of the receiver: EnvVar("...").')
    format: str = Field(default="json", pattern="^(json|slack|pagerduty)$", description="The receiver's kind.")
    routing_key: str | None = Field(default=None, description='PagerDuty\'s integration key: EnvVar("...").')

    def send(self, notice: Notice) -> None:
        """Post the notice; see :meth:`Notifier.send`."""
        body = json.dumps(payload(notice, self.format, self.routing_key)).encode()
        try:
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=SEND_BUDGET_S):
                return
        except (OSError, ValueError, http.client.HTTPException) as error:
            # not "from error": its text may be the address
            raise NotSent(f"the webhook did not accept the notice ({_said(error)})") from None


def payload(notice: Notice, kind: str, routing_key: str | None = None) -> dict[str, object]:
    """Return the body of a webhook's request."""
    if kind == "slack":
        over = " is over" if notice.resolved else ""
        return {"text": f"*{notice.stream}* ({notice.code}{over}): {notice.what}"}
    if kind == "pagerduty":
        return {
            "routing_key": routing_key or "",
            "event_action": "resolve" if notice.resolved else "trigger",
            "dedup_key": notice.incident,
            "payload": {
                "summary": f"{notice.stream}: {notice.what}"[:1024],
                "source": notice.sink_id,
                "severity": notice.severity,
                "custom_details": asdict(notice),
            },
        }
    return asdict(notice)


def _said(error: Exception) -> str:
    """Name the error without the address, which is a secret of many webhooks."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return type(error).__name__

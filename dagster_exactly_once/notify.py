"""Tells people when a stream needs one: by a webhook (Slack, PagerDuty, any) or by e-mail."""

from __future__ import annotations

import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from email.message import EmailMessage

import dagster as dg
from pydantic import Field

from exactly_once.tools.diagnosis import Diagnosis, Severity

#: Seconds to send a notice in: a tick sends it, and a slow receiver must not delay the daemon.
SEND_BUDGET_S = 5.0

#: The severities of a notice, in PagerDuty's words: somebody is wanted soon, or now.
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
        The diagnosis's stable code; of a failed run, the failure's own.
    incident : str
        The same for every notice of one incident, so that a receiver can join them.
    run_id : str
        The failed run; empty without one.
    severity : str
        :data:`WARNING` or :data:`CRITICAL`.
    resolved : bool
        The incident is over: the last notice of it.
    location : str
        The code location of the stream; empty where its sensor does not know it.
    """

    stream: str
    sink_id: str
    what: str
    code: str
    incident: str
    run_id: str = ""
    severity: str = CRITICAL
    resolved: bool = False
    location: str = ""

    @classmethod
    def of(cls, why: Diagnosis, stream: str, sink_id: str, incident: str, more: str = "", run_id: str = "") -> Notice:
        """Make the notice of a diagnosis; ``more`` are sentences that follow its own."""
        return cls(stream, sink_id, f"{why.text}{more}", why.code, incident, run_id, urgency(why))

    @property
    def headline(self) -> str:
        """The notice in a few words, for a subject."""
        if self.resolved:
            return f"{self.code}: the stream {self.whose} no longer needs a person"
        return f"{self.code}: the stream {self.whose} needs a person"

    @property
    def whose(self) -> str:
        """The stream, with its code location."""
        return f"{self.stream} ({self.location})" if self.location else self.stream


def urgency(why: Diagnosis) -> str:
    """Return :data:`CRITICAL` for an error, else :data:`WARNING`."""
    return CRITICAL if why.severity is Severity.ERROR else WARNING


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


class EmailNotifier(Notifier):
    """Sends each notice as an e-mail, by STARTTLS where the server offers it.

    With a ``user``, the server must offer it and have a certificate that this host trusts: else the password would go
    to whoever answers.
    """

    host: str = Field(description="The mail server.")
    port: int = Field(default=587, description="Its port.")
    sender: str = Field(description="From.")
    recipients: list[str] = Field(description="To.")
    user: str | None = Field(default=None, description="User name, for servers that require a login.")
    password: str | None = Field(default=None, description='Password of the user: EnvVar("...").')

    def send(self, notice: Notice) -> None:
        """Send the e-mail; see :meth:`Notifier.send`."""
        message = EmailMessage()
        message["Subject"] = notice.headline
        message["From"], message["To"] = self.sender, ", ".join(self.recipients)
        message.set_content(f"{notice.what}\n\nSink {notice.sink_id}, run {notice.run_id or 'none'}.\n")
        try:
            with smtplib.SMTP(self.host, self.port, timeout=SEND_BUDGET_S) as server:
                server.ehlo()
                if server.has_extn("starttls"):
                    server.starttls(context=None if self.user is None else ssl.create_default_context())
                elif self.user is not None:
                    raise NotSent(f"the mail server {self.host} offers no STARTTLS, so the password was not sent")
                if self.user is not None:
                    server.login(self.user, self.password or "")
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            raise NotSent(f"the mail server {self.host} did not accept the notice ({_said(error)})") from error


def payload(notice: Notice, kind: str, routing_key: str | None = None) -> dict[str, object]:
    """Return the body of a webhook's request."""
    if kind == "slack":
        over = "The stream no longer needs a person. " if notice.resolved else ""
        return {"text": f"*{notice.whose}* ({notice.code}): {over}{notice.what}"}
    if kind == "pagerduty":
        return {
            "routing_key": routing_key or "",
            "event_action": "resolve" if notice.resolved else "trigger",
            "dedup_key": notice.incident,
            "payload": {
                "summary": f"{notice.whose}: {notice.what}"[:1024],
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

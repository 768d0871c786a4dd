"""Notices to people: each receiver's form, sent once, tried again when nobody took it, and without the secret."""

import json
import ssl
import traceback
from dataclasses import replace
from email import message_from_bytes, policy

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from dagster_exactly_once.notify import WARNING, EmailNotifier, Notice, NotSent, WebhookNotifier, payload
from testkit.secure import Authority
from testkit.webhook import webhook

NOTICE = Notice("orders", "orders", "Run 1a2b failed (EO-REWOUND). Restore it.", "EO-REWOUND", "orders/run-1", "run-1")


@pytest.fixture
def receiver():
    """A webhook on this machine; its answers are taken from a list, 200 when that is empty."""
    with webhook() as found:
        yield found


@pytest.mark.parametrize("kind", ["json", "slack", "pagerduty"])
def test_a_webhook_takes_the_notice_in_its_own_form(receiver, kind):
    url, taken, _ = receiver
    WebhookNotifier(url=url, format=kind, routing_key="key").send(NOTICE)
    assert taken == [payload(NOTICE, kind, "key")]
    assert NOTICE.what in json.dumps(taken[0]) and "orders" in json.dumps(taken[0])


def test_notices_of_one_incident_join_in_pagerduty():
    """A page for each tick would be switched off by the second night."""
    again = Notice("orders", "orders", "still", "EO-REWOUND", "orders/run-1", "run-1")
    forms = [payload(n, "pagerduty", "key") for n in (NOTICE, again)]
    assert forms[0]["dedup_key"] == forms[1]["dedup_key"] and forms[0]["event_action"] == "trigger"


@pytest.mark.parametrize("answer", [404, 500, None])
def test_a_notice_that_nobody_took_is_an_error_without_the_address(receiver, answer):
    """The sensor tries again at its next tick; the address of a webhook is its password and may be in no log."""
    url, _, answers = receiver
    if answer is None:
        url = "http://127.0.0.1:1/secret-path"
    else:
        answers.append(answer)
    with pytest.raises(NotSent) as refused:
        WebhookNotifier(url=url).send(NOTICE)
    assert "secret-path" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["hooks.example/secret-path", "http://hooks.example/secret path/secret-path", "http://[/secret-path", ""]
)
def test_an_address_that_is_none_is_in_no_traceback(url):
    """Urllib repeats the address that it cannot use, and Dagster keeps the traceback of a tick that failed."""
    with pytest.raises(NotSent) as refused:
        WebhookNotifier(url=url).send(NOTICE)
    assert "secret" not in "".join(traceback.format_exception(refused.value))


def test_the_end_of_an_incident_closes_it_in_pagerduty_and_is_said_in_slack():
    """An incident that stays open hides the next one; a warning must not ring like an outage."""
    over = replace(NOTICE, what="Healthy: 5 offsets behind.", resolved=True)
    closed = payload(over, "pagerduty", "key")
    assert (closed["event_action"], closed["dedup_key"]) == ("resolve", NOTICE.incident)
    text = payload(over, "slack")["text"]
    assert text.startswith("*orders* (EO-REWOUND): ") and "no longer needs" in text and text.endswith(over.what)
    assert payload(over, "json")["resolved"] is True
    severities = [
        payload(n, "pagerduty", "key")["payload"]["severity"] for n in (NOTICE, replace(NOTICE, severity=WARNING))
    ]
    assert severities == ["critical", "warning"]


# -- e-mail ----------------------------------------------------------------------------------------------------------


class Mailbox:
    """A mail server's messages, and the passwords that it was given."""

    def __init__(self):
        self.messages, self.logins = [], []

    async def handle_DATA(self, server, session, envelope):
        message = message_from_bytes(envelope.content, policy=policy.default)
        self.messages.append((envelope.mail_from, envelope.rcpt_tos, message))
        return "250 OK"

    def authenticate(self, server, session, envelope, mechanism, data):
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"secret")


class MailServer(Controller):
    """A mail server on a port that the system chooses."""

    def __init__(self, **options):
        self.mailbox = Mailbox()
        super().__init__(self.mailbox, "127.0.0.1", 0, authenticator=self.mailbox.authenticate, **options)

    def _trigger_server(self):
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def mail_server():
    started = []

    def start(**options):
        server = MailServer(**options)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """What a mail server of this name and address shows, and this host trusts."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.identity("mail"))
    return context


def mail(port, **fields):
    sender, recipients = "dagster@shop.example", ["on-call@shop.example", "data@shop.example"]
    return EmailNotifier(host="127.0.0.1", port=port, sender=sender, recipients=recipients, **fields)


def test_a_mail_names_the_stream_the_code_and_what_to_do(mail_server):
    """A mail whose subject says nothing is read in the morning."""
    server = mail_server()
    mail(server.port).send(NOTICE)
    mail(server.port).send(replace(NOTICE, what="Healthy.", resolved=True))
    (sender, recipients, first), (_, _, second) = server.mailbox.messages
    assert (sender, recipients) == ("dagster@shop.example", ["on-call@shop.example", "data@shop.example"])
    assert first["Subject"] == "EO-REWOUND: the stream orders needs a person"
    assert NOTICE.what in first.get_content() and "Sink orders, run run-1" in first.get_content()
    assert second["Subject"] == "EO-REWOUND: the stream orders no longer needs a person"


def test_a_password_goes_only_to_a_server_with_a_certificate_that_is_trusted(mail_server, certificate, monkeypatch):
    """Whoever stands between this host and the mail server would read it."""
    safe, open_to_all = mail_server(tls_context=certificate, auth_required=True), mail_server()
    login = {"user": "dagster", "password": "secret"}
    mail(safe.port, **login).send(NOTICE)
    assert safe.mailbox.logins == [(b"dagster", b"secret")] and len(safe.mailbox.messages) == 1

    with pytest.raises(NotSent, match="offers no STARTTLS"):
        mail(open_to_all.port, **login).send(NOTICE)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(NotSent, match="SSLCertVerificationError"):
        mail(safe.port, **login).send(NOTICE)
    assert open_to_all.mailbox.logins == [] and len(safe.mailbox.logins) == 1


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
def test_a_mail_server_that_is_away_or_refuses_is_an_error_for_the_next_tick(mail_server):
    server = mail_server(auth_required=True, auth_require_tls=False)
    with pytest.raises(NotSent, match="did not accept"):
        mail(server.port).send(NOTICE)
    with pytest.raises(NotSent, match="ConnectionRefusedError"):
        mail(1).send(NOTICE)

"""Notices to people: each receiver's form, sent once, tried again when nobody took it, and without the secret."""

import json
import traceback
from dataclasses import replace

import pytest

from dagster_exactly_once.notify import WARNING, Notice, NotSent, WebhookNotifier, payload
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
    assert payload(over, "slack")["text"] == "*orders* (EO-REWOUND is over): Healthy: 5 offsets behind."
    assert payload(over, "json")["resolved"] is True
    severities = [
        payload(n, "pagerduty", "key")["payload"]["severity"] for n in (NOTICE, replace(NOTICE, severity=WARNING))
    ]
    assert severities == ["critical", "warning"]

"""Notices to people: each receiver's form, sent once, tried again when nobody took it, and without the secret."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dagster_exactly_once.notify import Format, Notice, NotSent, WebhookNotifier, payload

NOTICE = Notice("orders", "orders", "Run 1a2b failed (EO-REWOUND). Restore it.", "EO-REWOUND", "orders/run-1", "run-1")


@pytest.fixture
def receiver():
    """A webhook on this machine; its answers are taken from a list, 200 when that is empty."""
    taken, answers = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop() if answers else 200)
            self.end_headers()

        def log_message(self, *args): ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret-path", taken, answers
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize("kind", ["json", "slack", "pagerduty"])
def test_a_webhook_takes_the_notice_in_its_own_form(receiver, kind):
    url, taken, _ = receiver
    WebhookNotifier(url=url, format=kind, routing_key="key").send(NOTICE)
    assert taken == [payload(NOTICE, Format(kind), "key")]
    assert NOTICE.what in json.dumps(taken[0]) and "orders" in json.dumps(taken[0])


def test_notices_of_one_incident_join_in_pagerduty():
    """A page for each tick would be switched off by the second night."""
    again = Notice("orders", "orders", "still", "EO-REWOUND", "orders/run-1", "run-1")
    forms = [payload(n, Format.pagerduty, "key") for n in (NOTICE, again)]
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

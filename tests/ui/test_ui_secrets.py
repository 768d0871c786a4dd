"""Dagster's pages over a cluster with passwords: what the browser gets is searched for them."""

from itertools import islice

import pytest

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once_local.duel.departures import events
from platform_assets.constants import FLIGHT_DELAYS, FLIGHTS
from platform_assets.flights.names import STREAM_JOB
from testkit.planted import planted_in
from testkit.secure import SecureBroker
from testkit.site import Site
from tests.dagster.test_secrets import environment

pytestmark = pytest.mark.long

STREAM = {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}}
MISTAKEN = {"ops": {"stream_flight_delays": {"config": {"sink_options": {"kafka.acks": "1"}}}}}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site whose processes have the secrets in their environment."""
    broker = SecureBroker(tmp_path_factory.mktemp("cluster"))
    try:
        made = Site(tmp_path_factory.mktemp("site"), broker.start().bootstrap_servers)
        made.env |= environment(broker)
        factory = KafkaTransactionalProducerFactory(bootstrap_servers=broker.bootstrap_servers)
        factory.create_topics({FLIGHTS: 4})
        with factory.producer("test-feed") as producer, producer.transaction():
            for event in islice(events(), 200):
                producer.send(FLIGHTS, event.value, event.key)
        yield made
    finally:
        broker.kill()
        broker.stop()


@pytest.fixture
def got(page):
    """Whatever the browser gets while the test runs: documents, answers of GraphQL, and what comes over websockets."""
    found = []

    def keep(route):
        answer = route.fetch()
        found.append(answer.body())
        route.fulfill(response=answer)

    def hear(text):
        found.append(text.encode() if isinstance(text, str) else text)

    page.route(lambda url: not url.endswith((".js", ".css", ".svg", ".woff2")), keep)
    page.on("websocket", lambda socket: socket.on("framereceived", hear))
    yield found
    page.unroute_all(behavior="ignoreErrors")


def test_no_secret_is_in_what_the_pages_show_or_load(dagster, ui, got):
    """Leak: whoever may open the UI has the password of the stream: in a resource's configuration, in a run's log, in
    the error of a run that failed.
    """
    ran, refused = dagster.launch(STREAM_JOB, STREAM), dagster.launch(STREAM_JOB, MISTAKEN)
    dagster.wait_for(refused, "FAILURE", 180)
    dagster.wait_for(ran, "SUCCESS", 180)
    shown = []

    def look(sees):
        ui.sees(sees)
        shown.append(ui.page.content())

    for run, sees in ((ran, "records committed in"), (refused, "EO-OPTION")):
        ui.go(f"/runs/{run}")
        look(sees)
    for path, sees in (("resources/kafka", "bootstrap_servers"), ("sensors/exactly_once_run_failure", "Latest tick")):
        ui.location(path)
        look(sees)
    for path, sees in ((f"/assets/{FLIGHT_DELAYS}?view=events", "Materialized"), ("/deployment/config", "storage")):
        ui.go(path)
        look(sees)
    assert [run for run in (ran, refused) if not any(run.encode() in text for text in got)] == [], "it was watched"
    assert [planted_in(text) for text in [*shown, *got] if planted_in(text)] == []

"""Secrets in the environment of Dagster's runs, and a search for them in all that its instance keeps."""

from itertools import islice

import pytest

from dagster_exactly_once.names import RECOVERY_OP
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.commitlog.commit_log import read_log
from exactly_once.protocol.names import commit_log_topic
from exactly_once_local.duel.departures import events
from platform_assets.constants import FLIGHTS
from platform_assets.flights.names import SINK_ID
from platform_assets.flights.streams import flight_delays
from testkit import oracle
from testkit.planted import WEBHOOK, WRONG, CommandLines, planted_below, planted_in
from testkit.processes import kill_session
from testkit.secure import PASSWORD, SCRAM, USER, SecureBroker
from testkit.site import Site


@pytest.fixture
def secure(tmp_path):
    broker = SecureBroker(tmp_path / "broker")
    try:
        yield broker.start()
    finally:
        broker.kill()
        broker.stop()


def environment(secure, password=PASSWORD):
    settings = secure.connection(SCRAM, password)  # Java 17 reads no key that this Python has encrypted
    return {
        "KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USERNAME": USER,
        "KAFKA_SASL_PASSWORD": password,
        "KAFKA_SSL_CA_LOCATION": str(settings.ssl_ca),
        "EXACTLY_ONCE_WEBHOOK": f"http://127.0.0.1:1/{WEBHOOK}",
    }


@pytest.mark.long
def test_no_secret_is_in_what_dagster_keeps_of_its_runs(secure, tmp_path):
    """Leak: whoever may open the UI, or a backup of Dagster's storage, has the password of the stream."""
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder, secure.bootstrap_servers)
    site.env |= environment(secure)
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=secure.bootstrap_servers)
    factory.create_topics({FLIGHTS: 4})
    with factory.producer("test-feed") as producer, producer.transaction():
        for event in islice(events(), 200):
            producer.send(FLIGHTS, event.value, event.key)
    stream = {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}}
    with CommandLines() as commands:
        site.run("flight_delays_stream", stream)
        recovery = {"stream": flight_delays.name, "dry_run": False}
        site.run("exactly_once_recovery", {"ops": {RECOVERY_OP: {"config": recovery}}})
        refused = site.start("flight_delays_stream", stream, log=folder / "refused.log", **environment(secure, WRONG))
        try:
            assert refused.wait(180) != 0
        finally:
            kill_session(refused.pid)
    assert "EO-DENIED" in (folder / "refused.log").read_text()
    assert len(read_log(site.connection, SINK_ID).decisions) > 0
    assert any(b"java" in line for line in commands.seen) and commands.found == {}
    assert any(path.suffix == ".db" for path in folder.rglob("*")), "Dagster's storage is in the folder"
    assert planted_below(folder) == {}
    assert planted_in(repr(oracle.read(site.connection, [commit_log_topic(SINK_ID)], committed=False))) == []

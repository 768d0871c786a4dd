"""The producer factory: all of a block or nothing, one writer per id, and nothing of it survives its block."""

import pickle

import pytest

from dagster_exactly_once.resources import kafka
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.errors import BrokerUnreachable, InvalidOption, PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.txn.coordinators import list_transactions
from testkit import broker as brokers
from testkit import oracle
from testkit.processes import until


@pytest.fixture
def factory(bootstrap_servers):
    return KafkaTransactionalProducerFactory(bootstrap_servers=bootstrap_servers)


def values(connection, topic):
    return [m.value for m in oracle.read(connection, [topic])]


def test_a_block_becomes_visible_as_a_whole(factory, connection, topic):
    with factory.producer(brokers.fresh_name("id")) as producer:
        with producer.transaction():
            producer.send(topic, b"a", b"k")
            producer.send(topic, b"b", b"k")
            assert values(connection, topic) == []
        # the brokers answer a commit before its markers are written
        until("the records", lambda: values(connection, topic) == ["a", "b"], 30)


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_aborts_the_block_and_the_producer_goes_on(factory, connection, topic, end):
    with factory.producer(brokers.fresh_name("id")) as producer:
        with pytest.raises(end), producer.transaction():
            producer.send(topic, b"lost")
            raise end
        with producer.transaction():
            producer.send(topic, b"kept")
    assert values(connection, topic) == ["kept"]


def test_a_newer_producer_of_the_same_id_fences_the_older_one(factory, connection, topic):
    name = brokers.fresh_name("id")
    with factory.producer(name) as old, pytest.raises(PrepareFailed, match="took over"), old.transaction():
        old.send(topic, b"old")
        with factory.producer(name) as new, new.transaction():
            new.send(topic, b"new")
        old.send(topic, b"old too")
    assert values(connection, topic) == ["new"]
    with Admin(connection) as admin:
        assert list_transactions(admin, name) == []


def test_the_factory_is_plain_configuration(factory):
    """Dagster copies resources between processes; a producer in one would survive neither pickling nor fork."""
    assert pickle.loads(pickle.dumps(factory.connection())) == factory.connection()
    assert not [v for v in vars(factory).values() if type(v).__module__.startswith("confluent_kafka")]


def test_topics_are_created_once_with_the_partitions_that_are_asked_for(factory, connection):
    name = brokers.fresh_name("made")
    assert factory.create_topics({name: 3}, {"retention.ms": "-1"}) == [name]
    assert factory.create_topics({name: 5}) == []
    with Admin(connection) as admin:
        assert admin.topic_partitions([name]) == {name: 3}
        assert admin.topic_config(name)["retention.ms"] == "-1"


def test_the_cluster_has_an_id(factory):
    assert factory.cluster_id() == factory.cluster_id() != ""


def test_brokers_that_do_not_answer_are_named(monkeypatch):
    monkeypatch.setattr(kafka, "STEP_BUDGET_S", 1.0)
    nobody = KafkaTransactionalProducerFactory(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(BrokerUnreachable), nobody.producer("x"):
        pass
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        nobody.cluster_id()
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        nobody.create_topics({"t": 1})


def test_a_producer_cannot_log_in_by_kerberos_where_the_resource_can():
    """The wheels of confluent-kafka have no Kerberos, and a producer of it is what an op gets."""
    factory = KafkaTransactionalProducerFactory(
        bootstrap_servers="b:9092",
        security_protocol="SASL_SSL",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_jaas_config="com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
    )
    assert factory.connection().kerberos.service == "kafka"
    with pytest.raises(InvalidOption, match="built without GSSAPI"), factory.producer("x"):
        pass

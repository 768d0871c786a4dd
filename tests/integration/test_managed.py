"""The first five minutes on a managed cluster: a real broker refuses what the service refuses (``testkit.managed``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.streaming.query import LARGEST_DEAD_LETTER
from exactly_once.commitlog import log_topic, progress
from exactly_once.coordinator import start
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerRefused, ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.errors import SENTENCE_SHOWN
from exactly_once.protocol.names import commit_log_topic
from exactly_once.tools.diagnosis import Diagnosis, Severity
from exactly_once.tools.doctor import probes
from testkit import broker as brokers
from testkit import oracle
from testkit.fixtures import StartDriver, make_bench
from testkit.managed import PROFILES, ManagedCluster, Profile, Rules, managed_cluster

NEEDED = {name: log_topic.TOPIC_CONFIG[name] for name in log_topic.NEEDED}

WISHED = {name: log_topic.TOPIC_CONFIG[name] for name in log_topic.TOPIC_CONFIG if name not in NEEDED}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedCluster]:
    with managed_cluster(tmp_path_factory.mktemp("managed"), Profile({})) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ManagedCluster) -> Iterator[ManagedCluster]:
    """A cluster that refuses nothing yet."""
    yield running
    running.refuse({})


def options(cluster: ManagedCluster, sink: str, **more: str) -> dict[str, str]:
    """Options of a stream that may start, save for its commit log."""
    servers = cluster.connection.bootstrap_servers
    cluster.refuse({})
    topic = brokers.create_topic(servers, f"{sink}-out")
    given = {"kafka.bootstrap.servers": servers, "sink.id": sink, "topic": topic}
    return {**given, "checkpointLocation": f"/nowhere/{sink}", **more}


def check(given: dict[str, str]) -> ExactlyOnceError | None:
    """What check refuses, if anything."""
    try:
        start.check(given, [("value", "string")])
    except ExactlyOnceError as e:
        return e
    return None


def doctor(cluster: ManagedCluster, sink: str | None) -> list[Diagnosis]:
    """What doctor says of a commit log that does not exist; of any, without a sink."""
    lines = probes.examine(lambda: cluster.connection, sink, (), None, 10)
    return [line for line in lines if line.subject in ("commit log", "message size")]


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings of topics that are made without something, since the last look."""

    def look() -> list[str]:
        found = [m for m in caplog.messages if m.startswith("EO-WARN-LOG")]
        caplog.clear()
        return found

    caplog.set_level(logging.WARNING)
    return look


#: Rules, and what of the wished settings remains.
LESS: list[tuple[Rules, set[str]]] = [
    (PROFILES["MSK serverless"].rules, {"max.message.bytes"}),
    (PROFILES["Redpanda serverless"].rules, {"max.message.bytes", "segment.bytes", "min.cleanable.dirty.ratio"}),
    ({"least.segment.bytes": "52428800"}, {"max.message.bytes", "min.cleanable.dirty.ratio"}),
    ({"most.max.message.bytes": "2097164"}, {"segment.bytes", "min.cleanable.dirty.ratio"}),
    ({"most.max.message.bytes": "2097164", "least.segment.bytes": "52428800"}, {"min.cleanable.dirty.ratio"}),
    ({"alter": "min.cleanable.dirty.ratio,segment.bytes"}, {"max.message.bytes"}),
    ({"settings": "cleanup.policy,message.timestamp.type", "answer": "config"}, set()),
    ({"must.max.message.bytes": "8388608", "refused": "segment.bytes"}, WISHED.keys() - {"segment.bytes"}),
]


@pytest.mark.quick("rules0-remain0", "rules4-remain4", "rules7-remain7")
@pytest.mark.parametrize(("rules", "remain"), LESS)
def test_a_commit_log_is_made_without_the_settings_that_a_policy_refuses(
    cluster: ManagedCluster, warned: Callable[[], list[str]], rules: Rules, remain: set[str]
) -> None:
    """Mishap: check is green, and the first batch ends, since a policy refuses what only saves time."""
    sink = brokers.fresh_name("orders")
    log, given = commit_log_topic(sink), options(cluster, sink)
    cluster.refuse(rules)
    assert check(given) is None
    [said] = warned()
    assert {name for name in WISHED if name in said} == WISHED.keys() - remain
    for of in (sink, None):
        [line] = doctor(cluster, of)
        assert line.severity is Severity.WARN and {n for n in WISHED if n in line.sentence} == WISHED.keys() - remain
    with Admin(cluster.connection) as admin:
        assert log not in admin.topics()  # it was asked for, and not made
        log_topic.ensure(admin, log, Deadline(10))
        config = admin.topic_config(log)
    assert warned() == [said]
    assert {name: config[name] for name in NEEDED} == NEEDED
    assert {name for name in WISHED if config[name] == WISHED[name]} == remain


@pytest.mark.long
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"prefix": "team-"}, "Topic names must begin with team-"),
        ({"none": "yes"}, "Topics are created by the platform team only"),
        ({"refused": "message.timestamp.type"}, "Config property 'message.timestamp.type' cannot be set"),
        ({"alter": "cleanup.policy"}, "Altering config 'cleanup.policy' is disallowed"),
        ({"replicas.least": "3"}, "Topic replication factor must be 3"),
        ({"must.retention.ms": "1", "answer": "config"}, "retention.ms must be 1"),
    ],
)
def test_a_log_that_may_not_be_made_is_refused_by_check_with_the_brokers_own_sentence(
    cluster: ManagedCluster, rules: Rules, said: str
) -> None:
    """Mishap: 800 characters of a client's request, in the first batch, and advice to correct an option that is not."""
    sink = brokers.fresh_name("orders")
    log, given = commit_log_topic(sink), options(cluster, sink)
    cluster.refuse(rules)
    refused = check(given)
    assert isinstance(refused, BrokerRefused) and said in refused.what and log in refused.what
    assert "Request" not in refused.what and len(refused.what) < SENTENCE_SHOWN
    assert log in refused.way_out and all(f"{name}={value}" in refused.way_out for name, value in NEEDED.items())
    [line] = doctor(cluster, sink)
    assert line.severity is Severity.ERROR and said in line.sentence and line.remedy == refused.way_out
    [line] = doctor(cluster, None)
    assert line.severity is Severity.ERROR and said in line.sentence
    with Admin(cluster.connection) as admin, pytest.raises(BrokerRefused) as made:
        log_topic.ensure(admin, log, Deadline(10))
    assert (made.value.what, made.value.way_out) == (refused.what, refused.way_out)
    cluster.refuse({})
    brokers.create_topic(cluster.connection.bootstrap_servers, log, config=NEEDED)  # as the way out says
    cluster.refuse(rules)
    assert check(given) is None
    assert all(line.severity is not Severity.ERROR for line in doctor(cluster, sink))


@pytest.mark.long
def test_what_the_brokers_give_a_topic_by_themselves_need_not_be_asked_for(tmp_path: Path) -> None:
    """Mishap: a cluster whose default is what the protocol needs, and whose policy lets nobody name it."""
    settings = {"log.message.timestamp.type": "LogAppendTime"}
    with managed_cluster(tmp_path, Profile({"refused": "message.timestamp.type"}, settings=settings)) as cluster:
        with Admin(cluster.connection) as admin:
            log_topic.ensure(admin, "eo.orders.commit-log", Deadline(10))
            config = admin.topic_config("eo.orders.commit-log")
        assert {name: config[name] for name in NEEDED} == NEEDED


def test_the_progress_topic_is_made_with_no_more_than_it_needs(
    cluster: ManagedCluster, warned: Callable[[], list[str]]
) -> None:
    """Mishap: as with the commit log; and message.timestamp.type, of which no reader of this topic asks."""
    sink, topic = brokers.fresh_name("orders"), brokers.fresh_name("progress")
    given = options(cluster, sink, **{"sink.progress.topic": topic})
    brokers.create_topic(cluster.connection.bootstrap_servers, commit_log_topic(sink), config=NEEDED)
    cluster.refuse({"settings": "cleanup.policy"})
    assert check(given) is None
    [said] = warned()
    assert topic in said and "message.timestamp.type" in said
    with Admin(cluster.connection) as admin:
        progress.ensure(admin, topic, Deadline(10))
        assert admin.topic_config(topic)["cleanup.policy"] == "compact"


def test_a_progress_topic_that_may_not_be_made_is_refused_by_check(cluster: ManagedCluster) -> None:
    """Mishap: check passes, and the first batch ends."""
    sink, topic = brokers.fresh_name("orders"), brokers.fresh_name("progress")
    given = options(cluster, sink, **{"sink.progress.topic": topic})
    cluster.refuse({"prefix": "team-"})
    refused = check(given)
    assert isinstance(refused, BrokerRefused) and topic in refused.what and "sink.progress.topic" in refused.what
    assert "must begin with team-" in refused.what and "cleanup.policy=compact" in refused.way_out


def test_a_topic_of_dead_letters_is_made_where_large_records_are_refused(
    cluster: ManagedCluster, warned: Callable[[], list[str]]
) -> None:
    """Mishap: a stream under Dagster does not start on a cluster that allows 8 MiB, or less."""
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=cluster.connection.bootstrap_servers)
    wished = {"max.message.bytes": str(LARGEST_DEAD_LETTER)}
    for most, made_with in (("8388608", str(LARGEST_DEAD_LETTER)), ("2097164", "1048588")):
        topic = brokers.fresh_name("dead")
        cluster.refuse({"most.max.message.bytes": most})
        assert factory.create_topics({topic: 2}, wished=wished) == [topic]
        with Admin(cluster.connection) as admin:
            assert admin.topic_config(topic)["max.message.bytes"] == made_with
    [said] = warned()
    assert topic in said and "max.message.bytes" in said


def test_an_output_that_dagster_may_not_make_is_refused_with_the_brokers_sentence(cluster: ManagedCluster) -> None:
    """Mishap: a client's request, in the place of the one sentence that says what to do."""
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=cluster.connection.bootstrap_servers)
    cluster.refuse({"prefix": "team-"})
    with pytest.raises(BrokerRefused, match=r"the topic paid: .*must begin with team-") as refused:
        factory.create_topics({"paid": 2})
    assert "failed with response" not in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize("service", PROFILES)
def test_a_stream_starts_on_the_service_and_its_records_are_there(
    service: str, tmp_path: Path, driver: StartDriver
) -> None:
    """The whole of the first five minutes: doctor, check, a query, foreach_batch; read by a client of another make."""
    profile = PROFILES[service]
    with managed_cluster(tmp_path / "managed", profile) as cluster:
        cluster.refuse({})  # the user's own topics are the user's
        bench = make_bench(cluster.connection, tmp_path / "bench")
        brokers.create_topics(cluster.connection.bootstrap_servers, {"both": 2})
        cluster.refuse(profile.rules)
        lines = doctor(cluster, bench.sink_id)
        assert all(line.severity is not Severity.ERROR for line in lines)
        assert {name for name in profile.left_out if name in str(lines)} == set(profile.left_out)
        bench.input.add(2)
        spark = driver()
        job = replace(bench.job, options={**bench.job.options, "sink.progress.topic": "progress"})
        spark.ask("check", job=vars(job))
        spark.complete(job)
        batch = {"sink.id": f"{bench.sink_id}-b", "topic": "both", "checkpointLocation": str(tmp_path / "b")}
        spark.complete(replace(job, options={**job.options, **batch}, participants=[]))
        for topic in (bench.topic, "both"):
            oracle.assert_exactly(oracle.read(cluster.connection, [topic]), bench.input.expected())
        with Admin(cluster.connection) as admin:
            config = admin.topic_config(commit_log_topic(bench.sink_id))
            assert {name: config[name] for name in NEEDED} == NEEDED

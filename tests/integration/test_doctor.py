"""The doctor on real brokers: what is well, what is not, and what a principal may not do; and it changes nothing."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.tools import cli
from exactly_once.tools.diagnosis import Diagnosis, Severity
from exactly_once.tools.doctor.probes import examine
from exactly_once.txn.coordinators import list_transactions
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as brokers
from testkit.authorizing import AuthorizingBroker, Right
from testkit.dead_sink import DeadSink
from testkit.one_diagnosis import OFFSETS, write

UNCLEAN = {"unclean.leader.election.enable": "true"}

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command; (exit code, JSON)."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)

    def run(*arguments: str) -> tuple[int, Any]:
        code = cli.main(["doctor", "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def codes(found: Any) -> set[str]:
    return {line["code"] for line in found["diagnoses"] if line["severity"] == "error"}


def by_check(found: Any, check: str) -> list[dict[str, str]]:
    return [line for line in found["checks"] if line["check"] == check]


def test_a_healthy_cluster_has_nothing_wrong_and_every_line_a_figure(
    run: Run, connection: Connection, topic: str, tmp_path: Path
) -> None:
    """Outage: a check before every deployment that cries wolf, or that is green for a cluster it never asked."""
    sink = DeadSink(connection, topic, socket.gethostname(), os.getpid(), psutil.Process().create_time())
    sink.decide(sink.open_part(0))
    write(tmp_path, {"metadata": '{"id":"q"}', "offsets/0": OFFSETS})
    where = ("--bootstrap-servers", connection.bootstrap_servers)
    code, found = run(*where, "--sink", sink.sink_id, "--topic", topic, "--checkpoint", str(tmp_path))
    assert code == 0 and found["verdict"] == "warn", found
    assert by_check(found, "checkpoint")[0]["verdict"] == "ok"
    assert [line for line in found["checks"] if line["verdict"] == "wrong"] == []
    assert by_check(found, "broker")[0]["verdict"] == "ok"
    assert "transaction.version is 2" in by_check(found, "broker's level")[0]["sentence"]
    assert by_check(found, "clock")[0]["verdict"] == "ok", "the controller's clock is this host's"
    assert by_check(found, "transaction timeout")[0]["sentence"].count("900,000") >= 1
    assert "1 transaction open" in by_check(found, "transactions")[0]["sentence"]
    assert len(by_check(found, f"topic {topic}")) == 1, "of the decision, and named"
    assert [line["verdict"] for line in by_check(found, "rights")] == ["ok"] * 4
    assert by_check(found, "commit log's settings")[0]["verdict"] == "ok"


def test_a_checkpoint_that_the_next_start_refuses_is_wrong(
    run: Run, connection: Connection, topic: str, tmp_path: Path
) -> None:
    """Duplicates: the doctor is green, the start is refused, and a person begins anew with another sink."""
    sink = DeadSink(connection, topic, socket.gethostname(), os.getpid(), psutil.Process().create_time())
    sink.decide(sink.open_part(0))
    where = ("--bootstrap-servers", connection.bootstrap_servers, "--checkpoint", str(tmp_path), "--sink")
    code, found = run(*where, sink.sink_id)
    assert code == 1 and codes(found) == {"HEALTH-CHECKPOINT-LOST"}, "it is gone, and batch 0 is decided"
    [lost] = by_check(found, "checkpoint")
    assert f"checkpoint repair {tmp_path} --sink {sink.sink_id}" in lost["way_out"]
    write(tmp_path, {"metadata": '{"id":"q"}', "offsets/0": OFFSETS, "commits/0": "v1\n{}"})
    assert run(*where, sink.sink_id)[0] == 0
    code, found = run(*where, brokers.fresh_name("no-log"))  # as one whose commit log was deleted
    assert code == 1 and codes(found) == {"HEALTH-CHECKPOINT-AHEAD"}


def test_the_doctor_leaves_no_trace(run: Run, connection: Connection) -> None:
    """Outage: a look that initialises an id fences the producer of a healthy stream."""
    sink_id = brokers.fresh_name("sink")
    with Admin(connection) as admin:
        before = admin.topics(), sorted(t.transactional_id for t in list_transactions(admin, "", ()))
        code, found = run("--bootstrap-servers", connection.bootstrap_servers, "--sink", sink_id)
        after = admin.renew(10).topics(), sorted(t.transactional_id for t in list_transactions(admin, "", ()))
    assert code == 0 and before == after
    assert "does not exist yet" in by_check(found, "rights")[1]["sentence"]


def test_what_cannot_work_is_wrong_with_its_way_out(run: Run, connection: Connection) -> None:
    """Outage: found by the first batch, and not by the check before the deployment."""
    log = {"cleanup.policy": "delete", "max.message.bytes": "65000"}
    sink_id, servers = brokers.fresh_name("sink"), connection.bootstrap_servers
    brokers.create_topic(servers, f"eo.{sink_id}.commit-log", config=log)
    small = brokers.create_topic(servers, config={"max.message.bytes": "1000", "min.insync.replicas": "2", **UNCLEAN})
    code, found = run("--bootstrap-servers", f"127.0.0.1:1,{servers}", "--sink", sink_id, "--topic", small)
    assert code == 1 and found["verdict"] == "wrong"
    said = [line["sentence"] + line["way_out"] for line in found["checks"] if line["verdict"] == "wrong"]
    assert any("cleanup.policy=delete with retention.ms=" in s for s in said)
    assert any("min.insync.replicas is 2" in s and "no record can" in s for s in said)
    assert "127.0.0.1:1" in by_check(found, "bootstrap.servers")[0]["sentence"]
    assert [line["verdict"] for line in by_check(found, "message size")] == ["warn", "warn"]
    assert [line["verdict"] for line in by_check(found, "leader election")] == ["warn"]
    assert run("--bootstrap-servers", servers, "--topic", "nowhere")[0] == 1


def test_a_start_names_the_topic_that_may_lose_what_is_committed(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Loss: nobody runs the doctor again after somebody has changed the topic."""
    for config, said in ((UNCLEAN, 1), ({}, 0)):
        topic = brokers.create_topic(connection.bootstrap_servers, config=config)
        sink = {"sink.id": brokers.fresh_name("sink"), "topic": topic, "write.id": "w"}
        with caplog.at_level(logging.WARNING):
            started = WriteCoordinator(SinkOptions.parse({**connection.spark(), **sink}, batch=True))
            started.plan()
            started._session._threads.shutdown(wait=True)  # on one of which it looks, while the tasks begin
        assert caplog.text.count("EO-WARN-UNCLEAN") == said and (topic in caplog.text) is bool(said)
        caplog.clear()


@pytest.mark.long
def test_each_setting_of_the_brokers_that_stops_a_stream_is_one_line(
    run: Run, own_broker: Callable[..., EmbeddedBroker]
) -> None:
    """Outage: settings for three brokers on a cluster of one; and a timeout that only the first task finds too long."""
    broken = own_broker(
        properties={
            "transaction.max.timeout.ms": "60000",
            "transaction.state.log.replication.factor": "3",
            "offsets.topic.replication.factor": "3",
            "default.replication.factor": "3",
        }
    )
    servers = ("--bootstrap-servers", broken.bootstrap_servers)
    code, found = run(*servers, "--sink", "orders", "--transaction-timeout", "120000")
    assert code == 1
    wrong = {line["check"]: line["sentence"] for line in found["checks"] if line["verdict"] == "wrong"}
    assert sorted(wrong) == ["__consumer_offsets", "__transaction_state", "new topics", "transaction timeout"]
    assert "60,000; the stream would have 120,000 ms" in wrong["transaction timeout"]
    for check in ("__consumer_offsets", "__transaction_state", "new topics"):
        assert "3 replicas" in wrong[check] and "the cluster has 1 broker:" in wrong[check]
    assert by_check(run(*servers)[1], "transaction timeout")[0]["verdict"] == "warn", (
        "the default is lowered by a start"
    )


def test_a_cluster_that_is_silent_is_one_line_and_the_host_is_judged_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: a traceback instead of the versions, which were the cause."""
    monkeypatch.setattr("exactly_once.tools.cli.commands.BUDGET_S", 0.5)
    code, found = run("--bootstrap-servers", "127.0.0.1:1")
    assert code == 1 and by_check(found, "Python")[0]["verdict"] == "ok"
    [line] = by_check(found, "cluster")
    assert line["verdict"] == "wrong" and line["sentence"].startswith("EO-UNREACHABLE")
    [line] = by_check(found, "bootstrap.servers")
    assert line["verdict"] == "wrong" and line["sentence"].startswith("127.0.0.1:1 does not answer")


@pytest.fixture(scope="module")
def authorizing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizingBroker]:
    with AuthorizingBroker(tmp_path_factory.mktemp("authorizing")) as running:
        yield running
        running.kill()


def look(authorizing: AuthorizingBroker, sink_id: str, topic: str, rights: list[Right]) -> list[Diagnosis]:
    authorizing.grant(rights)
    return examine(lambda: authorizing.connection, sink_id, [topic], None, 10)


def test_a_principal_learns_which_rights_it_lacks(authorizing: AuthorizingBroker) -> None:
    """Outage: EO-DENIED at night, one right after the other."""
    topic = brokers.create_topic(authorizing.bootstrap_servers)
    sink_id = brokers.fresh_name("sink")
    log = brokers.create_topic(authorizing.bootstrap_servers, f"eo.{sink_id}.commit-log")
    ids = Right("WRITE", "TRANSACTIONAL_ID", f"eo:{sink_id}:", True)
    elsewhere = Right("READ", "TOPIC", "elsewhere")
    enough = [
        Right("WRITE", "TOPIC", topic),
        Right("READ", "TOPIC", topic),
        Right("READ", "TOPIC", log),
        Right("WRITE", "TOPIC", log),
        ids,
    ]
    said = {
        line.sentence: line.severity for line in look(authorizing, sink_id, topic, enough) if line.subject == "rights"
    }
    assert Severity.ERROR not in said.values(), said
    said_bare = [
        x
        for x in look(authorizing, sink_id, topic, [elsewhere])
        if x.subject == "rights" and x.severity is Severity.ERROR
    ]
    assert sorted(" ".join(line.sentence.split()[3:6]) for line in said_bare) == [
        "WRITE on the",
        "not describe the",
        "not describe topic",
    ]
    for missing, word in ((0, f"lacks WRITE on topic '{topic}'"), (3, f"lacks WRITE on the commit log {log}")):
        some = [right for n, right in enumerate(enough) if n != missing]
        found = [line for line in look(authorizing, sink_id, topic, some) if line.severity is Severity.ERROR]
        assert any(word in line.sentence for line in found), found

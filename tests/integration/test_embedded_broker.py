"""The embedded broker: a real cluster that keeps its data, says why it fails, and never outlives us."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from exactly_once_local.cluster import embedded_broker
from exactly_once_local.cluster.embedded_broker import BrokerFailed, EmbeddedBroker
from exactly_once_local.cluster.guard import of_session
from testkit.broker import KAFKA, create_topic, fresh_name
from testkit.processes import until

PROJECT = Path(__file__).resolve().parents[2]


def produce(servers: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "message.timeout.ms": 30_000, "log_level": 0})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(40) == 0 and not failures, failures


def values_in(servers: str, topic: str, expected: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": fresh_name("g"), "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + 30
    while len(found) < expected and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append((message.value() or b"").decode())
    consumer.close()
    return found


def until_gone(pids: Iterable[int]) -> None:
    """Wait until no process is left in the sessions of these brokers: neither a JVM nor a guard."""
    until("the brokers have ended", lambda: not any(map(of_session, pids)), 10)


def test_a_fresh_folder_becomes_a_cluster_that_creates_no_topic_by_itself(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert list(admin.list_topics(timeout=10).brokers) == [1]
    nobody_made_it = fresh_name("nobody-made-it")
    admin.list_topics(nobody_made_it, timeout=10)
    assert nobody_made_it not in admin.list_topics(timeout=10).topics


def test_the_broker_is_of_the_release_of_kafka_that_was_asked_for(broker: EmbeddedBroker) -> None:
    """Guards against a release that is called tested, while all its tests ran on the embedded broker's."""
    for pid in broker.pids.values():
        [release] = re.findall(r"/kafka_2\.13-([\d.]+)\.jar", " ".join(psutil.Process(pid).cmdline()))
        assert KAFKA in (None, release)


def test_the_cluster_has_the_second_transaction_protocol(broker: EmbeddedBroker) -> None:
    """EndTxn 5 is what the engine is built on: it needs transaction.version=2, which a new cluster finalizes."""
    formatting = (broker.data_dir / "node-1" / "console.log").read_text()
    assert "name='transaction.version', featureLevel=2" in formatting


@pytest.mark.long
def test_stopped_and_started_again_it_has_its_topics_and_records(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "b") as first:
        topic = create_topic(first.bootstrap_servers)
        produce(first.bootstrap_servers, topic, "kept")
        before = list(first.pids.values())
    until_gone(before)
    with EmbeddedBroker(tmp_path / "b") as second:
        assert values_in(second.bootstrap_servers, topic, 1) == ["kept"]


@pytest.mark.long
def test_killed_and_restarted_it_comes_back_on_the_same_port_with_its_records(
    own_broker: Callable[..., EmbeddedBroker],
) -> None:
    broker = own_broker()
    servers, pid = broker.bootstrap_servers, broker.pids[1]
    topic = create_topic(servers)
    produce(servers, topic, "one")
    broker.kill(1)
    assert broker.pids == {}
    until_gone([pid])
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=0.5)
    broker.restart(1)
    assert broker.bootstrap_servers == servers and broker.pids[1] != pid
    produce(servers, topic, "two")
    assert values_in(servers, topic, 2) == ["one", "two"]


@pytest.mark.long
def test_properties_of_the_caller_win(own_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = own_broker(properties={"auto.create.topics.enable": "true", "num.partitions": "3"})
    topic = fresh_name("made-by-the-broker")
    produce(broker.bootstrap_servers, topic, "x")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 3


@pytest.mark.long
def test_a_broker_that_cannot_start_shows_the_end_of_its_log_and_keeps_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BrokerFailed) as failed:
            EmbeddedBroker(tmp_path / "b", port=port).start()
    assert failed.value.code == "EO-BROKER"
    assert "Address already in use" in str(failed.value)
    log = tmp_path / "b" / "node-1" / "server.log"
    assert str(log) in str(failed.value) and log.is_file()


def test_a_broker_with_a_wrong_setting_says_which(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"num\.io\.threads"):
        EmbeddedBroker(tmp_path / "b", properties={"num.io.threads": "none"}).start()


@pytest.mark.long
def test_a_port_that_is_taken_between_choice_and_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = embedded_broker.free_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        chosen = [taken.getsockname()[1]]
        monkeypatch.setattr(embedded_broker, "free_port", lambda used: chosen.pop() if chosen else choose(used))
        with EmbeddedBroker(tmp_path / "b") as broker:
            assert broker.pids and str(taken.getsockname()[1]) not in broker.bootstrap_servers


def test_a_second_broker_on_the_same_folder_is_refused_with_the_address_of_the_first(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_broker, "LOCK_BUDGET_S", 0.1)
    with pytest.raises(BrokerFailed, match=f"KAFKA_BOOTSTRAP_SERVERS={broker.bootstrap_servers}"):
        EmbeddedBroker(broker.data_dir).start()


def test_a_folder_of_three_nodes_is_not_started_with_one(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"id": "E23456789012345678901A", "nodes": 3}')
    with pytest.raises(BrokerFailed, match="3 nodes, not 1"):
        EmbeddedBroker(tmp_path).start()


@pytest.mark.long
def test_three_nodes_elect_a_new_leader_and_serve_when_one_dies(own_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = own_broker(nodes=3)
    servers = broker.bootstrap_servers
    topic = create_topic(servers)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    described = admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
    assert sorted(described.replicas) == [1, 2, 3]
    produce(servers, topic, "before")
    broker.kill(described.leader)
    produce(servers, topic, "after")
    assert values_in(servers, topic, 2) == ["before", "after"]
    broker.restart(described.leader)
    assert sorted(broker.pids) == [1, 2, 3]
    until("it is in sync", lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) == 3)


OWNER = """
import signal, sys, threading, time
from pathlib import Path
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit an ignored one
broker = EmbeddedBroker(Path(sys.argv[1]))
starter = threading.Thread(target=broker.start)  # ends before the broker: the guard follows the process, not a thread
starter.start(); starter.join()
with broker:
    print(*broker.pids.values(), flush=True)  # in the block: who reads it may interrupt at once
    time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path: Path):
    """A process with a broker, in a process group of its own; and the broker's pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "b")],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    yield process, pids
    process.kill()
    process.wait()


@pytest.mark.long
def test_kill_9_of_the_owner_leaves_no_process_and_a_usable_folder(owner, tmp_path: Path) -> None:
    process, pids = owner
    assert len(pids) == 1 and psutil.pid_exists(pids[0])
    os.killpg(process.pid, signal.SIGKILL)
    with EmbeddedBroker(tmp_path / "b") as successor:
        until_gone(pids)
        assert successor.pids


@pytest.mark.long
def test_ctrl_c_stops_the_broker_in_order(owner, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole foreground group: the broker must not be in it, but outlive its clients."""
    process, pids = owner
    os.killpg(process.pid, signal.SIGINT)
    process.wait(30)
    until_gone(pids)
    assert "BrokerServer id=1] shut down completed" in (tmp_path / "b/node-1/server.log").read_text()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "closed terminal"])
def test_the_command_serves_until_it_is_told_to_end_and_finds_its_data_again(tmp_path: Path, number: int) -> None:
    """``python -m exactly_once_local``, beside another program at Kafka's usual port."""
    for n, expected in ((1, ["a"]), (2, ["a", "b"])):
        process = subprocess.Popen(
            [sys.executable, "-m", "exactly_once_local", "--folder", str(tmp_path / "b")],
            env={**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT}/dev"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert "Kafka starts" in process.stdout.readline(), "a person waits, and nothing moves"
            line = process.stdout.readline()
            servers = (tmp_path / "b" / "bootstrap.servers").read_text().strip()
            assert servers in line
            if n == 1:
                create_topic(servers, "kept")
            produce(servers, "kept", expected[-1])
            assert values_in(servers, "kept", n) == expected
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
        assert not (tmp_path / "b" / "bootstrap.servers").exists()

"""A real Apache Kafka in KRaft mode, started from the jars of ``ivy.xml``: no Docker, nothing to install but Java.

``make run`` uses one node; three nodes give the tests replication and elections. The brokers never outlive the process
that started them, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from exactly_once.errors import ExactlyOnceError
from exactly_once.sparkenv.jars import Progress, cache_folder
from exactly_once_local.cluster.broker_node import Node, class_archive, end_nodes
from exactly_once_local.ports import HOST, free_port

START_BUDGET_S = 60.0
STOP_BUDGET_S = 20.0
LOCK_BUDGET_S = 5.0  # the brokers of a process that was just killed need a moment to end
TAIL_LINES = 25


class BrokerFailed(ExactlyOnceError):
    """The embedded broker did not start, or its folder cannot be used."""

    code = "EO-BROKER"


class EmbeddedBroker:
    """A Kafka cluster of this process.

    Parameters
    ----------
    data_dir : Path
        The folder for data, configuration and logs. A fresh or empty folder gets a new cluster; otherwise the cluster
        in it starts again, with all its topics, on new ports.
    port : int, optional
        Port of the first node; the others take the next ones. Default: free ones.
    nodes : int
        1, or more, each a broker and a voter (every topic has three replicas, two of them in sync).
    properties : dict, optional
        Broker settings that override the defaults.
    classpath : str, optional
        Of another release of Apache Kafka, 3.0 or newer. Default: the jars of ``ivy.xml``.

    Examples
    --------
    >>> with EmbeddedBroker(Path(".run/broker")) as broker:  # doctest: +SKIP
    ...     print(broker.bootstrap_servers)
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        nodes: int = 1,
        properties: dict[str, str] | None = None,
        classpath: str | None = None,
    ):
        if nodes < 1:
            raise ValueError("nodes must be 1 or more")
        self.data_dir = Path(data_dir).absolute()
        self.properties = dict(properties or {})
        self._fixed_port = port
        self._nodes = {n: Node(n, self.data_dir / f"node-{n}", classpath) for n in range(1, nodes + 1)}
        self._ports: dict[int, tuple[int, int]] = {}  # node -> (broker port, controller port)
        self._lock: IO[str] | None = None
        self._java_options = ""

    # -- what a caller asks ------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, running or not."""
        return ",".join(f"{HOST}:{broker}" for broker, _ in self._ports.values())

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each running node."""
        return {number: node.pid for number, node in self._nodes.items() if node.pid is not None}

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of every node's log, each under its path."""
        return "\n".join(filter(None, (node.log_tail(lines) for node in self._nodes.values())))

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> EmbeddedBroker:
        """Start all nodes and wait until the cluster answers with every one of them. Does nothing when it runs.

        Raises
        ------
        BrokerFailed
            The broker did not answer within a minute (with the end of its log), or another process uses this folder.
        """
        if self.pids:
            return self
        self._acquire()
        try:
            for attempt in (1, 2, 3):
                try:
                    self._start_once()
                    break
                except BrokerFailed as failed:
                    # Another process may take the port between the search for a free one and the broker's bind.
                    if self._fixed_port is not None or attempt == 3 or "Address already in use" not in str(failed):
                        raise
                    end_nodes(self._nodes.values(), graceful_s=0)
        except BaseException:
            end_nodes(self._nodes.values(), graceful_s=0)
            self._release()
            raise
        self._announcement.write_text(self.bootstrap_servers + "\n")
        return self

    def stop(self) -> None:
        """Stop all nodes in order; after 20 s, by force. The data stays. Does nothing when none runs."""
        try:
            end_nodes(self._nodes.values(), graceful_s=STOP_BUDGET_S)
        finally:
            if self._lock is not None:
                self._announcement.unlink(missing_ok=True)
            self._release()

    def kill(self, node: int | None = None) -> None:
        """Kill one node, or all of them, with ``kill -9``, like the crash of a machine."""
        end_nodes(self._nodes.values() if node is None else [self._nodes[node]], graceful_s=0)

    def restart(self, node: int = 1) -> None:
        """Restart one node on the same ports, and wait until it answers. Stops a running node first."""
        end_nodes([self._nodes[node]], graceful_s=STOP_BUDGET_S)
        assert self._lock is not None, "restart() needs a broker that was started"
        self._nodes[node].launch(self._lock.fileno())
        self._await_answer()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the folder --------------------------------------------------------------------------------------------------

    @property
    def _announcement(self) -> Path:
        return self.data_dir / "bootstrap.servers"

    def _acquire(self) -> None:
        """Lock the folder. The brokers inherit the lock, so it lasts until the last of them has ended."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        lock = (self.data_dir / "lock").open("a")
        deadline = time.monotonic() + LOCK_BUDGET_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.close()
                    servers = self._announcement.read_text().strip() if self._announcement.is_file() else ""
                    use_it = f", or use it: KAFKA_BOOTSTRAP_SERVERS={servers}" if servers else ""
                    raise BrokerFailed(
                        f"Another process runs the broker in {self.data_dir}", f"Stop that process{use_it}"
                    ) from None
                time.sleep(0.05)
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _cluster_id(self) -> str:
        """Return the id of the cluster in the folder; a new one for a fresh folder."""
        memory = self.data_dir / "cluster.json"
        if memory.is_file():
            cluster: dict[str, str | int] = json.loads(memory.read_text())
            if cluster["nodes"] != len(self._nodes):
                raise BrokerFailed(
                    f"{self.data_dir} holds a cluster of {cluster['nodes']} nodes, not {len(self._nodes)}",
                    "Start the broker with that number of nodes, or use an empty folder",
                )
            return str(cluster["id"])
        # The first letter is fixed: the storage tool takes an id that begins with a dash for an option.
        cluster_id = "E" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        fresh = memory.with_suffix(".new")
        fresh.write_text(json.dumps({"id": cluster_id, "nodes": len(self._nodes)}))
        fresh.rename(memory)
        return cluster_id

    # -- a start -----------------------------------------------------------------------------------------------------

    def _start_once(self) -> None:
        cluster_id = self._cluster_id()
        self._ports = self._choose_ports()
        for number, node in self._nodes.items():
            node.configure(self._settings(number))
        self._format(cluster_id)
        assert self._lock is not None
        for node in self._nodes.values():
            node.launch(self._lock.fileno(), self._java_options)
        self._await_answer()

    def _choose_ports(self) -> dict[int, tuple[int, int]]:
        taken: set[int] = set()
        ports = {}
        for index, number in enumerate(self._nodes):
            broker = self._fixed_port + index if self._fixed_port is not None else free_port(taken)
            controller = free_port(taken | {broker})
            taken |= {broker, controller}
            ports[number] = (broker, controller)
        return ports

    def _settings(self, number: int) -> dict[str, str]:
        replicas = min(len(self._nodes), 3)
        in_sync = 2 if replicas == 3 else 1
        broker, controller = self._ports[number]
        return {
            "process.roles": "broker,controller",
            # Static voters are read from here at every start, so that the ports may change between two starts.
            "controller.quorum.voters": ",".join(f"{n}@{HOST}:{c}" for n, (_, c) in self._ports.items()),
            "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "auto.create.topics.enable": "false",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            # 50 partitions each is for clusters; a few are made in a blink at first use.
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # A broker that was killed may register again when its last session is over: after 9 s by default.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            # Events carry their own time, which may be years ago: by age the broker would delete them at once.
            "log.retention.ms": "-1",
            "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),  # the default takes 128 MB of a small heap
            **self.properties,
        }

    def _format(self, cluster_id: str) -> None:
        """Format the storage of every node that has none, all at once."""
        started = {node: process for node in self._nodes.values() if (process := node.start_format(cluster_id))}
        try:
            for node, process in started.items():
                if process.wait(START_BUDGET_S) != 0:
                    raise self._failed(f"The storage of node {node.number} could not be created")
                node.formatted()
        finally:
            for process in started.values():
                process.kill()
                process.wait()

    def _await_answer(self) -> None:
        """Wait until every running node answers and has joined the cluster."""
        deadline = time.monotonic() + START_BUDGET_S
        for number in self.pids or self._nodes:
            client = AdminClient(
                {
                    "bootstrap.servers": f"{HOST}:{self._ports[number][0]}",
                    "log_level": 0,  # a refused connection is normal here
                    "reconnect.backoff.ms": 50,
                    "reconnect.backoff.max.ms": 100,
                }
            )
            while not _answers(client, number):
                if gone := [n.number for n in self._nodes.values() if n.ended]:
                    raise self._failed(f"Node {gone[0]} of the embedded broker exited while it was starting")
                if time.monotonic() > deadline:
                    within = f"within {START_BUDGET_S:.0f} s"
                    raise self._failed(f"Node {number} of the embedded broker did not answer {within}")

    def _failed(self, what: str) -> BrokerFailed:
        return BrokerFailed(what, f"Read the node's log, which ends with\n{self.log_tail()}")


def prepare(say: Progress) -> float:
    """Try the broker in a temporary folder, once, and archive its loaded classes, which makes starts twice as fast.

    Returns
    -------
    float
        The seconds that a start takes now; 0.0 when there was nothing to do.
    """
    archive = class_archive()
    if archive.made:
        return 0.0
    archive.make(_trial, say)
    with tempfile.TemporaryDirectory(prefix="trial-", dir=cache_folder()) as folder:
        began = time.monotonic()
        with EmbeddedBroker(Path(folder)):
            return time.monotonic() - began


def _trial(folder: Path, options: str) -> None:
    broker = EmbeddedBroker(folder / "broker")
    broker._java_options = options
    with broker:
        pass


def _answers(client: AdminClient, number: int) -> bool:
    try:
        return number in client.list_topics(timeout=0.5).brokers
    except KafkaException:
        return False

"""A real broker behind proxies: one for the stream under test, one between the brokers; writers and judge go past."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.structs import TopicPartition

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.broker_node import Node, end_nodes
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import HOST, free_port
from faultlab.machine import Machine
from faultlab.proxy import Proxy
from testkit.broker import FAST_TIME_OUTS

#: To ask the cluster for a move of leaders, with faults beside it.
MOVE_S = 10.0

#: Of the listeners: the stream's clients, and the brokers among themselves.
SYSTEM, BETWEEN = "SYSTEM", "BETWEEN"


#: Of a broker: its logs in a round, and room for its indexes.
DISK_MB = 160


class MachineNode(Node):
    """A node on a machine of its own: its data is on the machine's disk."""

    def __init__(self, number: int, folder: Path, machine: Machine):
        super().__init__(number, folder)
        self._environment = [f"{name}={value}" for name, value in machine.environment.items()]

    def _java(self, *options: str) -> list[str]:
        return ["/usr/bin/env", *self._environment, *super()._java(*options)]


class LabBroker(EmbeddedBroker):
    """A broker with two more listeners on each node, each advertised as the port of a proxy.

    Parameters
    ----------
    machines : bool
        Each node on a machine of its own.

    Attributes
    ----------
    proxies : dict
        (:data:`SYSTEM` or :data:`BETWEEN`, node) -> its proxy. They run from the first start to :meth:`stop`.
    lost : set of int
        Nodes that nobody brings back.
    machines : dict of int -> Machine
        By node; empty without them.
    """

    def __init__(
        self, data_dir: Path, *, nodes: int = 1, properties: dict[str, str] | None = None, machines: bool = False
    ):
        super().__init__(data_dir, nodes=nodes, properties=FAST_TIME_OUTS | (properties or {}))
        numbers = range(1, nodes + 1)
        self.proxies = {(listener, n): Proxy() for listener in (SYSTEM, BETWEEN) for n in numbers}
        self.lost: set[int] = set()
        self.machines: dict[int, Machine] = {}
        if machines:
            for n, node in self._nodes.items():
                self.machines[n] = Machine(node.folder / "machine", disk=node.folder / "data", disk_mb=DISK_MB)
                self._nodes[n] = MachineNode(n, node.folder, self.machines[n])
        self._started = False

    @property
    def system_servers(self) -> str:
        """``host:port`` of every node, as the stream under test sees them."""
        return ",".join(f"{HOST}:{p.port}" for (listener, _), p in self.proxies.items() if listener == SYSTEM)

    def start(self) -> LabBroker:
        if not self._started:
            taken: set[int] = set()
            for proxy in self.proxies.values():
                proxy.port = free_port(taken)
                taken.add(proxy.port)
                proxy.start()
            self._started = True
        super().start()
        return self

    def stop(self) -> None:
        super().stop()
        if self._started:
            for proxy in self.proxies.values():
                proxy.close()
            self._started = False
        for machine in self.machines.values():
            machine.close()

    def _choose_ports(self) -> dict[int, tuple[int, int]]:
        chosen = super()._choose_ports()
        taken = {port for pair in chosen.values() for port in pair} | {p.port for p in self.proxies.values()}
        for proxy in self.proxies.values():
            proxy.target = free_port(taken)
            taken.add(proxy.target)
        return chosen

    def _settings(self, number: int) -> dict[str, str]:
        settings = super()._settings(number)
        listeners, protocols = settings["listeners"], settings["listener.security.protocol.map"]
        advertised = listeners.split(",")[0]
        for listener in (SYSTEM, BETWEEN):
            proxy = self.proxies[listener, number]
            listeners += f",{listener}://{HOST}:{proxy.target}"
            advertised += f",{listener}://{HOST}:{proxy.port}"
            protocols += f",{listener}:PLAINTEXT"
        return {
            **settings,
            "listeners": listeners,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": BETWEEN,
        }

    # -- for faults --------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """The number of nodes with which the cluster was made."""
        return len(self._nodes)

    def launch(self, node: int) -> None:
        """Start a node again on its ports, unless it is lost; return at once. A node that still runs is killed."""
        if node not in self.lost:
            assert self._lock is not None
            end_nodes([self._nodes[node]], graceful_s=0)
            self._nodes[node].launch(self._lock.fileno())

    def lose(self, node: int) -> None:
        """Kill a node with ``kill -9``, for good."""
        self.lost.add(node)
        self.kill(node)

    def roll(self, node: int, timeout_s: float) -> None:
        """Stop a node in order and start it again. After ``timeout_s`` it is killed, or not waited for."""
        end = time.monotonic() + timeout_s
        with contextlib.suppress(ProcessLookupError):
            if pid := self.pids.get(node):
                os.kill(pid, signal.SIGTERM)
        while node in self.pids and time.monotonic() < end:
            time.sleep(0.05)
        self.launch(node)
        while not self._is_up(node) and time.monotonic() < end:
            time.sleep(0.2)

    def bring_back(self) -> None:
        """Let every node run that is not lost, and wait until all of them answer.

        Raises
        ------
        BrokerFailed
        """
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for number in self._nodes:
            if number not in self.pids:
                self.launch(number)
        self._await_answer()

    def move_leaders(self, topics: Iterable[str], random: Random) -> int:
        """Shuffle the replicas of every partition of these topics and let the first one lead; return how many."""
        with Admin(Connection(self.bootstrap_servers), MOVE_S) as admin:
            orders = {}
            for topic in admin.call(lambda: admin.client.describe_topics(list(topics))):
                for partition in topic["partitions"]:
                    replicas = sorted(partition["replica_nodes"])
                    random.shuffle(replicas)
                    orders[TopicPartition(topic["name"], partition["partition_index"])] = replicas
            admin.call(lambda: admin.client.alter_partition_reassignments(orders))
            admin.call(lambda: admin.client.elect_leaders(0, raise_errors=False))
            return len(orders)

    def _is_up(self, node: int) -> bool:
        client = AdminClient({"bootstrap.servers": f"{HOST}:{self._ports[node][0]}", "log_level": 0})
        with contextlib.suppress(KafkaException):
            return node in client.list_topics(timeout=1).brokers
        return False

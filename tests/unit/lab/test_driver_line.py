"""The fault lab's proxies between a Spark driver and its executors, in front of a server that echoes bytes."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from faultlab.driver_line import ADVERTISED, DriverLine
from faultlab.faults import FAULTS, NOTHING
from faultlab.proxy import HOST, Direction, ProxyAction, Rule
from testkit.processes import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs 127.0.0.2")


class Driver(socketserver.ThreadingTCPServer):
    """Binds as a driver does; sends back what it gets, and keeps it."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, conf: dict[str, str]) -> None:
        super().__init__((conf["spark.driver.bindAddress"], int(conf["spark.driver.port"])), Echo)
        self.got = b""


class Echo(socketserver.BaseRequestHandler):
    server: Driver

    def handle(self) -> None:
        while some := self.request.recv(1 << 16):
            self.server.got += some
            self.request.sendall(some)


class Bench:
    """A line with a driver, and executors of the Spark workers 1 and 2."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}
        self.line = DriverLine(self._worker_of)
        self.conf = self.line.conf()
        self.driver = Driver(self.conf)
        threading.Thread(target=self.driver.serve_forever, args=(0.01,), daemon=True).start()

    def _worker_of(self, port: int) -> int:
        return self._workers.get(port, 0)

    def executor(self, worker: int) -> socket.socket:
        """A connection as an executor of this worker opens it."""
        made = socket.socket()
        made.settimeout(5)
        made.bind((HOST, 0))
        self._workers[made.getsockname()[1]] = worker
        made.connect((self.conf["spark.driver.host"], int(self.conf["spark.driver.port"])))
        return made

    def close(self) -> None:
        self.line.close()
        self.driver.shutdown()
        self.driver.server_close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def ask(executor: socket.socket, text: bytes) -> bytes:
    """What comes back for it; nothing when the connection ends first."""
    found = b""
    try:
        executor.sendall(text)
        while len(found) < len(text) and (some := executor.recv(1 << 16)):
            found += some
    except (ConnectionResetError, BrokenPipeError):
        pass
    return found


def test_without_a_rule_all_bytes_pass_between_the_two_addresses(bench: Bench) -> None:
    """Else Spark itself would fail, and a round would judge the proxy."""
    assert bench.conf["spark.driver.host"] == ADVERTISED and bench.conf["spark.driver.bindAddress"] == HOST
    big = bytes(range(256)) * 2000
    assert ask(bench.executor(1), big) == big


@pytest.mark.parametrize("direction", list(Direction))
def test_one_direction_of_one_worker_is_held_and_arrives_late(direction: Direction, bench: Bench) -> None:
    """The driver must give up one executor and keep the other one, to which it gives the task again."""
    one, two = bench.executor(1), bench.executor(2)
    rule = Rule(direction, ProxyAction.HOLD, origins=frozenset({1}))
    assert bench.line.add(rule) == 0
    one.sendall(b"one")
    assert ask(two, b"two") == b"two"
    if direction is Direction.ANSWERS:
        until("what executors send", lambda: b"one" in bench.driver.got, 5)
    one.settimeout(0.2)
    with pytest.raises(TimeoutError):
        one.recv(100)
    assert (b"one" in bench.driver.got) is (direction is Direction.ANSWERS)
    bench.line.remove(rule)
    one.settimeout(5)
    assert one.recv(100) == b"one"


def test_what_an_executor_sent_before_it_ended_arrives_late_too(bench: Bench) -> None:
    """The end of a task, of which the driver hears when it has given the task to another executor."""
    rule = Rule(Direction.REQUESTS, ProxyAction.HOLD)
    gone = bench.executor(1)
    assert ask(gone, b"begun ") == b"begun "
    bench.line.add(rule)
    gone.sendall(b"done")
    gone.close()
    bench.line.remove(rule)
    until("what was held", lambda: bench.driver.got == b"begun done", 5)


def test_connections_of_a_worker_are_cut_and_refused_until_the_rule_ends(bench: Bench) -> None:
    """Guards against a cut that Spark never notices, since an executor connects again at once."""
    one, two = bench.executor(1), bench.executor(2)
    assert ask(one, b"1") == b"1" and ask(two, b"2") == b"2"
    rule = Rule(Direction.REQUESTS, ProxyAction.CUT, origins=frozenset({1}))
    assert bench.line.add(rule) == 1
    assert ask(one, b"1") == b"" and ask(bench.executor(1), b"1") == b""
    assert ask(two, b"2") == b"2" and ask(bench.executor(2), b"2") == b"2"
    bench.line.remove(rule)
    assert ask(bench.executor(1), b"1") == b"1"


def test_a_second_driver_has_ports_of_its_own_and_the_same_rules(bench: Bench) -> None:
    """A driver that is paused keeps its ports, and a partition does not end because a driver has started again."""
    bench.line.add(Rule(Direction.REQUESTS, ProxyAction.CUT))
    first, bench.conf = bench.conf, bench.line.conf()
    ports = [conf[f"spark.driver.{name}"] for conf in (first, bench.conf) for name in ("port", "blockManager.port")]
    assert len(set(ports)) == 4
    assert ask(bench.executor(1), b"x") == b""


@pytest.mark.parametrize("fault", ["net-driver-hold", "net-driver-cut", "kill-executor", "pause-executor"])
def test_faults_of_executors_are_drawn_before_the_first_driver_has_started(fault: str, bench: Bench) -> None:
    """The plan is made by then: a random round never had a fault of an executor in it."""
    cluster = SimpleNamespace(workers={})
    system = SimpleNamespace(pids=lambda role: [], cluster=cluster, line=bench.line, roles=("driver", "executor"))
    lab: Any = SimpleNamespace(system=system)
    assert FAULTS[fault].fits(lab)
    done = FAULTS[fault]()
    assert done.do(lab, Random(1)).startswith(NOTHING)
    done.undo(lab)
    lab.system = SimpleNamespace(pids=lambda role: [], cluster=None, line=None, roles=("driver",))
    assert not FAULTS[fault].fits(lab)

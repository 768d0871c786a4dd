"""The fault lab's proxy, between a client and a server that echoes with a number."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from faultlab.proxy import END_TXN, METADATA, Direction, Proxy, ProxyAction, Rule
from testkit.processes import until


class Server(socketserver.ThreadingTCPServer):
    """Answers each request with its body; keeps the bodies."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[bytes] = []
        self.torn = 0


class Handler(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        while head := self.rfile.read(4):
            body = self.rfile.read(struct.unpack(">i", head)[0])
            if len(body) < struct.unpack(">i", head)[0]:
                self.server.torn += 1
                return
            self.server.got.append(body[2:])
            self.wfile.write(head + body)


class Client:
    """A connection with a time-out."""

    def __init__(self, port: int):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)

    def send(self, text: bytes, api: int = METADATA) -> None:
        body = struct.pack(">h", api) + text
        self._socket.sendall(struct.pack(">i", len(body)) + body)

    def answer(self, timeout_s: float = 5) -> bytes | None:
        """The next answer; None when the connection ends first. A time-out is an error."""
        self._socket.settimeout(timeout_s)
        found = b""
        while len(found) < 4 or len(found) < 4 + struct.unpack(">i", found[:4])[0]:
            try:
                some = self._socket.recv(1024)
            except ConnectionResetError:
                return None
            if not some:
                return None
            found += some
        return found[6:]

    def ask(self, text: bytes, api: int = METADATA) -> bytes | None:
        self.send(text, api)
        return self.answer()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    running = Proxy(target=server.server_address[1]).start()
    yield running
    running.close()


def test_without_a_rule_everything_passes(proxy: Proxy, server: Server) -> None:
    """Else a run of faults would judge the proxy."""
    client = Client(proxy.port)
    big = bytes(300_000)
    assert client.ask(b"one") == b"one" and client.ask(big) == big
    assert server.got == [b"one", big]


@pytest.mark.parametrize("direction", list(Direction))
def test_what_is_held_arrives_when_the_rule_ends(direction: Direction, proxy: Proxy, server: Server) -> None:
    """A partition of the network in one direction: the other one goes on."""
    client, rule = Client(proxy.port), Rule(direction, ProxyAction.HOLD)
    proxy.add(rule)
    client.send(b"one")
    if direction is Direction.ANSWERS:
        until("the request", lambda: server.got == [b"one"], 5)
    with pytest.raises(TimeoutError):
        client.answer(0.2)
    assert server.got == ([b"one"] if direction is Direction.ANSWERS else [])
    proxy.remove(rule)
    assert client.answer() == b"one"


def test_a_swallowed_answer_never_comes_and_the_request_has_arrived(proxy: Proxy, server: Server) -> None:
    """The case that makes outcomes doubtful. Nothing may follow on a stream with a hole, so the connection is cut."""
    client, rule = Client(proxy.port), Rule(Direction.ANSWERS, ProxyAction.SWALLOW, apis=frozenset({END_TXN}))
    proxy.add(rule)
    assert client.ask(b"before") == b"before"
    client.send(b"end", END_TXN)
    until("the request", lambda: b"end" in server.got, 5)
    with pytest.raises(TimeoutError):
        client.answer(0.2)
    proxy.remove(rule)
    assert client.answer() is None
    assert Client(proxy.port).ask(b"again") == b"again"


def test_a_cut_comes_between_a_request_of_one_kind_and_its_answer(proxy: Proxy, server: Server) -> None:
    """Guards against cuts that also take the requests the fault is not about."""
    proxy.add(Rule(Direction.ANSWERS, ProxyAction.CUT, apis=frozenset({END_TXN})))
    client = Client(proxy.port)
    assert client.ask(b"one") == b"one"
    assert client.ask(b"end", END_TXN) is None
    assert server.got == [b"one", b"end"]


def test_a_torn_request_arrives_by_half(proxy: Proxy, server: Server) -> None:
    """As when a machine stops in the middle of sending."""
    proxy.add(Rule(Direction.REQUESTS, ProxyAction.TEAR))
    client = Client(proxy.port)
    assert client.ask(bytes(1000)) is None
    until("half of a request", lambda: server.torn, 5)
    assert server.got == []


def test_a_repeated_request_arrives_twice_and_is_answered_once(proxy: Proxy, server: Server) -> None:
    """Guards against a client that falls over the answer to a repetition which it did not send."""
    proxy.add(Rule(Direction.REQUESTS, ProxyAction.REPEAT, apis=frozenset({END_TXN})))
    client = Client(proxy.port)
    assert client.ask(b"end", END_TXN) == b"end" and client.ask(b"next") == b"next"
    assert server.got == [b"end", b"end", b"next"]


def test_a_delay_comes_once_to_each_frame(proxy: Proxy) -> None:
    """Guards against a delay that never ends, and one that is none."""
    client = Client(proxy.port)
    proxy.add(Rule(Direction.ANSWERS, ProxyAction.DELAY, delay_s=0.2))
    began = time.monotonic()
    assert client.ask(b"one") == b"one"
    assert 0.2 <= time.monotonic() - began < 2


def test_a_share_of_the_connections_is_hurt_always_and_the_others_never(proxy: Proxy) -> None:
    """A fault of single connections, the same ones for the same seed."""
    rule = Rule(Direction.ANSWERS, ProxyAction.CUT, share=0.5, seed=7)
    proxy.add(rule)
    first = [Client(proxy.port).ask(b"x") for _ in range(20)]
    assert 3 < first.count(None) < 17
    assert [rule.strikes(Direction.ANSWERS, METADATA, n + 1) for n in range(20)] == [a is None for a in first]


def test_a_broker_that_is_away_refuses_and_one_that_moved_is_found(proxy: Proxy, server: Server) -> None:
    """A broker starts again on other ports; its proxy stays."""
    proxy.target, there = 1, proxy.target
    assert Client(proxy.port).ask(b"x") is None
    proxy.target = there
    client = Client(proxy.port)
    assert client.ask(b"x") == b"x"
    assert proxy.cut_all() == 1
    assert client.answer() is None


def test_a_proxy_closes_while_its_connections_end(server: Server) -> None:
    """The thread that closes and the thread of the connections once both woke those who wait for the end: an error."""
    for _ in range(100):
        proxy = Proxy(target=server.server_address[1]).start()
        client = Client(proxy.port)
        assert client.ask(b"x") == b"x"
        client.close()
        proxy.close()

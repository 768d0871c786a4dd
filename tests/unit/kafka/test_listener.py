"""What a listener speaks, by small servers that answer as brokers and others do."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.listeners import PROBE_S, Spoken, check_listeners, spoken_at
from testkit.secure import Authority

Answer = Callable[[socket.socket], None]


@contextmanager
def listening(answer: Answer) -> Iterator[int]:
    """A server that gives each connection to ``answer``, in a thread of its own; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # it ends when the server is closed
                while True:
                    line, _ = server.accept()
                    line.settimeout(10)
                    with line, suppress(OSError):
                        answer(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def broker(code: int) -> Answer:
    """Answers a handshake of SASL with this code, and closes what is no request, as a broker does."""

    def answer(line: socket.socket) -> None:
        size, key, _, correlation = struct.unpack(">ihhi", line.recv(12, socket.MSG_WAITALL))
        if size < 100 and key == 17:
            line.recv(size - 8, socket.MSG_WAITALL)
            line.sendall(struct.pack(">iihi", 10, correlation, code, 0))

    return answer


def web_server(line: socket.socket) -> None:
    line.recv(4_096)
    line.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def closes(line: socket.socket) -> None:
    line.recv(1)


def silent(line: socket.socket) -> None:
    while line.recv(4_096):
        pass


PLAINTEXT, SASL_PLAINTEXT = broker(34), broker(0)


@pytest.fixture
def tls(tmp_path: Path) -> Answer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path).identity("broker"))

    def answer(line: socket.socket) -> None:
        with context.wrap_socket(line, server_side=True) as inner:
            inner.recv(1)

    return answer


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_tls_at_a_listener_without_it_is_a_wrong_option_at_once(protocol: str) -> None:
    """Mishap: eleven seconds, and then "start again, unchanged, once the brokers answer"."""
    began = time.monotonic()
    with listening(PLAINTEXT) as port, pytest.raises(InvalidOption) as refused:
        check_listeners(Connection(f"127.0.0.1:{port}", protocol))
    assert time.monotonic() - began < 1
    said = f"kafka.security.protocol={protocol}, but the listener at 127.0.0.1:{port} speaks PLAINTEXT"
    assert refused.value.what == said and "Set kafka.security.protocol=PLAINTEXT" in refused.value.way_out


@pytest.mark.parametrize(
    ("protocol", "answer", "spoken"),
    [
        ("PLAINTEXT", SASL_PLAINTEXT, Spoken(False, True)),
        ("SASL_PLAINTEXT", PLAINTEXT, Spoken(False, False)),
        ("SASL_SSL", SASL_PLAINTEXT, Spoken(False, True)),
        ("SSL", web_server, Spoken(False, None)),
    ],
)
def test_each_protocol_that_is_not_the_listener_s_is_refused(protocol: str, answer: Answer, spoken: Spoken) -> None:
    """Mishap: ten seconds of silence for one word in the options."""
    with listening(answer) as port:
        assert spoken_at("127.0.0.1", port, protocol, PROBE_S) == spoken
        speaks = f"speaks {spoken}" if spoken.sasl is not None else "does not speak TLS"
        with pytest.raises(InvalidOption, match=f"protocol={protocol}, but the listener at") as refused:
            check_listeners(Connection(f"127.0.0.1:{port}", protocol))
    assert refused.value.what.endswith(speaks)


def test_a_listener_with_tls_is_told_from_one_without(tls: Answer) -> None:
    """Mishap: a client without TLS waits for a broker that waits for TLS."""
    with listening(tls) as port:
        for protocol in ("SSL", "SASL_SSL"):
            check_listeners(Connection(f"127.0.0.1:{port}", protocol))
        for protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
            with pytest.raises(InvalidOption, match="speaks SSL or SASL_SSL"):
                check_listeners(Connection(f"127.0.0.1:{port}", protocol))


@pytest.mark.parametrize(("protocol", "answer"), [("PLAINTEXT", PLAINTEXT), ("SASL_PLAINTEXT", SASL_PLAINTEXT)])
def test_the_listener_s_own_protocol_is_let_through(protocol: str, answer: Answer) -> None:
    """Mishap: a check that refuses a cluster which works."""
    with listening(answer) as port:
        check_listeners(Connection(f"127.0.0.1:{port}", protocol))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"])
@pytest.mark.parametrize("answer", [closes, silent])
def test_what_does_not_tell_is_left_to_the_clients(protocol: str, answer: Answer) -> None:
    """Mishap: a proxy whose broker restarts is called a wrong option, and nobody starts the stream again."""
    began = time.monotonic()
    with listening(answer) as port:
        assert spoken_at("127.0.0.1", port, protocol, PROBE_S) is None
        assert time.monotonic() - began < 1
        check_listeners(Connection(f"127.0.0.1:{port}", protocol))


def test_one_address_that_fits_is_enough() -> None:
    """A client that finds another protocol at one address goes on to the next."""
    with listening(SASL_PLAINTEXT) as other, listening(PLAINTEXT) as fits:
        check_listeners(Connection(f"127.0.0.1:{other},127.0.0.1:{fits}"))

"""Whether anything listens where the brokers should be, without waiting for a client's patience."""

from __future__ import annotations

import socket
import time

import pytest

from exactly_once.errors import BrokerUnreachable, InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.listeners import check_listeners


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_servers_of_which_none_can_be_there_are_refused_at_once() -> None:
    """Guards against fifteen seconds of silence for a wrong port."""
    servers, began = f"127.0.0.1:{closed_port()}, no-such-host.invalid:9092,", time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"no broker .*kafka\.bootstrap\.servers=") as refused:
        check_listeners(Connection(servers))
    assert time.monotonic() - began < 1
    assert "refused" in refused.value.what and "no-such-host.invalid:9092: " in refused.value.what


@pytest.mark.parametrize("address", ["broker-1", "broker-1:", "broker-1:nine", ":9092", "[::1]"])
def test_an_address_without_a_port_is_a_wrong_option(address: str) -> None:
    """Mishap: "invalid literal for int() with base 10", under the code of a broker that is down."""
    with pytest.raises(InvalidOption, match="which has no port") as refused:
        check_listeners(Connection(f"127.0.0.1:{closed_port()},{address}"))
    assert repr(address) in refused.value.what and "host:port" in refused.value.way_out


def test_one_that_listens_is_enough() -> None:
    """A cluster with a broker that is down works."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_listeners(Connection(f"127.0.0.1:{closed_port()},127.0.0.1:{server.getsockname()[1]}"))

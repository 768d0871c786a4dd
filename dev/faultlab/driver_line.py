"""The network between a Spark driver and its executors: a proxy in front of each port that executors connect to.

Executors connect to the driver, for its commands and for blocks of data, and it answers on their connections. The
driver binds to one loopback address and tells executors another one, where the proxies listen on the same ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

from exactly_once_local.ports import free_port
from faultlab.proxy import HOST, Cut, Direction, Proxy, ProxyAction, ProxyConnection, Rule

#: What executors take for the driver's address. Linux has all of 127.0.0.0/8; other systems may have 127.0.0.1 alone.
ADVERTISED = "127.0.0.2"

#: Free ports are looked for here: below those of the lab's brokers, and of outgoing connections.
PORTS = range(11_000, 15_000)

#: So that Spark gives an executor up within a fault; by default it waits two minutes, and looks once a minute. Six
#: seconds are longer than a JVM on a busy machine takes for a heartbeat. A request that waits is given up after ten.
GIVE_UP = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "6s",
    "spark.network.timeoutInterval": "1s",
    "spark.rpc.askTimeout": "10s",
    "spark.network.timeout": "20s",
}

#: As much as passes at once.
CHUNK = 1 << 16


class LineProxy(Proxy):
    """A proxy of bytes in front of one port of a driver, for rules with HOLD or CUT. It refuses connections under CUT.

    Parameters
    ----------
    port : int
        Of the driver, on 127.0.0.1, and of the proxy, on :data:`ADVERTISED`.
    rules : list of Rule
        Followed as they are at each moment: one list for all proxies of a line.
    worker_of : callable
        From the port that a connection comes from to the number of the Spark worker whose executor opened it; 0: none.
    """

    def __init__(self, port: int, rules: list[Rule], worker_of: Callable[[int], int]):
        super().__init__(port, port, ADVERTISED)
        self._rules, self._worker_of = rules, worker_of

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: int = 0) -> None:
        origin = await asyncio.to_thread(self._worker_of, writer.get_extra_info("peername")[1])
        cuts = (rule for rule in tuple(self._rules) if rule.action is ProxyAction.CUT)
        if any(not rule.origins or origin in rule.origins for rule in cuts):
            writer.transport.abort()
            return
        await super()._serve(reader, writer, origin)

    async def _requests(self, connection: ProxyConnection, reader: asyncio.StreamReader) -> None:
        await self._carry(Direction.REQUESTS, connection, reader, connection.broker)

    async def _answers(self, connection: ProxyConnection, reader: asyncio.StreamReader) -> None:
        await self._carry(Direction.ANSWERS, connection, reader, connection.client)

    async def _carry(
        self, direction: Direction, connection: ProxyConnection, reader: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(Cut, OSError):
            while chunk := await reader.read(CHUNK):
                await self._pass(connection, direction, -1, chunk, to)
                to.write(chunk)
                await to.drain()
            to.close()  # what has passed arrives, also when the sender is gone


class DriverLine:
    """The proxies of all drivers of a stream, which may overlap, and the rules that all of them follow.

    Parameters
    ----------
    worker_of : callable
        See :class:`LineProxy`.
    """

    def __init__(self, worker_of: Callable[[int], int]):
        self._worker_of = worker_of
        self._rules: list[Rule] = []
        self._proxies: list[LineProxy] = []

    def conf(self) -> dict[str, str]:
        """Spark's settings for one more driver, whose proxies listen from now on. Empty where the system lacks the
        address.
        """
        if not sys.platform.startswith("linux"):
            return {}
        ports = [self._listen() for _ in range(2)]
        return {
            **GIVE_UP,
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": ADVERTISED,
            "spark.driver.port": str(ports[0]),
            "spark.driver.blockManager.port": str(ports[1]),
            "spark.port.maxRetries": "0",  # no other port: nothing would be in front of it
        }

    def add(self, rule: Rule) -> int:
        """Follow a rule from now on. Return how many connections were cut, which CUT does at once."""
        self._rules.append(rule)
        if rule.action is not ProxyAction.CUT:
            return 0
        return sum(proxy.cut_all(rule.origins) for proxy in self._proxies)

    def remove(self, rule: Rule) -> None:
        """Take a rule back."""
        self._rules.remove(rule)

    def close(self) -> None:
        """Close all connections and ports."""
        while self._proxies:
            self._proxies.pop().close()

    def _listen(self) -> int:
        taken = {proxy.port for proxy in self._proxies}
        proxy = LineProxy(free_port(taken, (HOST, ADVERTISED), PORTS), self._rules, self._worker_of)
        proxy.start()
        self._proxies.append(proxy)
        return proxy.port

"""A TCP proxy for Kafka's protocol that a client or a broker is put behind, to hurt one direction at a time.

It passes on whole requests and answers (plaintext: a length, then the body), so it knows which request an answer
belongs to: a broker answers the requests of a connection in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

HOST = "127.0.0.1"

#: Kafka's numbers of requests.
PRODUCE, FETCH, METADATA, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN = 0, 1, 3, 22, 24, 25, 26
TXN_OFFSET_COMMIT, DESCRIBE_TRANSACTIONS = 28, 65

#: How often what is held asks whether it may go on.
POLL_S = 0.02

#: To close a proxy's connections.
CLOSE_S = 10.0


class Direction(Enum):
    """The direction of bytes."""

    REQUESTS = "requests"
    ANSWERS = "answers"


class ProxyAction(Enum):
    """The treatment of a request or an answer.

    HOLD: nothing passes until the rule ends, then it arrives late, as packets that are lost and sent again.
    DELAY: it passes so many seconds later. SWALLOW: it never arrives, nor does what follows on its connection, which is
    cut when the rule ends. CUT: the connection is closed in its place. TEAR: half of it arrives, then the connection is
    closed. REPEAT: a request arrives twice, as after a client's own repetition; the client gets one answer.
    """

    HOLD = "hold"
    DELAY = "delay"
    SWALLOW = "swallow"
    CUT = "cut"
    TEAR = "tear"
    REPEAT = "repeat"


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule that a proxy follows until it is taken back.

    Attributes
    ----------
    share : float
        Of the connections, chosen by ``seed``: each one is hurt always or never.
    apis : frozenset of int
        Only these requests, or the answers to them; empty: all.
    delay_s : float
        Of DELAY.
    origins : frozenset of int
        Only connections from these, of a proxy that tells where a connection comes from; empty: all.
    """

    direction: Direction
    action: ProxyAction
    share: float = 1.0
    apis: frozenset[int] = frozenset()
    delay_s: float = 0.0
    seed: int = 0
    origins: frozenset[int] = frozenset()

    def strikes(self, direction: Direction, api: int, connection: int, origin: int = 0) -> bool:
        """Return whether it is about this request, or this answer."""
        if direction is not self.direction or (self.apis and api not in self.apis):
            return False
        if self.origins and origin not in self.origins:
            return False
        return self.share >= 1 or Random(f"{self.seed}/{connection}").random() < self.share

    def __str__(self) -> str:
        share = f" on {self.share:.0%} of the connections" if self.share < 1 else ""
        apis = f" of {sorted(self.apis)}" if self.apis else ""
        seconds = f" {self.delay_s:g} s" if self.action is ProxyAction.DELAY else ""
        return f"{self.action.value}{seconds} {self.direction.value}{apis}{share}"


class Cut(Exception):
    """The connection ends here."""


@dataclass(eq=False)
class ProxyConnection:
    """A client's connection, and the one to the broker that goes with it."""

    number: int
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    #: Requests without an answer yet: their numbers, and whether the client must not see the answer.
    asked: deque[tuple[int, bool]] = field(default_factory=deque)
    #: Directions in which something was swallowed: nothing may follow it.
    broken: set[Direction] = field(default_factory=set)
    origin: int = 0


class Proxy:
    """A proxy in front of one port of a broker, in a thread of its own.

    Parameters
    ----------
    port : int
        Where clients find it; 0: a free port, see :attr:`port`.
    target : int
        The broker's port. May be set again while the proxy runs: for connections from then on.
    host : str
        The address on which clients find it.
    """

    def __init__(self, port: int = 0, target: int = 0, host: str = HOST):
        self.port, self.target, self._host = port, target, host
        self._rules: list[Rule] = []
        self._connections: set[ProxyConnection] = set()
        self._opened = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}", daemon=True)

    def start(self) -> Proxy:
        """Listen."""
        self._thread.start()
        self._server = self._ask(asyncio.start_server(self._serve, self._host, self.port))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        """Close every connection and the port."""
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()

    def add(self, rule: Rule) -> None:
        """Follow a rule from now on, beside those before it; the first one that strikes counts."""
        self._rules.append(rule)

    def remove(self, rule: Rule) -> None:
        """Take a rule back. Connections that lost something are cut."""
        self._rules.remove(rule)
        self._ask(self._cut_all(broken_only=True))

    def cut_all(self, origins: frozenset[int] = frozenset()) -> int:
        """Close every connection, or those from these origins; return how many there were."""
        return int(self._ask(self._cut_all(origins=origins)))

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CLOSE_S)

    async def _end(self) -> None:
        self._server.close()
        await self._cut_all()
        if ways := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(ways, timeout=CLOSE_S / 2)

    async def _cut_all(self, broken_only: bool = False, origins: frozenset[int] = frozenset()) -> int:
        cut = [c for c in self._connections if c.broken or not broken_only]
        cut = [c for c in cut if not origins or c.origin in origins]
        for connection in cut:
            _abort(connection)
        return len(cut)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: int = 0) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.transport.abort()
            return
        self._opened += 1
        connection = ProxyConnection(self._opened, writer, to_broker, origin=origin)
        self._connections.add(connection)
        ways = [self._requests(connection, reader), self._answers(connection, from_broker)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            _abort(connection)
            self._connections.discard(connection)

    async def _requests(self, connection: ProxyConnection, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(Cut, OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                (api,) = struct.unpack_from(">h", frame, 4)
                times = await self._pass(connection, Direction.REQUESTS, api, frame, connection.broker)
                for n in range(times):
                    connection.asked.append((api, n > 0))
                    connection.broker.write(frame)
                await connection.broker.drain()

    async def _answers(self, connection: ProxyConnection, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(Cut, OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                api, hidden = connection.asked.popleft() if connection.asked else (-1, False)
                if not hidden and await self._pass(connection, Direction.ANSWERS, api, frame, connection.client):
                    connection.client.write(frame)
                    await connection.client.drain()

    async def _pass(
        self, connection: ProxyConnection, direction: Direction, api: int, frame: bytes, to: asyncio.StreamWriter
    ) -> int:
        """Do what the rules say; return how often the frame is to be sent."""
        if direction in connection.broken:
            return 0
        held: Rule | None = None
        while (rule := self._rule(direction, api, connection)) is not None:
            if rule.action is ProxyAction.HOLD:
                await asyncio.sleep(POLL_S)
            elif rule.action is ProxyAction.DELAY:
                if held is rule:
                    return 1
                held = rule
                await asyncio.sleep(rule.delay_s)
            elif rule.action is ProxyAction.SWALLOW:
                connection.broken.add(direction)
                return 0
            elif rule.action is ProxyAction.REPEAT:
                return 2 if direction is Direction.REQUESTS else 1
            else:
                if rule.action is ProxyAction.TEAR:
                    to.write(frame[: len(frame) // 2])
                    await to.drain()
                    to.close()
                raise Cut
        return 1

    def _rule(self, direction: Direction, api: int, connection: ProxyConnection) -> Rule | None:
        rules, number, origin = tuple(self._rules), connection.number, connection.origin
        return next((r for r in rules if r.strikes(direction, api, number, origin)), None)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


def _abort(connection: ProxyConnection) -> None:
    for writer in (connection.client, connection.broker):
        if writer.transport.is_closing() and writer.transport.get_write_buffer_size():
            continue  # half of a frame is on its way
        writer.transport.abort()

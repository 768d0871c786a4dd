"""A broker that is far away: a line in front of it delays every byte, and notes who asked what, and when."""

from __future__ import annotations

import asyncio
import multiprocessing
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from ctypes import c_double
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import HOST, free_port
from testkit.broker import FAST_TIME_OUTS, kafka_classpath

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

#: Kafka's numbers of requests, by their names.
APIS = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    9: "OffsetFetch",
    10: "FindCoordinator",
    18: "ApiVersions",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
    32: "DescribeConfigs",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    66: "ListTransactions",
    75: "DescribeTopicPartitions",
}

#: To listen.
_START_S = 10.0

#: Requests that a line remembers.
_KEPT = 100_000


@dataclass(frozen=True)
class Asked:
    """One request that was answered: who asked what (Kafka's name; a number where :data:`APIS` has none), in which
    version; when the client sent it, and when it had the answer, in seconds of this machine's monotonic clock.
    """

    client: str
    api: str
    version: int
    sent_s: float
    answered_s: float


def one_after_the_other(requests: Iterable[Asked]) -> list[Asked]:
    """Return as many of ``requests`` as possible of which each was sent when the one before was answered: so many round
    trips somebody waited.
    """
    found: list[Asked] = []
    for asked in sorted(requests, key=lambda a: a.answered_s):
        if not found or asked.sent_s >= found[-1].answered_s:
            found.append(asked)
    return found


class Line:
    """The line to the port ``target`` of a broker. It delays each direction by half of ``far.value`` seconds, which may
    change at any time, and limits nothing; it keeps what was asked.

    The event loop waits by ``select``: with ``epoll`` it would wait up to a millisecond too long.
    """

    def __init__(self, port: int, target: int, far: Synchronized[float]):
        self.target, self._port, self._far = target, port, far
        self._asked: deque[Asked] = deque(maxlen=_KEPT)
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="far-line", daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        listening = self._loop.create_server(lambda: _Client(self), HOST, self._port)
        asyncio.run_coroutine_threadsafe(listening, self._loop).result(_START_S)

    def close(self) -> None:
        """Stop; connections end with the process of their client or of the broker."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)

    def asked(self, since_s: float = 0.0) -> list[Asked]:
        """Return what was sent since then and is answered."""
        return [a for a in list(self._asked) if a.sent_s >= since_s]

    def note(self, asked: Asked) -> None:
        """Keep one."""
        self._asked.append(asked)

    @property
    def one_way_s(self) -> float:
        """Half of a round trip."""
        return self._far.value / 2


class _End(asyncio.Protocol):
    """One end of a connection: it hands on what arrives there, later."""

    def __init__(self, line: Line):
        self._line = line
        self._transport: asyncio.Transport | None = None
        self._late: deque[tuple[float, bytes]] = deque()
        self._rest = b""
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._frames(data)
        assert self.other is not None
        self.other.send(data, self._line.one_way_s)

    def send(self, data: bytes, delay_s: float) -> None:
        """Write it so many seconds from now, in order."""
        loop = asyncio.get_running_loop()
        due = max(loop.time() + delay_s, self._late[-1][0] if self._late else 0.0)
        self._late.append((due, data))
        if len(self._late) == 1:
            self._write_due()

    def _write_due(self) -> None:
        loop = asyncio.get_running_loop()
        while self._late and self._transport is not None:
            due, data = self._late[0]
            if due > loop.time():
                loop.call_at(due, self._write_due)
                return
            self._transport.write(data)
            self._late.popleft()

    def _frames(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 4 and len(self._rest) >= (size := 4 + struct.unpack_from(">i", self._rest)[0]):
            self.frame(self._rest[4:size])
            self._rest = self._rest[size:]

    def frame(self, frame: bytes) -> None:
        """Look at one request, or one answer."""


class _Client(_End):
    """The end at which the client is."""

    def __init__(self, line: Line):
        super().__init__(line)
        self.open: dict[int, tuple[str, str, int, float]] = {}
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop, made = asyncio.get_running_loop(), _Broker(self._line, self)
        await loop.create_connection(lambda: made, HOST, self._line.target)
        self.other = made
        for data in self._early:
            made.send(data, self._line.one_way_s)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._frames(data)
            self._early.append(data)
        else:
            super().data_received(data)

    def frame(self, frame: bytes) -> None:
        api, version, number, length = struct.unpack_from(">hhih", frame)
        client = frame[10 : 10 + max(0, length)].decode(errors="replace")
        self.open[number] = client, APIS.get(api, str(api)), version, time.monotonic()


class _Broker(_End):
    """The end at which the broker is."""

    def __init__(self, line: Line, client: _Client):
        super().__init__(line)
        self.other = self._client = client

    def frame(self, frame: bytes) -> None:
        (number,) = struct.unpack_from(">i", frame)
        if (found := self._client.open.pop(number, None)) is not None:
            self._line.note(Asked(*found, time.monotonic() + self._line.one_way_s))


class FarBroker(EmbeddedBroker):
    """One node with a listener at the end of a :class:`Line`: who comes in by ``far_servers`` is far away.

    Parameters
    ----------
    apart : bool
        The line is a process of its own, which notes nothing: where this process is what is measured.
    """

    def __init__(self, data_dir: Path, apart: bool = False):
        super().__init__(data_dir, properties=FAST_TIME_OUTS, classpath=kafka_classpath())
        self._port, self._door = free_port(), free_port()
        context = multiprocessing.get_context("spawn")
        self._far = context.Value(c_double, 0.0)
        self.line = Line(self._port, self._door, self._far)
        self._process = context.Process(target=_serve, args=(self._port, self._door, self._far), daemon=True)
        self._apart = apart

    @property
    def far_servers(self) -> str:
        """``host:port`` at the near end of the line."""
        return f"{HOST}:{self._port}"

    def be_far(self, round_trip_s: float) -> None:
        """Take so long for a round trip from now on."""
        self._far.value = round_trip_s

    def start(self) -> FarBroker:
        super().start()
        (self._process if self._apart else self.line).start()
        return self

    def stop(self) -> None:
        (self._process.kill if self._apart else self.line.close)()
        super().stop()

    def _settings(self, number: int) -> dict[str, str]:
        settings = super()._settings(number)
        near = settings["listeners"].split(",")[0]
        return {
            **settings,
            "listeners": f"{settings['listeners']},FAR://{HOST}:{self._door}",
            "advertised.listeners": f"{near},FAR://{HOST}:{self._port}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},FAR:PLAINTEXT",
        }


def _serve(port: int, target: int, far: Synchronized[float]) -> None:
    Line(port, target, far).start()
    threading.Event().wait()

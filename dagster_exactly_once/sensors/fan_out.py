"""Asks brokers about several streams at once, within the time of one tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError

T = TypeVar("T")

#: A call mostly waits for brokers. Each has connections and threads of its own, so more of them gain little.
AT_ONCE = 8

#: A call that begins with less time than this would only fail, and say that the brokers are silent.
ENOUGH_S = 1.0


def ask_each(
    streams: Sequence[StreamSpec], ask: Callable[[StreamSpec, float], T], deadline: Deadline
) -> dict[str, T | ExactlyOnceError]:
    """Return, by sink id, the result of ``ask(stream, budget_s)`` or its error. Streams are asked in order; those for
    which no time was left are missing.
    """

    def found(stream: StreamSpec) -> dict[str, T | ExactlyOnceError]:
        left = deadline.left
        if left < ENOUGH_S:
            return {}
        try:
            return {stream.sink_id: ask(stream, left)}
        except ExactlyOnceError as error:
            return {stream.sink_id: error}

    if not streams:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(streams)), thread_name_prefix="ask") as threads:
        return {sink_id: result for some in threads.map(found, streams) for sink_id, result in some.items()}

"""A webhook on this machine, for tests of notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testkit.http_server import Answer, Asked, HttpServer


@contextmanager
def webhook() -> Iterator[tuple[str, list[Any], list[int]]]:
    """Yield its address, the bodies that it took, and the answers that it will give: 200 when there are none."""
    taken: list[Any] = []
    answers: list[int] = []

    def take(asked: Asked) -> Answer:
        taken.append(json.loads(asked.body))
        return Answer(answers.pop() if answers else 200)

    with HttpServer(take) as server:
        yield f"{server.url}/secret-path", taken, answers

"""A webhook on this machine, for tests of notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def webhook() -> Iterator[tuple[str, list[Any], list[int]]]:
    """Yield its address, the bodies that it took, and the answers that it will give: 200 when there are none."""
    taken: list[Any] = []
    answers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop() if answers else 200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-path", taken, answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

"""An HTTP server on this machine, whose answers a test gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self


class Asked(NamedTuple):
    """A request; the names of its headers are found in any case."""

    method: str
    path: str
    headers: Message
    body: bytes


class Answer(NamedTuple):
    """What a client gets."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


class HttpServer:
    """Listens on a free port from the first moment on. A context manager.

    Attributes
    ----------
    url : str
        ``http://127.0.0.1:<port>``
    """

    def __init__(self, answer: Callable[[Asked], Answer]):
        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                given = answer(Asked(self.command, self.path, self.headers, body))
                self.send_response(given.status)
                for name, value in {**given.headers, "Content-Length": str(len(given.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(given.body)

            do_GET = do_POST = do_PUT = _answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop."""
        self.server.shutdown()
        self.server.server_close()

"""A free port for a process that is about to start."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Collection, Sequence

HOST = "127.0.0.1"  # not localhost: clients try ::1 first, where no broker listens

#: Ports below the range that systems give to outgoing connections. In that range, a client that keeps trying to reach a
#: killed server would at some point get the server's own port, connect to itself, and keep the server from restarting.
PORTS = range(15_000, 30_000)


def free_port(taken: Collection[int] = (), hosts: Sequence[str] = (HOST,), among: range = PORTS) -> int:
    """Return a port of ``among`` on which nobody listens, on any of ``hosts``, and which is not one of ``taken``.

    Raises
    ------
    OSError
        None of a thousand ports is free.
    """
    for port in random.sample(among, 1000):
        if port not in taken and all(is_free(port, host) for host in hosts):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port between {among.start} and {among.stop}")


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether nobody listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((host, port))
            return True
    return False

"""The command ``exactly-once`` as tests run it: in their own process, or as one that stands still at a fail point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testkit.processes import until
from testkit.stream import ROOT

#: Runs a command in this process: exit code, standard output or its JSON, standard error.
Run = Callable[..., tuple[int, Any, str]]


@contextmanager
def held_at(point: str, folder: Path, servers: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield the process when it waits at ``point``, until the file ``<point>.reached`` in ``folder`` is gone; kill it
    at the end.
    """
    (folder / point).write_text("wait")
    command = [sys.executable, "-m", "exactly_once.tools.cli", *arguments]
    env = {**os.environ, "EXACTLY_ONCE_FAILPOINTS": str(folder), "KAFKA_BOOTSTRAP_SERVERS": servers}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            until(point, lambda: (folder / f"{point}.reached").exists() or process.poll() is not None, 90)
            yield process
        finally:
            process.kill()

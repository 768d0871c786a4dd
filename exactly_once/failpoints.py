"""Named points at which a crash test may stop a process. Without ``EXACTLY_ONCE_FAILPOINTS`` in the environment,
nothing happens.

The variable names a folder. A point fires when that folder holds a file of its name; the file is renamed to
``<point>.reached`` first, so it fires once over all processes, and a test can wait for that name. The file's text says
what happens: ``hang`` (the test kills the processes then), ``exit`` (this process alone ends at once), ``raise``, or
``sleep <seconds>``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Every point, in the order in which a batch passes them.
POINTS = (
    "claimed",
    "before-begin",
    "mid-write",
    "after-flush",
    "all-prepared",
    "decided",
    "some-ended",
    "all-ended",
    "completed",
    "aborting",
    "files-gathered",
    "repair-kept",
    "repair-changed",
)


def reach(name: str) -> None:
    """Say that the process is at ``name``; one dictionary look-up unless a test is running."""
    folder = os.environ.get("EXACTLY_ONCE_FAILPOINTS")
    if folder is not None:
        _fire(Path(folder), name)


def armed(name: str) -> bool:
    """Whether a test waits at ``name``."""
    folder = os.environ.get("EXACTLY_ONCE_FAILPOINTS")
    return folder is not None and (Path(folder) / name).exists()


def _fire(folder: Path, name: str) -> None:
    reached = folder / f"{name}.reached"
    try:
        (folder / name).rename(reached)
    except FileNotFoundError:
        return
    action, _, argument = reached.read_text(encoding="utf-8").strip().partition(" ")
    if action == "raise":
        raise RuntimeError(f"failpoint {name}")
    if action == "exit":
        os._exit(17)
    time.sleep(float(argument) if action == "sleep" else 3600)  # "hang": until the test kills us

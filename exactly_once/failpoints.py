"""Named points at which a crash test may stop a process. Without ``EXACTLY_ONCE_FAILPOINTS`` in the environment they do
nothing.

The variable names a folder. A point fires when the folder holds a file with the point's name. The process renames the
file to ``<point>.reached`` first: the point fires once over all processes, and a test can wait for the new name. The
file's text is the action: ``hang`` (until the test kills the process), ``wait`` (until the test removes the
file), ``exit`` (this process alone, at once), ``raise``, or ``sleep <seconds>``. Then it is the id of the process.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

#: Every point, in the order in which a batch passes them.
POINTS = (
    "planning",
    "claimed",
    "planned",
    "before-begin",
    "mid-write",
    "some-sent",
    "after-flush",
    "all-prepared",
    "confirmed",
    "decided",
    "some-ended",
    "all-ended",
    "marking",
    "completed",
    "aborting",
    "files-gathered",
    "repair-kept",
    "repair-changed",
    "retiring",
    "retired",
)


def reach(name: str) -> None:
    """Fire the point ``name`` if a test armed it; one dictionary look-up unless a test is running."""
    folder = os.environ.get("EXACTLY_ONCE_FAILPOINTS")
    if folder is not None:
        _fire(Path(folder), name)


def armed(name: str) -> bool:
    """Return whether a test armed the point ``name``."""
    folder = os.environ.get("EXACTLY_ONCE_FAILPOINTS")
    return folder is not None and (Path(folder) / name).exists()


def _fire(folder: Path, name: str) -> None:
    reached, mine = folder / f"{name}.reached", folder / f".{name}.{os.getpid()}.{threading.get_native_id()}"
    try:
        (folder / name).rename(mine)
    except FileNotFoundError:
        return
    action, _, argument = mine.read_text(encoding="utf-8").strip().partition(" ")
    mine.write_text(str(os.getpid()))
    mine.rename(reached)  # the file appears whole: a test may remove it at that moment
    if action == "raise":
        raise RuntimeError(f"failpoint {name}")
    if action == "exit":
        os._exit(17)
    if action == "wait":
        while reached.exists():
            time.sleep(0.02)
        return
    time.sleep(float(argument) if action == "sleep" else 3600)  # "hang": until the test kills us

"""Points of the protocol at which the processes of a stream can be made to wait."""

from __future__ import annotations

import time
from pathlib import Path

from exactly_once.failpoints import POINTS

#: Those that a stream comes to.
OF_STREAMS = tuple(p for p in POINTS if not p.startswith(("repair", "files")))


class Points:
    """Arms points for the processes that have ``failpoints`` as ``EXACTLY_ONCE_FAILPOINTS``."""

    failpoints: Path

    def arm(self, point: str, action: str) -> None:
        self.disarm(point)
        draft = self.failpoints / ".draft"
        draft.write_text(action)
        draft.rename(self.failpoints / point)

    def has_reached(self, point: str) -> bool:
        return (self.failpoints / f"{point}.reached").exists()

    def process_at(self, point: str) -> int:
        reached = self.failpoints / f"{point}.reached"
        for _ in range(100):  # its file has the action first, and then the process
            text = reached.read_text() if reached.exists() else ""
            if text.isdigit():
                return int(text)
            time.sleep(0.005)
        return 0

    def disarm(self, point: str) -> None:
        for name in (point, f"{point}.reached"):
            (self.failpoints / name).unlink(missing_ok=True)

"""Points of the protocol at which the processes of a stream can be made to wait."""

from __future__ import annotations

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

    def disarm(self, point: str) -> None:
        for name in (point, f"{point}.reached"):
            (self.failpoints / name).unlink(missing_ok=True)

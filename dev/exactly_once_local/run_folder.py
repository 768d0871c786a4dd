"""The folder where a run on this machine keeps its files: logs, checkpoints, the data of an embedded broker."""

from __future__ import annotations

import os
from pathlib import Path


def checkout() -> Path | None:
    """Return the project folder that this code runs from, or None when it runs from an installed package."""
    dev = Path(__file__).resolve().parents[1]
    return dev.parent if dev.name == "dev" and (dev.parent / "pyproject.toml").is_file() else None


def run_folder() -> Path:
    """Return the folder for the files of runs, absolute: never one in site-packages.

    It is ``EXACTLY_ONCE_RUN_DIR``; else ``.run`` in the checkout, whatever the working directory; else
    ``exactly-once`` in the user's folder for state.
    """
    if own := os.environ.get("EXACTLY_ONCE_RUN_DIR"):
        return Path(own).expanduser().absolute()
    if project := checkout():
        return project / ".run"
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "exactly-once"

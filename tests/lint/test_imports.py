"""What each kind of process imports: the first batch waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("exactly_once.spark.tasks", ("psutil", "exactly_once.coordinator.claim", "pandas")),
    ],
    ids=["a task"],
)
def test_a_process_does_not_import_what_it_does_not_use(module: str, unused: tuple[str, ...]) -> None:
    """Guards against a first batch that takes a second longer: 0.2 to 0.6 s of processor time for each of them."""
    code = f"import sys, {module}; print(*(m for m in {unused!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

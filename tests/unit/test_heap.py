"""The collections of a worker process."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import gc
from exactly_once.spark import heap
kept = [[] for _ in range(50_000)]
frozen = []
for _ in range(8):
    heap.freeze()
    frozen.append(gc.get_freeze_count())
class Ring: pass
ring = Ring(); ring.ring = ring
import weakref
alive = weakref.ref(ring)
del ring
gc.collect()
print(frozen[0] > 50_000, frozen[4] >= frozen[1], len(set(frozen[4:])) == 1, alive() is None)
"""


def test_what_a_worker_keeps_is_frozen_after_its_first_calls_and_later_garbage_is_still_collected() -> None:
    """Guards against a full collection of everything after each task, and against a heap that only grows."""
    answer = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == ["True"] * 4

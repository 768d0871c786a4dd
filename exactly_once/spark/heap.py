"""What stays in a PySpark worker process is taken out of its garbage collections.

PySpark's daemon runs a full ``gc.collect()`` after every task, and after every call of the planning and the committing
process. It then visits everything that imports and connections have left: some 70,000 objects, 45 ms of processor time,
six times a micro-batch.
"""

from __future__ import annotations

import gc
from itertools import count

#: The calls of a process after which what is there is kept out. After the first one all modules are imported and the
#: connections are open; a second worker's first task and the first commit come later. What a later call makes is
#: collected as ever.
_CALLS = frozenset({1, 2, 5})

_calls = count(1)


def freeze() -> None:
    """Freeze the objects of this process (:func:`gc.freeze`) after its first calls; called at the end of each one."""
    if next(_calls) in _CALLS:
        gc.collect()
        gc.freeze()

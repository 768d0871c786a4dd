"""``exactly-once``, as it is installed: the tools are loaded behind a look for their packages."""

from __future__ import annotations

import sys

from exactly_once.errors import ExtraMissing
from exactly_once.tools import needed


def main() -> int:
    """Run the command with the arguments of the process; return its exit code, 2 without the extra ``tools``."""
    try:
        with needed():
            from exactly_once.tools.cli import main as run
    except ExtraMissing as e:
        print(e, file=sys.stderr)
        return 2
    return run()

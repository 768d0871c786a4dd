"""``python -m exactly_once.ops.cli``: the same as ``exactly-once``."""

import sys

from exactly_once.ops.cli import main

sys.exit(main())

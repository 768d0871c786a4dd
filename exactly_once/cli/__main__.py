"""``python -m exactly_once.cli``: the same as ``exactly-once``."""

import sys

from exactly_once.cli import main

sys.exit(main())

"""``python -m exactly_once.tools.cli``: the same as ``exactly-once``."""

import sys

from exactly_once.tools.cli import main

sys.exit(main())

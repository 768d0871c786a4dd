"""The tutorials, as a person follows them: in an empty folder, with the wheel in an environment of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from exactly_once.sparkenv.jars import cache_folder, resolve
from exactly_once.sparkenv.java import find_java
from testkit.pages import run_page

ROOT = Path(__file__).parents[2]

#: For one block, on a machine that does other things too: an installation, a start of Spark, a recovery.
LIMIT_S = 900.0

#: What a person's machine has: pip's settings (a mirror, a proxy), and a Java.
_KEPT = (
    "PIP_",
    "JAVA_HOME",
    "LANG",
    "LC_",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP",
    "HTTPS",
    "NO_PROXY",
    "SSL_",
)


def environment(home: Path) -> dict[str, str]:
    """A person's: nothing of this process's, but downloads are shared with the tests."""
    cache = home / "cache"  # what else is kept there belongs to an environment that ends with the test
    cache.mkdir()
    (cache / "jars").symlink_to(resolve().parent)
    python = Path(sys.executable).resolve().parent  # not of a virtual environment
    return {
        **{name: value for name, value in os.environ.items() if name.startswith(_KEPT)},
        "HOME": str(home),
        "PATH": os.pathsep.join([str(python), str(Path(find_java().executable).parent), "/usr/bin", "/bin"]),
        "TMPDIR": str(home),
        "PIP_CACHE_DIR": str(cache_folder() / "pip"),
        "PIP_NO_COMPILE": "1",  # what is not imported need not be compiled
        "EXACTLY_ONCE_CACHE": str(cache),
        "CHECKOUT": str(ROOT),
        # the connector that spark.jars.packages downloads; Java takes the home folder from the system, not from HOME
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.jars.ivy={cache_folder() / 'spark-ivy'} pyspark-shell",
    }


@pytest.mark.long
@pytest.mark.parametrize("page", ["tutorial.md", "from-spark-sink.md", "one-bad-record.md"])
def test_each_command_of_the_page_works_and_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    """Guards against a first hour with the package that ends in an error."""
    folder, home, logs = tmp_path / "folder", tmp_path / "home", tmp_path / "logs"
    for made in (folder, home, logs):
        made.mkdir()
    took = run_page(ROOT / "docs" / page, folder, logs, environment(home), LIMIT_S)
    for command, seconds in took.items():
        print(f"{seconds:6.1f} s  {command}")

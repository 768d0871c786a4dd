"""The product knows nothing of the example that the repository runs."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: A departure, not a batch or a request that is in flight.
FLIGHT = re.compile(r"flights?(?![a-z])", re.IGNORECASE)
IN_FLIGHT = re.compile(r"in[ ._-]?flight", re.IGNORECASE)


def test_the_installed_packages_and_the_thin_folders_name_nothing_of_the_example():
    """A constant of the example in the machinery is a fork for everybody else."""
    listed = ("git", "ls-files", "exactly_once", "dagster_exactly_once", "resources", "sensors")
    files = subprocess.check_output(listed, cwd=ROOT, text=True).split()
    found = [
        f"{file}:{number}: {line.strip()}"
        for file in files
        if not file.endswith(".jar")
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1)
        if FLIGHT.search(IN_FLIGHT.sub("", line))
    ]
    assert found == []

"""Run the unit tests and tests/contract on every other Python that is found: ``make test-pythons``, or ``python -m
tools.pythons [arguments of pytest ...]``.

Each Python gets an environment of its own, with every wheel and the extra ``dev``, which has all others. No Python is
begun when less than EACH_S are left of the seconds in TEST_BUDGET_S.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.extras import CONSTRAINTS, PROJECT, VERSIONS, Failed, build, found_pythons, pip, run

#: For one Python on two cores: 70 s for its environment, 100 s for the tests; and as much again on a busy machine.
EACH_S = 350

TESTS = ("tests/unit", "tests/contract")


def main(arguments: list[str]) -> int:
    """Test on each Python but this one, say which are left out, and return the exit code."""
    place = PROJECT / ".run"
    place.mkdir(exist_ok=True)
    until = time.monotonic() + float(os.environ.get("TEST_BUDGET_S", "inf"))
    found = found_pythons()
    codes: list[int] = []
    for version in VERSIONS:
        if found.get(version) == sys.executable:
            print(f"Python {version}: is that of the other tests", flush=True)
        elif version not in found:
            print(f"Python {version}: left out, this machine has none", flush=True)
        elif time.monotonic() + EACH_S > until:
            print(f"Python {version}: left out, less than {EACH_S} s are left", flush=True)
        else:
            with tempfile.TemporaryDirectory(prefix="python-", dir=place) as folder:
                codes.append(test_on(found[version], Path(folder), arguments))
    return int(any(codes))  # also one that a signal ended


def test_on(python: str, folder: Path, arguments: list[str]) -> int:
    """Test on one Python, and return the exit code."""
    began = time.monotonic()
    environment = folder / "environment"
    try:
        run([python, "-m", "venv", "--clear", "--without-pip", str(environment)], folder)
        constraints = ["--no-compile", "-c", CONSTRAINTS]
        engine, *others = build(folder).values()
        pip(environment, "install", *constraints, f"{engine}[dev]", *others)
        version = run([str(environment / "bin" / "python"), "-VV"], folder).strip()
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"{version}: its environment took {time.monotonic() - began:.0f} s", flush=True)
    command = [
        str(environment / "bin" / "python"),
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "tests/unit",
        "tests/contract",
    ]
    return subprocess.run([*command, *arguments], cwd=PROJECT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Finds the Java for Spark and the embedded broker, without starting it if possible.

The choice is Spark's own, so that both run on the same Java: ``JAVA_HOME`` when set, else ``java`` on the ``PATH``;
on macOS also what ``/usr/libexec/java_home`` knows.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from exactly_once.errors import ExactlyOnceError

OLDEST_JAVA = 17


class JavaUnusable(ExactlyOnceError):
    """No Java, or one that is too old for the sink's jar, Spark 4 and Kafka 4."""

    code = "EO-JAVA"
    default_safe = "Nothing was started"


@dataclass(frozen=True)
class Java:
    """A Java that is new enough: the ``java`` command, the folder for ``JAVA_HOME`` if it had to be looked up, so that
    Spark finds the same Java, and 17, 21, ...
    """

    executable: str
    home: str | None
    major: int


def find_java() -> Java:
    """Return the Java to use; raise JavaUnusable, which says what to install, without one or for one older than 17."""
    return _find_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _find_java(java_home: str, path: str) -> Java:
    way_out = (
        f"Install Java {OLDEST_JAVA} or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless, "
        "macOS: brew install openjdk@17) or set JAVA_HOME to one"
    )
    executable: str | None
    home: str | None = None
    if java_home:
        executable = str(Path(java_home) / "bin" / "java")
        if not os.access(executable, os.X_OK):
            raise JavaUnusable(f"JAVA_HOME is {java_home}, but {executable} is not a program", way_out)
    else:
        executable = shutil.which("java", path=path)
        if executable is None or _major(executable) is None:  # macOS has a java command that only says "install Java"
            home = _macos_java_home()
            executable = str(Path(home) / "bin" / "java") if home else None
    if executable is None:
        raise JavaUnusable("No Java was found", way_out)
    major = _major(executable)
    if major is None:
        raise JavaUnusable(f"{executable} does not report its version", way_out)
    if major < OLDEST_JAVA:
        raise JavaUnusable(f"{executable} is Java {major}, which is too old", way_out)
    return Java(executable, home, major)


def _major(executable: str) -> int | None:
    """Return its major version: from the ``release`` file in every JDK, else by running it (50 ms)."""
    release = Path(executable).resolve().parent.parent / "release"
    text = ""
    if release.is_file():
        found = re.search(r'^JAVA_VERSION="?([^"\n]+)', release.read_text(errors="replace"), re.MULTILINE)
        text = found.group(1) if found else ""
    if not text:
        try:
            said = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "([^"]+)"', said)
        text = found.group(1) if found else ""
    number = re.match(r"(?:1\.)?(\d+)", text)  # Java 8 calls itself 1.8
    return int(number.group(1)) if number else None


def _macos_java_home() -> str | None:
    tool = "/usr/libexec/java_home"
    if not os.access(tool, os.X_OK):
        return None
    asked = subprocess.run([tool, "-v", f"{OLDEST_JAVA}+"], capture_output=True, text=True, timeout=30)
    return asked.stdout.strip() or None if asked.returncode == 0 else None

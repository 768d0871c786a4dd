"""Java's side of the border, in a JVM without Spark, against the golden files; test_border.py has Python's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from exactly_once.spark.session import JAR
from exactly_once.sparkenv.java import find_java
from testkit.java import compiled, jackson
from tools.golden import GOLDEN

SOURCE = GOLDEN.parent / "java" / "exactlyonce" / "border" / "Golden.java"


@pytest.mark.quick("PySpark's")
@pytest.mark.parametrize("release", ["", "2.15.2"], ids=["PySpark's", "that of Spark 3.5"])
def test_java_writes_and_reads_the_golden_messages_and_names_a_field_that_it_cannot_read(
    release: str, tmp_path: Path
) -> None:
    """Guards against a key that one side changes alone: a batch whose report or ticket the other misreads; against a
    NullPointerException for a user whose jar is of another version; and against a JSON library that makes no records.
    """
    jars = jackson(release)
    path = os.pathsep.join(map(str, (compiled(SOURCE, tmp_path, *jars), JAR, *jars)))
    command = [find_java().executable, "-cp", path, "exactlyonce.border.Golden", str(GOLDEN / "border")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["EO-PROTOCOL"] * 3, "the first lines name files that differ"
    named = [re.search(r"has sent \((.*)\)\. ", line) for line in lines]
    assert [match and re.findall("log_end|timeout_ms|plan", match[1])[:1] for match in named] == [
        ["log_end"],
        ["timeout_ms"],
        ["plan"],
    ]

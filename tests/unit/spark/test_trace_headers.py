"""``exactly_once.trace_headers`` where the process has no JVM: a program on Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import exactly_once
from pyspark.sql import functions as F

for column in (exactly_once.trace_headers(), exactly_once.trace_headers(F.col("tried.headers"))):
    print(type(column).__module__, column)
"""


@pytest.mark.long
def test_on_spark_connect_the_column_is_one_of_spark_connect() -> None:
    """Guards against a function that asks for a JVM, which a client of Spark Connect does not have."""
    pytest.importorskip("grpc_status")
    environment = {**os.environ, "SPARK_CONNECT_MODE_ENABLED": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("pyspark.sql.connect.column ") and second.startswith("pyspark.sql.connect.column ")
    for said, column in ((first, "headers"), (second, "tried.headers")):
        assert f"filter({column}, " in said and "traceparent" in said and "tracestate" in said and "AS headers" in said

"""An output whose package is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("postgres", "psycopg", "postgres"), ("delta", "deltalake", "delta"), ("iceberg", "pyiceberg", "iceberg")],
)
def test_an_output_without_its_package_names_the_extra(module: str, package: str, extra: str) -> None:
    """On one executor of many the extra is missing: a bare ImportError says nothing of what to install."""
    code = f"import sys; sys.modules[{package!r}] = None; import exactly_once.outputs.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "EO-EXTRA" in done.stderr and f"pyspark-kafka-exactly-once[{extra}]" in done.stderr

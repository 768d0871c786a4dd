"""An output or a format whose package is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

REGISTRY = """
from exactly_once.schema_options import Registry
from exactly_once.formats.registry.schema_registry import resolve
resolve(Registry.parse({"schema.registry.url": "http://127.0.0.1:1", "value.schema.subject": "s"}, "t"))
"""
AVRO = "from exactly_once.formats.avro import _parsed; _parsed('{}')"


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        ("import exactly_once.outputs.postgres", "psycopg", "postgres"),
        ("import exactly_once.outputs.delta", "deltalake", "delta"),
        ("import exactly_once.outputs.iceberg", "pyiceberg", "iceberg"),
        (AVRO, "fastavro", "formats"),
        (REGISTRY, "confluent_kafka", "schema-registry"),
    ],
)
def test_what_lacks_its_package_names_the_extra(code: str, package: str, extra: str) -> None:
    """On one executor of many the extra is missing: a bare ImportError says nothing of what to install."""
    code = f"import sys; sys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "EO-EXTRA" in done.stderr and f"pyspark-kafka-exactly-once[{extra}]" in done.stderr, done.stderr

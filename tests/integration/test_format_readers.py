"""The readers of docs/formats.md, "Readers of each format", as they stand there, on what the sink wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

from exactly_once.sparkenv.jars import cache_folder, session_jars
from testkit.fixtures import Bench
from testkit.registry import RegistryProcess, compiled_message
from testkit.stream import ROOT, SparkDriver
from tests.integration.test_formats import DELAY_ROW, MADE, assert_same, job_of
from tests.integration.test_schema_registry import DELAY, JSON_DELAY, LATER, changed, client, delays, ids, read
from tests.integration.test_schema_registry import registry as registry

#: The registry alone takes 20 s.
pytestmark = pytest.mark.long

#: A session that downloads Spark's Avro, and reads a topic by the page's function.
IN_SPARK = """
import json, sys
from pyspark.sql import SparkSession

jars, avro, ivy, page, servers, topic, registry = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
spark = builder.config("spark.jars.packages", avro).config("spark.jars.ivy", ivy).getOrCreate()
names = {}
exec(open(page).read(), names)
options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.isolation.level": "read_committed"}
records = spark.read.format("kafka").options(**options).load()
for some in (records, records.limit(0)):
    print(json.dumps([row.value.asDict() for row in names["decoded"](some, registry, topic + "-value").collect()]))
"""


def code(name: str) -> str:
    """Return a file of the page."""
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    [found] = re.findall(rf"^```python file={re.escape(name)}\n(.*?)^```$", page, re.M | re.S)
    return str(found)


@pytest.mark.parametrize("value_format", ["avro", "protobuf", "json"])
def test_the_readers_of_the_page_get_every_row_once(
    value_format: str, bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a page whose code does not run, skips rows, or decodes a value into another one."""
    bench.input.add()
    warm.complete(job_of(bench, registry.url, DELAY_ROW, value_format=value_format, **MADE))
    written = registry.schema(f"{bench.topic}-value")
    message = compiled_message(written, "shop.Delay") if value_format == "protobuf" else None
    decode = page_decoder(value_format, registry, bench, message)
    names: dict[str, Any] = {}
    exec(code("read_values.py"), names)
    found = list(names["values"](bench.connection.bootstrap_servers, bench.topic, bench.topic, decode, idle_s=5.0))
    if message is not None:
        found = [{"carrier": one.carrier, "minutes": one.minutes} for one in found]
    assert_same(found, [value for _, value in delays(bench)])


def page_decoder(value_format: str, registry: RegistryProcess, bench: Bench, message: Any = None) -> Any:
    """What the page's ``decoder`` returns."""
    names: dict[str, Any] = {}
    exec(code("read_formats.py"), names)
    return names["decoder"](value_format, registry.url, bench.topic, message)


def test_the_json_decoder_of_the_page_raises_where_a_value_breaks_the_schema_unless_it_does_not_validate(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a committed record at which each reader of the page stops for ever, and that nobody foresaw."""
    limited = JSON_DELAY.replace('{"type": "integer"}', '{"type": "integer", "minimum": 1}')
    registry.register(f"{bench.topic}-value", limited, "JSON")
    bench.input.add_rows([[("k", "n-0"), ("k", "n-1")]])
    warm.complete(job_of(bench, registry.url, DELAY_ROW, value_format="json"))
    zero, one = (m.value() for m in read(bench))
    decode = page_decoder("json", registry, bench)
    assert decode(one) == {"carrier": "k", "minutes": 1}
    with pytest.raises(SerializationError, match=r"0 is less .*minimum of 1"):
        decode(zero)
    lenient = JSONDeserializer(None, schema_registry_client=client(registry), conf={"validate": False})
    assert lenient(zero, SerializationContext(bench.topic, MessageField.VALUE)) == {"carrier": "k", "minutes": 0}


def test_the_protobuf_decoder_of_the_page_reads_another_message_without_an_error(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Holds the page's warning: a release of the client that compares the types makes it needless."""
    bench.input.add_rows([[("k", "n-7")]])
    warm.complete(job_of(bench, registry.url, DELAY_ROW, value_format="protobuf", **MADE))
    other = compiled_message('syntax = "proto3"; package shop; message Refund { string order = 1; }', "shop.Refund")
    [written] = read(bench)
    assert page_decoder("protobuf", registry, bench, other)(written.value()).order == "k"


def test_sparks_from_avro_reads_what_was_written_under_two_versions(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess, tmp_path: Path
) -> None:
    """Guards against a reader that takes the schema's id for data, or reads old values by the new schema."""
    for schema in (DELAY, LATER):
        registry.register(f"{bench.topic}-value", schema)
        bench.complete(
            warm, changed(job_of(bench, registry.url, DELAY_ROW, value_format="avro"), {"value.schema": schema})
        )
    assert len(ids(read(bench))) == 2

    (tmp_path / "page.py").write_text(code("read_avro_in_spark.py"))
    avro = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"
    places = [",".join(session_jars()), avro, str(cache_folder() / "spark-ivy"), str(tmp_path / "page.py")]
    program = [sys.executable, "-c", IN_SPARK, *places, bench.connection.bootstrap_servers, bench.topic, registry.url]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local"), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    found, none = map(json.loads, done.stdout.splitlines()[-2:])
    assert_same(found, [{**value, "origin": None} for _, value in delays(bench)])
    assert none == []

"""Whether a real session has the sink's jar, asked before anything starts. Each in a driver of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from exactly_once.sparkenv.jars import connector_jars
from exactly_once_local.cluster.spark_cluster import spark_home

_DRIVER = """
import json, sys
import exactly_once
from exactly_once.spark.session import has_jar
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.jars", sys.argv[2])
spark = (exactly_once.configure(builder) if sys.argv[1] == "configured" else builder).getOrCreate()
def refusal(ask, *arguments):
    try:
        return ask(*arguments)
    except exactly_once.ExactlyOnceError as refused:
        return str(refused)
rows = spark.createDataFrame([], "value string")
said = {"register": refusal(exactly_once.register, spark), "check": refusal(exactly_once.check, rows, {})}
java, known = spark._jvm.java, []
register = java.lang.Class.forName("org.apache.spark.sql.sources.DataSourceRegister")
formats = java.util.ServiceLoader.load(register).iterator()  # as Spark looks a format up
while formats.hasNext():
    known.append(formats.next().getClass().getName())
print(json.dumps({"has_jar": has_jar(spark), "said": said, "known": known}))
spark.stop()
"""


def driver(how: str) -> tuple[dict[str, Any], str]:
    """What a driver whose user has the connector as files finds, and what it logs."""
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", _DRIVER, how, ",".join(connector_jars())]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


@pytest.mark.long
def test_a_configured_session_has_the_sink() -> None:
    """The class is on the JVM's class path, and Spark's own look for formats finds it, without a network."""
    found, _ = driver("configured")
    assert found["has_jar"] is True
    assert found["said"]["register"] is None and found["said"]["check"].startswith("EO-OPTION: ")  # it names no topic
    assert "exactlyonce.Sink" in found["known"]


@pytest.mark.long
def test_a_session_without_the_jar_is_refused_in_one_sentence_with_the_way_out() -> None:
    """Guards against a ClassNotFoundException of Spark's in the middle of a start, and against a trace in the log."""
    found, log = driver("plain")
    assert found["has_jar"] is False
    for said in (found["said"]["register"], found["said"]["check"]):
        assert said.startswith("EO-SESSION-JAR: ")
        for way_out in ("exactly_once.configure(", "exactly_once.jar()", "spark.jars"):
            assert way_out in said
    assert "\tat " not in log and "ClassNotFound" not in log

"""Texts of Java's grammars: the tables of the unit tests say what Java itself reads, and a stream runs with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.checkpoint import read_checkpoint
from testkit import grammars
from testkit.broker import create_topic
from testkit.fixtures import Bench
from testkit.stream import Refused, SparkDriver

SENSORS = "from pyspark.sql import SparkSession\nfrom exactly_once.spark.location import check_place"


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    with grammars.running() as jvm:
        yield jvm


@pytest.mark.parametrize(
    ("table", "read"),
    [
        (grammars.JAAS, grammars.javas_login),
        (grammars.SERVERS, grammars.javas_servers),
        (grammars.LOCATIONS, grammars.javas_location),
        (grammars.PROPERTIES, grammars.javas_properties),
    ],
    ids=["sasl.jaas.config", "bootstrap.servers", "locations", "client.properties"],
)
def test_the_table_says_what_java_reads(
    java: Any, table: Mapping[str, object], read: Callable[[Any, str], object]
) -> None:
    """Mishap: the unit tests hold the sink to a grammar that is no client's, and a login or a checkpoint is refused, or
    read as another one."""
    assert {text: read(java, text) for text in table} == table


def test_the_session_says_where_its_default_file_system_puts_a_checkpoint(warm: SparkDriver) -> None:
    """Outage: Spark writes the checkpoint to the bucket, and the sink looks for it on the local disk."""

    def located(text: str) -> Any:
        code = "from exactly_once.spark.location import located"
        return warm.ask("evaluate", code=code, result=f"located({{'checkpointLocation': {text!r}}}).popitem()[1]")

    here = warm.ask("evaluate", code="import os", result="os.getcwd()")
    assert [located(text) for text in ("/data/a b#2/", "chk")] == ["/data/a b#2", f"{here}/chk"]
    with warm.having({"fs.defaultFS": "hdfs://127.0.0.1:1"}):
        assert located("/data/a b#2?x=%20") == "hdfs://127.0.0.1:1/data/a b#2?x=%20"
        assert located("chk").startswith("hdfs://127.0.0.1:1/user/")
        assert located("file:/data/chk") == "file:/data/chk"
        assert located("hdfs:/data/chk") == "hdfs://127.0.0.1:1/data/chk"
        with pytest.raises(Refused, match=r"Write .* as hdfs://127\.0\.0\.1:1/data/chk"):
            warm.ask("evaluate", code=SENSORS, result="check_place(SparkSession.getActiveSession(), '/data/chk')")
    with pytest.raises(Refused, match=r'EO-CHECKPOINT: .*no file system .*scheme "s5"'):
        located("s5:/chk")
    for text, said in (("s5://bucket/chk", "no file system"), ("chk", rf"relative path.*as {here}/chk")):
        with pytest.raises(Refused, match=f"EO-CHECKPOINT: .*{said}"):
            warm.ask("evaluate", code=SENSORS, result=f"check_place(SparkSession.getActiveSession(), {text!r})")


def test_check_refuses_a_checkpoint_for_which_the_session_has_no_file_system(bench: Bench, warm: SparkDriver) -> None:
    """Outage: check passes, and the start ends with pages of Java."""
    with pytest.raises(Refused, match=r"EO-CHECKPOINT: .*no file system"):
        warm.ask("check", job=vars(bench.job.having(checkpointLocation="s5://bucket/chk")))


@pytest.mark.quick("format")
@pytest.mark.parametrize("participants", [None, []], ids=["format", "foreach_batch"])
def test_a_protocol_before_the_address_passes_check_and_writes(
    bench: Bench, warm: SparkDriver, participants: list[dict[str, Any]] | None
) -> None:
    """Outage: format() writes, and check and foreach_batch say that no broker listens at PLAINTEXT://."""
    servers = bench.connection.bootstrap_servers
    job = replace(bench.job, participants=participants).having(kafka_bootstrap_servers=f"PLAINTEXT://{servers} , ,")
    warm.ask("check", job=vars(job))
    bench.complete_exactly_once(warm, job)


@pytest.mark.quick("format")
@pytest.mark.parametrize(
    ("name", "neighbour", "participants"),
    [("my chk#2", "my chk", None), ("a%20b", "a b", [])],
    ids=["format", "foreach_batch"],
)
def test_a_checkpoint_of_any_name_is_sparks_and_not_its_neighbours(
    bench: Bench, warm: SparkDriver, name: str, neighbour: str, participants: list[dict[str, Any]] | None
) -> None:
    """Outage: "there is no checkpoint", or EO-REWOUND of another sink's, with the advice to take that one's id."""
    bench.input.add()
    other = {"topic": create_topic(bench.connection.bootstrap_servers), "sink_id": f"{bench.sink_id}-other"}
    warm.complete(bench.job.having(checkpointLocation=f"{bench.checkpoint}/{neighbour}", **other))
    location = f"file://{bench.checkpoint}/{name}"
    job = replace(bench.job, participants=participants).having(checkpointLocation=location)
    for batch in range(2):
        warm.ask("check", job=vars(job))
        warm.complete(job)
        assert read_checkpoint(location).last_commit == batch
        bench.input.add()
    assert (bench.checkpoint / name / "commits" / "1").is_file()
    bench.assert_exactly(bench.input.expected(slice(2)))

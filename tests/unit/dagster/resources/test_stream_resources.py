"""The resources of streams, from the folders that a code location names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest

import dagster_exactly_once
from dagster_exactly_once import (
    KafkaTransactionalProducerFactory,
    SparkSessionResource,
    exactly_once_definitions,
    exactly_once_resources,
)
from exactly_once.errors import InvalidOption, InvalidRecord

PAGE = (Path(__file__).parents[4] / "docs" / "streams.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("named", "root", "local"),
    [
        ("checkpoints", "{here}/checkpoints", True),
        ("ck/a:b", "{here}/ck/a:b", True),
        ("/data/my ck#2", "/data/my ck#2", True),
        ("file:/data/ck", "file:/data/ck", True),
        ("file:///data/ck", "file:///data/ck", True),
        ("s3://bucket/ck", "s3://bucket/ck", False),
        ("s3a://box/ck", "s3a://box/ck", False),
        ("hdfs:/ck", "hdfs:/ck", False),
        ("viewfs://c/ck", "viewfs://c/ck", False),
    ],
)
def test_a_claim_names_a_checkpoint_that_a_repair_finds_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, root: str, local: bool
) -> None:
    """Wedge: the claim says ``checkpoints/<cluster>/<sink>``, and who repairs it works in another folder. Or the
    checkpoints of an object store get the file manager of a disk, which renames without a check.
    """
    monkeypatch.chdir(tmp_path)
    made = exactly_once_resources(work_dir="spark", checkpoints=named)
    assert made["checkpoints"].root == root.format(here=tmp_path)
    assert made["spark"].local_checkpoints is local


def test_an_empty_variable_is_said_by_its_name_when_the_code_location_loads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Mishap: the code location is green, and every sensor skips for ever over an option that Dagster does not have."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "")
    exactly_once_definitions(resources=exactly_once_resources(work_dir="spark", checkpoints="checkpoints"))
    assert "KAFKA_BOOTSTRAP_SERVERS is empty: " in caplog.text and "resource kafka " in caplog.text
    with pytest.raises(InvalidOption, match="KAFKA_BOOTSTRAP_SERVERS is empty in the"):
        KafkaTransactionalProducerFactory(bootstrap_servers="").connection()


def test_an_op_has_the_session_under_the_name_of_dagster_pyspark_and_it_ends_with_the_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``spark.spark_session``, as streams.md says of any Spark resource, was an AttributeError of our own one; a JVM
    that outlives the op would hold the memory of the next.
    """
    seen: list[str] = []

    @contextmanager
    def session(self: SparkSessionResource) -> Iterator[str]:
        seen.append("opened")
        yield "a session"
        seen.append("stopped")

    monkeypatch.setattr(SparkSessionResource, "session", session)

    @dg.op
    def twice(spark: SparkSessionResource) -> None:
        seen.extend([str(spark.spark_session), str(spark.spark_session)])

    @dg.op
    def without(spark: SparkSessionResource) -> None:
        seen.append("no use")

    def run(op: dg.OpDefinition) -> bool:
        job = dg.GraphDefinition(name="job", node_defs=[op]).to_job(
            resource_defs={"spark": SparkSessionResource(work_dir="/data/spark")}
        )
        return job.execute_in_process().success

    assert run(twice) and seen == ["opened", "a session", "a session", "stopped"]
    seen.clear()
    assert run(without) and seen == ["no use"]


@pytest.mark.parametrize("resource", [KafkaTransactionalProducerFactory, SparkSessionResource])
def test_a_resource_is_public_and_shows_an_op_that_uses_it(resource: type[dg.ConfigurableResource]) -> None:
    """It was found by the name of a class on a page of the UI, whose example was squashed into one line of text."""
    assert resource.__name__ in dagster_exactly_once.__all__
    docs = [inspect.getdoc(each) or "" for each in (resource, *vars(resource).values())]
    [example] = {found for doc in docs for found in re.findall(r"^```python\n(.*?)^```$", doc, re.M | re.S)}
    assert example in PAGE, "the page and the UI show the same op"
    assert ">>>" not in str(resource.__doc__)


@pytest.mark.parametrize("topic", ["eo.orders.commit-log", "__consumer_offsets"])
def test_an_op_sends_no_record_to_a_commit_log_or_a_topic_of_kafka_s_own(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wedge: the brokers take the record, and every start of that sink is refused by EO-LOG from then on."""
    client = Mock()
    monkeypatch.setattr("dagster_exactly_once.resources.kafka.Producer", lambda settings: client)
    factory = KafkaTransactionalProducerFactory(bootstrap_servers="h:1")
    refused = pytest.raises(InvalidRecord, match=rf"EO-RECORD.*'feed'.*'k1'.*{topic}.* Nothing of the open")
    with factory.producer("feed") as producer, refused, producer.transaction():
        producer.send("orders", b"1")
        producer.send(topic, b"2", b"k1")
    assert [call.args[0] for call in client.produce.call_args_list] == ["orders"]
    client.abort_transaction.assert_called_once()
    client.commit_transaction.assert_not_called()

"""What a principal may do: with exactly the documented rights everything works, and each missing one is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactly_once.coordinator.batch_write import written
from exactly_once.coordinator.recover import recover, verify
from exactly_once.kafka.commit_log import read_log
from exactly_once.ops.inspection import inspect_sink
from tests.support import broker as brokers
from tests.support.authorizing import AuthorizingBroker, Right
from tests.support.stream import ROOT, Ended, Input, Job, SparkDriver

KINDS = {
    "transactional ids": "TRANSACTIONAL_ID",
    "topic": "TOPIC",
    "topic:": "TOPIC",
    "group": "GROUP",
    "cluster": "BROKER",  # the client's name of it
}
OUTPUT = "each output"


@pytest.fixture(scope="module")
def authorizing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizingBroker]:
    with AuthorizingBroker(tmp_path_factory.mktemp("authorizing")) as running:
        yield running


@pytest.fixture
def output(authorizing: AuthorizingBroker) -> str:
    return brokers.create_topic(authorizing.bootstrap_servers, partitions=2)


@pytest.fixture
def sink_id() -> str:
    return brokers.fresh_name("sink")


def table() -> list[tuple[str, str]]:
    """(operation, on) of the reference's table of rights, an operation each."""
    section = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").split("\n## Rights\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    return [(o.strip(), on.strip()) for operations, on, *_ in lines for o in operations.split(",")]


def granted(sink_id: str, output: str, rows: list[tuple[str, str]]) -> list[Right]:
    """The rows of the table, for this sink."""
    rights = []
    for operation, on in rows:
        kind = next(k for k in sorted(KINDS, key=len, reverse=True) if on.startswith(k))
        name = re.search(r"`([^`]+)`", on)
        of = name[1].replace("<sink id>", sink_id) if name else "kafka-cluster" if kind == "cluster" else output
        rights.append(Right(operation, KINDS[kind], of, "prefix" in on))
    return rights


def options(broker: AuthorizingBroker, sink_id: str, output: str, **more: str) -> dict[str, str]:
    return {**broker.connection.spark(), "sink.id": sink_id, "topic": output, **more}


def write(driver: SparkDriver, broker: AuthorizingBroker, sink_id: str, output: str) -> Ended:
    return driver.write_batch(options(broker, sink_id, output, **{"write.id": "day"}), rows=10, parts=2)


@pytest.mark.long
def test_the_references_rights_are_enough_for_a_stream_and_for_looking_at_it(
    authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """Wedge: a principal with every right that the documentation names, and EO-DENIED at each start."""
    as_user = authorizing.connection
    authorizing.grant(granted(sink_id, output, table()))
    data = Input(tmp_path, parts=2, rows=5)
    data.add(2)
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
    warm.complete(Job(data.source(), options(authorizing, sink_id, output, **checkpoint)))
    assert recover(as_user, sink_id).clean
    warm.complete(Job(data.source(), options(authorizing, sink_id, output, **checkpoint)))

    looks = [(o, on) for o, on in (("READ", "topic `eo.<sink id>.commit-log`"), ("DESCRIBE", f"topic: {OUTPUT}"))]
    looks.append(("DESCRIBE", "transactional ids with the prefix `eo:<sink id>:`"))
    authorizing.grant(granted(sink_id, output, looks))
    seen = inspect_sink(as_user, sink_id)
    assert [r.decision.records for r in seen.recent] == [10, 10] and seen.quiet
    assert verify(as_user, sink_id).clean


@pytest.mark.parametrize(
    ("operation", "on", "word"),
    [
        (
            "WRITE",
            "transactional ids with the prefix `eo:<sink id>:`",
            "WRITE on the transactional ids with the prefix eo:{}:",
        ),
        ("WRITE", f"topic: {OUTPUT}", "WRITE on the topic {topic}"),
        ("READ", "topic `eo.<sink id>.commit-log`", "READ on the topic eo.{}.commit-log"),
        ("WRITE", "topic `eo.<sink id>.commit-log`", "WRITE on the topic eo.{}.commit-log"),
        ("CREATE", "topic `eo.<sink id>.commit-log`", "CREATE on the topic eo.{}.commit-log"),
    ],
)
def test_a_missing_right_is_named(
    operation: str, on: str, word: str, authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver
) -> None:
    """Wedge: a principal without one right is told to look at the brokers, after a minute of tries."""
    assert (operation, on) in table()
    authorizing.grant(granted(sink_id, output, [r for r in table() if r != (operation, on)]))
    refused = write(warm, authorizing, sink_id, output)
    assert refused.code == "EO-DENIED", refused.failure
    assert f"Grant {word.format(sink_id, topic=output)}" in refused.sentence


@pytest.mark.long
def test_without_the_rights_that_are_for_comfort_rows_are_written_all_the_same(
    authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver
) -> None:
    """Wedge: a right that the documentation calls optional, and nothing works without it."""
    log = ("READ", "topic `eo.<sink id>.commit-log`")
    needed = [right for right in table() if right[0] in ("WRITE", "CREATE") or right == log]
    assert len(table()) - len(needed) == 4
    authorizing.grant(granted(sink_id, output, needed))
    assert write(warm, authorizing, sink_id, output).failure is None
    found = written(authorizing.connection, sink_id, "day")
    assert found is not None and found.records == 10
    assert read_log(authorizing.connection, sink_id).open_decisions == ()


def test_a_topic_of_a_column_that_may_not_be_written_is_named(
    authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """Wedge: tasks that fail with "purged in queue", are retried, and restarted."""
    forbidden = brokers.create_topic(authorizing.bootstrap_servers)
    authorizing.grant([*granted(sink_id, output, table()), Right("DESCRIBE", "TOPIC", forbidden)])
    data = Input(tmp_path, parts=1, rows=5)
    data.add()
    settings = options(authorizing, sink_id, output, checkpointLocation=str(tmp_path / "checkpoint"))
    del settings["topic"]
    refused = warm.run(Job(data.source(), settings, select=["value", f"'{forbidden}' as topic"]))
    assert refused.code == "EO-DENIED", refused.failure
    assert f"Grant WRITE on the topic {forbidden}" in refused.sentence

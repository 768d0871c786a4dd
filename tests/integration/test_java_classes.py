"""Classes of the sink's jar in a JVM without Spark: with several kafka-clients, and beside Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import End, describe, end_all, end_txn_version
from testkit import broker as brokers
from testkit import oracle
from testkit.java import NOT_REUSABLE, Trial, kafka_client
from testkit.processes import until
from testkit.stream import ROOT

VECTORS = json.loads((ROOT / "tests" / "data" / "digests.json").read_text())

#: The private names of kafka-clients in TransactionalProducer.java: 3.4.1 is Spark 3.5's, 3.9 that of Spark 4.
REUSABLE = ("3.4.1", "3.9.0", "3.9.1", "3.9.2", "4.0.2", "4.4.0")
#: They differ from 3.9.2 in nothing that is known.
ALIKE = ("3.9.0", "3.9.1")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.compiled(tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize(
    "release",
    [pytest.param(r, marks=pytest.mark.long if r in ALIKE else ()) for r in (*REUSABLE, NOT_REUSABLE)],
)
def test_transactions_that_a_producer_leaves_open_one_after_the_other_are_committed_by_what_it_says_of_them(
    release: str, trial: Trial, connection: Connection, topic: str
) -> None:
    """Guards against a connector whose kafka-clients lacks a private name, or means another thing by it: parts whose
    records are lost, or a batch that nobody can commit. Where one is missing, each part has a producer of its own.
    """
    reusable = release in REUSABLE
    ids = [brokers.fresh_name("part") for _ in range(2)]
    producers = set()
    with (
        Admin(connection, 60) as admin,
        trial.talk(kafka_client(release), "produce", connection.bootstrap_servers, topic) as ask,
    ):
        assert ask() == str(reusable).lower()
        for batch in range(3):  # the ids come again, as in the batches of a query
            said = [ask(name).split() for name in ids]
            producers |= {which for *_, which in said}
            seen = describe(admin, ids)
            assert {d.state for d in seen.values()} == {"Ongoing"}
            told = [End(name, int(producer), int(epoch)) for name, producer, epoch, _, _ in said]
            if reusable:
                assert told == [seen[name].end for name in ids]
            else:  # a task asks the coordinator instead
                assert {(t.producer_id, t.epoch) for t in told} == {(-1, -1)}
                told = [seen[name].end for name in ids]
            assert len(oracle.read(connection, [topic])) == 2 * batch  # those of the batch are not visible yet
            done = end_all(admin, told, True, end_txn_version(admin))
            assert set(done.values()) == {Outcome.DONE}
            until("its records", lambda n=batch: len(oracle.read(connection, [topic])) == 2 * n + 2, 20)  # type: ignore[misc]
    assert len(producers) == (1 if reusable else 6)
    assert [m.value for m in oracle.read(connection, [topic])] == ids * 3


def word(cell: str | None) -> str:
    return "null" if cell is None else f"x{cell}"


def line_of(row: dict[str, Any]) -> str:
    headers = ",".join(f"x{key.encode().hex()}={word(value)}" for key, value in row["headers"])
    cells = [row["topic"], word(row["key"]), word(row["value"]), str(row["partition"]), str(row["timestamp_ms"])]
    return " ".join([*cells, headers or "-"])


def test_java_gives_a_part_the_digest_that_python_gives_it(trial: Trial, tmp_path: Path) -> None:
    """Guards against a part that a Java task wrote, and verify takes for other rows; test_digest.py reads it too."""
    parts = tmp_path / "parts"
    lines = [line for v in VECTORS for line in (f"part {v['form']}", *map(line_of, v["rows"]))]
    parts.write_text("".join(f"{line}\n" for line in lines))
    digests = trial.run(kafka_client("3.4.1"), "digest", str(parts))
    assert dict(zip([v["name"] for v in VECTORS], digests, strict=True)) == {v["name"]: v["digest"] for v in VECTORS}


KB = 1024


@pytest.mark.parametrize(
    ("partitions", "limit", "size", "memory", "chosen"),
    [
        pytest.param(4, 1_048_588, None, None, 256 * KB, id="a topic with Kafka's default limit"),
        pytest.param(4, 20_000, None, None, 20_000, id="a topic whose limit is lower"),
        pytest.param(4, 300, None, None, 300, id="a limit below what else is the smallest batch"),
        pytest.param(1024, 1_048_588, None, None, 16 * KB, id="two batches of each partition fit into the memory"),
        pytest.param(1024, 10_000, None, None, 10_000, id="memory and limit, the limit is lower"),
        pytest.param(4, 0, None, None, 16 * KB, id="a limit that nobody may read: Kafka's own default"),
        pytest.param(4, 0, 100_000, None, 100_000, id="a user's size, and a limit that nobody may read"),
        pytest.param(4, 1_048_588, 1_000_000, None, 1_000_000, id="a user's size that fits"),
        pytest.param(4, 50_000, 100_000, None, 50_000, id="a user's size above the limit"),
        pytest.param(100, 50_000, 100_000, 4_000_000, 20_000, id="a user's size above what fits into the memory"),
    ],
)
def test_a_batch_of_records_fits_into_the_topics_limit_and_into_the_memory(
    partitions: int, limit: int, size: int | None, memory: int | None, chosen: int, trial: Trial
) -> None:
    """Guards against batches that the brokers refuse and the client splits into as large ones, for ever."""
    with trial.talk(kafka_client("3.9.2"), "batches") as ask:
        assert ask(f"{partitions} {limit} {size or '-'} {memory or '-'}") == str(chosen)


def test_a_producer_that_no_part_takes_for_a_time_is_closed_though_no_part_comes(
    trial: Trial, connection: Connection
) -> None:
    """Guards against an executor without work that keeps its connections for ever, and warns once a second when the
    cluster is gone.
    """
    with trial.talk(kafka_client("3.9.2"), "idle", connection.bootstrap_servers) as ask:
        assert [ask(), ask()] == ["true 1", "true 1"]  # a part takes longer than the pool waits
        until("the end of the producer", lambda: ask("how many?") == "false 0", 20)

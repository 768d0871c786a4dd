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

"""The border to the JVM without a JVM: the JSON that Java sends and gets, on a real broker. Tasks are transactions that
this process prepares.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.coordinator import micro_batch, without_transactions
from exactly_once.digest import RowDigest
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.planning import Batch
from exactly_once.spark.jvm import Coordinators
from testkit import oracle
from testkit.broker import create_topic, fresh_name
from testkit.kafka_part import PartTransaction

SCHEMA = StructType().add("unused", LongType()).add("value", StringType()).add("key", BinaryType()).json()
QUERY = "0a1b2c3d-0000-4000-8000-000000000000"


class Java:
    """What Java does with one query, or one batch write."""

    def __init__(self, connection: Connection, border: Coordinators, run: str, topic: str, **options: str):
        self.connection = connection
        self.border = border
        self.run = run
        self.topic = topic
        self.options = {**connection.spark(), "sink.id": fresh_name("sink"), "topic": topic, **options}

    @property
    def sink_id(self) -> str:
        return self.options["sink.id"]

    def ask(self, call: str, **more: Any) -> Any:
        """The ok of an answer; an error is raised as its text."""
        answer = json.loads(self.border.call(json.dumps({"call": call, "run": self.run, **more})))
        if "error" in answer:
            assert answer["error"]["text"].startswith(answer["error"]["code"] + ": ")
            raise RuntimeError(answer["error"]["text"])
        return answer["ok"]

    def plan(self, batch: int = 0, **more: Any) -> dict[str, Any]:
        planned = {"query": QUERY, "batch": batch, "schema": SCHEMA, "overwrite": False, "settings": {}, **more}
        answer: dict[str, Any] = self.ask("plan", options=self.options, **planned)
        return answer

    def part(self, ticket: dict[str, Any], number: int = 0, value: str = "", attempt: str = "0.0") -> dict[str, Any]:
        """A task that has prepared; one that drains has opened nothing."""
        told = {"part": number, "again": False, "execution": ticket["execution"], "plan": ticket["plan"]}
        if ticket["plan"] == "drain":
            return told
        value = value or f"b{ticket['batch']}-p{number}"
        digest = RowDigest()
        digest.add_pairs([None], [value.encode()])
        with Admin(self.connection) as admin:
            name = f"{ticket['ids']}{number}:{attempt}"
            open_ = PartTransaction(self.connection, {}, name, ticket["timeout_ms"], admin)
            open_.send(self.topic, None, value.encode())
            handle = open_.prepare(number, 20.0)
        written = [[t, p, e.first_offset, e.records] for (t, p), e in handle.written.items()]
        return told | {
            "id": handle.transactional_id,
            "producer": handle.producer_id,
            "epoch": handle.epoch,
            "records": 1,
            "bytes": len(value),
            "digest": digest.text,
            "form": "plain",
            "written": written,
        }

    def visible(self) -> list[str]:
        return sorted(m.value or "" for m in oracle.read(self.connection, [self.topic]))

    def open_parts(self) -> int:
        return oracle.open_parts(self.connection, self.sink_id)


@pytest.fixture
def border() -> Coordinators:
    return Coordinators()


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The batch in flight, by checkpoint."""
    batches: dict[str, int] = {}

    def in_flight(checkpoint: str, *_: object) -> Batch:
        number = batches.get(checkpoint, 0)
        return Batch(QUERY, number, f"digest of {number}")

    for module in (micro_batch, without_transactions):
        monkeypatch.setattr(module, "batch_in_flight", in_flight)
    return batches


@pytest.fixture
def java(connection: Connection, border: Coordinators, checkpoint: dict[str, int]) -> Iterator[Java]:
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    yield Java(connection, border, "run-1", topic, checkpointLocation="/data/c")


def test_a_query_writes_its_batches_under_one_claim(java: Java, checkpoint: dict[str, int]) -> None:
    """Guards against a border that says one thing and does another: every field that a task works by."""
    for number in range(3):
        checkpoint["/data/c"] = number
        ticket = java.plan(number)
        assert (ticket["plan"], ticket["batch"], ticket["query"]) == ("write", number, QUERY)
        java.ask("commit", batch=number, parts=[java.part(ticket, p) for p in range(2)])
    assert java.visible() == [f"b{b}-p{p}" for b in range(3) for p in range(2)]
    log = read_log(java.connection, java.sink_id)
    assert log.owner is not None and log.owner.token == 1 and not log.open_decisions
    handle = log.decisions[-1].transactions[0]
    assert (handle.form, handle.records, handle.bytes) == ("plain", 1, 5) and handle.distribution and handle.digest
    assert ticket["ids"] == f"eo:{java.sink_id}:1:" and ticket["log"] == f"eo.{java.sink_id}.commit-log"
    assert ticket["columns"] == {"value": 1, "key": 2} and ticket["topic"] == java.topic
    assert ticket["limit_ms"] == ticket["timeout_ms"] * 0.7 and ticket["log_end"] > 0
    assert (
        ticket["too_long"].startswith("EO-EXPIRING: ")
        and "its part {part} has been writing for {took_s} s" in (ticket["too_long"])
    )
    assert ticket["client"]["bootstrap.servers"] == java.connection.bootstrap_servers
    assert (ticket["guarantee"], ticket["lost"], ticket["allowed"]) == ("exactly_once", [], [])


def test_a_start_has_a_claim_of_its_own_and_drains_what_is_decided(java: Java) -> None:
    """Guards against a run that goes on under the claim of the run before, whose tasks may still be alive."""
    java.ask("commit", batch=0, parts=[java.part(java.plan())])
    java.ask("close")
    java.run = "run-2"
    ticket = java.plan()
    assert ticket["plan"] == "drain" and ticket["ids"].endswith(":2:")
    java.ask("commit", batch=0, parts=[java.part(ticket)])
    assert java.visible() == ["b0-p0"]
    log = read_log(java.connection, java.sink_id)
    assert log.owner is not None and log.owner.token == 2 and log.tally.drained == 1


def test_lost_parts_of_a_decided_batch_are_asked_for_by_what_they_held(java: Java) -> None:
    """Guards against a replay whose tasks cannot tell the lost rows from those that are there."""
    ticket = java.plan()
    parts = [java.part(ticket, p) for p in range(2)]
    with Admin(java.connection) as admin, pytest.MonkeyPatch.context() as patch:
        from exactly_once.coordinator import decide
        from exactly_once.txn.coordinators import End, end_all, end_txn_version

        def killed(*_: object, **__: object) -> None:  # between the decision and its first EndTxn
            end = End(parts[1]["id"], parts[1]["producer"], parts[1]["epoch"])
            end_all(admin.renew(20.0), [end], False, end_txn_version(admin))
            raise KeyboardInterrupt

        patch.setattr(decide, "complete", killed)
        with pytest.raises(RuntimeError, match="EO-INTERNAL: KeyboardInterrupt"):
            java.ask("commit", batch=0, parts=parts)
    java.run = "run-2"
    ticket = java.plan()
    assert ticket["plan"] == "replay" and ticket["lost"] == [[1, parts[1]["digest"]]]
    java.ask(
        "commit", batch=0, parts=[{**java.part({**ticket, "plan": "drain"}), "plan": "replay"}, java.part(ticket, 1)]
    )
    assert java.visible() == ["b0-p0", "b0-p1"] and java.open_parts() == 0


def test_an_abort_rolls_back_what_tasks_reported_and_what_they_did_not(java: Java) -> None:
    """Guards against readers that wait for a batch that failed."""
    ticket = java.plan()
    reported, _ = java.part(ticket), java.part(ticket, 1)
    java.ask("abort", batch=0, parts=[reported, None])
    assert java.open_parts() == 0 and java.visible() == []


def test_the_end_of_a_query_rolls_back_an_execution_that_did_not_finish(java: Java) -> None:
    """stop() interrupts the thread on which Spark calls abort: what is open would hold back readers until the next
    start, or its timeout.
    """
    java.part(java.plan())
    java.ask("close")
    assert java.open_parts() == 0 and java.visible() == []
    java.ask("close")
    with pytest.raises(RuntimeError, match="EO-PROTOCOL"):
        java.ask("commit", batch=0, parts=[])


def test_the_end_of_a_query_leaves_alone_what_is_decided(java: Java, checkpoint: dict[str, int]) -> None:
    """Guards against an end that takes the last batch for one that failed."""
    java.ask("commit", batch=0, parts=[java.part(java.plan())])
    java.ask("close")
    assert java.visible() == ["b0-p0"]


def test_two_queries_plan_and_commit_beside_each_other(
    connection: Connection, border: Coordinators, checkpoint: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a query that waits for another one's slow broker, or that gets another one's parts."""
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    one, two = (Java(connection, border, f"run-{n}", topic, checkpointLocation=f"/data/{n}") for n in (1, 2))
    both = threading.Barrier(2, timeout=60)
    claim = micro_batch.claim_for_stream

    def meet(*args: Any, **more: Any) -> Any:
        both.wait()  # each is inside its plan
        return claim(*args, **more)

    monkeypatch.setattr(micro_batch, "claim_for_stream", meet)
    failures: list[BaseException] = []

    def stream(java: Java) -> None:
        try:
            ticket = java.plan()
            java.ask("commit", batch=0, parts=[java.part(ticket, value=java.run)])
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=stream, args=(j,)) for j in (one, two)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(90)
    assert not failures and one.visible() == ["run-1", "run-2"]


def test_another_query_and_another_batch_are_refused_before_the_claim(java: Java, checkpoint: dict[str, int]) -> None:
    """Guards against a sink that reads another checkpoint than the query's: its offsets would say what was decided."""
    with pytest.raises(RuntimeError, match=r"EO-PROTOCOL: .*runs query other"):
        java.plan(query="other")
    checkpoint["/data/c"] = 3
    with pytest.raises(RuntimeError, match="EO-PROTOCOL: Spark runs batch 4"):
        java.plan(4)
    with pytest.raises(RuntimeError, match="EO-PREPARE: Spark runs batch 2"):
        java.plan(2)
    with pytest.raises(RuntimeError, match=r"EO-MODE: spark\.speculation"):
        java.plan(3, settings={"spark.speculation": "true"})
    assert read_log(java.connection, java.sink_id).owner is None


def test_parts_of_another_execution_are_not_committed(java: Java) -> None:
    """Guards against results of tasks that a failed attempt of the batch left behind."""
    first = java.part(java.plan())
    java.ask("abort", batch=0, parts=[first])
    ticket = java.plan()
    with pytest.raises(RuntimeError, match="EO-PROTOCOL"):
        java.ask("commit", batch=0, parts=[first])
    java.ask("commit", batch=0, parts=[java.part(ticket)])
    assert java.visible() == ["b0-p0"]


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_a_weaker_guarantee_has_no_claim(java: Java, guarantee: str) -> None:
    """Guards against a commit log that nobody needs."""
    java.options["sink.guarantee"] = guarantee
    ticket = java.plan()
    assert (ticket["guarantee"], ticket["plan"], ticket["limit_ms"]) == (guarantee, "write", 0)
    java.ask("commit", batch=0, parts=[{**java.part({**ticket, "plan": "drain"}), "plan": "write"}])
    java.ask("close")
    assert read_log(java.connection, java.sink_id).owner is None


def test_a_batch_write_is_decided_once_whatever_its_tries(connection: Connection, border: Coordinators) -> None:
    """Guards against rows twice after a try that Spark reported as failed."""
    java = Java(connection, border, "write-1", create_topic(connection.bootstrap_servers), **{"write.id": "day-1"})
    ticket = java.plan(write=True)
    assert (ticket["plan"], ticket["batch"], ticket["query"]) == ("write", 0, "")
    java.ask("abort", parts=[java.part(ticket), None])
    assert java.open_parts() == 0 and not border._runs
    for run, plan in (("write-2", "write"), ("write-3", "drain")):
        java.run = run
        ticket = java.plan(write=True)
        assert ticket["plan"] == plan
        java.ask("commit", parts=[java.part(ticket)])
    assert java.visible() == ["b0-p0"] and not border._runs


def test_a_committed_batch_asks_once_for_the_state_of_the_log_beside_its_two_writes(
    java: Java, checkpoint: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against steps that each work by a state of their own, which differ where the log failed between them; and
    against a read of the log, which takes as long as the decision itself.
    """
    asked: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(CommitLog, name)

        def counted(*args: Any, **more: Any) -> Any:
            asked[name] += 1
            return real(*args, **more)

        return counted

    for number in range(3):
        checkpoint["/data/c"] = number
        ticket = java.plan(number)
        with monkeypatch.context() as patch:
            for name in ("own", "append", "_init"):
                patch.setattr(CommitLog, name, counting(name))
            java.ask("commit", batch=number, parts=[java.part(ticket)])
            java.border._runs[java.run].coordinator._await_mark()  # type: ignore[attr-defined]
    assert asked == {"append": 2 * 3, "own": 3 * 3}, "the decision's step asks, and each write does"

"""Classes of the sink's jar in a JVM without Spark: with several kafka-clients, and beside Python."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from exactly_once.commitlog.log_writer import LogWriter
from exactly_once.deadline import Deadline
from exactly_once.kafka import producer_options
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.topics import TopicRule
from exactly_once.txn.coordinators import Description, End, describe, end_all, end_txn_version, transaction_level
from testkit import broker as brokers
from testkit import oracle
from testkit.java import NOT_REUSABLE, Trial, kafka_client
from testkit.processes import until
from testkit.stream import ROOT
from tests.unit.protocol.test_topics import ALLOWED, REFUSED, TAKEN

VECTORS = json.loads((ROOT / "tests" / "data" / "digests.json").read_text())

#: The private names of kafka-clients in TransactionalProducer.java: 3.4.1 is Spark 3.5's, 3.9 that of Spark 4.
REUSABLE = ("3.4.1", "3.9.0", "3.9.1", "3.9.2", "4.0.2", "4.4.0")
#: The others are tried by make test-long.
NEWEST = REUSABLE[-1]

#: A task looks again behind this; see Opening.java.
LOOK_IS_GOOD_S = 1.0


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A cluster of its own, whose nodes share the coordinators' work."""
    with brokers.test_broker(tmp_path_factory.mktemp("two-nodes"), nodes=2) as running:
        try:
            yield Connection(running.bootstrap_servers)
        finally:
            running.kill()


def end_of(said: list[str]) -> End:
    """Return the transaction that a line of Trial's ``produce`` tells of."""
    name, producer, epoch, *_ = said
    return End(name, int(producer), int(epoch))


def id_of_each_node(admin: Admin) -> list[str]:
    """Return a transactional id that node 1 coordinates, and one that node 2 does."""
    names = [brokers.fresh_name("part") for _ in range(20)]
    found = admin.ask(lambda: admin.coordinators(names))
    return [next(name for name in names if found[name] == node) for node in (1, 2)]


@pytest.mark.long
@pytest.mark.parametrize("release", [*REUSABLE, NOT_REUSABLE])
def test_transactions_that_a_producer_leaves_open_one_after_the_other_are_committed_by_what_it_says_of_them(
    release: str, trial: Trial, connection: Connection, topic: str
) -> None:
    """Guards against a connector whose kafka-clients lacks a private name, or means another thing by it: parts whose
    records are lost, or a batch that nobody can commit. Where one is missing, each part has a producer of its own.
    """
    reusable = release in REUSABLE
    ids = [brokers.fresh_name("part") for _ in range(2)]
    producers = set()
    with Admin(connection, 60) as admin, trial.talk(kafka_client(release), "produce", topic) as ask:
        assert ask() == str(reusable).lower()
        for batch in range(3):  # the ids come again, as in the batches of a query
            said = [ask(f"{connection.bootstrap_servers} {name}").split() for name in ids]
            producers |= {which for *_, which, _ in said}
            seen = describe(admin, ids)
            assert {d.state for d in seen.values()} == {"Ongoing"}
            told = [end_of(one) for one in said]
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


@pytest.mark.parametrize(
    "release", [pytest.param(r, marks=() if r in ("3.9.2", NEWEST) else pytest.mark.long) for r in REUSABLE]
)
def test_a_transaction_is_known_when_its_coordinator_names_each_partition_and_not_before(
    release: str, trial: Trial, connection: Connection
) -> None:
    """Guards against a task that asks whether it is too late before its transaction has begun, and leaves it open
    behind the sweep of an abort; and against one request for each partition. A client of Kafka 4 begins with its
    records where transaction.version is 2, so nothing is known before they are sent.
    """
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=2)
    name = brokers.fresh_name("part")
    with Admin(connection, 60) as admin:
        [said] = trial.run(kafka_client(release), "begins", connection.bootstrap_servers, topic, name)
        names = release.startswith("3") or transaction_level(admin) < 2
        assert said == f"{names} {names} False".lower()
        [seen] = describe(admin, [name]).values()
        assert seen.partitions == (((topic, 0), (topic, 1)) if names else ())
        assert {w.high for w in admin.watermarks(topic).values()} == {0}


@pytest.mark.long
def test_equal_ids_on_two_clusters_are_initialised_each_by_its_own_cluster(
    trial: Trial, connection: Connection, two_nodes: Connection
) -> None:
    """Guards against a part of one cluster that asks the coordinator of the other for its id, and so rolls back what a
    query of the same sink id has prepared there, perhaps decided (records lost).
    """
    topic = brokers.fresh_name()
    for cluster in (connection, two_nodes):
        brokers.create_topic(cluster.bootstrap_servers, topic)
    with (
        Admin(connection, 60) as here,
        Admin(two_nodes, 60) as there,
        trial.talk(kafka_client("3.9.2"), "produce", topic) as ask,
    ):
        admins = {connection.bootstrap_servers: here, two_nodes.bootstrap_servers: there}
        first, second = admins
        name = id_of_each_node(there)[-1]  # of a node to which the other cluster's producer has no connection
        ask()
        told = {servers: end_of(ask(f"{servers} {name}").split()) for servers in (first, second, first)}
        for servers, admin in admins.items():
            seen = describe(admin, [name])[name]
            assert (seen.state, seen.end) == ("Ongoing", told[servers])
            assert end_all(admin, [seen.end], True, end_txn_version(admin)) == {name: Outcome.DONE}


@pytest.mark.long  # two brokers, for milliseconds of a batch: no record depends on it
def test_the_coordinator_of_an_id_is_looked_up_once(trial: Trial, two_nodes: Connection) -> None:
    """Guards against a part that takes two round trips and a back-off longer: of each batch, on clusters of several
    brokers alone.
    """
    topic = brokers.create_topic(two_nodes.bootstrap_servers)
    with Admin(two_nodes, 60) as admin, trial.talk(kafka_client("3.9.2"), "produce", topic) as ask:
        ids = id_of_each_node(admin)
        ask()
        for batch in range(3):
            said = [ask(f"{two_nodes.bootstrap_servers} {name}").split() for name in ids]
            if batch:
                assert [asked for *_, asked in said] == ["1", "1"]  # InitProducerId
            end_all(admin, [end_of(one) for one in said], True, end_txn_version(admin))
            until("the ends", lambda: {d.state for d in describe(admin, ids).values()} == {"CompleteCommit"}, 20)


@pytest.mark.long
def test_a_part_writes_to_a_topic_that_was_made_a_moment_before(trial: Trial, tmp_path: Path) -> None:
    """Guards against a query that ends because a leader which was just beginning took the second batch of a partition
    and not the first, which is out of order from then on.
    """
    with brokers.test_broker(tmp_path / "three-nodes", nodes=3) as running:
        with trial.talk(kafka_client("3.9.2"), "fresh", running.bootstrap_servers) as ask:
            for _ in range(2):
                assert ask(f"{brokers.fresh_name()} 300") == "{there=1500}"
        running.kill()


def word(cell: str | None) -> str:
    return "null" if cell is None else f"x{cell}"


def line_of(row: dict[str, Any]) -> str:
    headers = ",".join(f"x{key.encode().hex()}={word(value)}" for key, value in row["headers"])
    time = "-" if row["timestamp_ms"] is None else str(row["timestamp_ms"])
    cells = [row["topic"], word(row["key"]), word(row["value"]), str(row["partition"]), time]
    return " ".join([*cells, headers or "-"])


def test_java_gives_a_part_the_digest_that_python_gives_it(trial: Trial, tmp_path: Path) -> None:
    """Guards against a part that a Java task wrote, and verify takes for other rows; test_digest.py reads it too."""
    parts = tmp_path / "parts"
    lines = [line for v in VECTORS for line in (f"part {v['form']}", *map(line_of, v["rows"]))]
    parts.write_text("".join(f"{line}\n" for line in lines))
    digests = trial.run(kafka_client("3.4.1"), "digest", str(parts))
    assert dict(zip([v["name"] for v in VECTORS], digests, strict=True)) == {v["name"]: v["digest"] for v in VECTORS}


def test_java_refuses_a_row_the_topics_that_python_refuses(trial: Trial) -> None:
    """Guards against a row that forges a decision, or ends in a stranger's topic, by one of the two ways of writing."""
    cases = [("", topic) for topic in (*TAKEN, *(topic for topic, _ in REFUSED))]
    cases += [(allowed, topic) for allowed, *topics in ALLOWED for topic in (*topics, "__t")]
    with trial.talk(kafka_client("3.9.2"), "topics") as ask:
        for allowed, topic in cases:
            rule = TopicRule.parse(allowed)
            said = ask(f"{','.join(rule.allowed) or '-'} {word(topic.encode().hex())}")
            assert said == (rule.refusal(topic) or "null"), (allowed, topic)


def test_a_task_in_java_is_told_why_it_is_too_late(trial: Trial, connection: Connection) -> None:
    """Guards against a person who is called at night for a task whose execution is over: a restart needs nobody;
    against a superseded driver that starts again and again; and against a stream that ends with each batch that takes
    longer than the transaction which its driver has begun for the decision.
    """
    log = brokers.create_topic(connection.bootstrap_servers)
    with trial.talk(kafka_client("3.9.2"), "late", connection.bootstrap_servers, log) as ask:
        assert ask("0") == "in time"
        with Admin(connection) as admin:
            writer = LogWriter(admin.within, log, 30_000, Deadline(30))
            writer.open([(log, 0)])
            until("the transaction", lambda: describe(admin.renew(10), [log])[log].state == "Ongoing", 20)
            LogWriter(admin.within, log, 30_000, Deadline(30))  # as its coordinator does by time
            until("its end marker", lambda: admin.renew(10).high_watermark(log, 0) == 1, 20)
        assert ask("0") == "in time"  # nobody has said that the execution is over
        over = write_as_driver(connection, log, "aborted")
        assert re.match(r"EO-PREPARE: .*too late: .*batch 0 of sink 's' is ", ask(f"{over}"))
        claimed = write_as_driver(connection, log, "claim")
        assert re.match(r"EO-FENCED: .*has claimed sink 's'", ask(f"{claimed}"))
        assert ask(f"{over}").startswith("EO-FENCED: ")


@pytest.mark.long
def test_a_part_without_rows_ends_behind_the_initialisation_of_its_id(
    trial: Trial, connection: Connection, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a request that outlives its task: the same id may be that of a part of the next batch, whose
    transaction the late InitProducerId would abort, perhaps decided (records lost).
    """
    monkeypatch.setenv("EXACTLY_ONCE_FAILPOINTS", str(tmp_path))
    log, name = brokers.create_topic(connection.bootstrap_servers), brokers.fresh_name("part")
    (tmp_path / "initialising").write_text("sleep 2")
    with (
        Admin(connection, 60) as admin,
        trial.talk(kafka_client("3.9.2"), "openings", connection.bootstrap_servers, topic, log) as ask,
    ):
        assert ask(f"{name} 0").startswith("begun")
        assert ask("end") == "done []"
        assert describe(admin, [name])[name].state == "Empty"  # initialised, and nothing comes behind it


def test_a_transaction_that_began_with_the_usual_partitions_ends_with_a_part_without_rows(
    trial: Trial, connection: Connection, topic: str
) -> None:
    """Guards against a transaction that nobody ends, and the warning of a failed attempt that there was not; and
    against one that is minutes old at its first row: it would be called too old, or time out.
    """
    log, name = brokers.create_topic(connection.bootstrap_servers), brokers.fresh_name("part")
    with (
        Admin(connection, 60) as admin,
        trial.talk(kafka_client("3.9.2"), "openings", connection.bootstrap_servers, topic, log) as ask,
    ):

        def described() -> Description:
            return describe(admin.renew(20), [name])[name]

        for last, state in (("end", "CompleteAbort"), ("row", "Empty")):
            assert ask(f"{name} 0 usual").startswith("begun")
            until("its transaction", lambda: described().state == "Ongoing", 20)
            assert described().partitions == ((topic, 0),)
            began = time.monotonic()
            until("its first look is old", lambda t=began: time.monotonic() - t > 2 * LOOK_IS_GOOD_S, 20)  # type: ignore[misc]
            assert ask(last) == "done []"
            until(state, lambda s=state: described().state == s, 20)  # type: ignore[misc]


@pytest.mark.long
def test_a_task_whose_first_row_comes_late_asks_again_whether_it_is_in_time(
    trial: Trial, connection: Connection, topic: str
) -> None:
    """Guards against readers that wait for a transaction which a task began minutes after its batch was decided and
    swept: a sort delivers the first row late.
    """
    log, name = brokers.create_topic(connection.bootstrap_servers), brokers.fresh_name("part")
    with (
        Admin(connection, 60) as admin,
        trial.talk(kafka_client("3.9.2"), "openings", connection.bootstrap_servers, topic, log) as ask,
    ):
        assert ask(f"{name} 0").startswith("begun")
        until("its id", lambda: describe(admin, [name])[name].state == "Empty", 20)
        began = time.monotonic()
        until("its first look is old", lambda: time.monotonic() - began > 2 * LOOK_IS_GOOD_S, 20)
        write_as_driver(connection, log, "aborted")
        said = ask("row")
        assert said.startswith("EO-PREPARE: ") and "too late" in said, said
        assert "No row of" in said  # its batch may be, with the rows of another attempt


def write_as_driver(connection: Connection, log: str, key: str) -> int:
    """Write a record to a commit log as a driver does; return where the log ended before."""
    producer = Producer({**connection.librdkafka(), "transactional.id": log})
    producer.init_transactions(30)
    with Admin(connection) as admin:
        end = admin.high_watermark(log, 0)
    producer.begin_transaction()
    producer.produce(log, b"{}", key)
    producer.commit_transaction(30)
    return end


KB = 1024


@pytest.fixture(scope="module")
def chosen(trial: Trial) -> Iterator[Callable[..., dict[str, int]]]:
    """Call it with a topic and the user's settings: what the producer of a part gets."""
    with trial.talk(kafka_client("3.9.2"), "settings") as ask:

        def chosen(partitions: int = 4, limit: int = 1_048_588, **user: int) -> dict[str, int]:
            words = [f"{name.replace('_', '.')}={value}" for name, value in user.items()]
            said = dict(word.split("=") for word in ask(f"{partitions} {limit} {' '.join(words)}").split())
            return {name: int(value) for name, value in said.items()}

        yield chosen


@pytest.mark.parametrize(
    ("partitions", "limit", "user", "size"),
    [
        pytest.param(4, 1_048_588, {}, 256 * KB, id="a topic with Kafka's default limit"),
        pytest.param(4, 20_000, {}, 20_000, id="a topic whose limit is lower"),
        pytest.param(4, 300, {}, 300, id="a limit below what else is the smallest batch"),
        pytest.param(1024, 1_048_588, {}, 16 * KB, id="two batches of each partition fit into the memory"),
        pytest.param(1024, 10_000, {}, 10_000, id="memory and limit, the limit is lower"),
        pytest.param(4, 0, {}, 16 * KB, id="a limit that nobody may read: Kafka's own default"),
        pytest.param(4, 0, {"batch_size": 100_000}, 100_000, id="a user's size, and a limit that nobody may read"),
        pytest.param(4, 1_048_588, {"batch_size": 1_000_000}, 1_000_000, id="a user's size that fits"),
        pytest.param(4, 50_000, {"batch_size": 100_000}, 50_000, id="a user's size above the limit"),
        pytest.param(
            100,
            50_000,
            {"batch_size": 100_000, "buffer_memory": 4_000_000},
            20_000,
            id="a user's size above what fits into the memory",
        ),
    ],
)
def test_a_batch_of_records_fits_into_the_topics_limit_and_into_the_memory(
    partitions: int, limit: int, user: dict[str, int], size: int, chosen: Callable[..., dict[str, int]]
) -> None:
    """Guards against batches that the brokers refuse and the client splits into as large ones, for ever."""
    assert chosen(partitions, limit, **user)["batch.size"] == size


@pytest.mark.parametrize(
    ("user", "linger", "backoff", "answer"),
    [
        pytest.param({}, 10_000, 10, 30_000, id="nothing is set"),
        pytest.param({"linger_ms": 7}, 7, 10, 30_000, id="a user's linger"),
        pytest.param({"delivery_timeout_ms": 8_000}, 2_000, 10, 6_000, id="a delivery shorter than the linger"),
        pytest.param({"retry_backoff_ms": 200}, 10_000, 200, 30_000, id="a user's back-off"),
        pytest.param({"request_timeout_ms": 4_000}, 10_000, 10, 4_000, id="a user's time for a request"),
        pytest.param(
            {"request_timeout_ms": 30_000, "delivery_timeout_ms": 30_000},
            0,
            10,
            30_000,
            id="no room to wait",
        ),
    ],
)
def test_records_wait_for_the_flush_and_a_look_up_costs_no_wait_unless_the_user_says_otherwise(
    user: dict[str, int], linger: int, backoff: int, answer: int, chosen: Callable[..., dict[str, int]]
) -> None:
    """Guards against a part that takes 100 ms longer, batches that go out half empty, and a default that makes the
    client refuse the user's own settings.
    """
    said = chosen(**user)
    del said["batch.size"]
    assert said == {"linger.ms": linger, "retry.backoff.ms": backoff, "request.timeout.ms": answer}


@pytest.mark.long
def test_an_option_of_the_user_s_is_known_when_a_kafka_client_knows_it(trial: Trial) -> None:
    """Guards against an option that a newer client has and the sink takes for a misspelt one."""
    said = [trial.run(kafka_client(release), "options") for release in (*REUSABLE, NOT_REUSABLE)]
    assert {name for [line] in said for name in line.split()} == producer_options.JAVA


@pytest.mark.long
def test_a_producer_that_no_part_takes_for_a_time_is_closed_though_no_part_comes(
    trial: Trial, connection: Connection
) -> None:
    """Guards against an executor without work that keeps its connections for ever, and warns once a second when the
    cluster is gone.
    """
    with trial.talk(kafka_client("3.9.2"), "idle", connection.bootstrap_servers) as ask:
        assert [ask(), ask()] == ["true 1", "true 1"]  # a part takes longer than the pool waits
        until("the end of the producer", lambda: ask("how many?") == "false 0", 20)

"""What a principal may do: with exactly the documented rights everything works, and each missing one is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.coordinator.recover import recover, verify
from exactly_once.coordinator.start import check
from exactly_once.errors import NotAuthorized, way_out_in
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.protocol.ticket import Part, Ticket, empty_part
from exactly_once.tools.metrics import instruments
from exactly_once.tools.metrics import observer as metrics
from exactly_once.tools.verify import VerifyParameters
from exactly_once.tools.verify import verify as prove
from exactly_once.tools.verify.by_origin.comparison import Question
from exactly_once.tools.verify.by_origin.origin import Origin
from exactly_once.txn import leaders
from exactly_once.txn.leaders import end_by_marker, find_hanging
from testkit import broker as brokers
from testkit import oracle
from testkit.authorizing import (
    USER,
    AuthorizingBroker,
    Right,
    SecureAuthorizingBroker,
    TokenAuthorizingBroker,
)
from testkit.dead_sink import DeadSink
from testkit.kafka_part import PartTransaction
from testkit.made_sink import MadeSink
from testkit.part_ids import part_id
from testkit.processes import until
from testkit.rights import Row, granted, input_of, named, table
from testkit.secure import CERTIFICATE, SCRAM
from testkit.secure import USER as SECURE_USER
from testkit.sensing import SENSORS, failed_run, sensing, stream_of
from testkit.stream import Ended, Input, Job, SparkDriver
from testkit.tokens import ENDPOINT, TokenEndpoint

OUTPUT = "each output"

#: Usually one principal.
STREAM = ("tasks", "driver")


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


def options(broker: AuthorizingBroker, sink_id: str, output: str, **more: str) -> dict[str, str]:
    return {**broker.connection.spark(), "sink.id": sink_id, "topic": output, **more}


def write(driver: SparkDriver, broker: AuthorizingBroker, sink_id: str, output: str) -> Ended:
    return driver.write_batch(options(broker, sink_id, output, **{"write.id": "day"}), rows=10, parts=2)


@pytest.mark.long
def test_a_checker_searches_other_topics_as_far_as_its_rights_go_and_says_how_many_it_did_not(
    authorizing: AuthorizingBroker, output: str, sink_id: str
) -> None:
    """Silence over a stray in a topic that the checker may not read; or a red check over the topics of others."""
    boss = Connection.from_options({"kafka.bootstrap.servers": authorizing.bootstrap_servers})
    sink = MadeSink(boss, brokers.create_topic(authorizing.bootstrap_servers, partitions=2), sink_id)
    elsewhere, sink.topic = sink.topic, output
    sink.claim()
    sink.batch(0, [("k", "v", 0)])
    sink.topic = elsewhere
    sink.end([sink.write(0, [("k", "w", 0)])])
    rights = granted(sink_id, output, table("checker"))
    for more, not_searched, found in (
        ([], 0, []),
        ([Right("DESCRIBE", "TOPIC", elsewhere)], 1, []),
        ([Right("READ", "TOPIC", elsewhere)], 0, ["output ahead"]),
    ):
        authorizing.grant([*rights, *more])
        report = prove(authorizing.connection, VerifyParameters(sink_id, settle_s=0))
        assert [f.anomaly.value for f in report.findings] == found and not report.unproven
        assert report.not_searched == not_searched and report.batches == 1


@pytest.mark.long
def test_the_references_rights_are_enough_for_a_stream_and_for_looking_at_it(
    authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """Wedge: a principal with every right that the documentation names, and EO-DENIED at each start."""
    as_user = authorizing.connection
    authorizing.grant(granted(sink_id, output, table(*STREAM)))
    data = Input(tmp_path, parts=2, rows=5)
    data.add(2)
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
    warm.complete(Job(data.source(), options(authorizing, sink_id, output, **checkpoint)))
    assert recover(as_user, sink_id).clean
    warm.complete(Job(data.source(), options(authorizing, sink_id, output, **checkpoint)))

    authorizing.grant(granted(sink_id, output, table("observer")))
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
    rows = [row for row in table(*STREAM) if (row.operation, row.on) != (operation, on)]
    assert len(rows) < len(table(*STREAM))
    authorizing.grant(granted(sink_id, output, rows))
    refused = write(warm, authorizing, sink_id, output).with_code("EO-DENIED")
    assert f"Grant {word.format(sink_id, topic=output)}" in refused.sentence


@pytest.mark.parametrize(
    ("on", "word"),
    [
        (f"topic: {OUTPUT}", "WRITE on the topic {topic}"),
        ("transactional ids with the prefix `eo:<sink id>:`", "the transactional ids with the prefix eo:{}:"),
    ],
)
def test_a_missing_right_is_named_before_a_query_starts(
    on: str, word: str, authorizing: AuthorizingBroker, output: str, sink_id: str, tmp_path: Path
) -> None:
    """Mishap: EO-DENIED from inside of Spark, after the session has started; and a principal with all rights that a
    look at the start refuses.
    """
    given = options(authorizing, sink_id, output, checkpointLocation=str(tmp_path / "c"))
    rows = [row for row in table(*STREAM) if (row.operation, row.on) != ("WRITE", on)]
    authorizing.grant(granted(sink_id, output, rows))
    with pytest.raises(NotAuthorized) as refused:
        check(given)
    assert word.format(sink_id, topic=output) in refused.value.way_out
    authorizing.grant(granted(sink_id, output, table(*STREAM)))
    assert check(given).sink_id == sink_id


@pytest.mark.long
def test_without_the_rights_that_are_for_comfort_rows_are_written_all_the_same(
    authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver
) -> None:
    """Wedge: a right that the documentation calls optional, and nothing works without it."""
    needed = [row for row in table(*STREAM) if row.needed]
    assert len(table(*STREAM)) - len(needed) == 5
    authorizing.grant(granted(sink_id, output, needed))
    assert write(warm, authorizing, sink_id, output).failure is None
    found = read_log(authorizing.connection, sink_id).write("day")
    assert found is not None and found.records == 10
    assert read_log(authorizing.connection, sink_id).open_decisions == ()


def test_a_topic_of_a_column_that_may_not_be_written_is_named(
    authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """Wedge: tasks that fail with "purged in queue", are retried, and restarted."""
    forbidden = brokers.create_topic(authorizing.bootstrap_servers)
    authorizing.grant([*granted(sink_id, output, table(*STREAM)), Right("DESCRIBE", "TOPIC", forbidden)])
    data = Input(tmp_path, parts=1, rows=5)
    data.add()
    settings = options(authorizing, sink_id, output, checkpointLocation=str(tmp_path / "checkpoint"))
    del settings["topic"]
    refused = warm.run(Job(data.source(), settings, select=["value", f"'{forbidden}' as topic"])).with_code("EO-DENIED")
    assert "Grant WRITE" in refused.sentence and f"the topic {forbidden}" in refused.sentence


FOR_DEAD_LETTERS = ("WRITE on dead", "DESCRIBE_CONFIGS on dead", "DESCRIBE_CONFIGS on output")


@pytest.mark.parametrize("missing", FOR_DEAD_LETTERS)
def test_a_right_that_dead_letters_need_is_named_before_a_query_starts(
    missing: str, authorizing: AuthorizingBroker, output: str, sink_id: str, tmp_path: Path
) -> None:
    """Wedge: a stream that runs until its first bad row, and stops then over a right."""
    topics = {"dead": brokers.create_topic(authorizing.bootstrap_servers), "output": output}
    given = options(authorizing, sink_id, output, checkpointLocation=str(tmp_path / "c"))
    given["sink.dead.letter.topic"] = topics["dead"]
    rows = [row for row in table(*STREAM) if row.operation != "DESCRIBE_CONFIGS"]
    more = {name: Right(name.split()[0], "TOPIC", topics[name.split()[-1]]) for name in FOR_DEAD_LETTERS}
    rights = [*granted(sink_id, output, rows), Right("DESCRIBE", "TOPIC", topics["dead"])]
    authorizing.grant([*rights, *(right for name, right in more.items() if name != missing)])
    with pytest.raises(NotAuthorized) as refused:
        check(given)
    operation, _, topic = missing.partition(" on ")
    assert f"Grant {operation} on the topic {topics[topic]}" in refused.value.way_out
    authorizing.grant([*rights, *more.values()])
    assert check(given).sink_id == sink_id


@pytest.mark.parametrize("lacks", ["WRITE", pytest.param("DESCRIBE_CONFIGS", marks=pytest.mark.long)])
def test_a_row_for_a_topic_on_which_a_right_is_missing_is_no_dead_letter(
    lacks: str, authorizing: AuthorizingBroker, output: str, sink_id: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against good rows among the dead letters because somebody revoked a right."""
    dead, other = (brokers.create_topic(authorizing.bootstrap_servers) for _ in range(2))
    rights = {(o, t): Right(o, "TOPIC", t) for o in ("WRITE", "DESCRIBE_CONFIGS") for t in (dead, other)}
    rights[lacks, other] = Right("DESCRIBE", "TOPIC", other)
    authorizing.grant([*granted(sink_id, output, table(*STREAM)), *rights.values()])
    data = Input(tmp_path, parts=1, rows=5)
    data.add()
    settings = options(authorizing, sink_id, output, checkpointLocation=str(tmp_path / "checkpoint"))
    del settings["topic"]
    settings["sink.dead.letter.topic"] = dead
    refused = warm.run(Job(data.source(), settings, select=["value", f"'{other}' as topic"])).with_code("EO-DENIED")
    assert f"Grant {lacks} on the topic {other}" in refused.sentence
    boss = Connection.from_options({"kafka.bootstrap.servers": authorizing.bootstrap_servers})
    assert oracle.read(boss, [dead, other]) == []


# -- role by role ------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A sink of the super user's, on which a role works as :data:`USER`."""

    broker: AuthorizingBroker | SecureAuthorizingBroker | TokenAuthorizingBroker
    sink_id: str
    output: str
    user: Connection
    principal: str = f"User:{USER}"

    @property
    def boss(self) -> Connection:
        """As the super user."""
        return Connection(self.broker.bootstrap_servers)

    def grant(self, rows: list[Row]) -> None:
        """Let the user do these things and nothing else."""
        self.broker.grant(granted(self.sink_id, self.output, rows), self.principal)

    def options(self, connection: Connection) -> SinkOptions:
        own = {"sink.id": self.sink_id, "topic": self.output, "write.id": "day"}
        return SinkOptions.parse({**connection.spark(), **own}, batch=True)

    def task(self, connection: Connection, ticket: Ticket) -> Part:
        """What the task of part 0 does: look at the log, open, write, prepare."""
        assert read_log(connection, self.sink_id).owner is not None
        name = part_id(self.sink_id, ticket.token, 0, "0.0")
        with Admin(connection) as admin:
            part = PartTransaction(connection, {}, name, 60_000, admin)
            part.send(self.output, None, b"row")
            handle = part.prepare(0, 30)
        return replace(empty_part(ticket), handles=(handle,))

    def dead(self) -> DeadSink:
        """A driver that died with a decided part and an open one."""
        sink = DeadSink(self.boss, self.output)
        decided, _ = sink.open_part(0), sink.open_part(1)
        sink.decide(decided, placed=True)
        self.sink_id = sink.sink_id
        return sink

    def rows(self) -> int:
        return len(oracle.read(self.boss, [self.output]))


class Role:
    """One work: made ready by the super user, then done as :data:`USER`."""

    def __init__(self, scene: Scene):
        self.scene = scene

    def work(self) -> None:
        raise NotImplementedError

    def nothing_written(self) -> bool:
        """As it was before the work."""
        return self.scene.rows() == 0


class Tasks(Role):
    def __init__(self, scene: Scene):
        super().__init__(scene)
        self.write = WriteCoordinator(scene.options(scene.boss))
        self.ticket = self.write.plan()

    def work(self) -> None:
        scene = self.scene
        part = scene.task(scene.user, self.ticket)
        assert self.write.commit([part]) is not None
        assert scene.rows() == 1


class Driver(Role):
    def work(self) -> None:
        scene = self.scene
        write = WriteCoordinator(scene.options(scene.user))
        part = scene.task(scene.boss, write.plan())
        assert write.commit([part]) is not None
        assert scene.rows() == 1
        assert not read_log(scene.boss, scene.sink_id).open_decisions

    def nothing_written(self) -> bool:
        return super().nothing_written() and read_log(self.scene.boss, self.scene.sink_id).owner is None


class Recovery(Role):
    def __init__(self, scene: Scene):
        super().__init__(scene)
        self.dead = scene.dead()

    def work(self) -> None:
        report = recover(self.scene.user, self.scene.sink_id)
        assert report.clean and len(report.completed) == 1 and len(report.rolled_back["kafka"]) == 1
        assert self.dead.visible() == ["part 0"]

    def nothing_written(self) -> bool:
        """No driver was fenced either."""
        return super().nothing_written() and self.dead.read().owner.token == 1


class Observer(Recovery):
    def work(self) -> None:
        scene = self.scene
        seen = inspect_sink(scene.user, scene.sink_id)
        assert [t.verdict for t in seen.open] == ["decided", "undecided"]
        assert not verify(scene.user, scene.sink_id).clean
        assert read_log(scene.user, scene.sink_id).write("day") is None
        observer = metrics.Observer(scene.user, [scene.sink_id], 1.0)
        observer.observe()
        assert [p.value for p in observer.points(instruments.UP)] == [1]


class Sensor(Recovery):
    """A batch in doubt, an undecided transaction, and a run that failed because a newer driver took the sink."""

    def __init__(self, scene: Scene):
        super().__init__(scene)
        brokers.create_topic(scene.broker.bootstrap_servers, name=input_of(scene.output))

    def work(self) -> None:
        scene = self.scene
        stream = stream_of(scene.sink_id, input_of(scene.output), scene.output)
        with dg.instance_for_test() as instance:
            failed_run(instance, stream=stream.name)
            ticks = sensing(instance, [stream], scene.user)
            said = {name: ticks.said(name) for name in SENSORS}
        for sentence in said.values():
            if "This sensor did nothing" in sentence:
                raise NotAuthorized(sentence, way_out_in(sentence))
        # stale only beyond the time that a batch may take: nobody here can tell whether their driver lives
        seen = said["exactly_once_stale_transactions"]
        assert "(open now: 2)" in seen or "HEALTH-STALE-TRANSACTIONS" in seen, said
        assert said["exactly_once_checkpoint_progress"].startswith("HEALTH-"), said
        assert "EO-FENCED" in said["exactly_once_run_failure"], said


class Checker(Role):
    def __init__(self, scene: Scene):
        super().__init__(scene)
        source = input_of(scene.output)
        brokers.create_topic(scene.broker.bootstrap_servers, partitions=1, name=source)
        producer = Producer({"bootstrap.servers": scene.broker.bootstrap_servers})
        for _ in range(4):
            producer.produce(source, b"row")
        producer.flush(30)
        self.sink = MadeSink(scene.boss, scene.output, scene.sink_id)
        self.sink.claim()
        handle = self.sink.write(0, [("key", f"0-{offset}", offset % 2) for offset in range(4)])
        before = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
        self.sink.decide(0, [handle], offsets=f"v1\n{before}\n{json.dumps({source: {'0': 4}})}")
        self.sink.end([handle])
        self.sink.complete(0)

    question: Question | None = None

    def work(self) -> None:
        scene = self.scene
        inputs = [input_of(scene.output)] if self.question else []
        report = prove(scene.user, VerifyParameters(scene.sink_id, origin=self.question, inputs=inputs))
        assert report.clean, report.findings
        assert (report.batches, report.records, report.unproven) == (1, 4, {})
        assert report.by_origin.get("input", 0) == (4 if self.question else 0)

    def nothing_written(self) -> bool:
        return self.scene.rows() == 4 and read_log(self.scene.boss, self.scene.sink_id).owner.token == 1


class CheckerByOrigin(Checker):
    question = Question(Origin("value"), order="none")


class Reader(Role):
    def __init__(self, scene: Scene):
        super().__init__(scene)
        producer = Producer({"bootstrap.servers": scene.broker.bootstrap_servers})
        producer.produce(scene.output, b"row")
        producer.flush(30)

    def work(self) -> None:
        settings = {"group.id": "readers", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({**self.scene.user.librdkafka(), **settings})
        consumer.subscribe([self.scene.output])
        try:
            [message] = consumer.consume(1, timeout=30)
            if error := message.error():
                raise KafkaException(error)
        finally:
            consumer.close()

    def nothing_written(self) -> bool:
        return True


ROLES: dict[str, type[Role]] = {
    "tasks": Tasks,
    "driver": Driver,
    "recovery": Recovery,
    "observer": Observer,
    "sensor": Sensor,
    "checker": Checker,
    "checker by origin": CheckerByOrigin,
    "reader": Reader,
}


@pytest.fixture
def scene(authorizing: AuthorizingBroker, output: str, sink_id: str) -> Scene:
    return Scene(authorizing, sink_id, output, authorizing.connection)


@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=pytest.mark.long if role == "observer" else ()) for role in ROLES]
)
def test_a_role_works_with_exactly_its_rights(role: str, scene: Scene) -> None:
    """Wedge: a right that the documentation forgot. And a principal that may do more than it has to."""
    work = ROLES[role](scene)
    scene.grant(table(role))
    work.work()


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_a_role_works_without_the_rights_that_are_for_comfort(role: str, scene: Scene) -> None:
    """Wedge: a right that the documentation calls optional, and nothing works without it."""
    work = ROLES[role](scene)
    scene.grant([row for row in table(role) if row.needed])
    work.work()


#: These stay in make test.
WRITING = ("tasks", "driver", "recovery")
#: What a task says without a right to write is Java's: test_a_missing_right_is_named.
MISSING = [
    (role, row) for role in ROLES for row in table(role) if row.needed and (role, row.operation) != ("tasks", "WRITE")
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("role", "row"),
    [
        pytest.param(
            role,
            row,
            marks=() if role in WRITING else pytest.mark.long,
            id=f"{role} {row.operation} {row.on}",
        )
        for role, row in MISSING
    ],
)
def test_a_role_without_one_right_is_told_which(role: str, row: Row, scene: Scene) -> None:
    """Outage: a principal that sees no open transaction, because it may see none, says that all is well."""
    work = ROLES[role](scene)
    scene.grant([r for r in table(role) if not r.implies(row)])
    with pytest.raises(KafkaException if role == "reader" else NotAuthorized) as refused:  # a reader has a client alone
        work.work()
    if row.without.startswith("`EO-DENIED`"):
        assert row.operation in refused.value.way_out, refused.value
        assert named(row, scene.sink_id, scene.output) in refused.value.way_out, refused.value
    assert work.nothing_written()


def test_a_living_transaction_under_an_id_that_may_not_be_seen_is_not_ended_as_a_hanging_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss: an abort marker in a living transaction of another application, whose id this principal may not see: to it,
    no coordinator knows the producer.
    """
    monkeypatch.setattr(leaders, "_ASK_AGAIN_S", 0.1)
    payments = brokers.open_transaction(scene.boss)
    payments.produce(scene.output, b"paid", partition=0, timestamp=1_000)
    payments.flush(30)
    rights = [Right("READ", "TOPIC", scene.output), Right("ALTER", "BROKER", "kafka-cluster")]
    scene.broker.grant(rights)
    [found] = find_hanging(scene.user, [scene.output])
    assert found.transactional_id is None
    with pytest.raises(NotAuthorized, match=r"Grant DESCRIBE .*all transactional ids"):
        end_by_marker(scene.user, found)
    payments.commit_transaction(30)
    until("its record", lambda: scene.rows() == 1, 20)  # its end marker is written behind the answer
    scene.broker.grant([*rights, Right("DESCRIBE", "TRANSACTIONAL_ID", "*")])
    assert find_hanging(scene.user, [scene.output]) == []


def test_who_may_not_tell_readers_that_a_batch_is_whole_is_told_the_right_before_anybody_is_fenced(
    scene: Scene,
) -> None:
    """Outage: a driver is stopped by a recovery that then may not complete its batch."""
    told = brokers.create_topic(scene.broker.bootstrap_servers, config={"cleanup.policy": "compact"})
    sink = MadeSink(scene.boss, scene.output, scene.sink_id, progress_topic=told)
    sink.claim()
    sink.decide(0, [sink.write(0, [("k", "v", 0)])])
    scene.grant(table("recovery"))
    with pytest.raises(NotAuthorized, match=f"Grant WRITE .*the topic {told}"):
        recover(scene.user, scene.sink_id)
    assert len(read_log(scene.boss, scene.sink_id).open_decisions) == 1
    scene.broker.grant([*granted(scene.sink_id, scene.output, table("recovery")), Right("WRITE", "TOPIC", told)])
    assert recover(scene.user, scene.sink_id).clean
    assert [m.key for m in oracle.read(scene.boss, [told])] == [scene.sink_id]


# -- by each way to log in ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureAuthorizingBroker]:
    broker = SecureAuthorizingBroker(tmp_path_factory.mktemp("secure"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        broker.stop()


def assert_the_roles_hold(scene: Scene) -> None:
    """A stream's roles work with their rights, and one without a right is told which; recoveries and looks too."""
    for role in ("driver", "tasks", "recovery", "observer"):
        fresh = replace(
            scene,
            sink_id=brokers.fresh_name("sink"),
            output=brokers.create_topic(scene.broker.bootstrap_servers, partitions=2),
        )
        work = ROLES[role](fresh)
        row = next(row for row in table(role) if row.on.startswith("transactional ids"))
        if (role, row) in MISSING:
            fresh.grant([r for r in table(role) if r != row])
            with pytest.raises(NotAuthorized, match=f"Grant .* on the transactional ids .*{fresh.sink_id}") as refused:
                work.work()
            assert row.operation in refused.value.way_out
            assert work.nothing_written(), role
        fresh.grant(table(role))
        work.work()


@pytest.mark.long
@pytest.mark.parametrize(("way", "principal"), [(SCRAM, SECURE_USER), (CERTIFICATE, "CN=client")])
def test_rights_hold_through_tls(way: str, principal: str, secure: SecureAuthorizingBroker) -> None:
    """Outage: a client that logs in, and one beside it that is somebody else to the brokers."""
    assert_the_roles_hold(Scene(secure, "", "", secure.connection(way), f"User:{principal}"))


@pytest.mark.long
def test_rights_hold_with_tokens(tmp_path: Path) -> None:
    """As above; the brokers take the name from the token."""
    with TokenAuthorizingBroker(tmp_path / "broker") as broker, TokenEndpoint() as endpoint:
        assert_the_roles_hold(Scene(broker, "", "", broker.connection(ENDPOINT, endpoint), f"User:{SECURE_USER}"))
        broker.kill()

"""What the sensors see with the documented rights, and what they say that they do not see without one of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
import pytest

from dagster_exactly_once.sensors import stale_transactions
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.connection import Connection
from exactly_once.txn.leaders import Hanging
from testkit import broker as brokers
from testkit.authorizing import AuthorizingBroker
from testkit.daemon import Daemon
from testkit.dead_sink import DEAD, DeadSink
from testkit.hanging import UNVERIFIED, leave_hanging
from testkit.part_ids import part_id
from testkit.rights import Row, granted, input_of, table
from testkit.sensing import SENSORS, failed_run, sensing, stream_of

NAME = "exactly_once_stale_transactions"
READ_OUTPUTS = "hanging transactions are not found"
ALL_IDS = "transactions of other applications are not found"


@pytest.fixture(scope="module")
def authorizing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizingBroker]:
    """A broker on which transactions can hang."""
    broker = AuthorizingBroker(tmp_path_factory.mktemp("authorizing"))
    broker.properties |= UNVERIFIED
    with broker:
        yield broker


class Scene:
    """A stream whose driver died on this host, with one transaction open."""

    def __init__(self, broker: AuthorizingBroker):
        self.broker, self.boss = broker, Connection(broker.bootstrap_servers)
        self.output = brokers.create_topic(broker.bootstrap_servers, partitions=4)
        brokers.create_topic(broker.bootstrap_servers, name=input_of(self.output))
        self.sink = DeadSink(self.boss, self.output, socket.gethostname(), DEAD)
        self.stale = self.sink.open_part(0)
        self.stream = stream_of(self.sink.sink_id, input_of(self.output), self.output)

    def grant(self, *without: str) -> None:
        """Let the sensors do what the reference says, but for the rows that have one of these consequences."""
        self.broker.grant(granted(self.sink.sink_id, self.output, rows(*without)))

    @contextmanager
    def payments(self) -> Iterator[str]:
        """Another application's living transaction on the output, by its transactional id; its record looks old."""
        name = brokers.fresh_name("payments")
        producer = brokers.open_transaction(self.boss, name)
        producer.produce(self.output, b"paid", partition=1, timestamp=1_000)
        producer.flush(30)
        yield name
        producer.abort_transaction(30)

    def ticks(self, instance: dg.DagsterInstance, **policy: float) -> Daemon:
        return sensing(instance, [self.stream], self.broker.connection, **{"stale_after_s": 0.001, **policy})


@pytest.fixture
def scene(authorizing: AuthorizingBroker) -> Scene:
    return Scene(authorizing)


def rows(*without: str) -> list[Row]:
    return [row for row in table("sensor") if not any(row.without.startswith(w) for w in without)]


def said(d: Daemon, name: str = NAME) -> str:
    """What a tick says; of one that asks for a recovery, what the next one says while that waits."""
    result = d.tick(name)
    if result.run_requests:
        result = d.tick(name)
    assert result.skip_reason is not None and not result.run_requests
    return str(result.skip_reason.skip_message)


def sentence_of(code: str, text: str) -> str:
    """What a tick says under a code."""
    return text.partition(f"{code}: ")[2].partition("HEALTH-")[0]


def memory(d: Daemon, scene: Scene) -> dict:
    found: dict = json.loads(d.cursors[NAME])["streams"][scene.sink.sink_id]
    return found


def test_with_the_documented_rights_the_sensors_find_what_is_stale_and_what_hangs(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    """Outage: sensors with every right that the documentation names, and EO-DENIED at each tick: nobody recovers the
    stream, and nobody hears of what hangs.
    """
    ours, others = f"{scene.output}-2@0", f"{scene.output}-3@0"
    leave_hanging(scene.boss, scene.output, 2, part_id(scene.sink.sink_id, 1, 7, "0.0"))
    leave_hanging(scene.boss, scene.output, 3)
    failed_run(instance, stream=scene.stream.name)
    scene.grant()
    with scene.payments() as payments:
        d = scene.ticks(instance, hanging_every_s=0.0)
        found = {name: said(d, name) for name in SENSORS}
        assert not any("EO-DENIED" in sentence for sentence in found.values()), found
        for code, name in (
            ("HEALTH-STALE-TRANSACTIONS", scene.stale),
            ("HEALTH-HANGING", ours),
            ("HEALTH-UNKNOWN-WRITER", others),
            ("HEALTH-FOREIGN-TRANSACTION", payments),
        ):
            assert name in sentence_of(code, found[NAME]), found[NAME]
        assert found["exactly_once_checkpoint_progress"].startswith("HEALTH-")
        assert "EO-FENCED" in found["exactly_once_run_failure"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("without", "says"),
    [
        ((READ_OUTPUTS,), ["Grant READ on the topic {output};"]),
        ((ALL_IDS,), ["Grant DESCRIBE on all transactional ids (*);"]),
        (
            (READ_OUTPUTS, ALL_IDS),
            ["Grant READ on the topic {output};", "Grant DESCRIBE on all transactional ids (*);"],
        ),
    ],
    ids=["READ on the outputs", "DESCRIBE on all ids", "both"],
)
def test_without_a_right_the_sensor_judges_what_it_sees_and_says_what_it_does_not(
    without: tuple[str, ...], says: list[str], scene: Scene, instance: dg.DagsterInstance
) -> None:
    """Outage: a stale transaction that nobody ends, because the sensor may not look for hanging ones; and a sensor
    that sees nothing because it may not, and calls that well.
    """
    scene.grant(*without)
    d = scene.ticks(instance)
    (request,) = d.tick(NAME).run_requests
    assert scene.stale in request.tags["exactly_once/cause"] and "EO-" not in request.tags["exactly_once/cause"]
    checked = memory(d, scene)["checked"]
    for _ in range(2):  # it does not ask again, nor forget
        sentence = said(d)
        assert sentence.count("EO-DENIED") == sentence.count("Grant ") == len(says), sentence
        assert all(word.format(output=scene.output) in sentence for word in says), sentence
    assert memory(d, scene)["checked"] == checked > 0
    quiet = scene.ticks(instance, stale_after_s=300.0)
    assert says[0].format(output=scene.output) in said(quiet)


def test_a_living_transaction_under_an_id_that_may_not_be_seen_is_not_called_hanging(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    """Loss: a person who ends another application's transaction because the sensor says that nobody else will."""
    scene.grant(ALL_IDS)
    leave_hanging(scene.boss, scene.output, 2, part_id(scene.sink.sink_id, 1, 7, "0.0"))
    with scene.payments() as payments:
        sentence = said(scene.ticks(instance))
    assert f"{scene.output}-1@0" in sentence_of("HEALTH-UNKNOWN-WRITER", sentence) and payments not in sentence
    assert f"{scene.output}-2@0" in sentence_of("HEALTH-HANGING", sentence)
    assert "HEALTH-FOREIGN" not in sentence


@pytest.mark.long
def test_leaders_that_do_not_answer_keep_no_stream_from_its_recovery(
    scene: Scene, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: one partition without a leader, and a stale transaction on another is never ended."""

    def silent(*_: object) -> list[Hanging]:
        raise BrokerUnreachable("no broker of b:1 answered within 8 s", "Check the brokers")

    scene.grant()
    d = scene.ticks(instance)
    monkeypatch.setattr(stale_transactions, "find_hanging", silent)
    result = d.tick(NAME)
    assert scene.stale in result.run_requests[0].tags["exactly_once/cause"]
    sentence = said(d)
    for fact in ("EO-UNREACHABLE: no broker", " b:1 answered within 8 s, ", "did not look for"):
        assert fact in sentence, sentence


def test_what_hangs_has_not_gone_because_a_right_has(scene: Scene, instance: dg.DagsterInstance) -> None:
    """Outage: READ is revoked, the sensor sees nothing hang any more, and tells the person on call that it is over."""
    leave_hanging(scene.boss, scene.output, 2, part_id(scene.sink.sink_id, 1, 7, "0.0"))
    d = scene.ticks(instance, hanging_every_s=0.0)
    scene.grant()
    assert f"{scene.output}-2@0" in said(d)
    told = memory(d, scene)["incident"]
    assert told["code"] == "HEALTH-HANGING"
    scene.grant(READ_OUTPUTS)
    sentence = said(d)
    assert f"{scene.output}-2@0" in sentence and "Grant READ" in sentence
    assert memory(d, scene)["incident"] == told


@pytest.mark.long
def test_streams_that_may_not_be_read_leave_the_others_their_turn(
    authorizing: AuthorizingBroker, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: streams that may not be read take every turn of a tick, and what hangs on the others is never found."""
    monkeypatch.setattr(stale_transactions, "LEADERS_AT_ONCE", 1)
    unread, unseen, well = (Scene(authorizing) for _ in range(3))
    leave_hanging(well.boss, well.output, 2)
    may = {unread: rows(READ_OUTPUTS), unseen: [], well: rows()}
    authorizing.grant({r: None for s, some in may.items() for r in granted(s.sink.sink_id, s.output, some)})
    streams = [s.stream for s in (unread, unseen, well)]
    d = sensing(instance, streams, authorizing.connection, stale_after_s=300.0)
    sentences = [said(d) for _ in streams]
    assert f"{well.output}-2@0" in sentences[-1] and f" READ on the topic {unread.output}" in sentences[-1]
    assert f"{unseen.stream.name}: EO-DENIED" in sentences[-1]

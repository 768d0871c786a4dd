"""Encoded rows, rejected ones and dead letters of one batch: good ones by their schemas, rejected ones byte for byte,
dead letters with what they have; each once, whatever is killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from exactly_once.protocol.dead_letters import own_headers
from exactly_once.tools.verify import VerifyParameters, verify
from testkit import oracle
from testkit.broker import create_topic
from testkit.fixtures import Bench, StartDriver
from testkit.registry import RegistryProcess, compiled_message
from testkit.stream import Job, SparkDriver
from tests.integration.test_dead_letters import raw
from tests.integration.test_schema_registry import KEY, NUMBER, changed, client
from tests.integration.test_schema_registry import registry as registry

#: The registry alone takes 20 s.
pytestmark = pytest.mark.long

NOT_UTF8 = "cast(unhex('ff') as string)"
#: What the input has for a value: bytes that begin as those of a registry do.
ODD = "concat(unhex('00ff'), cast(value as binary))"

#: By the last digits of a row's number: what becomes of it. All others are good.
REJECTED, BAD_KEY, BAD_VALUE, ASTRAY = 3, 7, 9, 17


@dataclass
class Mixed:
    """A stream whose rows have each of the four outcomes, with a topic for three of them."""

    bench: Bench
    registry: RegistryProcess
    format: str
    rejected: str
    dead: str

    @property
    def topics(self) -> list[str]:
        return [self.bench.topic, self.rejected, self.dead]

    @property
    def job(self) -> Job:
        options = {
            "schema.registry.url": self.registry.url,
            "schema.registry.topic": self.bench.topic,
            "value.format": self.format,
            "value.schema.register": "true",
            "value.schema.name": "shop.Line",
            "key.format": "avro",
            "key.schema.register": "true",
            "sink.dead.letter.topic": self.dead,
        }
        columns = [
            f"named_struct('id', if(number % 50 = {BAD_KEY}, {NOT_UTF8}, key)) key",
            f"named_struct('line', if(number % 50 = {BAD_VALUE}, {NOT_UTF8}, line)) value",
            f"if(number % 50 = {ASTRAY}, 99, null) partition",
        ]
        return changed(
            self.bench.job.having(topic=None),
            options,
            select=[f"{KEY} key", f"{ODD} value", "value line", f"{NUMBER} number"],
            transform="testkit.transforms:split_selected",
            arguments={
                "reason": f"if(number % 10 = {REJECTED}, 'three', null)",
                "columns": columns,
                "good": self.bench.topic,
                "rejected": self.rejected,
            },
        )

    def rows(self, *numbers: int) -> Counter[tuple[str, str]]:
        """Key and line of the rows of the input with these numbers; without numbers, of the good ones."""
        found = Counter[tuple[str, str]]()
        for key, value in self.bench.input.expected():
            n = int(value.rsplit("-", 1)[1]) % 50
            outcome = REJECTED if n % 10 == REJECTED else n
            if outcome in numbers or (not numbers and outcome not in (REJECTED, BAD_KEY, BAD_VALUE, ASTRAY)):
                found[key, f"{key}|{value}"] += 1
        return found

    def readers(self) -> tuple[Callable[[bytes | None], Any], Callable[[bytes | None], Any]]:
        """Return what Confluent's readers make of keys and of values."""
        topic, avro = self.bench.topic, AvroDeserializer(client(self.registry))
        text = self.registry.schema(f"{topic}-value")
        read: Any = avro
        if self.format == "json":
            read = JSONDeserializer(text, schema_registry_client=client(self.registry))
        elif self.format == "protobuf":
            read = ProtobufDeserializer(compiled_message(text, "shop.Line"), {"use.deprecated.format": False})

        def line(value: bytes | None) -> str:
            found = read(value, SerializationContext(topic, MessageField.VALUE))
            return str(found.line if self.format == "protobuf" else found["line"])

        return lambda key: avro(key, SerializationContext(topic, MessageField.KEY))["id"], line

    def assert_each_once(self) -> None:
        """Each row has the outcome that it must have, once, and nothing is under way."""
        oracle.assert_settled(self.bench.connection, self.bench.sink_id, self.topics)
        good, rejected, dead = (raw(self.bench.connection, topic) for topic in self.topics)
        key, value = self.readers()
        assert Counter((key(m.key()), value(m.value())) for m in good) == self.rows() != Counter()
        as_they_were = Counter({(k.encode(), b"\0\xff" + v.encode()): n for (k, v), n in self.rows(REJECTED).items()})
        assert Counter((m.key(), m.value()) for m in rejected) == as_they_were

        by_json: dict[bytes | None, list[Message]] = {b"key": [], b"value": [], None: []}
        for m in dead:
            by_json[own_headers(m.headers())[1].get("json")].append(m)
        assert {m.key() for m in by_json[b"key"]} == {'{"id":"\ufffd"}'.encode()}
        assert {m.value() for m in by_json[b"value"]} == {'{"line":"\ufffd"}'.encode()}
        assert Counter(value(m.value()) for m in by_json[b"key"]) == _seconds(self.rows(BAD_KEY))
        assert Counter(key(m.key()) for m in by_json[b"value"]) == _firsts(self.rows(BAD_VALUE))
        assert Counter((key(m.key()), value(m.value())) for m in by_json[None]) == self.rows(ASTRAY)

        checkpoint = str(self.bench.checkpoint)
        report = verify(
            self.bench.connection,
            VerifyParameters(self.bench.sink_id, checkpoint=checkpoint, topics=self.topics, settle_s=5),
        )
        assert report.clean and not report.unproven, report


@pytest.fixture
def mixed(bench: Bench, registry: RegistryProcess) -> Callable[[str], Mixed]:
    def made(format: str) -> Mixed:
        servers = bench.connection.bootstrap_servers
        rejected, dead = (create_topic(servers, f"{bench.topic}-{what}", 2) for what in ("rejected", "dead"))
        return Mixed(bench, registry, format, rejected, dead)

    return made


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_good_rows_are_encoded_rejected_ones_stay_and_keys_and_values_that_do_not_fit_are_dead_letters(
    format: str, mixed: Callable[[str], Mixed], warm: SparkDriver
) -> None:
    """Guards against a rejected record that is encoded, or gets an id; against a key that stops the stream, where a
    value would not; and against a dead letter of which nobody can tell whether it is JSON.
    """
    one = mixed(format)
    one.bench.complete(warm, one.job)
    one.assert_each_once()


@pytest.mark.parametrize(("point", "decided"), [("all-prepared", 1), ("decided", 2)])
def test_a_driver_that_is_killed_has_all_topics_in_its_decision_or_none(
    point: str, decided: int, mixed: Callable[[str], Mixed], driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against rejected records of a batch whose good ones are not there, and against the opposite."""
    one, killed = mixed("avro"), driver()
    one.bench.kill_at(point, killed, one.job)
    decisions = one.bench.log().decisions
    assert [set(d.topics) for d in decisions] == [set(one.topics)] * decided

    one.bench.complete(warm, one.job)
    one.assert_each_once()
    assert len(one.bench.log().decisions) == 3


def _firsts(rows: Counter[tuple[str, str]]) -> Counter[str]:
    return Counter(key for key, _ in rows.elements())


def _seconds(rows: Counter[tuple[str, str]]) -> Counter[str]:
    return Counter(line for _, line in rows.elements())

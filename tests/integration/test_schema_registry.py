"""Confluent Schema Registry: the records of the sink as confluent-kafka's own deserializers read them, from a real
registry; and what becomes of a stream whose registry refuses, dies, or is down.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from exactly_once.kafka.admin import Admin
from exactly_once.tools.verify import VerifyParameters, verify
from testkit import registry as support
from testkit.broker import create_topic
from testkit.fixtures import Bench, StartDriver
from testkit.registry import PASSWORD, USER, Door, RegistryProcess
from testkit.stream import Job, SparkDriver
from tests.integration.test_dead_letters import raw

FIELDS = [{"name": "carrier", "type": "string"}, {"name": "minutes", "type": "int"}]
DELAY = json.dumps({"type": "record", "name": "Delay", "fields": FIELDS})
LATER = DELAY.replace("]}", ', {"name": "origin", "type": ["null", "string"], "default": null}]}')
INCOMPATIBLE = DELAY.replace('"int"', '{"type": "array", "items": "long"}')
AIRPORT = '{"type": "string"}'
JSON_DELAY = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Delay",
        "type": "object",
        "properties": {"carrier": {"type": "string"}, "minutes": {"type": "integer"}},
        "required": ["carrier", "minutes"],
    }
)
KEY = "split(value, '[|]')[0]"
NUMBER = "cast(regexp_extract(value, '([0-9]+)$', 1) as int)"
VALUE = f"to_json(named_struct('carrier', {KEY}, 'minutes', {NUMBER})) value"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    """A registry for all tests that do not kill it; each has a topic, and so subjects, of its own."""
    with support.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    """A registry for this test alone."""
    with support.running(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def door(registry: RegistryProcess) -> Iterator[Door]:
    """A door of this test before the registry."""
    one = Door(registry)
    yield one
    one.close()


def changed(job: Job, options: dict[str, str], **fields: Any) -> Job:
    return Job(**{**asdict(job), "options": {**job.options, **options}, **fields})


def stream_job(bench: Bench, url: str, **options: str) -> Job:
    """A stream of delays in Avro, with the sink's options (``_`` stands for ``.``)."""
    given = {"schema.registry.url": url, **{k.replace("_", "."): v for k, v in options.items()}}
    arguments = {"schemas": {"value": DELAY}}
    return changed(
        bench.job, given, select=[f"{KEY} key", VALUE], transform="testkit.registry:avro", arguments=arguments
    )


def read(bench: Bench) -> list[Message]:
    """Every record that a read_committed reader sees, partition by partition, as bytes."""
    consumer = Consumer(
        {
            **bench.connection.librdkafka(),
            "group.id": f"{bench.sink_id}-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = list(consumer.list_topics(bench.topic, 30).topics[bench.topic].partitions)
        consumer.assign([TopicPartition(bench.topic, p, 0) for p in partitions])
        found, ended = [], set()
        while len(ended) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, "the reader got nothing for 30 s"
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.append(message)
        return sorted(found, key=lambda m: (m.partition(), m.offset()))
    finally:
        consumer.close()


def values(bench: Bench, deserializer: Any) -> list[Any]:
    """(key, decoded value) of every record."""
    context = SerializationContext(bench.topic, MessageField.VALUE)
    return [((m.key() or b"").decode(), deserializer(m.value(), context)) for m in read(bench)]


def delays(bench: Bench, batches: slice = slice(None)) -> list[tuple[str, dict[str, Any]]]:
    """What the input says, in an order that every key must keep."""
    return [(k, {"carrier": k, "minutes": int(v.rsplit("-", 1)[1])}) for k, v in bench.input.expected(batches)]


def assert_delays(found: list[Any], expected: list[Any]) -> None:
    """Each once, and those of one key in their order."""
    assert Counter(map(str, found)) == Counter(map(str, expected))
    by_key: tuple[dict[str, list[Any]], ...] = (defaultdict(list), defaultdict(list))
    for rows, keys in zip((found, expected), by_key, strict=True):
        for key, value in rows:
            keys[key].append(value)
    assert by_key[0] == by_key[1]


def ids(messages: list[Message]) -> set[int]:
    """The schema ids before the values."""
    found = [m.value() for m in messages if m.value() is not None]
    assert {v[0] for v in found} == {0}
    return {int.from_bytes(v[1:5], "big") for v in found}


def client(registry: RegistryProcess) -> SchemaRegistryClient:
    """The reader's."""
    return SchemaRegistryClient({"url": registry.url})


# -- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_avro_values_and_keys_are_read_by_confluents_own_reader_and_nulls_stay_nulls(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a record that no reader can decode, and against a tombstone that becomes five bytes: it would
    delete nothing in a compacted topic, and break every reader.
    """
    schema_id = registry.register(f"{bench.topic}-value", DELAY)
    key_id = registry.register(f"{bench.topic}-key", AIRPORT)
    bench.input.add(2)
    job = stream_job(bench, registry.url, value_schema=DELAY, key_schema=AIRPORT)
    job.select = [
        f"""if({NUMBER} % 5 = 0, null, concat('"', {KEY}, '"')) key""",
        f"if({NUMBER} % 3 = 0, null, {VALUE.removesuffix(' value')}) value",
    ]
    warm.complete(changed(job, {}, arguments={"schemas": {"key": AIRPORT, "value": DELAY}}))

    found = read(bench)
    reader = AvroDeserializer(client(registry))
    decoded = []
    for m in found:
        key = reader(m.key(), SerializationContext(bench.topic, MessageField.KEY))
        decoded.append((key, reader(m.value(), SerializationContext(bench.topic, MessageField.VALUE))))
    numbers = [v["minutes"] for _, v in delays(bench)]
    expected = [
        (None if number % 5 == 0 else key, None if number % 3 == 0 else value)
        for number, (key, value) in zip(numbers, delays(bench), strict=True)
    ]
    assert Counter(map(str, decoded)) == Counter(map(str, expected))
    assert ids(found) == {schema_id}
    assert {int.from_bytes(m.key()[1:5], "big") for m in found if m.key() is not None} == {key_id}
    assert {m.key() is None for m in found} == {m.value() is None for m in found} == {True, False}


def test_json_values_are_read_by_confluents_own_reader_after_the_start_has_registered_their_schema(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a schema that is registered again and again, once for each batch or task."""
    bench.input.add(3)
    job = stream_job(
        bench, registry.url, value_schema=JSON_DELAY, value_schema_type="JSON", value_schema_register="true"
    )
    warm.complete(changed(job, {}, transform="", arguments={}))

    assert_delays(values(bench, JSONDeserializer(JSON_DELAY, schema_registry_client=client(registry))), delays(bench))
    assert registry.versions(f"{bench.topic}-value") == [1]


@pytest.mark.long
def test_protobuf_values_are_read_by_confluents_own_reader(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a message without the path to its type, whose first bytes are then taken for one."""
    schema_id = registry.register("delays-of-all-topics", support.DELAYS, "PROTOBUF")
    bench.input.add()
    job = stream_job(
        bench,
        registry.url,
        value_schema=support.DELAYS,
        value_schema_type="PROTOBUF",
        value_schema_subject="delays-of-all-topics",
        value_schema_message_indexes="1",
    )
    arguments = {"message": "Delay", "columns": ["value"]}
    warm.complete(changed(job, {}, transform="testkit.registry:protobuf", arguments=arguments))

    # without a client: the reader would ask for Confluent's binary form of a .proto, which this registry has not
    reader = ProtobufDeserializer(support.message_type("Delay"), {"use.deprecated.format": False})
    found = [(key, {"carrier": d.carrier, "minutes": d.minutes}) for key, d in values(bench, reader)]
    assert_delays(found, delays(bench))
    messages = read(bench)
    assert ids(messages) == {schema_id}
    assert {m.value()[5:7] for m in messages} == {b"\x02\x02"}, "one number follows, and it is 1"


@pytest.mark.long
def test_rows_that_name_their_topic_partition_headers_and_time_are_framed_as_well(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against the general path, on which each record is sent by itself, leaving out the id."""
    schema_id = registry.register("delays", DELAY)
    bench.input.add()
    job = stream_job(bench, registry.url, value_schema=DELAY, value_schema_subject="delays").having(topic=None)
    job.select += [
        f"'{bench.topic}' topic",
        f"{NUMBER} % 4 partition",
        "timestamp_millis(1000000000000) timestamp",
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) headers",
    ]
    warm.complete(job)

    found = read(bench)
    reader = AvroDeserializer(client(registry))
    decoded = [reader(m.value(), SerializationContext(bench.topic, MessageField.VALUE)) for m in found]
    assert Counter(map(str, decoded)) == Counter(str(value) for _, value in delays(bench))
    assert [m.partition() for m in found] == [d["minutes"] % 4 for d in decoded]
    assert {(m.timestamp()[1], tuple(m.headers())) for m in found} == {(1_000_000_000_000, (("h", b"x"),))}
    assert ids(found) == {schema_id}


@pytest.mark.long
def test_a_batch_write_is_framed_and_a_second_try_of_it_asks_no_registry(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess, door: Door
) -> None:
    """Guards against a backfill that no reader can decode, and against one that is done, and fails on a registry that
    it does not need.
    """
    schema_id = registry.register(f"{bench.topic}-value", AIRPORT)
    options = {
        **{k: v for k, v in bench.job.options.items() if k != "checkpointLocation"},
        "write.id": "w",
        "schema.registry.url": door.url,
        "schema.registry.basic.auth.user.info": f"{USER}:{PASSWORD}",
    }
    first, asked = warm.write_batch(options, rows=40), len(door.asked)
    second = warm.write_batch(options, rows=40)
    assert (first.failure, second.failure) == (None, None)
    assert (asked, len(door.asked)) == (1, 1), door.asked
    found = read(bench)
    assert sorted(m.value()[5:].decode() for m in found) == sorted(f"w-{n}" for n in range(40))
    assert ids(found) == {schema_id}


@pytest.mark.parametrize("by", ["jvm", pytest.param("foreach_batch", marks=pytest.mark.long)])
def test_a_rejected_record_is_byte_for_byte_what_it_was_beside_good_ones_behind_their_ids(
    by: str, bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a rejected record behind the id of a schema that it does not have: no reader takes it, and sent
    again it gets a second one.
    """
    before = {side: registry.register(f"{bench.topic}-{side}", AIRPORT) for side in ("key", "value")}
    prefix = {side: b"\0" + number.to_bytes(4, "big") for side, number in before.items()}
    rejected = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-rejected", 1)
    bench.input.add()
    arguments = {
        "reason": "if(number % 10 = 3, 'three', null)",
        "columns": ["key", "value"],
        "good": bench.topic,
        "rejected": rejected,
    }
    options = {"schema.registry.url": registry.url, "schema.registry.topic": bench.topic, "key.schema.type": "AVRO"}
    job = changed(
        bench.job.having(topic=None),
        options,
        select=[
            f"if({NUMBER} % 20 = 13, null, {KEY}) key",
            f"if({NUMBER} % 50 = 23, null, concat(unhex('00ff'), cast(value as binary))) value",
            f"{NUMBER} number",
        ],
        transform="testkit.transforms:split_selected",
        arguments=arguments,
        participants=[] if by == "foreach_batch" else None,
    )
    warm.complete(job)

    rows = []
    for key, value in bench.input.expected():
        n = int(value.rsplit("-", 1)[1])
        line = b"\0\xff" + f"{key}|{value}".encode()
        rows.append((n, None if n % 20 == 13 else key.encode(), None if n % 50 == 23 else line))
    bad = [(key, value) for n, key, value in rows if n % 10 == 3]
    good = [(key and prefix["key"] + key, value and prefix["value"] + value) for n, key, value in rows if n % 10 != 3]
    assert {None in pair for pair in bad} == {True, False}
    assert Counter((m.key(), m.value()) for m in read(bench)) == Counter(good)
    letters = raw(bench.connection, rejected)
    assert Counter((m.key(), m.value()) for m in letters) == Counter(bad)
    assert {dict(m.headers())["__exactly_once.errors.message"] for m in letters} == {b"three"}


@pytest.mark.quick("jvm")
@pytest.mark.parametrize("by", ["jvm", "foreach_batch"])
def test_a_header_with_the_inputs_schema_is_refused_beside_an_id_of_the_sinks_own(
    by: str, bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against readers who decode by the header, as Confluent's do, and get other values without an error."""
    registry.register(f"{bench.topic}-value", AIRPORT)
    bench.input.add()
    forwarded = (
        f"array(named_struct('key', 'h', 'value', cast('x' as binary)), named_struct('key', if({NUMBER} % 50 = 7, "
        "'__value_schema_id', 'other'), 'value', unhex('0100000000000000000000000000000000'))) headers"
    )
    job = changed(
        bench.job,
        {"schema.registry.url": registry.url},
        select=[f"{KEY} key", "value", forwarded],
        participants=[] if by == "foreach_batch" else None,
    )
    ended = warm.run(job)
    assert ended.code == "EO-RECORD" and "the header __value_schema_id in its column 'headers'" in ended.sentence
    assert read(bench) == []

    [way_out] = re.findall(r"filter\(headers, h -> .*?'\)", ended.sentence)
    columns = ["key", "value", f"{way_out} headers"]
    selected = {"transform": "testkit.transforms:selected", "arguments": {"columns": columns}}
    warm.complete(changed(job, {}, **selected))
    found = read(bench)
    assert len(found) == len(bench.input.expected())
    assert {name for m in found for name, _ in m.headers() or ()} == {"h", "other"}


# -- which version --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_latest_version_is_asked_for_once_and_kept_until_the_query_starts_again(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess, door: Door
) -> None:
    """Guards against batches of one run under two ids, and against a question for each batch or each task."""
    old = registry.register(f"{bench.topic}-value", DELAY)
    bench.input.add(2)
    job = stream_job(bench, door.url, schema_registry_basic_auth_user_info=f"{USER}:{PASSWORD}")
    run = warm.start(job.until_stopped())
    run.await_commit(1)
    new = registry.register(f"{bench.topic}-value", LATER)
    bench.input.add()
    run.await_commit(2)
    run.stop()()
    assert ids(read(bench)) == {old} != {new}
    assert len(door.asked) == 1, door.asked

    bench.complete(warm, job)
    found = read(bench)
    assert Counter(int.from_bytes(m.value()[1:5], "big") for m in found) == {old: 600, new: 200}
    assert len(door.asked) == 2, door.asked


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({}, "EO-SCHEMA", ["<topic>-value", "has no schema"]),
        pytest.param(
            {"value_schema": LATER, "value_schema_subject": "known"},
            "EO-SCHEMA",
            ["known", "is not registered"],
            marks=pytest.mark.long,
        ),
        (
            {"value_schema": INCOMPATIBLE, "value_schema_subject": "known", "value_schema_register": "true"},
            "EO-SCHEMA",
            ["known", "is incompatible"],
        ),
        pytest.param(
            {"value_schema": "{", "value_schema_subject": "new", "value_schema_register": "true"},
            "EO-SCHEMA",
            ["does not accept value.schema"],
            marks=pytest.mark.long,
        ),
        ({"schema_registry_basic_auth_user_info": f"{USER}:guessed-4711"}, "EO-DENIED", ["<topic>-value", "(401)"]),
        ({"schema_registry_url": "http://127.0.0.1:9"}, "EO-REGISTRY", ["http://127.0.0.1:9", "does not answer"]),
        pytest.param({"value_schema_sbuject": "x"}, "EO-OPTION", ["value.schema.sbuject"], marks=pytest.mark.long),
    ],
    ids=["subject", "text", "incompatible", "nonsense", "password", "unreachable", "option"],
)
def test_what_the_registry_refuses_is_refused_before_anything_is_written(
    options: dict[str, str],
    code: str,
    words: list[str],
    bench: Bench,
    warm: SparkDriver,
    door: Door,
    registry: RegistryProcess,
) -> None:
    """Guards against rows that nobody can read, against a failure in the middle of a batch, and against a password in
    a log.
    """
    registry.register("known", DELAY)
    registry.require("known", "BACKWARD")
    bench.input.add()
    right = {"schema_registry_basic_auth_user_info": f"{USER}:{PASSWORD}"}
    ended = warm.run(stream_job(bench, door.url, **{**right, **options})).with_code(code)
    for word in words:
        assert word.replace("<topic>", bench.topic) in ended.sentence, ended.sentence
    assert ended.sentence.count(". ") >= 2, ended.sentence
    for secret in (PASSWORD, "guessed-4711"):
        assert secret not in (ended.failure or "")
        assert secret not in warm.log.read_text(errors="replace")
    with Admin(bench.connection) as admin:
        assert {m.high for m in admin.watermarks(bench.topic).values()} == {0}
    assert bench.open_parts() == 0
    assert registry.versions("known") == [1]


# -- a registry that dies -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_registry_that_dies_stops_no_stream_and_refuses_the_next_start_until_it_is_back(
    bench: Bench, driver: StartDriver, warm: SparkDriver, own_registry: RegistryProcess
) -> None:
    """Guards against a batch that fails half-way because a task asks the registry, and against rows of a start that
    could not ask.
    """
    own_registry.register(f"{bench.topic}-value", DELAY)
    bench.input.add()
    job, first = stream_job(bench, own_registry.url, value_schema=DELAY), driver()
    run = first.start(job.until_stopped())
    run.await_commit(0)
    own_registry.kill9()
    bench.input.add()
    run.await_commit(1)
    run.stop()()
    seen = len(read(bench))
    assert seen == 400

    bench.input.add()
    warm.run(job).with_code("EO-REGISTRY")
    assert len(read(bench)) == seen
    assert bench.open_parts() == 0
    assert bench.decided_batches() == [0, 1]

    own_registry.start()
    warm.complete(job)
    bench.assert_settled()
    assert_delays(values(bench, AvroDeserializer(client(own_registry))), delays(bench))


@pytest.mark.long
@pytest.mark.parametrize(("point", "committed"), [("all-prepared", 2), ("decided", 3)])
def test_a_registry_that_is_down_at_the_restart_after_a_crash_holds_up_no_decided_batch(
    point: str, committed: int, bench: Bench, driver: StartDriver, warm: SparkDriver, own_registry: RegistryProcess
) -> None:
    """Guards against decided rows that wait for a registry, which they do not need, until their transaction times out
    (loss); and against an undecided batch that is written without its id, or twice.
    """
    own_registry.register(f"{bench.topic}-value", DELAY)
    job, killed = stream_job(bench, own_registry.url, value_schema=DELAY), driver()
    bench.hold_third_batch(killed, job, point)
    killed.kill9()
    own_registry.kill9()

    bench.input.add()
    warm.run(job).with_code("EO-REGISTRY")
    bench.assert_settled()  # what was decided is committed, the rest aborted: no reader is held back
    assert len(read(bench)) == committed * 200

    own_registry.start()
    warm.complete(job)
    bench.assert_settled()
    assert_delays(values(bench, AvroDeserializer(client(own_registry))), delays(bench))
    assert bench.decided_batches() == [0, 1, 2, 3]


@pytest.mark.long
def test_a_lost_part_is_written_again_under_the_id_it_had_and_under_no_other(
    bench: Bench, driver: StartDriver, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against rows that were encoded by one version, and say that they are of another: a reader would take one
    field's bytes for the next one's.
    """
    registry.register(f"{bench.topic}-value", DELAY)
    job, killed = stream_job(bench, registry.url), driver()
    bench.hold_third_batch(killed, job, "decided")
    killed.kill9()
    bench.abort_parts(bench.log().decisions[-1], 2)

    new = registry.register(f"{bench.topic}-value", LATER)
    doubt = warm.run(job)  # the latest version is another one now
    assert doubt.code == "EO-EXPIRED", doubt.failure
    assert new not in ids(read(bench))

    warm.complete(changed(job, {"value.schema": DELAY}))
    bench.assert_settled()
    assert_delays(values(bench, AvroDeserializer(client(registry))), delays(bench))
    assert new not in ids(read(bench))
    report = verify(bench.connection, VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), settle_s=5))
    assert report.clean and not report.unproven, report

"""Formats: rows that the sink encodes, as confluent-kafka's own deserializers read them by the schema of a registry;
what does not fit is refused before anything is written, or goes to the dead letter topic.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from exactly_once.kafka.admin import Admin
from exactly_once.tools.verify import VerifyParameters, verify
from testkit.broker import create_topic
from testkit.fixtures import Bench, StartDriver
from testkit.registry import RegistryProcess, compiled_message
from testkit.stream import Job, SparkDriver
from tests.integration.test_dead_letters import raw
from tests.integration.test_schema_registry import (
    DELAY,
    JSON_DELAY,
    KEY,
    LATER,
    NUMBER,
    assert_delays,
    changed,
    client,
    delays,
    ids,
    read,
    values,
)
from tests.integration.test_schema_registry import registry as registry

#: The registry alone takes 20 s; make test-sparks runs them.
pytestmark = pytest.mark.long

#: A key and what is written before it, as the input has them.
DELAY_ROW = f"named_struct('carrier', {KEY}, 'minutes', {NUMBER}) value"

#: Every type that all three formats can write.
WIDE = f"""named_struct(
    'number', {NUMBER}, 'even', {NUMBER} % 2 = 0, 'long', {NUMBER} - 5000000000L, 'half', {NUMBER} / 2.0D,
    'quarter', cast({NUMBER} / 4.0 as float), 'name', concat('é-', {KEY}), 'raw', unhex('00ff'),
    'at', timestamp_micros({NUMBER} - 1500000L),
    'names', array({KEY}, 'b'), 'numbers', array({NUMBER}, -1), 'counts', map({KEY}, {NUMBER}),
    'inner', named_struct('name', {KEY}, 'maybe', if({NUMBER} % 3 = 0, null, {NUMBER})),
    'maybe', if({NUMBER} % 2 = 0, null, {KEY})
) value"""

#: Options of values whose schema the sink makes and registers, beside their format.
MADE = {"value_schema_register": "true", "value_schema_name": "shop.Delay"}

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def wide(key: str, n: int) -> dict[str, Any]:
    """What a reader of Avro gets of :data:`WIDE`."""
    return {
        "number": n,
        "even": n % 2 == 0,
        "long": n - 5_000_000_000,
        "half": n / 2,
        "quarter": n / 4,
        "name": f"é-{key}",
        "raw": b"\x00\xff",
        "at": EPOCH + dt.timedelta(microseconds=n - 1_500_000),
        "names": [key, "b"],
        "numbers": [n, -1],
        "counts": {key: n},
        "inner": {"name": key, "maybe": None if n % 3 == 0 else n},
        "maybe": None if n % 2 == 0 else key,
    }


def job_of(bench: Bench, url: str, value: str, *more: str, **options: str) -> Job:
    """A stream whose values the sink encodes; ``_`` stands for ``.`` in options."""
    given = {"schema.registry.url": url, **{k.replace("_", "."): v for k, v in options.items()}}
    return changed(bench.job, given, select=[f"{KEY} key", value, *more])


def rows(bench: Bench) -> list[tuple[str, int]]:
    """Key and number of every row of the input."""
    return [(key, int(value.rsplit("-", 1)[1])) for key, value in bench.input.expected()]


def value_of(m: Message, deserializer: Any) -> Any:
    return deserializer(m.value(), SerializationContext(m.topic(), MessageField.VALUE))


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert Counter(map(str, found)) == Counter(map(str, expected))


# -- what readers get -------------------------------------------------------------------------------------------------


def test_avro_of_every_type_is_read_back_by_the_schema_that_the_start_has_registered(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a value that readers decode into another one, and against a schema for each start."""
    bench.input.add(2)
    price = f"named_struct('price', cast({NUMBER} as decimal(12,2)) / 4, 'day', date_add(date'1969-12-30', {NUMBER}))"
    value = WIDE.replace("named_struct(\n", f"named_struct(\n'exact', {price}, ", 1)
    job = job_of(
        bench,
        registry.url,
        f"if({NUMBER} % 10 = 7, null, {value.removesuffix(' value')}) value",
        **{"value_format": "avro", **MADE, "key_format": "avro", "key_schema_register": "true"},
    )
    warm.complete(job)
    bench.complete(warm, job)

    found = read(bench)
    reader = AvroDeserializer(client(registry))
    context = SerializationContext(bench.topic, MessageField.KEY)
    decoded = [(reader(m.key(), context), value_of(m, reader)) for m in found]
    exact = {n: {"price": Decimal(n) / 4, "day": dt.date(1969, 12, 30) + dt.timedelta(days=n)} for _, n in rows(bench)}
    expected = [(key, None if n % 10 == 7 else {"exact": exact[n], **wide(key, n)}) for key, n in rows(bench)]
    assert [(k, v) for k, v in decoded if v is None] != []
    assert_same([(k, _plain(v)) for k, v in decoded], [(k, _plain(v)) for k, v in expected])
    assert registry.versions(f"{bench.topic}-value") == registry.versions(f"{bench.topic}-key") == [1]


def _plain(value: Any) -> Any:
    """A record with its decimal as a number: its scale is the schema's."""
    if value is None:
        return None
    exact = value["exact"]
    return {**value, "exact": (float(exact["price"]), exact["day"])}


def test_protobuf_of_every_type_is_read_back_by_the_schema_that_the_start_has_registered(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a field whose tag or length readers take for another one's."""
    bench.input.add()
    warm.complete(job_of(bench, registry.url, WIDE, value_format="protobuf", **MADE))

    kind = compiled_message(registry.schema(f"{bench.topic}-value"), "shop.Delay")
    reader = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    found = [_of_message(value_of(m, reader)) for m in read(bench)]
    assert_same(found, [wide(key, n) for key, n in rows(bench)])


def _of_message(m: Any) -> dict[str, Any]:
    def optional(of: Any, field: str) -> Any:
        return getattr(of, field) if of.HasField(field) else None

    whole = {f: getattr(m, f) for f in ("number", "even", "long", "half", "quarter", "name", "raw")}
    return {
        **whole,
        "at": EPOCH + dt.timedelta(seconds=m.at.seconds, microseconds=m.at.nanos // 1000),
        "names": list(m.names),
        "numbers": list(m.numbers),
        "counts": dict(m.counts),
        "inner": {"name": m.inner.name, "maybe": optional(m.inner, "maybe")},
        "maybe": optional(m, "maybe"),
    }


def test_json_of_every_type_is_read_back_by_the_schema_that_the_start_has_registered(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a text that the schema beside it forbids: Confluent's reader checks each value by it."""
    bench.input.add()
    warm.complete(job_of(bench, registry.url, WIDE, value_format="json", **MADE))

    text = registry.schema(f"{bench.topic}-value")
    reader = JSONDeserializer(text, schema_registry_client=client(registry))
    expected = []
    for key, n in rows(bench):
        row = {**wide(key, n), "raw": "AP8="}
        row["at"] = row["at"].replace(tzinfo=None).isoformat(timespec="microseconds").rstrip("0").rstrip(".") + "Z"
        row["inner"] = {k: v for k, v in row["inner"].items() if v is not None}
        expected.append({k: v for k, v in row.items() if v is not None})
    found = [value_of(m, reader) for m in read(bench)]
    for one in (*found, *expected):
        one["at"] = one["at"].rstrip("Z").rstrip("0").rstrip(".")
    assert_same(found, expected)


def test_a_schema_that_the_registry_has_is_looked_up_and_its_defaults_fill_what_rows_lack(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a new field that must be in every stream on the day that it is registered."""
    registry.register(f"{bench.topic}-value", DELAY)
    schema_id = registry.register(f"{bench.topic}-value", LATER)
    bench.complete(warm, job_of(bench, registry.url, DELAY_ROW, value_format="avro"))

    found = values(bench, AvroDeserializer(client(registry)))
    assert_delays([(k, {"carrier": v["carrier"], "minutes": v["minutes"]}) for k, v in found], delays(bench))
    assert ids(read(bench)) == {schema_id}


@pytest.mark.parametrize(("strategy", "subject"), [("record", "shop.Delay"), ("topic-record", "<topic>-shop.Delay")])
def test_a_subject_is_named_after_the_record_where_the_strategy_says_so(
    strategy: str, subject: str, bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a schema under a subject where no reader, and no rule of compatibility, looks for it."""
    bench.input.add()
    options = {"value_format": "avro", **MADE, "value_schema_subject_strategy": strategy}
    warm.complete(job_of(bench, registry.url, DELAY_ROW, **options))
    assert registry.versions(subject.replace("<topic>", bench.topic)) == [1]
    assert registry.versions(f"{bench.topic}-value") == []
    assert_delays(values(bench, AvroDeserializer(client(registry))), delays(bench))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        ("named_struct('carrier', 1, 'minutes', 2) value", {"value_schema": DELAY}, ["value.carrier"]),
        ("named_struct('carrier', 'x') value", {"value_schema_subject": "delays"}, ["value has no field 'minutes'"]),
        pytest.param(
            "named_struct('carrier', 'x', 'minutes', 1, 'more', 2) value",
            {"value_schema": JSON_DELAY.replace('"required"', '"additionalProperties": false, "required"'),
             "value_format": "json"},
            ["value.more"],
            marks=pytest.mark.long,
        ),
        (
            "named_struct('carrier', 'x', 'minutes', array(1L)) value",
            {"value_schema_subject": "delays", "value_schema_register": "true", "value_schema_name": "Delay"},
            ["delays", "is incompatible"],
        ),
    ],
    ids=["given", "latest", "json", "incompatible"],
)  # fmt: skip
def test_rows_that_do_not_fit_the_schema_are_refused_before_anything_is_written(
    value: str, options: dict[str, str], words: list[str], bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a stream that fails at its first row, with half of a batch in the topic, and against a version
    that breaks every reader.
    """
    registry.register("delays", DELAY)
    registry.require("delays", "BACKWARD")
    bench.input.add()
    ended = warm.run(job_of(bench, registry.url, value, **{"value_format": "avro", **options})).with_code("EO-SCHEMA")
    for word in words:
        assert word in ended.sentence, ended.sentence
    with Admin(bench.connection) as admin:
        assert {m.high for m in admin.watermarks(bench.topic).values()} == {0}
    assert registry.versions("delays") == [1]


def test_a_null_that_the_schema_forbids_ends_the_batch_and_names_the_field(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a row that is silently left out, or filled with a zero."""
    bench.input.add()
    row = f"named_struct('carrier', {KEY}, 'minutes', if({NUMBER} = 7, null, {NUMBER})) value"
    job = job_of(bench, registry.url, row, value_format="avro", value_schema=DELAY, value_schema_register="true")
    ended = warm.run(job).with_code("EO-RECORD")
    assert "value.minutes is null" in ended.sentence, ended.sentence
    assert read(bench) == []
    assert bench.open_parts() == 0


CHOICE = 'syntax = "proto3"; message Delay { oneof which { string carrier = 1; int32 minutes = 2; } }'
NOT_UTF8 = "named_struct('carrier', cast(unhex('ff') as string), 'minutes', 1) value"


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (
            DELAY_ROW,
            {"value_format": "protobuf", "value_schema": CHOICE},
            "of which the schema takes one (oneof which)",
        ),
        (NOT_UTF8, {"value_format": "avro", "value_schema": DELAY}, "value.carrier is 0xff, which is no text in UTF-8"),
        (NOT_UTF8, {"value_format": "protobuf"}, "value.carrier is 0xff, which is no text in UTF-8"),
        (NOT_UTF8, {"value_format": "json"}, "value.carrier is 0xff, which is no text in UTF-8"),
        (
            "named_struct('x', double('NaN')) value",
            {"value_format": "json"},
            "value.x is NaN, and JSON has no such number",
        ),
        (
            f"named_struct('carrier', {KEY}) value",
            {
                "value_format": "avro",
                "value_schema": '{"type": "record", "name": "E", "fields": [{"name": "carrier", "type": '
                '{"type": "enum", "name": "C", "symbols": ["none"]}}]}',
            },
            "which is no symbol of the schema's enum",
        ),
    ],
    ids=["oneof", "avro", "protobuf", "json", "nan", "enum"],
)
def test_a_row_that_readers_would_get_otherwise_or_not_at_all_is_refused_or_a_dead_letter(
    value: str, options: dict[str, str], words: str, bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a value that is silently another one at the readers, or that breaks them at this record."""
    bench.input.add()
    job = job_of(bench, registry.url, value, **{"value_schema_register": "true", **options})
    ended = warm.run(job)
    assert ended.code == "EO-RECORD" and words in ended.sentence, ended.failure
    assert read(bench) == [] and bench.open_parts() == 0

    dead = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-dead", 1)
    warm.complete(job.having(sink_dead_letter_topic=dead, sink_dead_letter_max="1000"))
    assert len(raw(bench.connection, dead)) == len(rows(bench)) and read(bench) == []


def test_a_row_that_the_schema_refuses_is_a_dead_letter_with_its_fields_as_json(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against one bad row that stops a stream, and against its loss."""
    bench.input.add(2)
    dead = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-dead", 1)
    row = f"named_struct('carrier', {KEY}, 'minutes', if({NUMBER} % 50 = 7, null, {NUMBER})) value"
    job = job_of(bench, registry.url, row, value_format="avro", value_schema=DELAY, value_schema_register="true")
    warm.complete(job.having(sink_dead_letter_topic=dead))

    good = [(k, v) for k, v in delays(bench) if v["minutes"] % 50 != 7]
    assert_delays(values(bench, AvroDeserializer(client(registry))), good)
    letters = raw(bench.connection, dead)
    bad = [{"carrier": key} for key, n in rows(bench) if n % 50 == 7]
    assert bad != []
    assert_same([json.loads(m.value()) for m in letters], bad)
    assert {dict(m.headers())["__exactly_once.errors.exception"] for m in letters} == {
        b"org.apache.kafka.common.InvalidRecordException"
    }
    report = verify(
        bench.connection,
        VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), topics=[bench.topic, dead], settle_s=5),
    )
    assert report.clean and not report.unproven, report


def test_a_header_with_the_inputs_schema_is_refused_and_without_it_readers_get_the_row(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a forwarded header by which Confluent's deserializer reads {'order': 0, 'customer': ''}, without
    an error, where the row is another one.
    """
    bench.input.add()
    of_input = "array(named_struct('key', '__value_schema_id', 'value', unhex('01'))) headers"
    options = {"value_format": "avro", **MADE}
    job = job_of(bench, registry.url, DELAY_ROW, of_input, **options)
    ended = warm.run(job)
    assert ended.code == "EO-RECORD" and "__value_schema_id" in ended.sentence and read(bench) == []

    dead = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-dead", 1)
    some = of_input.replace("array(", f"if({NUMBER} % 50 = 7, array(").replace(") headers", "), null) headers")
    warm.complete(job_of(bench, registry.url, DELAY_ROW, some, sink_dead_letter_topic=dead, **options))
    found, reader = read(bench), AvroDeserializer(client(registry))
    contexts = [SerializationContext(bench.topic, MessageField.VALUE, m.headers()) for m in found]
    good = [{"carrier": key, "minutes": n} for key, n in rows(bench) if n % 50 != 7]
    assert_same([reader(m.value(), context) for m, context in zip(found, contexts, strict=True)], good)
    assert len(raw(bench.connection, dead)) == len(rows(bench)) - len(good) > 0


def test_a_header_with_the_inputs_schema_stays_beside_bytes_that_are_ready(
    bench: Bench, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against a record that goes out as it was, and that readers cannot decode: its header names its schema."""
    bench.input.add()
    ready = f"if({NUMBER} % 50 = 7, "
    names = ("__key_schema_id", "__value_schema_id")
    of_input = [f"named_struct('key', '{name}', 'value', unhex('01'))" for name in names]
    of_values = {"value_format": "avro", **MADE}
    options = of_values | {name.replace("value", "key"): value for name, value in of_values.items()}
    of_key = f"{ready}array({of_input[0]}), null) headers"
    ended = warm.run(job_of(bench, registry.url, DELAY_ROW, of_key, **options))
    assert ended.code == "EO-RECORD" and names[0] in ended.sentence and read(bench) == []

    as_they_are = [f"{ready}unhex('0{n}'), null) encoded_{side}" for n, side in ((2, "key"), (3, "value"))]
    of_both = f"{ready}array({', '.join(of_input)}), null) headers"
    warm.complete(job_of(bench, registry.url, DELAY_ROW, of_both, *as_they_are, **options))
    found = [(m.key(), m.value(), m.headers()) for m in read(bench)]
    assert len(found) == len(rows(bench))
    kept = [(b"\2", b"\3", [(name, b"\1") for name in names])] * sum(n % 50 == 7 for _, n in rows(bench))
    assert [one for one in found if one[2]] == kept


# -- under kills ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
@pytest.mark.parametrize("point", ["mid-write", "decided"])
def test_encoded_rows_of_a_driver_that_was_killed_are_read_once(
    point: str, format: str, bench: Bench, driver: StartDriver, warm: SparkDriver, registry: RegistryProcess
) -> None:
    """Guards against rows that the second try encodes otherwise, or under another id, and so doubles."""
    job, killed = job_of(bench, registry.url, DELAY_ROW, value_format=format, **MADE), driver()
    bench.hold_third_batch(killed, job, point)
    killed.kill9()
    bench.complete(warm, job)

    bench.assert_settled()
    text = registry.schema(f"{bench.topic}-value")
    if format == "avro":
        found = values(bench, AvroDeserializer(client(registry)))
    elif format == "json":
        found = values(bench, JSONDeserializer(text, schema_registry_client=client(registry)))
    else:
        reader = ProtobufDeserializer(compiled_message(text, "shop.Delay"), {"use.deprecated.format": False})
        found = [(k, {"carrier": d.carrier, "minutes": d.minutes}) for k, d in values(bench, reader)]
    assert_delays(found, delays(bench))
    assert registry.versions(f"{bench.topic}-value") == [1]


def test_a_batch_write_is_encoded(warm: SparkDriver, bench: Bench, registry: RegistryProcess, tmp_path: Path) -> None:
    """Guards against a backfill in another form than the stream's."""
    options = {
        **{k: v for k, v in bench.job.options.items() if k != "checkpointLocation"},
        "write.id": "w",
        "schema.registry.url": registry.url,
        "value.format": "avro",
        "value.schema.register": "true",
    }
    done = warm.write_batch(options, rows=40)
    assert done.failure is None
    reader = AvroDeserializer(client(registry))
    assert sorted(value_of(m, reader) for m in read(bench)) == sorted(f"w-{n}" for n in range(40))

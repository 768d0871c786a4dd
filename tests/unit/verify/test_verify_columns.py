"""Many records decoded at once say what each says when it is decoded by itself."""

from __future__ import annotations

import gzip
import random
from types import SimpleNamespace

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatchBuilder

from exactly_once.error_headers import CODE, OFFSET, PARTITION, RESENT, TOPIC
from exactly_once.kafka.admin import Watermarks
from exactly_once.tools.verify.by_origin.columns import ABSENT, FieldBytes, OriginColumns, RecordColumns
from exactly_once.tools.verify.by_origin.origin import Origin, OriginPlace, Places, Unreadable, named
from exactly_once.tools.verify.by_origin.output import Outputs
from exactly_once.txn.scan import LogBatch

OUT = "out", 2
TEXTS = [
    *(b"in-0-5", b"in-1-123456789", b"in/1/17", b"in-0-17#3", b"in-7-1", b"1-17", b"-1-17", b"other-1-17", b"a-b-1-2"),
    *(b"a-b/1/2", b"in/1-2", b"in-1/2", b"", b"-", b"#", b"in-0-", b"in-0-5#", b"in-0-#1", b"in#1-2", b"in-0-5#1#2"),
    *(b"x", b"in--5", b"in-0-" + b"9" * 18, b"in-0-" + b"9" * 19, b"in-" + b"9" * 12 + b"-4", b"in-007-08"),
    *(b"0123456789" * 30, "ïn-0-1".encode(), None),
]


def batch(records, base=100, offsets=None, codec=0, where=OUT) -> LogBatch:
    """Of ``(key, value, headers)``."""
    made = DefaultRecordBatchBuilder(2, 0, True, 5, 0, 0, 1 << 30)
    deltas = offsets or range(len(records))
    for delta, (key, value, headers) in zip(deltas, records, strict=True):
        assert made.append(delta, 7 + delta, key, value, headers)
    raw = bytes(made.build())
    if codec:
        packed = {
            1: gzip.compress,
            2: lambda b: pa.Codec("snappy").compress(b, asbytes=True),
            3: lz4.frame.compress,
            4: lambda b: pa.Codec("zstd").compress(b, asbytes=True),
        }[codec](raw[61:])
        raw = raw[:22] + bytes([raw[22] | codec]) + raw[23:61] + packed
    last = base + max(deltas, default=0)
    return LogBatch(*where, base, last, 5, 0, True, None, False, True, 7, False, len(records), _based(raw, base))


def _based(raw: bytes, base: int) -> bytes:
    return base.to_bytes(8, "big") + raw[8:]


def some_bytes(of: random.Random) -> bytes | None:
    return None if of.random() < 0.2 else of.randbytes(of.choice([0, 1, 3, 7, 8, 9, 40, 63, 64, 127, 128, 300, 9000]))


def some_records(of: random.Random, count: int):
    names = ["src", "sr", "srd", CODE, RESENT, "x", "ä"]
    return [
        (
            some_bytes(of),
            some_bytes(of),
            [(of.choice(names), some_bytes(of)) for _ in range(of.choice([0, 0, 1, 2, 5]))],
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("codec", range(5))
def test_columns_hold_what_kafka_python_decodes_of_each_record(codec: int) -> None:
    """Loss: a field read from another place is another record's origin, and hides the one that is missing."""
    of = random.Random(codec)
    some = [batch(some_records(of, n), 1000 * n, codec=codec) for n in (1, 40, 3, 0, 20)]
    some.append(batch(some_records(of, 3), 9000, offsets=[4, 5, 300]))  # compaction has left these
    columns = RecordColumns(some, ("src", CODE))
    records = [r for b in some for r in b.records()]
    assert columns.offsets.tolist() == [r.offset for r in records]
    for row, record in enumerate(records):
        assert columns.text(columns.keys, row) == record.key and columns.text(columns.values, row) == record.value
        for name, spans in columns.headers.items():
            its = [value for n, value in record.headers if n == name]
            assert (spans.length[row] == ABSENT) == (not its)
            assert columns.text(spans, row) == (its[0] if its else None)


def test_what_is_no_record_is_refused() -> None:
    """A false "all is well" over bytes that nobody could read: cut, too long, or a field that leaves its record."""
    good = batch([(b"k", b"v", [("src", b"in-0-1")])] * 3)
    for raw in (good.raw[:-1], good.raw + b"\0", good.raw[:61] + bytes([good.raw[61] + 2]) + good.raw[62:]):
        with pytest.raises(CorruptRecordError):
            RecordColumns([LogBatch(*OUT, 100, 102, 5, 0, True, None, False, True, 7, False, 3, raw)])
    for at in range(62, len(good.raw)):
        for byte in (0, 1, 127, 255):
            raw = good.raw[:at] + bytes([byte]) + good.raw[at + 1 :]
            try:
                columns = RecordColumns([LogBatch(*OUT, 100, 102, 5, 0, True, None, False, True, 7, False, 3, raw)])
            except CorruptRecordError:
                continue
            assert all(0 <= a <= a + max(n, 0) <= len(columns.raw) for a, n in zip(*columns.keys, strict=True))


@pytest.mark.parametrize("topics", [["in"], ["a-b", "in"], ["other"]])
def test_texts_that_are_read_together_name_what_each_names_by_itself(topics: list[str]) -> None:
    """Loss or phantom: `in-0-17#3` read as offset 3, or a text of 19 digits as another number."""
    columns = RecordColumns([batch([(text, None, []) for text in TEXTS])])
    found, places = OriginColumns.of(columns, columns.keys, topics), Places(topics)
    plain = 0
    for row, text in enumerate(TEXTS):
        if found.topics[row] < 0:
            continue
        plain += 1
        where = topics[found.topics[row]], int(found.partitions[row])
        assert text is not None
        assert places.read(text) == OriginPlace(where, int(found.offsets[row]), int(found.ks[row])), text
    assert plain >= 4 or topics == ["other"]
    random_texts = random.Random(5)
    texts = [bytes(random_texts.choices(b"in-/#012", k=random_texts.randrange(1, 12))) for _ in range(5_000)]
    columns = RecordColumns([batch([(text, None, []) for text in texts])])
    found = OriginColumns.of(columns, columns.keys, topics)
    for row in np.flatnonzero(found.topics >= 0).tolist():
        where = topics[found.topics[row]], int(found.partitions[row])
        assert places.read(texts[row]) == OriginPlace(where, int(found.offsets[row]), int(found.ks[row])), texts[row]


def outputs(origin: str, low: int = 0) -> Outputs:
    marks = {OUT: Watermarks(low, 1 << 40, 1 << 40)}
    admin: object = SimpleNamespace()
    return Outputs(admin, marks, {OUT: 0}, Origin.parse(origin), ["in"], lambda source, offset: 0)  # type: ignore[arg-type]


def headers_of(of: random.Random) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = [("src", of.choice(TEXTS))] if of.random() < 0.9 else [("x", b"y")]
    if of.random() < 0.1:
        found += [(CODE, b"EO-X"), (TOPIC, b"in"), (PARTITION, b"1"), (OFFSET, b"77")]
    if of.random() < 0.1:
        found.append((RESENT, of.choice([b"out-2-5", b"elsewhere-0-1", None])))
    return found


@pytest.mark.parametrize("origin", ["header:src", "key", "value", "json:src"])
def test_outputs_take_from_each_record_what_it_names_by_itself(origin: str) -> None:
    """Every kind of record among plain ones: dead letters, what was sent again, other writers', texts that are none."""
    of = random.Random(origin)
    rows = [(of.choice(TEXTS), of.choice(TEXTS), headers_of(of)) for _ in range(600)]
    some = [batch(rows[n : n + 50], 100 + n, codec=n % 5) for n in range(0, 600, 50)]
    reader, resent = outputs(origin, low=130), []
    got = {}
    arrivals = list(reader._taken(OUT, some, resent))
    for its in arrivals:
        assert its.where == OUT and (np.diff(its.at) > 0).all()
        for at, offset, k in zip(its.at.tolist(), its.offsets.tolist(), its.numbers.tolist(), strict=True):
            got[at] = OriginPlace(its.source, offset, k)
    places, text, want, foreign, again = Places(["in"]), Origin.parse(origin).text, {}, [], []
    records = [r for b in some for r in b.records() if r.offset >= 130]
    for record in records:
        if (RESENT, b"out-2-5") in record.headers:
            again.append(record.offset)
            continue
        try:
            place = named(record, text, places)
        except Unreadable:
            place = None
        if place is None:
            foreign.append(record.offset)
        else:
            want[record.offset] = place
    assert got == want and want and again
    assert [at for r in resent for at in r.at.tolist()] == again
    assert reader.read == len(records) and reader.foreign.count == len(foreign)
    assert reader.foreign.first == [f"out-2@{at}" for at in foreign[:20]]
    assert [its.source for its in arrivals] == list(dict.fromkeys(p.partition for p in want.values()))


def test_hashes_of_keys_tell_keys_inputs_and_partitions_apart_and_are_0_without_a_key() -> None:
    """A false alarm of a wrong order: two keys that count as one; or silence over a key that counts as two."""
    keys = [None, b"", b"a", b"b", b"key-1", b"key-12345678", b"x" * 255, b"x" * 256, b"x" * 257, b"\0", b"\0\0"]
    rows = [(key, None, [("src", b"in-0-%d" % n)]) for n, key in enumerate([*keys, *keys])]
    [its] = outputs("header:src")._taken(OUT, [batch(rows[:7]), batch(rows[7:], 200)])
    first, second = its.hashes[: len(keys)].tolist(), its.hashes[len(keys) :].tolist()
    assert first == second and first[0] == 0 and len(set(first)) == len(keys)
    elsewhere = [batch([(b"a", None, [("src", b"in-%d-1" % p)])]) for p in (0, 1)]
    assert len({int(a.hashes[0]) for a in outputs("header:src")._taken(OUT, elsewhere)}) == 2
    numbers = [n.to_bytes(8, "big") for n in range(50_000)] + [b"key-%012d-%d" % (n, n) for n in range(50_000)]
    columns = RecordColumns([batch([(key, None, []) for key in numbers])])
    hashes = columns.hashes(columns.keys)
    assert len(np.unique(hashes)) == len(numbers)
    for shift in (0, 20, 43):  # a table of keys takes some of the bits
        assert np.bincount((hashes >> np.uint64(shift)).astype(np.int64) & 1023).max() < 150


def test_fields_are_compared_byte_by_byte() -> None:
    wanted = b"a-topic-with-a-long-name"
    others = [wanted, wanted[:-1] + b"f", b"b" + wanted[1:], wanted[:-1], wanted + b"x", None, b""]
    columns = RecordColumns([batch([(key, None, []) for key in others])])
    assert columns.equal(columns.keys, wanted).tolist() == [True, *[False] * 6]
    assert columns.equal(FieldBytes(*columns.keys), b"").tolist() == [False] * 6 + [True]

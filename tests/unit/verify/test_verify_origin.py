"""What a record says of its origin, how often each input record is there, and in which order."""

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from exactly_once.errors import InvalidOption
from exactly_once.tools.cli import main
from exactly_once.tools.verify.by_origin import counts as c
from exactly_once.tools.verify.by_origin.counts import Counts, Memory
from exactly_once.tools.verify.by_origin.input import _mark
from exactly_once.tools.verify.by_origin.order import Order
from exactly_once.tools.verify.by_origin.origin import Origin, OriginPlace, PerInput, Places, Unreadable


def record(key=None, value=None, **headers):
    return SimpleNamespace(key=key, value=value, headers=list(headers.items()))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"orders-1-17", OriginPlace(("orders", 1), 17)),
        (b"orders/1/17", OriginPlace(("orders", 1), 17)),
        (b"1-17", OriginPlace(("orders", 1), 17)),
        (b"orders-1-17#3", OriginPlace(("orders", 1), 17, 3)),
        (b"other-1-17", None),
    ],
)
def test_an_origin_names_a_record_of_the_input(text, place):
    places = Places(["orders"])
    assert places.read(text) == place and places.read(text) == place


def test_a_topic_with_hyphens_and_numbers_is_told_from_its_partition():
    """Phantom: `shop-2024-1-17` taken for partition 1 of `shop-2024`, or for something else."""
    assert Places(["shop-2024"]).read(b"shop-2024-1-17") == OriginPlace(("shop-2024", 1), 17)


@pytest.mark.parametrize("text", [b"", b"x", b"orders-1-", b"orders-1-x", b"orders-1-17#", b"orders-1--2", b"9" * 30])
def test_what_is_no_origin_is_refused_and_quoted(text):
    """Loss: an origin read as another offset hides the record that it stands for."""
    with pytest.raises(Unreadable, match=r"is not topic-partition-offset"):
        Places(["orders"]).read(text)


def test_what_was_read_before_does_not_say_how_a_text_is_read():
    """Loss: `orders-1/17` taken for record 17 of partition 1 as soon as `orders-1-2` was read."""
    places = Places(["orders"])
    assert places.read(b"orders-1-2") == OriginPlace(("orders", 1), 2)
    with pytest.raises(Unreadable):
        places.read(b"orders-1/17")


def test_a_stream_with_two_inputs_needs_the_topic():
    with pytest.raises(Unreadable, match=r"names no topic, .*stream has 2"):
        Places(["orders", "refunds"]).read(b"1-17")


@pytest.mark.parametrize(
    ("origin", "of", "text"),
    [
        ("header:src", record(src=b"1-2"), b"1-2"),
        ("header:src", record(other=b"1-2"), None),
        ("key", record(key=b"1-2"), b"1-2"),
        ("value", record(value=b"1-2"), b"1-2"),
        ("json:src", record(value=b'{"src": "1-2"}'), b"1-2"),
        ("json:meta.src", record(value=b'{"meta": {"src": "1-2"}}'), b"1-2"),
        ("json:source", record(value=b'{"source": {"partition": 1, "offset": 2}}'), b"1-2"),
        ("json:source", record(value=b'{"source": {"topic": "t", "partition": 1, "offset": 2}}'), b"t/1/2"),
        ("json:src", record(value=b"not json"), None),
        ("json:src", record(value=b"[1]"), None),
        ("json:src", record(value=None), None),
    ],
)
def test_the_text_stands_where_the_origin_says(origin, of, text):
    assert Origin.parse(origin).text(of) == text and str(Origin.parse(origin)) == origin


def test_only_a_header_or_a_field_of_its_name_is_certain_to_be_the_streams() -> None:
    """A false alarm, or silence, over a text that cannot be read: keys and values may be anybody's."""
    certain = {text: Origin.parse(text).certain for text in ("header:src", "json:src", "key", "value")}
    assert certain == {"header:src": True, "json:src": True, "key": False, "value": False}


def test_an_offset_has_no_more_digits_than_kafka_counts_and_a_long_text_is_quoted_in_part() -> None:
    """An error of numpy over a number of 19 digits; a report of megabytes over a value that is no origin."""
    places = Places(["t"])
    assert places.read(b"t-0-" + b"9" * 18) == OriginPlace(("t", 0), 10**18 - 1)
    with pytest.raises(Unreadable, match=r"^'t-0-9{19}' is not"):
        places.read(b"t-0-" + b"9" * 19)
    with pytest.raises(Unreadable, match=r"^'x{40}' is not"):
        places.read(b"x" * 40)
    with pytest.raises(Unreadable, match=r"^'x{40}'\.\.\. is not"):
        places.read(b"x" * 41)


@pytest.mark.parametrize("text", ["", "header", "header:", "key:x", "xpath:/a"])
def test_an_origin_that_is_none_is_refused_with_the_ways_that_there_are(text):
    with pytest.raises(InvalidOption, match=r"header:NAME, key, value .*json:FIELD"):
        Origin.parse(text)


@pytest.mark.parametrize(
    ("text", "outputs"),
    [("1", PerInput(1)), ("64", PerInput(64)), ("at-most-2", PerInput(2, False)), ("any", PerInput(None, False))],
)
def test_how_many_outputs_an_input_has(text, outputs):
    assert PerInput.parse(text) == outputs and str(outputs) == text


@pytest.mark.parametrize("text", ["0", "-1", "65", "many", "at-most-0", "1.5"])
def test_a_number_of_outputs_that_cannot_be_is_refused(text):
    with pytest.raises(InvalidOption, match="Use a number from 1 to 64"):
        PerInput.parse(text)


# -- counts -----------------------------------------------------------------------------------------------------------


ONE = PerInput()


def counts(kinds, reach=None, outputs=ONE, numbered=False, first=100, memory=None):
    """Of an input whose offsets from ``first`` on are of these kinds."""
    kinds = np.array(kinds, np.uint8)
    end = first + len(kinds)
    return Counts(
        first, end, reach or end, outputs, numbered, lambda a, b: kinds[a - first : b - first], memory or Memory()
    )


def add(counted, offsets, ks=None):
    return counted.add(np.array(offsets, np.int64), None if ks is None else np.array(ks, np.int64)).tolist()


def missing(counted):
    return [(o, n) for offsets, n in counted.missing() for o in [offsets.tolist()]]


def test_what_is_there_once_is_fine_and_what_is_not_there_is_missing():
    counted = counts([c.RECORD] * 4)
    assert add(counted, [100, 103]) == [c.FINE] * 2
    assert missing(counted) == [([101, 102], 2)]
    assert counted.present(100, 104) == (4, 2) and counted.present(101, 103) == (2, 0)


def test_a_second_output_is_a_duplicate_at_once_later_and_after_its_block_was_complete():
    """Duplicate: a complete block is no more than a flag, and must still know a record that comes again."""
    counted = counts([c.RECORD] * 3)
    assert add(counted, [100, 101, 100]) == [c.FINE, c.FINE, c.DUPLICATE]
    assert add(counted, [101, 102]) == [c.DUPLICATE, c.FINE]
    assert add(counted, [102]) == [c.DUPLICATE] and missing(counted) == []


def test_offsets_without_a_record_are_expected_nowhere_and_allowed_nowhere():
    """Loss that is none: markers, aborted and compacted records have offsets too."""
    counted = counts([c.RECORD, c.NO_RECORD, c.ABORTED, c.UNKNOWN])
    assert add(counted, [101, 102, 103, 103]) == [c.OF_NO_RECORD, c.OF_ABORTED, c.FINE, c.DUPLICATE]
    assert missing(counted) == [([100], 1)]


def test_what_lies_outside_is_told_from_what_is_under_way():
    counted = counts([c.RECORD] * 2, reach=104)
    assert add(counted, [99, 102, 103, 103, 104]) == [c.BEFORE, c.FINE, c.FINE, c.DUPLICATE, c.BEYOND]
    assert missing(counted) == [([100, 101], 2)]


def test_outputs_that_are_not_numbered_are_counted():
    counted = counts([c.RECORD] * 3, outputs=PerInput(2))
    assert add(counted, [100, 100, 100, 101]) == [c.FINE, c.FINE, c.DUPLICATE, c.FINE]
    assert missing(counted) == [([101, 102], 3)]


def test_outputs_that_are_numbered_are_told_apart():
    """Two times output 0 and never output 1 is a loss and a duplicate, not two outputs."""
    counted = counts([c.RECORD] * 2, outputs=PerInput(2), numbered=True)
    assert add(counted, [100, 100, 101, 101, 101], [0, 0, 1, 0, 2]) == [
        c.FINE, c.DUPLICATE, c.FINE, c.FINE, c.TOO_MANY,
    ]  # fmt: skip
    assert missing(counted) == [([100], 1)]


def test_any_number_of_outputs_makes_no_duplicate():
    counted = counts([c.RECORD, c.NO_RECORD], outputs=PerInput(None, False))
    assert add(counted, [100, 100, 101]) == [c.FINE, c.FINE, c.OF_NO_RECORD]
    assert counted.seen(np.array([100, 101])).tolist() == [True, False]
    counted = counts([c.RECORD] * 3, outputs=PerInput(None, False))
    assert add(counted, [100, 100, 102]) == [c.FINE] * 3 and missing(counted) == [([101], 1)]


def test_any_number_of_numbered_outputs_is_told_apart_up_to_the_most():
    """Duplicate: a stream with any number of outputs may still number them, and write one twice."""
    counted = counts([c.RECORD], outputs=PerInput(None, False), numbered=True)
    assert add(counted, [100, 100, 100], [0, 63, 64]) == [c.FINE, c.FINE, c.TOO_MANY]
    assert add(counted, [100], [63]) == [c.DUPLICATE]


def test_blocks_that_are_complete_leave_memory_at_once_and_for_good(monkeypatch):
    """A check that runs out of memory after an hour has checked nothing; one that reads the input twice takes twice as
    long.
    """
    monkeypatch.setattr(c, "BLOCK", 4)
    memory, asked, kinds = Memory(), [], np.array([c.RECORD] * 6 + [c.NO_RECORD] * 3, np.uint8)
    counted = Counts(
        100, 109, 111, ONE, False, lambda a, b: asked.append((a, b)) or kinds[a - 100 : b - 100], memory
    )  # fmt: skip
    add(counted, [100, 101])
    assert memory.bytes == 2 * 4 and counted.records == 4
    add(counted, [102, 103, 104])
    assert memory.bytes == 2 * 4 and counted.records == 4 + 2, "the second block"
    assert add(counted, [100, 110]) == [c.DUPLICATE, c.FINE]
    assert memory.bytes == 2 * 4 + 2 * 3, "the second block, and the third one with what is under way"
    del asked[:]
    assert missing(counted) == [([105], 1)] and asked == [] and counted.records == 6
    fresh = Counts(100, 109, 109, ONE, False, lambda a, b: kinds[a - 100 : b - 100], Memory())
    assert missing(fresh) == [([100, 101, 102, 103], 4), ([104, 105], 2)] and fresh.records == 6
    assert fresh._memory.bytes == 0 and add(fresh, [100, 104, 105]) == [c.FINE] * 3 and fresh.records == 6


def test_the_block_that_was_touched_least_recently_is_packed_and_comes_back(monkeypatch):
    """Loss that is none: what was counted in a packed block must be counted still; memory must keep to its bound."""
    monkeypatch.setattr(c, "BLOCK", 4)
    memory = Memory(most_bytes=2 * 8)
    counted = counts([c.RECORD] * 16, memory=memory)
    add(counted, [100])
    add(counted, [104])
    assert memory.bytes == 16 and not memory._packed, "at the bound"
    add(counted, [101])
    add(counted, [108])
    assert memory.bytes == 16 and [number for _, number in memory._packed] == [1]
    assert add(counted, [104, 105]) == [c.DUPLICATE, c.FINE] and memory.bytes == 16
    assert [number for _, number in memory._packed] == [0]
    small = Memory(most_bytes=1)
    counted = counts([c.RECORD] * 8, memory=small)
    add(counted, [100])
    assert small.bytes == 8 and not small._packed, "one block is needed"
    add(counted, [104])
    assert small.bytes == 8 and len(small._packed) == 1


def test_a_block_that_was_packed_while_its_losses_were_told_is_forgotten_too(monkeypatch):
    """An error, or memory that grows, while the losses of one input partition are compared with what is held back."""
    monkeypatch.setattr(c, "BLOCK", 4)
    memory = Memory(most_bytes=8)
    lost, held_back = counts([c.RECORD] * 8, memory=memory), counts([c.RECORD] * 8, memory=memory)
    for offsets, _ in lost.missing():
        add(held_back, [offsets[0]])
    assert memory.bytes == 8 and len(memory._packed) == 1, "both blocks of what is held back, and nothing else"


def test_an_output_is_known_in_whatever_block_it_stands(monkeypatch):
    """Loss called unseen, or the other way round, behind the first block; and an offset that nothing tells of, which
    is missing nowhere.
    """
    monkeypatch.setattr(c, "BLOCK", 4)
    counted = counts([c.UNKNOWN] * 12, outputs=PerInput(None, False))
    add(counted, [101, 106, 111])
    assert counted.seen(np.arange(100, 112)).tolist() == [n in (1, 6, 11) for n in range(12)]
    assert missing(counted) == []
    beyond = counts([c.RECORD] * 2, reach=112)
    assert add(beyond, [105, 105]) == [c.FINE, c.DUPLICATE] and missing(beyond) == [([100, 101], 2)]


@pytest.mark.parametrize("seed", range(12))
def test_random_outputs_are_judged_as_a_plain_count_judges_them(seed, monkeypatch):
    """Loss and duplicate: blocks are small and memory is short here, so that all are packed and opened again."""
    monkeypatch.setattr(c, "BLOCK", 64)
    rng = random.Random(seed)
    numbered, most = rng.random() < 0.5, rng.choice([1, 1, 2, 3])
    kinds = rng.choices([c.RECORD, c.NO_RECORD, c.ABORTED, c.UNKNOWN], [20, 1, 1, rng.choice([0, 1])], k=1000)
    counted = counts(kinds, outputs=PerInput(most), numbered=numbered, memory=Memory(most_bytes=300))
    wanted = [(100 + n, k) for n, kind in enumerate(kinds) if kind == c.RECORD for k in range(most)]
    sent = [o for o in wanted if rng.random() > 0.02] + rng.sample(wanted, 10)
    sent += [(100 + rng.randrange(1000), rng.randrange(most)) for _ in range(20)]
    if rng.random() < 0.7:  # nearly in order, as a stream writes
        sent.sort(key=lambda o: o[0] + rng.random() * rng.choice([1, 100, 500]))
    have = Counter()
    at = 0
    while at < len(sent):
        some = sent[at : at + rng.randrange(1, 200)]
        at += len(some)
        expected = []
        for offset, k in some:
            kind = kinds[offset - 100]
            slot = (offset, k if numbered else 0)
            if kind in (c.RECORD, c.UNKNOWN):
                have[slot] += 1
                expected.append(c.DUPLICATE if have[slot] > (1 if numbered else most) else c.FINE)
            else:
                expected.append(c.OF_NO_RECORD if kind == c.NO_RECORD else c.OF_ABORTED)
        assert add(counted, [o for o, _ in some], [k for _, k in some] if numbered else None) == expected
    lacking = Counter()
    for offset in dict.fromkeys(o for o, _ in wanted):
        if numbered:
            n = sum(1 for k in range(most) if not have[offset, k])
        else:
            n = most - min(most, have[offset, 0])
        if n:
            lacking[offset] = n
    found = missing(counted)
    assert [o for offsets, _ in found for o in offsets] == sorted(lacking)
    assert sum(n for _, n in found) == sum(lacking.values())
    records = {o for o, _ in wanted}
    assert counted.present(300, 700) == (
        len([o for o in records if 300 <= o < 700]), len([o for o in records if 300 <= o < 700 and o not in lacking])
    )  # fmt: skip


def test_input_before_the_window_is_not_read_and_need_not_be_there_but_only_once(monkeypatch):
    """A check of the newest part that read all the input would take hours; an older record that is there twice is a
    duplicate all the same.
    """
    monkeypatch.setattr(c, "BLOCK", 4)
    asked = []

    def kinds(start, stop):
        asked.append((start, stop))
        return np.full(stop - start, c.RECORD, np.uint8)

    counted = Counts(0, 16, 16, PerInput(), False, kinds, Memory(), wanted=10)
    offsets = np.array([1, 1, 9, 9, 11, 12, 13, 14, 15], np.int64)
    assert np.flatnonzero(counted.add(offsets) == c.DUPLICATE).tolist() == [1, 3]
    assert [(o.tolist(), n) for o, n in counted.missing()] == [([10], 1)]
    assert asked == [(10, 12), (12, 16)] and counted.records == 6


@pytest.mark.long
def test_memory_follows_the_disorder_not_the_size():
    """A check that runs out of memory after an hour has checked nothing."""
    memory = Memory(most_bytes=4 * c.BLOCK)
    counted = Counts(0, 1 << 26, 1 << 26, PerInput(), False, lambda a, b: np.ones(b - a, np.uint8), memory)
    step = 1 << 20
    for start in range(0, 1 << 24, step):
        counted.add(np.arange(start, start + step))
        assert memory.bytes <= 4 * c.BLOCK
    assert not memory._packed and memory.bytes == 0


def test_input_offsets_are_what_their_batches_say():
    """Loss that is none: a compacted batch has offsets without records, and an end marker has an offset of its own."""

    def batch(first, last, at=None, marker=None, hidden=False, stable=True):
        at = range(first, last + 1) if at is None else at
        return SimpleNamespace(
            base_offset=first, last_offset=last, count=len(at), marker=marker, hidden=hidden, stable=stable,
            records=lambda: iter([SimpleNamespace(offset=o) for o in at]),
        )  # fmt: skip

    kinds = np.full(20, c.NO_RECORD, np.uint8)
    for some in (
        batch(95, 101),  # begins before
        batch(102, 106, at=[102, 105]),
        batch(107, 107, marker=True),
        batch(108, 109, hidden=True),
        batch(110, 111, hidden=True, stable=False),
        batch(117, 125),  # goes beyond
    ):
        _mark(kinds, some, 100)
    r, n, a, u = c.RECORD, c.NO_RECORD, c.ABORTED, c.UNKNOWN
    assert kinds.tolist() == [r, r, r, n, n, r, n, n, a, a, u, u, n, n, n, n, n, r, r, r]


# -- order ------------------------------------------------------------------------------------------------------------


def descents(order, keys, offsets):
    return [tuple(d) for d in order.add(np.array(keys, np.uint64), np.array(offsets, np.int64))]


def test_a_key_whose_records_change_places_is_found_within_a_call_and_across_calls():
    order = Order()
    assert descents(order, [7, 8, 7, 8], [1, 5, 2, 4]) == [(3, 5)]
    assert descents(order, [7, 8, 7], [3, 5, 2]) == [(2, 3)]
    assert descents(order, [7], [1]) == [(0, 2)]
    assert descents(order, [9], [0]) == [] and order.unchecked == 0


def test_keys_for_one_place_are_told_apart_and_nothing_is_no_disorder():
    """Key reorder: one key that takes the place of another would hide it; a batch may have no keys at all."""
    order = Order(keys=16)
    assert descents(order, [1, 17, 33], [5, 6, 7]) == [] and order.unchecked == 0
    assert descents(order, [1, 17, 33], [4, 7, 6]) == [(0, 5), (2, 7)]
    assert descents(order, [], []) == []


def test_keys_without_room_are_counted_and_never_accused():
    order = Order(keys=16)
    keys = np.arange(1, 101)
    descents(order, keys, keys)
    assert order.unchecked == 84
    found = order.add(keys.astype(np.uint64), keys - 1)
    assert len(found) == 16


@pytest.mark.parametrize("seed", range(8))
def test_random_orders_are_judged_as_a_plain_table_judges_them(seed):
    rng = random.Random(seed)
    order, last = Order(), {}
    for _ in range(20):
        rows = [(rng.randrange(1, 50) * 2654435761, rng.randrange(1000)) for _ in range(rng.randrange(1, 300))]
        expected = []
        for n, (key, offset) in enumerate(rows):
            if offset < last.get(key, -1):
                expected.append((n, last[key]))
            last[key] = offset
        assert descents(order, *zip(*rows, strict=True)) == expected


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["--input", "t"], ["--order", "key"], ["--refuse-foreign"], ["--backfilled"]])
def test_flags_about_origins_are_refused_without_one(flags, capsys):
    """A mistake of an operator: a comparison that was asked for and not made looks clean."""
    assert main(["--bootstrap-servers", "127.0.0.1:1", "verify", "s", *flags]) == 2
    assert "Add --origin" in capsys.readouterr().err


def test_an_origin_that_cannot_be_is_refused_before_anything_connects(capsys):
    assert main(["--bootstrap-servers", "127.0.0.1:1", "verify", "s", "--origin", "xpath:/a"]) == 2
    said = capsys.readouterr().err
    assert "EO-OPTION" in said and "xpath:/a" in said and "json:FIELD" in said

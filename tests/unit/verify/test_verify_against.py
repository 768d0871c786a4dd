"""Two sinks over the same input: what counts as the same, what is compared, and how a difference is told."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from exactly_once.error_headers import PREFIX, RESENT
from exactly_once.errors import InvalidOption
from exactly_once.protocol.batch_headers import pair_of
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly
from exactly_once.tools.verify.by_origin import counts as p
from exactly_once.tools.verify.by_origin.against import Version, apart, common
from exactly_once.tools.verify.by_origin.content import Arrivals, Content, content_hash, content_of, difference
from exactly_once.tools.verify.by_origin.counts import Memory, Pairs, Unlike
from exactly_once.tools.verify.by_origin.ledger import Compared
from exactly_once.tools.verify.by_origin.origin import Origin
from exactly_once.tools.verify.by_origin.tails import Removed
from exactly_once.tools.verify.by_origin.tally import EXAMPLES, UnlikeTally
from exactly_once.tools.verify.expected import BatchRange, Expected, Window, newest_window, until

IN, OUT = ("in", 0), ("out", 0)


def of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def add(pairs: Pairs, new: bool, outputs: dict[int, list[str]]) -> None:
    """Outputs by input offset."""
    flat = [(offset, hash(text) & (1 << 64) - 1) for offset, texts in outputs.items() for text in texts]
    pairs.add(new, of(*[o for o, _ in flat]), np.array([h for _, h in flat], np.uint64))


def unlike(pairs: Pairs) -> dict[int, tuple[int, int]]:
    return {int(o): (int(a), int(b)) for u in pairs.unlike() for o, a, b in zip(u.offsets, u.old, u.new, strict=True)}


# -- the same, or not --------------------------------------------------------------------------------------------------


def test_outputs_are_the_same_in_any_order_and_each_as_often() -> None:
    """Wrong alarm: parts are read in any order. Duplicate: two records against one, whose hashes may be the same."""
    pairs = Pairs(100, 110, Memory())
    add(pairs, False, {100: ["a", "b"], 101: ["a"], 102: ["a"], 103: ["a"], 104: ["a", "b"]})
    add(pairs, True, {100: ["b", "a"], 101: ["x"], 102: ["a", "a"], 105: ["a"], 104: ["a", "a"]})
    assert unlike(pairs) == {101: (1, 1), 102: (1, 2), 103: (1, 0), 104: (2, 2), 105: (0, 1)}
    assert (pairs.records, pairs.same) == (6, 1)
    [found] = pairs.unlike()
    named = {a: found.offsets[found.flags(a)].tolist() for a in (Anomaly.DIFFERS, Anomaly.ONLY_OLD, Anomaly.ONLY_NEW)}
    assert named == {Anomaly.DIFFERS: [101, 102, 104], Anomaly.ONLY_OLD: [103], Anomaly.ONLY_NEW: [105]}
    assert pairs.inside(of(99, 100, 109, 110)).tolist() == [False, True, True, False]


def test_two_records_whose_hashes_add_up_to_nothing_are_still_two() -> None:
    """Loss: the difference of the sums is 0 by accident; the counts are not."""
    pairs = Pairs(0, 4, Memory())
    pairs.add(False, of(1, 1), np.array([1 << 63, 1 << 63], np.uint64))
    assert unlike(pairs) == {1: (2, 0)}


@pytest.mark.parametrize("seed", range(6))
def test_random_outputs_are_judged_as_multisets_judge_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and duplicate: blocks are small and memory is short here, so that all are packed and opened again."""
    monkeypatch.setattr(p, "BLOCK", 16)
    rng = random.Random(seed)
    pairs, both = Pairs(50, 450, Memory(most_bytes=400)), (defaultdict(list), defaultdict(list))
    for _ in range(400):
        new, offset, text = rng.random() < 0.5, rng.randrange(50, 450), rng.choice("ab")
        both[new][offset].append(text)
        add(pairs, new, {offset: [text]})
        if rng.random() < 0.6:
            both[not new][offset].append(text)
            add(pairs, not new, {offset: [text]})
    wanted = {
        o: (len(both[0][o]), len(both[1][o]))
        for o in sorted({*both[0], *both[1]})
        if Counter(both[0][o]) != Counter(both[1][o])
    }
    assert unlike(pairs) == wanted and wanted
    assert pairs.same == pairs.records - len(wanted)


@pytest.mark.long
def test_memory_follows_the_disorder_of_the_two_and_not_their_size() -> None:
    """A comparison that runs out of memory after an hour has compared nothing."""
    memory = Memory(most_bytes=4 * 12 * p.BLOCK)
    pairs, step = Pairs(0, 1 << 24, memory), 1 << 20
    hashes = np.random.default_rng(1).integers(0, 1 << 63, step, np.uint64)
    for start in range(0, 1 << 23, step):
        for new in (False, True):
            pairs.add(new, np.arange(start, start + step), hashes)
        assert memory.bytes <= memory.most_bytes
    packed = sum(map(len, memory._packed.values()))
    assert packed < (1 << 23) / 10, "what is the same in both packs to nearly nothing"
    assert unlike(pairs) == {} and pairs.same == 1 << 23


def test_the_content_is_what_the_function_made_and_not_what_the_sink_added() -> None:
    """Wrong alarm: batch headers name the sink, and the origin may be written in another form."""
    own = (("src", b"in-0-1"), ("kind", b"x"))
    record = SimpleNamespace(key=b"k", value=b"v", headers=[*own, *pair_of("orders", 4)])
    other = SimpleNamespace(key=b"k", value=b"v", headers=[("src", b"0-1"), ("kind", b"x"), *pair_of("orders-v2", 9)])
    assert content_of(record, "src") == Content(b"k", b"v", (("kind", b"x"),))
    digest = partial(content_hash, without=Origin.parse("header:src").header)
    assert digest(record) == digest(other)
    assert content_hash(record, Origin.parse("key").header) != digest(record)
    for changed in ({"key": None}, {"value": b""}, {"headers": [("kind", b"y")]}):
        assert digest(SimpleNamespace(**{**vars(record), **changed})) != digest(record)


def letter(sink: str, topic: str, code: str = "EO-RECORD", *own: tuple[str, bytes]) -> SimpleNamespace:
    """A dead letter of a sink, or with another code a rejected record."""
    said = {"code": code, "exception": "TooLarge", "message": f"{topic} takes less", "sink": sink, "batch": "7",
            "output.topic": topic, "output.partition": "3"}  # fmt: skip
    headers = [*own, *((f"{PREFIX}{name}", text.encode()) for name, text in said.items())]
    return SimpleNamespace(key=b"k", value=b"v", headers=headers)


def test_the_same_row_is_the_same_dead_letter_whichever_sink_wrote_it() -> None:
    """Wrong alarm: a dead letter names the sink, the batch and the output. Loss: it is not the row in the output."""
    blue, green = letter("orders", "out"), letter("orders-v2", "shadow")
    good = SimpleNamespace(key=b"k", value=b"v", headers=[])
    assert content_of(blue) == content_of(green) != content_of(good)
    assert content_of(letter("orders", "out", "EO-TRANSFORM")) != content_of(letter("orders-v2", "x", "EO-TRANSFORM"))
    assert content_of(letter("orders", "out", "EO-RECORD", ("h", b"1"))) != content_of(blue)
    assert content_of(SimpleNamespace(key=b"k", value=b"v", headers=[(RESENT, b"dead-0-5")])) == content_of(good)


def test_an_output_is_replaced_by_the_one_that_was_sent_again() -> None:
    """Wrong alarm: two outputs of an input record, of which one is the repair of the other; not where it came twice."""
    pairs = Pairs(100, 110, Memory())
    add(pairs, False, {100: ["letter"], 101: ["letter"], 102: ["letter"], 103: ["b"]})
    add(pairs, True, {100: ["good"], 101: ["good"], 102: ["good"], 103: ["letter"]})

    def hashed(*texts: str) -> np.ndarray:
        return np.array([hash(text) & (1 << 64) - 1 for text in texts], np.uint64)

    replaced = int(hashed("letter")[0])
    pairs.replace(False, 100, replaced, hashed("good"))
    pairs.replace(False, 101, replaced, hashed("other"))
    pairs.replace(False, 102, replaced, hashed("good", "good"))
    pairs.replace(True, 103, replaced, hashed("b"))
    assert unlike(pairs) == {101: (1, 1), 102: (2, 1)} and pairs.same == 2


# -- what is compared --------------------------------------------------------------------------------------------------


def test_only_what_both_have_worked_off_is_compared() -> None:
    """Loss that is none: one of the two is ahead, or began later."""
    old = Expected({IN: 0, ("in", 1): 0, ("in", 2): 5}, {IN: 100, ("in", 1): 40, ("in", 2): 5}, {})
    new = Expected({IN: 60, ("in", 1): 50, ("in", 2): 0, ("x", 0): 0}, {IN: 90, ("in", 1): 70, ("x", 0): 9}, {})
    assert common(old, new) == ({IN: 60}, {IN: 90})
    assert common(old, new, {IN: 80}) == ({IN: 60}, {IN: 80})
    since = Window({IN: 70}, {IN: 65}, (3, 4), 20, 20)
    windowed = Expected(old.first, old.end, {}, window=since)
    assert common(windowed, new) == ({IN: 70}, {IN: 90})
    assert Compared((), *common(windowed, new)).offsets == 20


def test_the_newest_batches_end_where_the_slower_of_the_two_has_come() -> None:
    """A new version that is behind would be compared with nothing, for as long as it is behind."""
    ends = [(4, {IN: 100}), (3, {IN: 80}), (2, {IN: 60}), (1, {IN: 40}), (0, {IN: 10})]
    assert [n for n, _ in until(ends, {IN: 60})] == [2, 1, 0]
    assert [(n, e[IN]) for n, e in until(ends, {IN: 70})] == [(3, 70), (2, 60), (1, 40), (0, 10)]
    assert newest_window(until(ends, {IN: 60}), {IN: 0}, 20).first == {IN: 40}
    assert newest_window(until(ends, {IN: 60}), {IN: 0}, 10).first == {IN: 50}
    assert list(until([], {IN: 60})) == []
    behind = newest_window(until(ends[:2], {IN: 60}), {IN: 0}, 20)
    assert behind.first == {IN: 60} and "says where batch 3 began" in behind.cut
    grown = [(1, {IN: 20, ("in", 1): 9}), (0, {IN: 10})]
    assert newest_window(until(grown, {IN: 20, ("in", 1): 9}), {IN: 0}, 100).first == {IN: 0, ("in", 1): 0}


def test_a_record_is_of_the_one_that_alone_writes_to_its_topic() -> None:
    """Wrong proof: the old one's records would be compared with themselves."""
    old, new = Version("orders"), Version("orders-v2")
    assert apart(old, new, ["out"], ["shadow"]) == (("out",), ("shadow",))
    with pytest.raises(InvalidOption, match="orders and orders-v2 both write to out") as refused:
        apart(old, new, ["out"], ["out", "shadow"])
    assert "--topic" in refused.value.way_out
    chosen = Version("orders-v2", ("shadow",))
    assert apart(old, chosen, ["out"], ["out", "shadow"]) == (("out",), ("shadow",)), "after the take-over"
    assert apart(old, chosen, ["dead", "out"], ["dead", "shadow"]) == (("out",), ("shadow",))
    with pytest.raises(InvalidOption, match="no decision of sink 'orders'"):
        apart(old, new, [], ["shadow"])


def test_what_retention_removed_reaches_to_the_end_of_the_batch_that_is_first_there() -> None:
    """Loss that is none: an output of a batch that is partly gone."""
    ranges = [BatchRange("batch 4", {IN: (10, 20)})]
    ends = {IN: 90, ("in", 1): 50}

    def arrived(where: tuple[str, int], source: tuple[str, int], *offsets: int) -> Arrivals:
        count = np.zeros(len(offsets), np.int64)
        return Arrivals(where, source, of(*offsets), count, count, count.astype(np.uint64))

    cut = Removed([OUT], ranges, ends, False)
    assert cut.before(IN) == 90, "nothing is known yet"
    cut.enter(arrived(("out", 1), IN, 50), of(50))
    assert cut.before(IN) == 90, "another partition, which is whole"
    cut.enter(arrived(OUT, IN, 15), of(15))
    assert cut.before(IN) == 20 and cut.before(("in", 1)) == 0
    unknown = Removed([OUT], [], ends, False)
    unknown.enter(arrived(OUT, IN, 15, 31), of(15, 31))
    assert unknown.before(IN) == 32 and unknown.before(("in", 1)) == 50
    assert Removed([], [], ends, False).before(IN) == 0 and Removed([], [], ends, True).before(IN) == 90


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_difference_is_told_from_where_it_begins_and_cut_short() -> None:
    """Noise: two documents of a megabyte that differ in their last field. Secret: a whole record in a report."""
    long = b"a" * 30
    assert difference([Content(b"k", long + b"1" + b"z" * 60)], [Content(b"k", long + b"22")]) == (
        f"value: old ...'{'a' * 12}1{'z' * 27}'..., new ...'{'a' * 12}22'"
    )
    assert difference([Content(b"k", b"v")], [Content(None, b"v")]) == "key: old 'k', new null"
    assert difference([Content(None, b"ab")], [Content(None, b"a")]) == "value: old 'ab', new 'a'"
    assert difference([Content(None, None)], [Content(None, b"a")], values=False) == "value"
    assert difference([Content(None, b"a")], []) == "value 'a'" and difference([], [Content(None, b"a")], False) == ""
    assert difference([Content(None, b"a")], [Content(None, b"a")] * 2) == "old 1 record, new 2"
    headed = [Content(None, b"a", headers) for headers in ((("h", b"1"),), (("h", b"2"),), (("g", b"1"),), ())]
    assert difference(headed[:1], headed[1:2]) == "header h: old '1', new '2'"
    assert difference(headed[:1], headed[2:3]) == "headers: old 'h', new 'g'"
    assert difference(headed[:1], headed[3:]) == "headers: old 'h', new ''"
    assert difference([Content(None, b"a"), Content(None, b"b")], [Content(None, b"c"), Content(None, b"a")]) == (
        "value: old 'b', new 'c'"
    )
    assert difference([], []) == "" and difference(headed[:1], headed[:1]) == "", "gone, or the same, when read again"


def test_what_is_unlike_is_grouped_counted_and_shown_by_its_first_records() -> None:
    """Memory: a changed rule changes every record."""
    tally = UnlikeTally("orders", "orders-v2")
    many = np.arange(100, 200)
    one, none = np.ones(100, np.int64), np.zeros(100, np.int64)
    tally.add(IN, Unlike(many, one, none))
    tally.add(IN, Unlike(many + 100, one, none))
    tally.add(("in", 1), Unlike(of(7), of(1), of(1)))
    tally.add(IN, Unlike(of(), of(), of()))
    assert tally.counts() == {"differs": 1, "only old": 200, "only new": 0}
    assert tally.examples() == {IN: {100, 101, 102}, ("in", 1): {7}}
    first, second = tally.findings(lambda source, offset: "value" if offset == 7 else "")
    assert (first.anomaly, first.records, first.examples) == (Anomaly.DIFFERS, 1, ("in-1@7: value",))
    assert re.fullmatch(r"input records of in-1 .*orders-v2 .*other output than orders: 1", first.what)
    assert second.records == 200 and len(second.places) == MOST_PLACES and len(second.examples) == EXAMPLES
    assert re.fullmatch(r"input records of in-0 .*orders has output, .*orders-v2 has none: 200", second.what)
    assert second.examples[0] == "in-0@100"

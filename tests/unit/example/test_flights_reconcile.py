"""The report must see every fault that is planted, and nothing where there is none."""

import json

import pytest

from dagster_exactly_once.declare.origin import Record
from platform_assets.report.reconcile import Reconciler

KEYS = ["N1", "N2", None, "N1", "N2", "N1"]


def body(sequence):
    return {"sequence": sequence, "tailnum": KEYS[sequence], "delay": sequence * 10}


def encoded(key):
    return None if key is None else key.encode()


def an_event(sequence):
    return json.dumps({"sequence": sequence}).encode()


def inputs():
    """Events 0..5 in one partition, with a marker's gap after each: event n lies at offset 2n."""
    return [Record(0, 2 * n, encoded(KEYS[n]), an_event(n)) for n in range(6)]


def output(sequence, offset=None, **changes):
    value = {**body(sequence), "src": {"partition": 0, "offset": 2 * sequence}, **changes}
    return Record(1, sequence if offset is None else offset, encoded(KEYS[sequence]), json.dumps(value).encode())


def outputs():
    return [output(n) for n in range(6)]


def rejected(offset, value, key=b"N9", **headers):
    pairs = {"reason": b"not a JSON object", "source.partition": b"0", "source.offset": str(offset).encode(), **headers}
    return Record(2, 0, key, value, tuple(pairs.items()))


def reconcile(ins, outs, rejections=()):
    r = Reconciler([an_event(n) for n in range(6)], [(KEYS[n], body(n)) for n in range(6)])
    for record in ins:
        r.add_input(record)
    for record in outs:
        r.add_output(record)
    for record in rejections:
        r.add_rejected(record)
    return r.findings()


def test_a_right_output_has_no_fault():
    found = reconcile(inputs(), outputs())
    assert found.faults == {} and found.examples == []
    assert (found.expected, found.records_in, found.out, found.rejected) == (6, 6, 6, 0)


def test_a_lost_record_is_named_by_its_place():
    found = reconcile(inputs(), [o for n, o in enumerate(outputs()) if n != 4])
    assert found.faults == {"lost": 1}
    assert "offset 8" in found.examples[0]


def test_a_duplicate_is_found_and_is_no_second_fault():
    found = reconcile(inputs(), [*outputs(), output(3, offset=6)])
    assert found.faults == {"duplicated": 1}


@pytest.mark.parametrize("order", [[3, 1, 2, 0, 4, 5], [0, 1, 2, 5, 4, 3]])
def test_records_of_one_key_in_the_wrong_order_are_found(order):
    found = reconcile(inputs(), [output(n, offset=at) for at, n in enumerate(order)])
    assert found.faults == {"out_of_order": 1}


def test_different_keys_may_overtake_each_other():
    assert reconcile(inputs(), [output(n, offset=at) for at, n in enumerate([1, 0, 4, 3, 5, 2])]).faults == {}


def test_a_key_in_two_partitions_has_no_order():
    moved = output(3)._replace(partition=2)
    assert (
        reconcile(inputs(), [output(0), output(1), output(2), moved, output(4), output(5)]).faults["out_of_order"] >= 1
    )


def test_wrong_content_a_wrong_key_and_an_unreadable_record_are_found():
    changed, other_key, unreadable = output(1, delay=11), output(2)._replace(key=b"N2"), Record(1, 9, None, b"?")
    found = reconcile(inputs(), [output(0), changed, other_key, *outputs()[3:], unreadable])
    assert found.faults == {"wrong": 3}


def test_a_record_without_a_source_is_invented():
    found = reconcile(inputs(), [*outputs(), output(5, offset=6, src={"partition": 3, "offset": 1})])
    assert found.faults == {"invented": 1}


def test_foreign_events_must_come_out_like_all_others():
    bad = Record(0, 12, b"N9", b"{broken")
    assert reconcile([*inputs(), bad], outputs()).faults == {"lost": 1}
    found = reconcile([*inputs(), bad], outputs(), [rejected(12, b"{broken")])
    assert found.faults == {} and (found.foreign, found.rejected) == (1, 1)


def test_a_key_has_no_order_between_two_topics():
    ins = inputs()
    ins[2:2] = [Record(0, 1, b"N1", b"{broken")]
    assert reconcile(ins, outputs(), [rejected(1, b"{broken", key=b"N1")]).faults == {}


def test_a_rejected_event_must_be_the_one_at_its_source_and_malformed():
    bad = Record(0, 12, b"N9", b"{broken")
    assert reconcile([*inputs(), bad], outputs(), [rejected(12, b"{changed")]).faults == {"wrong": 1}
    assert reconcile(inputs(), outputs()[:5], [rejected(10, an_event(5))]).faults == {"wrong": 1}
    assert reconcile([*inputs(), bad], outputs(), [rejected(12, b"{broken"), rejected(12, b"{broken")]).faults == {
        "duplicated": 1
    }


def test_faults_of_the_feed_are_told_apart_from_those_of_the_stream():
    ins = inputs()
    twice = ins[1]._replace(offset=12)
    ins = [*ins[:5], twice]  # event 5 was never fed, event 1 twice, the second time after event 4 of its key
    outs = [*outputs()[:5], output(1, offset=5, src={"partition": 0, "offset": 12})]
    found = reconcile(ins, outs)
    assert found.faults == {"not_fed": 1, "fed_twice": 1, "fed_out_of_order": 1}

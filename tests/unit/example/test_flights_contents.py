"""The report must see every fault in the contents that is planted, and nothing where there is none."""

import json

from dagster_exactly_once.declare.stream import Record
from exactly_once.error_headers import MESSAGE, OFFSET, PARTITION, TOPIC
from platform_assets.report.contents import Contents

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
    pairs = {MESSAGE: b"not a JSON object", TOPIC: b"flights", PARTITION: b"0", OFFSET: str(offset).encode(), **headers}
    return Record(2, 0, key, value, tuple(pairs.items()))


def compared(ins, outs, rejections=()):
    r = Contents([an_event(n) for n in range(6)], [(KEYS[n], body(n)) for n in range(6)])
    for record in ins:
        r.add_input(record)
    for record in outs:
        r.add_output(record)
    for record in rejections:
        r.add_rejected(record)
    return r.findings()


def test_a_right_output_has_no_fault():
    found = compared(inputs(), outputs())
    assert found.faults == {} and found.examples == []
    assert (found.expected, found.records_in, found.out, found.rejected) == (6, 6, 6, 0)


def test_wrong_content_a_wrong_key_and_an_unreadable_record_are_found():
    changed, other_key, unreadable = output(1, delay=11), output(2)._replace(key=b"N2"), Record(1, 9, None, b"?")
    found = compared(inputs(), [output(0), changed, other_key, *outputs()[3:], unreadable])
    assert found.faults == {"wrong": 3}


def test_foreign_events_must_come_out_like_all_others():
    bad = Record(0, 12, b"N9", b"{broken")
    found = compared([*inputs(), bad], outputs(), [rejected(12, b"{broken")])
    assert found.faults == {} and (found.foreign, found.rejected) == (1, 1)


def test_a_rejected_event_must_be_the_one_at_its_source_and_malformed():
    bad = Record(0, 12, b"N9", b"{broken")
    assert compared([*inputs(), bad], outputs(), [rejected(12, b"{changed")]).faults == {"wrong": 1}
    assert compared(inputs(), outputs()[:5], [rejected(10, an_event(5))]).faults == {"wrong": 1}


def test_faults_of_the_feed_are_told_apart_from_those_of_the_stream():
    ins = inputs()
    twice = ins[1]._replace(offset=12)
    ins = [*ins[:5], twice]  # event 5 was never fed, event 1 twice, the second time after event 4 of its key
    outs = [*outputs()[:5], output(1, offset=5, src={"partition": 0, "offset": 12})]
    found = compared(ins, outs)
    assert found.faults == {"not fed": 1, "fed twice": 1, "fed out of order": 1}

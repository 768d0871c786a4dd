"""The check ``same_as_blue``: the verdict on a new version that reads along."""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once import Checks, exactly_once_stream
from dagster_exactly_once.checks.verified import DeclaredOrigin, _differences, same_as
from exactly_once.tools.diagnosis import Severity
from exactly_once.tools.verify import Anomaly, Finding
from exactly_once.tools.verify.by_origin.against import FEWER
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult

SAME = {"input": 80, "same": 80, "differs": 0, "only old": 0, "only new": 0}


def stream(name: str, output: str, **more):
    """A stream whose keys name the input record, after a word of its own."""

    def origin(topic, record):
        word, partition, offset = record.key.decode().split("-")
        assert word == name
        return int(partition), int(offset)

    declared = exactly_once_stream(name=name, source="orders", outputs=[output], checks=Checks(origin=origin), **more)
    return declared(lambda events: events)


def test_the_same_output_passes_and_says_how_much_was_compared():
    """Mishap: somebody takes over on a green check that has compared nothing."""
    verdict = same_as(ComparisonResult(counts=SAME, read=160, sink_id="orders", offsets=104), "orders-v2")
    assert verdict.code == "CHECK-PASSED" and verdict.text == (
        "The same output as orders for 80 input records in 104 offsets that both have committed."
    )
    assert verdict.evidence["same"] == 80 and verdict.evidence["only_old"] == 0
    nothing = same_as(ComparisonResult(sink_id="orders"), "orders-v2")
    assert nothing.code == "CHECK-PASSED" and nothing.sentence.startswith("Nothing to compare yet: orders-v2 and")
    some = same_as(
        ComparisonResult(counts={**SAME, "same": 70}, unproven={FEWER: 10}, sink_id="orders", offsets=104), "orders-v2"
    )
    assert some.code == "CHECK-PASSED" and some.evidence["records_unproven"] == 10
    none = same_as(
        ComparisonResult(counts={**SAME, "same": 0}, unproven={FEWER: 80}, sink_id="orders", offsets=104), "orders-v2"
    )
    assert (none.code, none.severity) == ("CHECK-NOT-PROVEN", Severity.WARN) and FEWER in none.sentence


def test_a_difference_warns_with_its_numbers_and_the_command_that_shows_it():
    """Outage at night: a new rule is no broken guarantee. Secret: Dagster keeps the values of records for ever."""
    lost = Finding(Anomaly.ONLY_OLD, "3 are in orders alone", places=("orders-0@17",), records=3)
    differ = Finding(Anomaly.DIFFERS, "2 differ", places=("orders-0@5",), records=2, examples=("orders-0@5: value",))
    counts = {**SAME, "same": 75, "differs": 2, "only old": 3}
    verdict = same_as(ComparisonResult((differ, lost), counts, sink_id="orders", offsets=104), "orders-v2")
    assert (verdict.code, verdict.severity) == ("CHECK-DIFFERS", Severity.WARN)
    for fact in (
        "output of orders-v2 differs",
        "of orders: 2 differs, 3 only old, for example orders-0@5. Compared: 80 input records in 104 offsets ",
        "run exactly-once verify orders-v2 --against orders with --origin and --checkpoint.",
    ):
        assert fact in verdict.text
    rows = [record.data for record in _differences((differ, lost))["findings"].records]
    assert rows[0] == {
        "anomaly": "differs",
        "what": "2 differ",
        "examples": "orders-0@5: value",
        "places": "orders-0@5",
    }
    assert _differences(()) == {}


def test_each_of_the_two_says_by_itself_where_its_records_come_from():
    """Wrong alarm: the new version writes the origin in another form."""
    both = DeclaredOrigin(stream("green", "shadow"), stream("blue", "out"))

    class Found:
        offset, value, headers = 9, None, ()

        def __init__(self, key: bytes):
            self.key = key

    assert both.of(("out", 1))(Found(b"blue-0-17")) == b"orders/0/17"
    assert both.of(("shadow", 1))(Found(b"green-0-17")) == b"orders/0/17"


def test_the_check_is_made_for_the_asset_of_the_new_output():
    """Mishap: a red mark on the old stream, which is right."""
    from dagster_exactly_once.checks.definitions import checks_of

    blue, green = stream("blue", "out"), stream("green", "shadow", beside="blue")
    keys = [key for check in checks_of(green, blue) for key in check.check_keys if key.name == "same_as_blue"]
    assert [key.asset_key for key in keys] == [dg.AssetKey("shadow")]

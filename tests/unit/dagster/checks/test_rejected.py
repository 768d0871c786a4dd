"""A topic for rejected records: its declaration, the verdict of its check, and what is left to send again."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest

from dagster_exactly_once import (
    BadDeclaration,
    Checks,
    Rejected,
    Table,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)
from dagster_exactly_once.checks.judgements import Rejections, too_many_rejected
from dagster_exactly_once.checks.rejected import still
from dagster_exactly_once.declare.stream import Record
from dagster_exactly_once.streaming.ranges import RejectedSpan, asked, remaining, sent
from dagster_exactly_once.streaming.source import OffsetSpan
from exactly_once import error_headers
from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Watermarks
from exactly_once.tools.diagnosis import Severity

RESOURCES = exactly_once_resources(
    work_dir="spark", checkpoints="s3://checkpoints", kafka={"bootstrap_servers": "127.0.0.1:1"}
)


def declared(**arguments):
    return exactly_once_stream(**{"name": "s", "source": "orders", "outputs": "priced", **arguments})(lambda e: e)


@pytest.mark.parametrize(
    "rejected", ["shop/orders_rejected", dg.AssetSpec(["shop", "orders_rejected"]), Rejected("shop/orders_rejected")]
)
def test_one_line_makes_the_asset_the_check_and_the_job(rejected):
    """Guards against rejected records that nobody sees in the UI."""
    stream = declared(rejected=rejected, group_name="shop")
    assert stream.topics == ("priced", "orders_rejected") and stream.rejected_topic == "orders_rejected"
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    graph = defs.resolve_asset_graph()
    node = graph.get(dg.AssetKey(["shop", "orders_rejected"]))
    assert node.parent_keys == {dg.AssetKey("orders")} and node.group_name == "shop"
    assert "byte for byte" in node.description
    checks = {key.name for key in graph.asset_check_keys if key.asset_key == node.key}
    assert checks == {"rejected_since_last_look"}
    job = defs.resolve_job_def("s_resend")
    assert dg.validate_run_config(job, {"ops": {"resend_s": {"config": {"offsets": {"0": "12-40"}, "to": "orders"}}}})
    assert {s.sink_id for s in stream.side_specs} == {"s-resend"}


def test_a_stream_that_runs_elsewhere_has_the_asset_and_the_check():
    """Guards against a job that starts Spark where the stream itself may not be started."""
    stream = observed_stream("s", source="orders", outputs="priced", rejected="orders_rejected")
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    assert "s_resend" not in {job.name for job in defs.get_repository_def().get_all_jobs()}
    assert dg.AssetCheckKey(dg.AssetKey("orders_rejected"), "rejected_since_last_look") in (
        defs.resolve_asset_graph().asset_check_keys
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rejected": "priced"}, "the topic priced twice"),
        ({"rejected": "orders"}, r"topic orders is in source .*outputs"),
        ({"rejected": "r", "options": {"sink.dead.letter.topic": "r"}}, r"both name r\. "),
        ({"rejected": "a b"}, "not a name that"),
        ({"rejected": "r", "outputs": ["priced", Table("t", lambda: None)]}, "the table t would"),
    ],
)
def test_what_cannot_work_is_refused_when_the_code_loads(arguments, said):
    """Guards against a stream that fails at its first bad record, or writes it into a table."""
    with pytest.raises(BadDeclaration, match=said):
        declared(**arguments)


def test_a_threshold_below_zero_is_refused():
    """Guards against a check that always warns."""
    with pytest.raises(BadDeclaration, match="warn_above=-1"):
        Rejected("r", warn_above=-1)


def test_a_rejected_record_says_where_it_came_from_without_a_function_of_the_user():
    """Guards against a comparison of input and outputs that takes every rejected record for lost."""
    stream = declared(rejected="r", checks=Checks(origin=lambda topic, record: (0, int(record.value))))
    headers = ((error_headers.TOPIC, b"orders"), (error_headers.PARTITION, b"3"), (error_headers.OFFSET, b"17"))
    assert stream.place_of("r", Record(0, 0, None, b"x", headers)) == (("orders", 3), 17)
    assert stream.place_of("r", Record(0, 0, None, b"5")) is None
    assert stream.place_of("priced", Record(0, 0, None, b"5", headers)) == (("orders", 0), 5)


def found(count, exact=True):
    return Rejections(count, count, exact, Counter({"KeyError: 'amount'": count}))


@pytest.mark.parametrize(
    ("count", "warn", "error", "passed", "grave"),
    [
        (0, 0, 0, True, False),
        (1, 0, None, False, False),
        (5, 5, None, True, False),
        (6, 5, 10, False, False),
        (11, 5, 10, False, True),
        (11, None, 10, False, True),
        (10**6, None, None, True, False),
    ],
)
def test_the_check_judges_by_its_limits(count, warn, error, passed, grave):
    """Guards against a limit that is one off, and against an error that passes since there is no warning."""
    verdict = too_many_rejected(found(count), Rejected("r", warn, error))
    severity = Severity.OK if passed else Severity.ERROR if grave else Severity.WARN
    assert (verdict.code, verdict.severity) == ("CHECK-PASSED" if passed else "CHECK-REJECTED", severity)


def test_the_check_says_how_many_why_and_what_ends_it():
    """Guards against a warning that a person cannot act on without reading the topic."""
    said = too_many_rejected(found(1_200), Rejected("r"), "Send them again")
    waits = "1,200 rejected records wait to be sent again or acknowledged; most often (1,200): KeyError: 'amount'"
    assert (said.sentence, said.remedy) == (waits, "Send them again")
    many = too_many_rejected(found(70_000, exact=False), Rejected("r")).sentence
    assert many.startswith("About 70,000 offsets' worth of rejected")


@pytest.mark.parametrize(("before", "counts"), [(0, {}), (7, {"0": 7}), (20, {"0": 20}), (30, {"0": 30}), (31, {})])
def test_a_topic_that_was_made_again_has_nothing_acknowledged(before, counts):
    """Guards against the records of a new topic that the acknowledgement of an old one hides."""
    assert still({"0": before}, {0: Watermarks(5, 20, 30)}) == counts


def pieces(*spans):
    return [RejectedSpan(p, OffsetSpan(start, end)) for p, start, end in spans]


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ([], [(0, 10, 20), (1, 0, 5)]),
        ([(0, 10, 20)], [(1, 0, 5)]),
        ([(0, 0, 12), (0, 15, 17)], [(0, 12, 15), (0, 17, 20), (1, 0, 5)]),
        ([(0, 5, 50), (1, 4, 9)], [(1, 0, 4)]),
        ([(0, 14, 16), (0, 12, 18)], [(0, 10, 12), (0, 18, 20), (1, 0, 5)]),
        ([(0, 20, 30), (2, 0, 9)], [(0, 10, 20), (1, 0, 5)]),
    ],
)
def test_what_was_sent_is_left_out_of_every_later_range(done, left):
    """Guards against two runs whose ranges overlap, and a record that both of them send."""
    assert remaining(pieces((0, 10, 20), (1, 0, 5)), pieces(*done)) == pieces(*left)


def test_the_id_of_a_write_holds_its_range_and_the_topics_own_id():
    """Guards against ranges of a topic that was deleted, which would hide the records of the one made again."""
    [piece] = pieces((3, 12, 41))
    assert piece.write_id("shop.rejected", "a-_Z") == "shop.rejected/a-_Z/3/12-40"
    ids = [piece.write_id("shop.rejected", "a-_Z"), "shop.rejected/other/3/0-9", "other/a-_Z/3/0-9", ""]
    assert sent(ids, "shop.rejected", "a-_Z") == [piece]


MARKS = {0: Watermarks(5, 20, 25), 1: Watermarks(0, 0, 0)}


@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [
        ({}, [(0, 5, 20), (1, 0, 0)]),
        ({"0": "7-9"}, [(0, 7, 10)]),
        ({"0": " 7 "}, [(0, 7, 8)]),
        ({"0": "0-99"}, [(0, 5, 20)]),
    ],
)
def test_a_range_is_cut_to_what_readers_see(offsets, wanted):
    """Guards against a range whose id stands for records that were not there yet when it was sent."""
    assert asked(offsets, MARKS) == pieces(*wanted)


@pytest.mark.parametrize("offsets", [{"2": "0-1"}, {"x": "0-1"}, {"00": "0-1"}, {"0": "all"}, {"0": "-4"}, {"0": ""}])
def test_a_range_that_is_none_is_refused(offsets):
    """Guards against a typing error that sends the whole topic."""
    with pytest.raises(InvalidOption, match="'12-40'"):
        asked(offsets, MARKS)

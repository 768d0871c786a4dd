"""Topics for rejected records and dead letters: their declaration, the verdict of their checks, and what is sent."""

from __future__ import annotations

from collections import Counter
from functools import partial

import dagster as dg
import pytest

from dagster_exactly_once import (
    BadDeclaration,
    Checks,
    DeadLetters,
    Rejected,
    Table,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)
from dagster_exactly_once.backfill.resend import ResendParameters, Sent, check_topics
from dagster_exactly_once.backfill.spark import encoded
from dagster_exactly_once.checks.judgements import Rejections, too_many_rejected
from dagster_exactly_once.checks.rejected import reason_of, still
from dagster_exactly_once.declare.stream import Record
from dagster_exactly_once.streaming.ranges import RejectedSpan, asked, remaining, sent
from dagster_exactly_once.streaming.source import OffsetSpan
from exactly_once import error_headers
from exactly_once.errors import InvalidOption, sentence_in
from exactly_once.kafka.admin import Watermarks
from exactly_once.tools.diagnosis import Severity

RESOURCES = exactly_once_resources(
    work_dir="spark", checkpoints="s3://checkpoints", kafka={"bootstrap_servers": "127.0.0.1:1"}
)
BY_HAND = {"sink.dead.letter.topic": "d"}


def declared(**arguments):
    return exactly_once_stream(**{"name": "s", "source": "orders", "outputs": "priced", **arguments})(lambda e: e)


def names(defs, key):
    return {check.name for check in defs.resolve_asset_graph().asset_check_keys if check.asset_key == key}


@pytest.mark.parametrize(
    "rejected", ["shop/orders_rejected", dg.AssetSpec(["shop", "orders_rejected"]), Rejected("shop/orders_rejected")]
)
def test_one_line_makes_the_asset_of_rejected_records_the_check_and_the_job(rejected):
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


@pytest.mark.parametrize("dead", ["shop/orders_dead", dg.AssetSpec("orders_dead"), DeadLetters("orders_dead")])
def test_one_line_sets_the_options_and_makes_the_asset_the_check_and_the_job(dead):
    """Guards against dead letters that nobody sees in the UI."""
    stream = declared(dead_letters=dead, group_name="shop")
    assert stream.topics == ("priced", "orders_dead") and stream.row_topics == ("priced",)
    assert stream.options == {"sink.dead.letter.topic": "orders_dead", "sink.dead.letter.max": "100"}
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    key = stream.key_of("orders_dead")
    node = defs.resolve_asset_graph().get(key)
    assert node.parent_keys == {dg.AssetKey("orders")} and node.group_name == "shop"
    assert "Kafka cannot take" in node.description and names(defs, key) == {"dead_letters_since_last_look"}
    job = defs.resolve_job_def("s_resend")
    assert dg.validate_run_config(job, {"ops": {"resend_s": {"config": {"topic": "orders_dead", "to": "priced"}}}})
    assert stream.resend_spec.sources == ("orders_dead",)


def test_rejected_records_and_dead_letters_have_a_topic_a_check_and_a_limit_each():
    """Guards against a rejected row that is addressed to the topic of the dead letters, as the last output."""
    dead = DeadLetters("d", warn_above=5, error_above=9, most=7)
    stream = declared(rejected=Rejected("r"), dead_letters=dead, column_schema="a INT", column_lineage={"a": ["b"]})
    assert (stream.topics, stream.row_topics) == (("priced", "r", "d"), ("priced", "r"))
    assert (stream.rejected_topic, stream.dead_topic) == ("r", "d")
    assert stream.options["sink.dead.letter.max"] == "7" and [*stream.resent] == ["r", "d"]
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    assert names(defs, dg.AssetKey("r")) == {"rejected_since_last_look"}
    assert names(defs, dg.AssetKey("d")) == {"dead_letters_since_last_look"}
    assert {spec.key.to_user_string(): set(spec.metadata) & {"dagster/column_schema"} for spec in stream.outputs} == {
        "priced": {"dagster/column_schema"},
        "r": set(),
        "d": set(),
    }


def test_options_alone_work_as_before_without_an_asset():
    """Guards against a stream that does not load any more, or has an asset that nobody declared."""
    stream = declared(options=BY_HAND)
    assert stream.topics == ("priced",) and stream.options == BY_HAND and stream.resent == {}


@pytest.mark.parametrize(
    ("declaration", "check"),
    [("rejected", "rejected_since_last_look"), ("dead_letters", "dead_letters_since_last_look")],
)
def test_a_stream_that_runs_elsewhere_has_the_asset_and_its_check(declaration, check):
    """Guards against a job that starts Spark where the stream itself may not be started."""
    stream = observed_stream("s", source="orders", outputs="priced", **{declaration: "d"})
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    assert "s_resend" not in {job.name for job in defs.get_repository_def().get_all_jobs()}
    assert names(defs, dg.AssetKey("d")) == {check}


TABLE = ["priced", Table("t", lambda: None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dead_letters": "d", "options": BY_HAND}, "options names sink.dead.letter.topic, which dead_letters sets"),
        ({"dead_letters": "d", "options": {"Sink.Dead.Letter.Max": "5"}}, "options names Sink.Dead.Letter.Max"),
        ({"dead_letters": "priced"}, "the topic priced twice"),
        ({"dead_letters": "r", "rejected": "r"}, "the topic r twice"),
        ({"dead_letters": "orders"}, r"topic orders is in source .*outputs"),
        ({"dead_letters": "a b"}, "not a name that"),
        ({"dead_letters": "d", "outputs": TABLE}, r"to Kafka alone, since .*, .*outputs names a table"),
        ({"options": BY_HAND, "outputs": TABLE}, r"sink.dead.letter.topic .* writes to Kafka alone"),
        ({"dead_letters": "d", "participants": list}, r"participants is set\. Leave one"),
        (
            {"dead_letters": "d", "options": {"sink.guarantee": "none"}},
            "dead_letters needs sink.guarantee=exactly",
        ),
        ({"dead_letters": Rejected("r")}, r"DeadLetters, and got a Rejected\. Write rejected="),
        ({"rejected": "priced"}, "the topic priced twice"),
        ({"rejected": "orders"}, r"topic orders is in source .*outputs"),
        ({"rejected": "r", "options": {"sink.dead.letter.topic": "r"}}, r"both name r\. "),
        ({"rejected": "a b"}, "not a name that"),
        ({"rejected": "r", "outputs": TABLE}, "the table t would"),
        ({"rejected": DeadLetters("d")}, r"Rejected, and got a DeadLetters\. Write dead_letters="),
    ],
)
def test_what_the_sink_would_refuse_is_refused_when_the_code_loads(arguments, said):
    """Guards against a stream that fails when it starts, at night, or at its first bad row, or writes it into a
    table.
    """
    with pytest.raises(BadDeclaration, match=said):
        declared(**arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        (DeadLetters, {"most": 0}, r"DeadLetters\(most=0"),
        (DeadLetters, {"warn_above": -1}, "=-1"),
        (Rejected, {"warn_above": -1}, "warn_above=-1"),
    ],
)
def test_a_number_that_cannot_be_is_refused(kind, arguments, said):
    """Guards against a check that always warns, and a stream that stops at every dead letter that has a topic."""
    with pytest.raises(BadDeclaration, match=said):
        kind("d", **arguments)


def test_a_rejected_record_says_where_it_came_from_without_a_function_of_the_user():
    """Guards against a comparison of input and outputs that takes every rejected record for lost."""
    stream = declared(rejected="r", checks=Checks(origin=lambda topic, record: (0, int(record.value))))
    headers = ((error_headers.TOPIC, b"orders"), (error_headers.PARTITION, b"3"), (error_headers.OFFSET, b"17"))
    assert stream.place_of("r", Record(0, 0, None, b"x", headers)) == (("orders", 3), 17)
    assert stream.place_of("r", Record(0, 0, None, b"5")) is None
    assert stream.place_of("priced", Record(0, 0, None, b"5", headers)) == (("orders", 0), 5)


def test_the_dead_letters_of_a_stream_whose_records_name_their_input_are_sent_again_too():
    """Guards against rows that are lost to readers because a check would call their repair a duplicate."""
    stream = declared(dead_letters=DeadLetters("d", repair=lambda value: value), checks=Checks(origin="header:src"))
    assert [*stream.resent] == ["d"]


def test_an_origin_in_a_header_is_one_that_dead_letters_name_too():
    """Guards against a second place to say the same, which somebody forgets."""
    checks, option = Checks(origin="header:src"), "sink.dead.letter.origin"
    assert declared(dead_letters="d", checks=checks).options[option] == "header:src"
    assert option not in declared(dead_letters="d", checks=Checks(origin="json:src")).options
    assert option not in declared(checks=checks).options
    by_hand = declared(dead_letters="d", options={option: "header:src"})  # where a function says the origin
    assert by_hand.options == {"sink.dead.letter.topic": "d", "sink.dead.letter.max": "100", option: "header:src"}
    with pytest.raises(BadDeclaration, match=r"options names sink\.dead\.letter\.origin, which dead_letters sets"):
        declared(dead_letters="d", checks=checks, options={option: "header:other"})


@pytest.mark.parametrize("made", [b"\0\0\0\0\7x", bytearray(b"\0\0\0\0\7x"), None])
def test_a_repaired_value_has_a_schema_id_or_is_left_out(made):
    """Guards against a repair that cannot be used where the sink encodes values."""
    assert encoded(lambda value: made)(b'{"id":"b"}', True) == made


@pytest.mark.parametrize("made", [b'{"id":"b"}', '{"id":"b"}', b""])
def test_a_repaired_value_that_is_still_json_is_refused_with_the_way_out(made):
    """Guards against JSON among records of Avro, at which every reader of the output stops."""
    assert encoded(lambda value: made)(b"\0\0\0\0\7x", False) == made, "of a row that did fit, it is the user's affair"
    with pytest.raises(ValueError) as raised:
        encoded(lambda value: made)(b'{"id":"b"}', True)
    said = sentence_in(str(raised.value)) or ""
    assert said.startswith("EO-TRANSFORM: repair returned ") and "schema id" in said and "Let repair return" in said


def test_the_job_reads_and_writes_topics_of_its_stream_alone():
    """Guards against a typing error that sends records to a topic of somebody else, or reads an output."""
    stream = declared(dead_letters="d", rejected="r")
    asks = partial(ResendParameters, sink_id="s-resend", offsets={})
    for topic in ("", "r", "d"):
        check_topics(stream, asks(topic=topic, to="priced"))
    with pytest.raises(InvalidOption, match=r"topic is priced, .* records of priced.* r, d"):
        check_topics(stream, asks(topic="priced"))
    with pytest.raises(InvalidOption, match=r"to is d, but .* neither reads nor writes"):
        check_topics(stream, asks(to="d"))


def test_a_dead_letter_is_asked_for_its_origin_as_the_record_that_it_would_have_been():
    """Guards against a comparison of input and outputs that takes every dead letter for lost."""
    asked = []

    def origin(topic, record):
        asked.append((topic, record.headers))
        return 0, int(record.value)

    stream = declared(dead_letters="d", checks=Checks(origin=origin))
    own, code = ("trace", b"x"), (error_headers.CODE, b"EO-RECORD")
    for headers in ((own, code, (error_headers.OUTPUT_TOPIC, b"priced")), (own, code)):
        assert stream.place_of("d", Record(0, 0, None, b"17", headers)) == (("orders", 0), 17)
    assert asked == [("priced", (own,)), ("d", (own,))]


@pytest.mark.parametrize(
    ("origin", "record", "place"),
    [
        ("header:src", {"headers": (("src", b"orders-3-17"), ("src", b"orders-0-0"))}, (("orders", 3), 17)),
        ("header:src", {"headers": (("src", b"3-17"),)}, (("orders", 3), 17)),
        ("header:src", {"headers": (("src", b"another-3-17"),)}, None),
        ("header:src", {"headers": (("src", b"no place"),)}, None),
        ("header:src", {}, None),
        ("key", {"key": b"orders/3/17"}, (("orders", 3), 17)),
        ("json:meta.src", {"value": b'{"meta":{"src":{"partition":3,"offset":17}}}'}, (("orders", 3), 17)),
    ],
)
def test_an_origin_is_said_in_the_words_of_verify_as_well_as_by_a_function(origin, record, place):
    """Guards against a function that everybody writes anew, and one of them wrong."""
    stream = declared(rejected="r", dead_letters="d", checks=Checks(origin=origin))
    found = Record(0, 0, *(record.get(name) for name in ("key", "value")), record.get("headers", ()))
    assert stream.place_of("priced", found) == place
    code = (error_headers.CODE, b"EO-RECORD"), (error_headers.OUTPUT_TOPIC, b"priced")
    assert stream.place_of("d", found._replace(headers=(*found.headers, *code))) == place


@pytest.mark.parametrize("origin", ["src", "header:", "json", ""])
def test_an_origin_that_is_no_place_in_a_record_is_refused_when_the_code_loads(origin):
    """Guards against a check that is red from its first evaluation on."""
    with pytest.raises(BadDeclaration, match=r"Checks\(origin=...\): .* does not say .* or give a function"):
        Checks(origin=origin)


def found(count, total=None, exact=True):
    return Rejections(count, total or count, exact, Counter({"why": count} if count else {}))


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


@pytest.mark.parametrize(
    ("declared", "rejections", "said"),
    [
        (DeadLetters("d"), found(0), "No dead letter waits to be sent again or acknowledged"),
        (DeadLetters("d"), found(0, 7), "No dead letter waits to be sent again or acknowledged, of 7 in the topic"),
        (
            DeadLetters("d"),
            found(1, 7),
            "1 dead letter waits to be sent again or acknowledged, of 7 in the topic; most often (1): why",
        ),
        (
            DeadLetters("d"),
            found(1_200),
            "1,200 dead letters wait to be sent again or acknowledged; most often (1,200): why",
        ),
        (
            Rejected("r"),
            found(1_200),
            "1,200 rejected records wait to be sent again or acknowledged; most often (1,200): why",
        ),
        (
            Rejected("r"),
            found(70_000, exact=False),
            "About 70,000 offsets' worth of rejected records wait to be sent again or acknowledged; most often "
            "(70,000): why",
        ),
    ],
)
def test_the_check_says_how_many_why_and_what_ends_it(declared, rejections, said):
    """Guards against a warning that a person cannot act on without reading the topic, or that names another one."""
    verdict = too_many_rejected(rejections, declared, "Send them again")
    code, remedy = ("CHECK-REJECTED", "Send them again") if rejections.count else ("CHECK-PASSED", "")
    assert (verdict.sentence, verdict.code, verdict.remedy) == (said, code, remedy)
    numbers = {declared.metadata: rejections.count, declared.metadata_total: rejections.total}
    assert verdict.evidence == numbers


LEFT, WITH_ID = "did not fit its schema, and is JSON.", "with its schema id."


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Sent(0, 0), "There is no record left to send."),
        (Sent(2, 0), "Sent 2 records of d again."),
        (Sent(3, 2), "Sent 1 record of d again. 2 others still cannot be written: see d."),
        (Sent(0, 0, 1), f"Left 1 record in d: key or value {LEFT} Declare repair=, which returns the value {WITH_ID}"),
        (
            Sent(2, 1, 3),
            "Sent 1 record of d again. 1 other still cannot be written: see d. Left 3 records in d: key or value "
            f"{LEFT} Declare repair=, which returns the value {WITH_ID}",
        ),
    ],
)
def test_the_job_says_what_kafka_could_not_take_again_and_what_it_left(done, said):
    """Guards against a record that counts as sent, and is a dead letter once more, or was not sent at all."""
    assert done.said("d", "d") == said


def test_where_values_are_repaired_the_job_says_that_a_key_is_not():
    """Guards against advice that a person has followed already."""
    said = f"Left 1 record in d: the key {LEFT} repair makes values alone: write them with a producer of yours."
    assert Sent(0, 0, 1).said("d", "d", repairs=True) == said


def test_two_rows_that_were_refused_for_the_same_reason_count_as_one_reason() -> None:
    """Guards against a table of twenty reasons with one record each, of a thousand rows that name a wrong topic."""
    said = "a record goes to a topic or partition that does not exist (nowhere, key '{}'): it never existed"
    letters = [[(error_headers.MESSAGE, said.format(key).encode())] for key in ("a", "b")]
    assert len({reason_of(letter) for letter in letters}) == 1
    assert reason_of(letters[0]).endswith("does not exist (nowhere): it never existed")
    assert "no reason" in reason_of([])


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

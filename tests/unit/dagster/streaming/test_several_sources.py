"""A stream that reads several topics: what its function gets, and what the machinery around it takes for its input."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dagster_exactly_once import (
    Backfill,
    BadDeclaration,
    Checks,
    KafkaTopic,
    StreamConfig,
    exactly_once_stream,
    observed_stream,
)
from dagster_exactly_once.declare.stream import Record
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.sensors.sink_state import SinkState, with_lags
from dagster_exactly_once.streaming.query import QueryPlan
from dagster_exactly_once.streaming.source import as_said, check_begun, named
from exactly_once.checkpoint import Checkpoint
from exactly_once.errors import CheckpointUnusable, UnknownTopic
from exactly_once.kafka.admin import Watermarks
from exactly_once.protocol.log_state import LogState

TWO = {"orders": "shop.orders", "refunds": KafkaTopic("shop.refunds", start_from="latest")}


class BookingsConfig(StreamConfig):
    """What a person gives to ``bookings``."""

    least_cents: int = 7


def declared(transform, **change):
    return exactly_once_stream(**{"name": "bookings", "source": TWO, "outputs": ["bookings"], **change})(transform)


# -- what the function gets


def test_a_function_over_several_topics_gets_each_by_name_whatever_their_order():
    """Taken by position, two inputs with the same columns would be exchanged without an error."""
    stream = declared(lambda refunds, orders: (orders, refunds))
    assert stream.records({"orders": "o", "refunds": "r"}, StreamConfig()) == ("o", "r")
    assert stream.source_topics == ("shop.orders", "shop.refunds")
    assert {key.to_user_string() for key in stream.source_keys} == {"shop.orders", "shop.refunds"}


def test_the_configuration_is_the_parameter_that_is_no_source():
    def transform(orders, settings: BookingsConfig, refunds):
        return orders, refunds, settings.least_cents

    stream = declared(transform)
    assert stream.config is BookingsConfig
    assert stream.records({"orders": "o", "refunds": "r"}, BookingsConfig()) == ("o", "r", 7)


def test_topics_of_a_list_are_called_what_they_are():
    stream = declared(lambda orders, refunds: (orders, refunds), source=["orders", KafkaTopic("refunds")])
    assert list(stream.sources) == ["orders", "refunds"]


@pytest.mark.parametrize("source", ["raw", ["raw"], {"orders": "raw"}])
def test_a_single_topic_is_the_first_parameter_however_it_is_declared(source):
    stream = declared(lambda anything: anything, source=source)
    assert stream.records(dict.fromkeys(stream.sources, "rows"), StreamConfig()) == "rows"


@pytest.mark.parametrize(
    ("transform", "change", "says"),
    [
        (
            lambda events: events,
            {},
            r"takes the parameters \(events\).* f\(orders, refunds\) or f\(orders, refunds, con",
        ),
        (lambda orders, refunds, a, b: a, {}, "Declare it as"),
        (lambda orders, config: orders, {}, "Declare it as"),
        (lambda **inputs: inputs, {}, "Declare it as"),
        (
            lambda orders, b: b,
            {"source": ["orders", "shop.b"]},
            r"can be called 'shop.b'. Name it: .*'shop_b': 'shop.b'",
        ),
        (lambda orders, refunds: orders, {"backfill": Backfill.daily("2026-01-01")}, "backfill fills days of"),
    ],
)
def test_a_function_that_cannot_get_its_topics_is_refused_when_the_code_loads(transform, change, says):
    """Guards against a run that fails at night because a parameter is called in another way."""
    with pytest.raises(BadDeclaration, match=says):
        declared(transform, **change)


def test_a_stream_that_runs_elsewhere_needs_no_names_for_its_topics():
    stream = observed_stream("there", source=["shop.orders", "shop.refunds"], outputs=["bookings"])
    assert stream.spec.sources == ("shop.orders", "shop.refunds")


# -- where it begins


def test_each_topic_begins_where_it_says_until_the_checkpoint_knows_better():
    """A driver that died between two of Spark's files would begin the second topic at its earliest record."""
    stream = declared(lambda orders, refunds: orders)
    starts = lambda start_from, begun: [t.start_from for t in as_said(stream.sources, start_from, begun).values()]  # noqa: E731
    assert starts("", {}) == ["earliest", "latest"]
    assert starts("2026-01-01", {}) == ["2026-01-01", "2026-01-01"]
    assert starts("2026-01-01", {"shop.orders": {0: 5}}) == ["earliest", "2026-01-01"]


@pytest.mark.parametrize(("limit", "share"), [(100_000, 50_000), (3, 1), (1, 1)])
def test_the_limit_of_a_batch_holds_for_all_topics_together(limit, share):
    """With the whole limit for each topic, transactions would stay open twice as long as a person asked for."""
    stream = declared(lambda orders, refunds: orders)
    assert QueryPlan(stream, stream.sources, "s", "/c", limit, None, {}).share == share


COUNTED, NAMED = Checkpoint("/c", "q", 3, 3), Checkpoint("/c", "q", 3, 3, names_sources=True)


@pytest.mark.parametrize(
    ("begun", "found", "refused"),
    [
        ({}, Checkpoint("/c"), False),
        ({"shop.orders": {}}, Checkpoint("/c"), False),
        ({"others": {}}, Checkpoint("/c"), True),
        ({"shop.orders": {}, "shop.refunds": {}}, COUNTED, False),
        ({"shop.orders": {}}, COUNTED, True),
        ({"shop.orders": {}, "others": {}}, COUNTED, True),
        ({"shop.orders": {}}, NAMED, False),
        ({"shop.orders": {}, "others": {}}, NAMED, False),
    ],
)
def test_topics_that_a_checkpoint_did_not_begin_with_are_refused_unless_sources_have_names(begun, found, refused):
    """Spark would say that records of the input are lost, and a person would accept their loss."""
    stream = declared(lambda orders, refunds: orders)
    if not refused:
        check_begun(begun, stream, found)
        return
    with pytest.raises(CheckpointUnusable, match=r"began with the topics .*, .* bookings reads shop.orders, "):
        check_begun(begun, stream, found)


HEAD = 'v2\n{"batchTimestampMs":5}\n'


@pytest.mark.parametrize(
    ("batches", "begins", "ended", "name", "starts"),
    [
        pytest.param([""], {}, {}, "shop_refunds", None, id="new"),
        pytest.param(['r_9:{"shop.refunds":{"0":4}}'], {}, {}, "r_9", None, id="read under its name"),
        pytest.param(['r_9:{"shop.refunds":{"0":4}}', ""], {}, {"shop.refunds": {0: 4}}, "r_9", None, id="Spark knows"),
        pytest.param([""], {"shop_refunds": 0}, {"shop.refunds": {0: 4}}, "shop_refunds_2", 4, id="back"),
        pytest.param([""], {"shop_refunds_2": 4}, {"shop.refunds": {0: 4}}, "shop_refunds_2", 4, id="without a batch"),
        pytest.param([""], {"shop_refunds_2": 2}, {"shop.refunds": {0: 4}}, "shop_refunds_3", 4, id="back again"),
        pytest.param([""], {"shop_refunds": 0}, {"shop.refunds": {}}, "shop_refunds", None, id="nobody knows where"),
    ],
)
def test_a_topic_that_returns_has_a_new_name_and_begins_where_it_ended(batches, begins, ended, name, starts, tmp_path):
    """Duplicates of a whole topic, which its old name would read again; or a stream that no start gets going again."""
    for folder in ("offsets", "commits", "sources"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for n, line in enumerate(batches):
        (tmp_path / "offsets" / str(n)).write_text(HEAD + 'shop_orders:{"shop.orders":{"0":1}}\n' + line)
    for source, offset in begins.items():
        (tmp_path / "sources" / source).mkdir()
        (tmp_path / "sources" / source / "0").write_text(f'\0v1\n{{"shop.refunds":{{"0":{offset}}}}}')
    sources = declared(lambda orders, refunds: orders).sources
    found, names = named(sources, str(tmp_path), ended)
    assert names == {"shop.orders": "shop_orders", "shop.refunds": name}
    begin = {"startingOffsets": json.dumps({"shop.refunds": {"0": starts}})} if starts is not None else {}
    assert found == {**sources, "refunds": replace(sources["refunds"], options=begin)}


@pytest.fixture
def checkpoint(tmp_path):
    """Two sources; the second one had nothing in the first batch."""
    for folder in ("offsets", "commits", "sources/0", "sources/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    (tmp_path / "sources/0/0").write_bytes(b'\0v1\n{"shop.orders":{"0":4}}')
    (tmp_path / "sources/0/.0.crc").write_bytes(b"x")
    (tmp_path / "sources/1/0").write_bytes(b'\0v1\n{"shop.refunds":{"0":40}}')
    lines = [['{"shop.orders":{"0":10}}', "-"], ['{"shop.orders":{"0":12}}', '{"shop.refunds":{"0":45}}']]
    for batch, sources in enumerate(lines):
        text = "\n".join(["v1", json.dumps({"batchTimestampMs": 5}), *sources])
        (tmp_path / "offsets" / str(batch)).write_text(text)
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    return tmp_path


def test_the_beginning_and_the_progress_of_every_topic_are_read(checkpoint):
    """A topic that is taken for unread would show all of its records as lag."""
    reader = CheckpointReader(root=str(checkpoint))
    assert reader.first_offsets(str(checkpoint)) == {"shop.orders": {0: 4}, "shop.refunds": {0: 40}}
    assert reader.committed_offsets(str(checkpoint)) == {"shop.orders": {0: 10}, "shop.refunds": {0: 40}}
    (checkpoint / "commits" / "1").write_text("v1\n{}")
    assert reader.committed_offsets(str(checkpoint)) == {"shop.orders": {0: 12}, "shop.refunds": {0: 45}}


# -- health and checks


def marks(last_stable):
    return {0: Watermarks(0, last_stable, last_stable)}


def test_the_lag_is_that_of_all_topics():
    """Guards against a stream that looks idle while its second topic waits."""
    spec = declared(lambda orders, refunds: orders).spec
    checkpoint = SimpleNamespace(torn={}, query_id=None, last_offsets=None, last_commit=None, batch_started_ms=None)
    inspection = SimpleNamespace(log=LogState())
    look = SinkState(inspection, checkpoint, {"shop.orders": {0: 10}, "shop.refunds": {0: 40}})
    ends = {"shop.orders": marks(13), "shop.refunds": marks(45)}
    assert with_lags(spec, look, ends).lag == 3 + 5
    gone = UnknownTopic("shop.refunds is gone", "Create it")
    assert with_lags(spec, look, ends | {"shop.refunds": gone}) is gone


REFUNDS = ("shop.refunds", 0)


def test_a_record_says_of_which_topic_it_was_made():
    """Offset 3 of one topic and offset 3 of another are two records."""
    said = {"a": ("shop.refunds", 0, 3), "b": None, "c": (0, 3)}
    stream = declared(lambda orders, refunds: orders, checks=Checks(origin=lambda topic, record: said[topic]))
    record = Record(0, 0, None, None)
    assert stream.place_of("a", record) == (REFUNDS, 3) and stream.place_of("b", record) is None
    with pytest.raises(BadDeclaration, match="none of the sources"):
        stream.place_of("c", record)
    one = declared(lambda events: events, source="raw", checks=Checks(origin=lambda topic, record: said[topic]))
    assert one.place_of("c", record) == (("raw", 0), 3)

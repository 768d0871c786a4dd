"""Rejected records and dead letters: not lost, no reason to stop, in the same transactions as the others of their
batch; counted by a check, and sent again, repaired, once.
"""

import json
from itertools import islice

import dagster as dg
import pytest

from dagster_exactly_once.backfill.resend import ResendParameters, resend_operation
from exactly_once.commitlog.commit_log import read_log
from exactly_once.error_headers import MESSAGE, RESENT, origin_in
from exactly_once.kafka.admin import Admin
from exactly_once.tools.operation.model import OperationContext
from exactly_once_local.duel.departures import events
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.names import SINK_ID
from platform_assets.report.reader import read_committed
from testkit import oracle
from testkit.flights import findings
from testkit.processes import kill_session, until
from testkit.shop import (
    DEAD,
    HOPELESS,
    LABELLED,
    LABELS,
    ORDERS,
    PRICED,
    PRINTED_MS,
    REJECTED,
    UNREADABLE,
    label_orders,
    price_orders,
)

VALID = 400
MALFORMED = [
    b"{broken",
    b"",
    None,
    b"[1]",
    b"\xff\xfe\x00",
    b'{"carrier":"UA"}',
    b'{"minute":1.5}',
    '{"dest":"Zürich"}'.encode(),
]


@pytest.mark.long
def test_malformed_events_come_out_rejected_beside_the_valid_ones(site):
    site.kafka.create_topics({FLIGHTS: 4})
    with site.kafka.producer("test-feed") as producer, producer.transaction():
        for n, event in enumerate(islice(events(), VALID)):
            producer.send(FLIGHTS, event.value, event.key)
            if n % 50 == 0:
                producer.send(FLIGHTS, MALFORMED[n // 50], event.key)

    said = site.run("flight_delays_stream", {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}})

    found, faults, examples = findings(site.connection, VALID)
    assert faults == {}, examples
    assert (found.out, found.rejected, found.foreign) == (VALID, len(MALFORMED), len(MALFORMED))
    rejected = list(read_committed(site.connection, FLIGHT_DELAYS_REJECTED))
    assert sorted(map(repr, (x.value for x in rejected))) == sorted(map(repr, MALFORMED))
    reasons = {dict(x.headers)[MESSAGE] for x in rejected}
    assert reasons >= {b"no value", b"not a JSON object", b"time_hour is missing"}
    assert f"{len(MALFORMED)} to {FLIGHT_DELAYS_REJECTED}" in said

    (decision,) = [d for d in read_log(site.connection, SINK_ID).decisions if d.records]
    assert decision.records == VALID + len(MALFORMED)
    assert set(decision.topics) == {FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED}
    assert len(decision.handles) <= 4  # one transaction for each part, whatever topics it writes
    with Admin(site.connection) as admin:
        for topic in (FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED):
            assert all(w.last_stable == w.high for w in admin.watermarks(topic).values())


@pytest.mark.long
def test_a_second_run_finds_nothing_to_do(site):
    before = read_log(site.connection, SINK_ID).decisions
    said = site.run("flight_delays_stream", {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}})
    assert "no batch" in said
    assert read_log(site.connection, SINK_ID).decisions == before


class Shop:
    """A code location, by default that of dev/testkit/shop.py, each job in a process of its own, as Dagster runs it."""

    def __init__(self, site, location="testkit.shop", inputs=(ORDERS, LABELS)):
        self.site, self.location = site, location
        self.failpoints = site.folder / "failpoints"
        self.failpoints.mkdir()
        site.kafka.create_topics(dict.fromkeys(inputs, 1))

    def send(self, *values, topic=ORDERS, headers=()):
        with self.site.kafka.producer("shop") as producer, producer.transaction():
            for n, value in enumerate(values):
                producer.send(topic, value, f"customer-{n}".encode(), [("n", str(n).encode()), *headers])

    def start(self, job, op="", **config):
        return self._in(self.site.launch, job, op, config)

    def run(self, job, op="", succeeds=True, **config):
        succeeded, said = self._in(self.site.finished, job, op, config)
        assert succeeded is succeeds, said[-5000:]
        return said

    def _in(self, call, job, op, config):
        config = json.dumps({"ops": {op: {"config": config}}} if op else {})
        points = {"EXACTLY_ONCE_FAILPOINTS": str(self.failpoints)}
        return call(self.location, job, config, log=self.site.log(job), **points)

    def stream(self, stream=price_orders):
        return self.run(stream.spec.job, stream.spec.op, mode="caught_up")

    def resend(self, succeeds=True, stream=price_orders, **config):
        return self.run(stream.resend_spec.job, stream.resend_spec.op, succeeds, dry_run=False, **config)

    def killed_resend(self, point, stream=price_orders, **config):
        """Start a resend, and kill -9 all of its processes when one is at ``point``."""
        (self.failpoints / f"{point}.reached").unlink(missing_ok=True)  # another test was there
        (self.failpoints / point).write_text("hang")
        process = self.start(stream.resend_spec.job, stream.resend_spec.op, dry_run=False, **config)
        try:
            until(point, lambda: (self.failpoints / f"{point}.reached").exists(), 300)
        finally:
            kill_session(process.pid)

    def evaluated(self, topic=REJECTED, check="rejected_since_last_look"):
        """The newest evaluation of the check, after the job of the checks."""
        self.run("exactly_once_stream_checks")
        key = dg.AssetCheckKey(dg.AssetKey(topic), check)
        with dg.DagsterInstance.from_config(str(self.site.home)) as instance:
            [newest] = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        return newest.event.dagster_event.event_specific_data

    def audit(self, name, stream=price_orders):
        """The values of an entry of the audit trail, oldest first, as the first step of each run wrote them."""
        with dg.DagsterInstance.from_config(str(self.site.home)) as instance:
            observed = instance.fetch_observations(dg.AssetKey(stream.spec.asset), limit=100, ascending=True).records
        entries = [r.asset_observation.metadata.get(name) for r in observed]
        return [entry.value for entry in entries if entry is not None]

    def values(self, topic):
        return [r.value for r in read_committed(self.site.connection, topic)]

    def row_count(self, topic):
        """The number of records that Dagster shows on the asset's page."""
        with dg.DagsterInstance.from_config(str(self.site.home)) as instance:
            observed = instance.fetch_observations(dg.AssetKey(topic), limit=20).records
        counts = [r.asset_observation.metadata.get("dagster/row_count") for r in observed]
        return next(count.value for count in counts if count is not None)


@pytest.fixture(scope="module")
def shop(site):
    return Shop(site)


TRACE = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("tracestate", b"a=1"))
FOUR_BAD = (b'{"amuont": 10}', b'{"amuont": 20}', HOPELESS, b'{"amuont": 30}')


@pytest.mark.long
def test_the_rejected_topic_is_an_asset_with_its_records_and_a_check_that_counts_them(shop):
    """Guards against rejected records that nobody sees, and that a check counts again and again; and against a trace
    that ends at the stream.
    """
    shop.send(b'{"amount": 100}', *FOUR_BAD, headers=TRACE)
    said = shop.stream()
    assert f"4 to {REJECTED}" in said
    assert shop.values(PRICED) == [b'{"to_pay": 120.0}'] and shop.values(REJECTED) == list(FOUR_BAD)
    assert (shop.row_count(PRICED), shop.row_count(REJECTED)) == (1, 4)
    assert [r.headers for r in read_committed(shop.site.connection, PRICED)] == [TRACE], "and no other header"
    letters = list(read_committed(shop.site.connection, REJECTED))
    assert [origin_in(r.headers) for r in letters] == [(ORDERS, 0, n) for n in (1, 2, 3, 4)]
    assert [dict(r.headers)["n"] for r in letters] == [b"1", b"2", b"3", b"4"]

    first = shop.evaluated()
    assert (first.passed, first.severity.name) == (False, "ERROR"), first.description
    assert first.description.startswith("4 rejected records wait")
    for waiting in (first, shop.evaluated()):
        assert (waiting.passed, waiting.metadata["rejected_records"].value) == (False, 4)
        assert "price_orders_resend" in waiting.metadata["way_out"].value


@pytest.mark.long
def test_a_repaired_record_is_sent_again_once_whoever_dies_and_however_often_it_is_tried(shop):
    """Guards against the second launch of a run that died, of which nobody knows whether it has sent anything."""
    orders = shop.values(ORDERS)
    said = shop.run(price_orders.resend_spec.job)
    assert "Would send again" in said and f" {REJECTED}-0, offsets 0 to " in said
    assert "launch price_orders_resend again with dry_run: false" in said and shop.values(ORDERS) == orders
    asked = ResendParameters(sink_id=price_orders.resend_spec.sink_id, offsets={"0": "1-2"}, dry_run=True)
    found = resend_operation(price_orders).examine(OperationContext(shop.site.connection), asked)
    assert found.to_do and found.document == {"ranges": [f"{REJECTED}-0, offsets 1 to 2"]}

    shop.killed_resend("all-prepared", offsets={"0": "0-1"})
    assert shop.values(ORDERS) == orders
    for _ in range(2):
        shop.resend(offsets={"0": "0-1"})
        assert shop.values(ORDERS) == [*orders, b'{"amount": 10}', b'{"amount": 20}']

    shop.killed_resend("decided")  # all that is left: one that no repair helps, and one more
    for offsets in ({}, {"0": "0-3"}, {}):
        shop.resend(offsets=offsets)
        assert shop.values(ORDERS) == [*orders, b'{"amount": 10}', b'{"amount": 20}', b'{"amount": 30}']
    oracle.assert_settled(shop.site.connection, price_orders.resend_spec.sink_id, [ORDERS, REJECTED])

    assert [shop.audit(name)[:2] for name in ("price_orders_resend", "resend_by")] == [
        ["dry run", "began"],
        ["a person", "a person"],
    ]
    sent = list(read_committed(shop.site.connection, ORDERS))[len(orders) :]
    assert [r.key for r in sent] == [b"customer-1", b"customer-2", b"customer-4"]
    assert [r.headers for r in sent] == [(("n", n), *TRACE) for n in (b"1", b"2", b"4")]
    waiting = shop.evaluated()
    assert waiting.passed and waiting.metadata["rejected_total"].value == 4, "sent again, or left out for good"
    shop.stream()
    assert sorted(shop.values(PRICED)) == [b'{"to_pay": %s}' % n for n in (b"12.0", b"120.0", b"24.0", b"36.0")]
    assert shop.values(REJECTED) == list(FOUR_BAD)


@pytest.mark.long
def test_a_repair_that_raises_sends_nothing_and_says_what_it_raised(shop):
    """Guards against a range that is half sent, and whose other half nobody can send any more."""
    shop.send(b"{", b"unrepairable")
    shop.stream()
    before = shop.values(ORDERS)
    said = shop.resend(succeeds=False)
    assert "EO-TRANSFORM: ValueError: beyond repair" in said
    assert shop.values(ORDERS) == before
    assert "neither reads nor writes" in shop.resend(succeeds=False, to="elsewhere")


@pytest.mark.long
def test_a_row_that_kafka_cannot_take_is_in_an_asset_of_its_own_is_counted_and_is_sent_again_once(shop):
    """Guards against dead letters that nobody sees, and against a repaired one that is in the output twice: also by the
    check that compares input and output, for which one that was sent again is no second output.
    """
    shop.send(b"short", b"long-7", b"astray", b"bad", topic=LABELS)
    said = shop.stream(label_orders)
    assert f"1 to {UNREADABLE}" in said and f"2 to {DEAD}" in said
    assert shop.values(LABELLED) == [b"short"] and shop.values(UNREADABLE) == [b"bad"]
    assert shop.values(DEAD) == [b"long-7" * 400_000, b"astray"], "its topic takes more than the outputs"
    assert [shop.row_count(topic) for topic in (LABELLED, UNREADABLE, DEAD)] == [1, 1, 2]
    letters = list(read_committed(shop.site.connection, DEAD))
    assert [origin_in(r.headers) for r in letters] == [(LABELS, 0, 1), (LABELS, 0, 2)]
    with dg.DagsterInstance.from_config(str(shop.site.home)) as instance:
        assert instance.get_latest_materialization_event(dg.AssetKey(DEAD)) is not None

    first = shop.evaluated(DEAD, "dead_letters_since_last_look")
    assert (first.passed, first.severity.name) == (False, "WARN"), first.description
    for waiting in (first, shop.evaluated(DEAD, "dead_letters_since_last_look")):
        assert (waiting.passed, waiting.metadata["dead_letters"].value) == (False, 2)

    shop.killed_resend("decided", label_orders, topic=DEAD, offsets={"0": "0"})
    for offsets in ({"0": "0"}, {}):
        said = shop.resend(stream=label_orders, topic=DEAD, offsets=offsets)
        assert shop.values(LABELLED) == [b"short", b"long-7long-7"]
    assert "Sent 0 records of labels_dead again. 1 other still cannot" in said and "see labels_dead." in said
    said = shop.resend(stream=label_orders, topic=DEAD, to=LABELLED)
    assert "Sent 1 record of labels_dead again." in said
    assert "no record left" in shop.resend(stream=label_orders, topic=DEAD)

    printed = oracle.read(shop.site.connection, [LABELLED])
    last = oracle.read(shop.site.connection, [DEAD])[-1].offset
    replaced = ([], [(RESENT, f"{DEAD}-0-0".encode())], [(RESENT, f"{DEAD}-0-{last}".encode())])
    for n, (record, value) in enumerate(zip(printed, ("short", "long-7long-7", "astray"), strict=True)):
        assert (record.key, record.value) == (f"customer-{n}", value)
        assert list(record.headers) == [("n", str(n).encode()), ("src", f"{LABELS}-0-{n}".encode()), *replaced[n]]
    assert [r.timestamp_ms == PRINTED_MS for r in printed] == [False, True, False], "the row chose it"
    oracle.assert_settled(shop.site.connection, label_orders.resend_spec.sink_id, [LABELLED, DEAD])
    assert shop.values(UNREADABLE) == [b"bad"], "which the job sends again when it is asked to"

    compared = shop.evaluated(LABELLED, "no_duplicates_and_no_loss")
    assert compared.passed and "4 input records" in compared.description, compared.description
    with shop.site.kafka.producer("shop") as producer, producer.transaction():  # what somebody sends by hand once more
        producer.send(LABELLED, printed[1].value.encode(), printed[1].key.encode(), list(printed[1].headers))
    copied = shop.evaluated(LABELLED, "no_duplicates_and_no_loss")
    assert not copied.passed and "1 duplicated" in copied.description, copied.description

"""The asset checks on a real broker, run alone by their job: right output passes, and each mishap is seen.

The stream is played by the test (input, outputs, checkpoint and commit log as a stream leaves them), so that each
mishap can be made exactly; no Spark.
"""

import json
import os
import re
import socket
import time
import uuid

import dagster as dg
import pytest
import yaml
from confluent_kafka import Producer

from dagster_exactly_once import RestartPolicy, WatchPolicy, exactly_once_definitions
from dagster_exactly_once.checks import definitions, rejected
from dagster_exactly_once.checks.definitions import checks_of
from dagster_exactly_once.declare.rejected import Rejected
from dagster_exactly_once.names import CHECKS_JOB
from dagster_exactly_once.resources import checkpoints
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.resources.transactions import TransactionAdmin
from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.coordinator.machine import this_machine
from exactly_once.deadline import Deadline
from exactly_once.error_headers import OFFSET, PARTITION, TOPIC
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.records import Claim, Decision
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.asset import flights
from platform_assets.flights.names import SINK_ID
from platform_assets.flights.streams import flight_delays
from testkit import oracle
from testkit.broker import open_transaction
from testkit.dead_sink import DEAD
from testkit.part_ids import part_id
from testkit.processes import until

PARTITIONS = 2
REJECTED = Rejected.check
QUERY = str(uuid.uuid4())


class Stream:
    """A stream as it is seen from outside. Each batch takes what is in the input and not yet written."""

    def __init__(self, site):
        self.site = site
        self.servers = site.bootstrap_servers
        self.kafka = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
        self.kafka.create_topics({FLIGHTS: PARTITIONS, FLIGHT_DELAYS: PARTITIONS, FLIGHT_DELAYS_REJECTED: PARTITIONS})
        self.root = site.folder / "checkpoints"
        self.checkpoint = self.root / self.kafka.cluster_id() / SINK_ID
        self.batches, self.position = 0, dict.fromkeys(range(PARTITIONS), 0)
        self.instance = dg.DagsterInstance.ephemeral()

    def feed(self, records):
        """Committed records behind as many aborted ones, and the markers of both."""
        producer = Producer({**self.site.connection.librdkafka(), "transactional.id": "feed", "log_level": 0})
        producer.init_transactions(30)
        for fate in (b"aborted", b"committed"):
            producer.begin_transaction()
            for n in range(records):
                producer.produce(FLIGHTS, fate, f"k{n}".encode())
            producer.flush(30)
            if fate == b"aborted":
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
        self.settle(FLIGHTS)

    def settle(self, *topics):
        """Until the markers are written: they follow the answer to a commit."""
        with Admin(self.site.connection) as admin:
            until("the markers", lambda: not oracle.held_back(admin, topics), 30)

    def batch(self, change=lambda places: places, commit=True):
        """Plan, write and mark one batch; ``change`` makes its mishap."""
        self._begin()
        with Admin(self.site.connection) as admin:
            ends = {p: w.last_stable for p, w in admin.watermarks(FLIGHTS).items()}
        places = [
            (m.partition, m.offset)
            for m in oracle.read(self.site.connection, [FLIGHTS])
            if self.position[m.partition] <= m.offset < ends[m.partition]
        ]
        source = json.dumps({FLIGHTS: {str(p): o for p, o in ends.items()}})
        head = json.dumps({"batchTimestampMs": int(time.time() * 1000)})
        (self.checkpoint / "offsets" / str(self.batches)).write_text(f"v1\n{head}\n{source}")
        self.write(change(places))
        if commit:
            (self.checkpoint / "commits" / str(self.batches)).write_text("v1\n{}")
        self.batches, self.position = self.batches + 1, ends

    def write(self, places):
        """The records that come from ``places``, one in seven rejected."""
        with self.kafka.producer("stream") as producer, producer.transaction():
            for p, o in places:
                if o % 7 == 0:
                    headers = [(TOPIC, FLIGHTS.encode()), (PARTITION, str(p).encode()), (OFFSET, str(o).encode())]
                    producer.send(FLIGHT_DELAYS_REJECTED, b"x", f"{o}".encode(), headers)
                else:
                    value = json.dumps({"x": 1, "src": {"partition": p, "offset": o}}, separators=(",", ":"))
                    producer.send(FLIGHT_DELAYS, value.encode(), f"{o}".encode())

    def _begin(self):
        if self.checkpoint.exists():
            return
        for folder in ("offsets", "commits", "sources/0"):
            (self.checkpoint / folder).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        began = json.dumps({FLIGHTS: {str(p): 0 for p in self.position}})
        (self.checkpoint / "sources/0/0").write_text(f"\0v1\n{began}")
        self.claim("h", os.getpid())

    def claim(self, host, pid):
        """Claim the sink, as a driver on another host or, with the pid DEAD, one that has died here."""
        log = CommitLog(self.site.connection, SINK_ID)
        machine = this_machine() if host == socket.gethostname() else ""
        where = {"pid_started": 1.0, "machine": machine}

        def claim(state):
            self.token = state.owner.token + 1 if state.owner else 1
            return Claim(self.token, QUERY, 0, "stream", host, pid, str(self.checkpoint), **where)

        log.claim(claim, Deadline(30))
        log.close()

    def checks(self, ops=None, **config):
        """Run the job of the checks; the evaluations by name."""
        resources = {
            "kafka": KafkaTransactionalProducerFactory(bootstrap_servers=self.servers),
            "transactions": TransactionAdmin(bootstrap_servers=self.servers, budget_s=5.0),
            "checkpoints": CheckpointReader(root=str(self.root)),
            "spark": SparkSessionResource(work_dir=str(self.site.folder / "spark")),
            "restart_policy": RestartPolicy(),
            "watch_policy": WatchPolicy(),
        }
        defs = dg.Definitions.merge(
            exactly_once_definitions(flight_delays),
            dg.Definitions(assets=[flights], resources=resources, executor=dg.in_process_executor),
        )
        ops = {**(ops or {}), **{f"{FLIGHT_DELAYS}_{name}": {"config": values} for name, values in config.items()}}
        job = defs.resolve_job_def(CHECKS_JOB)
        done = job.execute_in_process(run_config={"ops": ops}, instance=self.instance)
        assert done.success and not done.get_asset_materialization_events()
        return {e.check_name: e for e in done.get_asset_check_evaluations()}

    def acknowledge(self):
        """Launch the job as the check's way out says."""
        way_out = self.checks()[REJECTED].metadata["way_out"].value
        config = re.search(r"with (\{.*\})", way_out)
        assert self.checks(yaml.safe_load(config[1])["ops"])[REJECTED].passed


NAMES = {key.name for check in checks_of(flight_delays) for key in check.check_keys}


@pytest.fixture(scope="module")
def stream(site):
    return Stream(site)


def away(monkeypatch, stream, servers="127.0.0.1:1"):
    """Take the brokers from the checks, which give them up soon."""
    for module in (definitions, rejected, checkpoints):
        monkeypatch.setattr(module, "READ_BUDGET_S", 1.0)
    monkeypatch.setattr(stream, "servers", servers)


def failed(found):
    """All but the check of rejected records, which every batch here has."""
    return {name: e.severity.name for name, e in found.items() if not e.passed and name != REJECTED}


def test_before_the_first_start_a_check_says_that_the_stream_never_ran(stream):
    """Green says that somebody looked at an output, red that it is wrong: there is none yet."""
    found = stream.checks()
    assert found.keys() == NAMES
    unseen = ("no_duplicates_and_no_loss", "checkpoint_equals_commit_log", "freshness")
    assert failed(found) == dict.fromkeys(unseen, "WARN"), found
    assert {found[name].metadata["code"].value for name in unseen} == {"HEALTH-NEVER-USED"}


@pytest.mark.parametrize("servers", ["", pytest.param("127.0.0.1:1", marks=pytest.mark.long)])
def test_brokers_that_are_away_or_unknown_turn_nothing_red(stream, monkeypatch, servers):
    """They did on a fresh installation: "Execution failed" on every check, for as long as the next ten minutes."""
    away(monkeypatch, stream, servers)
    found = stream.checks()
    assert failed(found) == dict.fromkeys(NAMES - {REJECTED}, "WARN"), found
    assert all(e.description.startswith("Not evaluated: EO-") and not e.passed for e in found.values()), found


def test_a_right_output_passes_and_the_check_says_what_it_sampled(stream):
    stream.feed(300)
    stream.batch()
    stream.feed(200)
    stream.batch()
    found = stream.checks()
    assert failed(found) == {}, found
    once = found["no_duplicates_and_no_loss"]
    assert once.metadata["input_records_compared"].value == 500  # not the markers, nothing that was aborted
    assert "batches 0 to 1" in once.metadata["sampled"].value and once.metadata["sampled"].value in once.description
    limited = stream.checks(no_duplicates_and_no_loss={"offsets": 450})["no_duplicates_and_no_loss"]
    assert limited.passed and limited.metadata["input_records_compared"].value == 200


@pytest.mark.long
def test_rejected_records_stay_a_warning_until_somebody_has_acknowledged_them(stream, monkeypatch):
    """Guards against the second of two evaluations that turns green what the first had found (the schedule and the
    sensor ask within seconds), against markers and aborted records that count, and against brokers that were away.
    """
    stream.feed(100)
    stream.batch()
    held = len(oracle.read(stream.site.connection, [FLIGHT_DELAYS_REJECTED]))
    stream.acknowledge()
    seen = stream.checks()[REJECTED]
    assert (seen.passed, seen.metadata["rejected_records"].value) == (True, 0)
    assert seen.metadata["rejected_total"].value == held

    stream.feed(100)
    stream.batch()
    new = len(oracle.read(stream.site.connection, [FLIGHT_DELAYS_REJECTED])) - held
    with monkeypatch.context() as patched:
        away(patched, stream)
        assert "Not evaluated" in stream.checks()[REJECTED].description
    for _ in range(2):
        found = stream.checks()[REJECTED]
        assert new > 0 and found.asset_key.path == [FLIGHT_DELAYS_REJECTED]
        assert (found.passed, found.severity.name) == (False, "WARN")
        counts = {name: found.metadata[name].value for name in ("rejected_records", "rejected_total")}
        assert counts == {"rejected_records": new, "rejected_total": held + new}
    assert "acknowledge: true" in found.metadata["way_out"].value
    stream.acknowledge()
    assert stream.checks()[REJECTED].passed


@pytest.mark.long
def test_a_batch_on_its_way_is_no_mishap(stream):
    """While a stream runs, outputs are ahead of what Spark has marked, and readers are held back for a moment."""
    stream.feed(50)
    stream.batch(commit=False)
    assert failed(stream.checks()) == {}
    (stream.checkpoint / "commits" / str(stream.batches - 1)).write_text("v1\n{}")
    assert failed(stream.checks()) == {}


@pytest.mark.long
def test_a_lost_record_is_found(stream):
    stream.feed(60)
    stream.batch(lambda places: places[1:])
    found = stream.checks()
    assert failed(found) == {"no_duplicates_and_no_loss": "ERROR"}
    assert found["no_duplicates_and_no_loss"].metadata["lost"].value == 1
    lost = found["no_duplicates_and_no_loss"].metadata["examples"].value[0]
    partition, offset = map(int, re.fullmatch(rf"lost: {FLIGHTS}-(\d+)@(\d+)", lost).groups())
    stream.write([(partition, offset)])  # made good by hand
    assert failed(stream.checks()) == {}


@pytest.mark.long
def test_records_of_a_backfill_between_do_not_hide_the_window(stream):
    """A backfill writes old input at any time; the window has to be looked for behind it."""
    stream.feed(300)
    stream.batch()
    began = {str(p): o for p, o in stream.position.items()}
    (stream.checkpoint / "sources/0/0").write_text("\0v1\n" + json.dumps({FLIGHTS: began}))
    streamed = {(m.partition, m.offset) for m in oracle.read(stream.site.connection, [FLIGHTS])}
    old = [(p, o) for p, end in stream.position.items() for o in range(end) if (p, o) not in streamed]
    stream.feed(40)
    stream.batch()
    stream.write(old)
    assert len(old) > 200
    found = stream.checks(no_duplicates_and_no_loss={"offsets": 50})["no_duplicates_and_no_loss"]
    assert found.passed, found.description


def test_a_duplicate_is_found(stream):
    stream.feed(70)
    stream.batch(lambda places: [*places, places[5]])
    found = stream.checks()
    assert failed(found) == {"no_duplicates_and_no_loss": "ERROR"}
    assert found["no_duplicates_and_no_loss"].metadata["duplicated"].value == 1
    assert found["no_duplicates_and_no_loss"].metadata["lost"].value == 0


@pytest.mark.long
def test_a_transaction_that_stays_open_is_seen_and_so_are_the_readers_that_wait_for_it(stream):
    producer = open_transaction(stream.site.connection, part_id(SINK_ID, 1, 0, "0.0"))
    producer.produce(FLIGHT_DELAYS, b'{"x":1,"src":{"partition":0,"offset":0}}', partition=0)
    producer.flush(30)
    try:
        young = failed(stream.checks())
        assert not young.keys() & {"no_old_open_transaction", "last_stable_offset_is_high_watermark"}
        found = stream.checks(last_stable_offset_is_high_watermark={"policy_s": 0.001})
        waits = found["last_stable_offset_is_high_watermark"]
        assert waits.metadata["code"].value == "HEALTH-READERS-WAIT" and f"{FLIGHT_DELAYS}-0" in waits.description
        stream.claim(socket.gethostname(), DEAD)  # the driver may have been at work on it until now
        found = stream.checks()
        stream.claim("h", os.getpid())
        assert found["no_old_open_transaction"].metadata["code"].value == "HEALTH-STALE-TRANSACTIONS"
        assert not found["last_stable_offset_is_high_watermark"].passed
    finally:
        producer.abort_transaction(30)


@pytest.mark.long
def test_input_that_waits_for_a_stream_that_does_nothing_is_stale(stream):
    stream.batch()
    assert stream.checks(freshness={"limit_s": 0.001})["freshness"].passed  # all input is committed
    stream.feed(10)
    first = stream.checks(freshness={"limit_s": 0.001})["freshness"]
    assert first.passed and first.metadata["waiting_offsets"].value > 0
    second = stream.checks(freshness={"limit_s": 0.001})["freshness"]
    assert not second.passed and second.severity is dg.AssetCheckSeverity.WARN
    stream.batch()
    assert stream.checks(freshness={"limit_s": 0.001})["freshness"].passed


@pytest.mark.long
def test_a_checkpoint_that_was_rewound_is_seen(stream):
    """The commit log then holds a decision that the checkpoint does not know."""
    log = CommitLog(stream.site.connection, SINK_ID)
    log.append(Decision(QUERY, stream.batches + 3, stream.token, (), "", 5, 0), Deadline(30))
    log.close()
    assert failed(stream.checks())["checkpoint_equals_commit_log"] == "ERROR"

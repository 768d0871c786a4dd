"""What the doctor says: each verdict with its figure and its way out, without a cluster."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

import exactly_once
from exactly_once.checkpoint import Checkpoint
from exactly_once.commitlog.log_topic import TOPIC_CONFIG
from exactly_once.connector import coordinate, found_on_this_host
from exactly_once.errors import BrokerUnreachable
from exactly_once.inspection.findings import Inspection, judge_transaction
from exactly_once.kafka.cluster_info import Level, Topic
from exactly_once.protocol.log_state import LogState
from exactly_once.tools.cli.doctor import as_json
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, diagnose
from exactly_once.tools.diagnosis.model import worst
from exactly_once.tools.doctor import probes
from exactly_once.tools.doctor.cluster import (
    Clock,
    judge_brokers,
    judge_clock,
    judge_election,
    judge_level,
    judge_log_settings,
    judge_log_size,
    judge_replication,
    judge_timeout,
    judge_topic_size,
    judge_transactions,
    judge_unreached,
)
from exactly_once.tools.doctor.host import (
    DOCTOR_CODES,
    SHOWN,
    CheckpointPlace,
    DoctorCheck,
    java_major,
    judge_checkpoint,
    judge_connector,
    judge_jar,
    judge_java,
    judge_packages,
    judge_python,
)
from exactly_once.tools.doctor.rights import (
    judge_cluster_rights,
    judge_ids_rights,
    judge_log_rights,
    judge_output_rights,
)
from exactly_once.txn.coordinators import Description

OK, WARN, WRONG = Severity.OK, Severity.WARN, Severity.ERROR


def check(line: Diagnosis, verdict: Severity, *said: str) -> None:
    """The verdict, its figures, and a way out where somebody has to act."""
    assert line.severity is verdict, line
    assert bool(line.remedy) == (verdict is not OK), line
    assert [word for word in said if word not in f"{line.sentence} {line.remedy}"] == [], line


def test_one_line_that_is_wrong_makes_the_whole_wrong() -> None:
    """Outage: a deployment that goes on because the last line was fine."""
    lines = [DoctorCheck("a").ok("x"), DoctorCheck("b").wrong("x", "y"), DoctorCheck("c").warn("x", "y")]
    assert (worst(lines), worst(lines[:1]), worst(lines[::2]), worst([])) == (WRONG, OK, WARN, OK)
    document = as_json(lines)
    assert document["verdict"] == "wrong"
    assert document["checks"][1] == {"check": "b", "verdict": "wrong", "sentence": "x", "way_out": "y"}


# -- this host ---------------------------------------------------------------------------------------------------------


def test_a_python_or_java_that_is_too_old_is_wrong() -> None:
    """Outage: a first start on a new host ends in a syntax error, or in UnsupportedClassVersionError."""
    check(judge_python((3, 12, 1)), OK, "3.12.1")
    check(judge_python((3, 10, 9)), WRONG, "3.10.9", "3.11")
    check(judge_java("/j", 17), OK, "17", "/j")
    check(judge_java("/j", 11), WRONG, "11", "17")
    check(judge_java("/j", None), WARN, "/j")
    check(judge_java(None, None), WARN, "No Java")


def test_the_version_of_java_is_read_from_what_it_says() -> None:
    """Outage: Java 8 calls itself 1.8, and is not newer than 17."""
    assert java_major('openjdk version "17.0.12" 2024-07-16\nOpenJDK Runtime') == 17
    assert java_major('java version "1.8.0_402"') == 8
    assert java_major("No Java runtime present") is None


def test_a_client_that_is_missing_or_out_of_range_is_wrong() -> None:
    """Outage: a release of kafka-python that moved what the sink uses stops every stream at its first request."""
    required = ["kafka-python<3.1,>=3.0.12", "pyarrow>=18", "rich>=13", "lz4<5,>=4.4", 'ruff>=1; extra == "dev"']
    installed = {"kafka-python": "3.1.0", "pyarrow": "18.0.0", "rich": "14.1", "lz4": None}
    kafka, arrow, lz4 = judge_packages(required, installed.get)
    check(kafka, WRONG, "3.1.0", "<3.1,>=3.0.12")
    for version, verdict in (("3.0.9", WRONG), ("3.0.12.post1", OK), ("3.0.100", OK)):  # compared as numbers
        check(judge_packages(required[:1], lambda name, version=version: version)[0], verdict, version)
    check(arrow, OK, "18.0.0")
    check(lz4, WRONG, "not installed", "Install lz4 <5,>=4.4")


def test_the_packages_of_this_environment_are_found() -> None:
    """Outage: a check that calls every package missing is soon ignored."""
    found = [line for line in probes.examine_host() if line.subject in SHOWN]
    assert [line.severity for line in found] == [OK] * len(SHOWN)


def test_the_connector_is_judged_by_its_version_and_named_by_its_coordinate() -> None:
    """Outage: the first start on a new host ends in KAFKA_DATA_SOURCE_NOT_ENABLED, or in NoSuchMethodError."""
    add = "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    jar = "/opt/spark/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"
    old = "spark.jars.packages org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.1"
    check(judge_connector([old, jar], "4.2.0")[0], OK, "4.2.0", jar)
    check(judge_connector([], "4.2.0")[0], WARN, "not found on this host", add)
    check(judge_connector([old], "4.2.0")[0], WRONG, "another Spark version than 4.2.0", add)
    older = jar.replace("4.2.0", "4.1.1")
    check(judge_connector([older], "4.2.0")[0], WARN, "is 4.1.1, and Spark is 4.2.0", add)
    assert judge_connector([], None) == []


@pytest.mark.parametrize("spark", ["3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_the_connector_that_configure_chooses_is_one_that_the_doctor_takes(spark: str) -> None:
    """Mishap: behind the README's pip install, a warning whose way out was what it warned about."""
    check(judge_connector([f"--packages {coordinate(spark)}"], spark)[0], OK, "Spark's Kafka connector")


def test_the_sink_s_own_jar_is_there_and_is_the_one_that_was_published(tmp_path: Path) -> None:
    """Outage: a copy that broke off ends as ClassNotFoundException in the first task, or not at all."""
    check(judge_jar("/p/s.jar", ("a", "a"), "0.1.0"), OK, "/p/s.jar", "0.1.0")
    check(judge_jar("/p/s.jar", ("a", "b"), "0.1.0"), WRONG, "/p/s.jar", "Install this package again")
    check(judge_jar("/p/s.jar", None, "0.1.0"), WRONG, "/p/s.jar", "Install this package again")
    [line] = [line for line in probes.examine_host() if line.subject == "the sink's jar"]
    check(line, OK, exactly_once.jar(), exactly_once.__version__)
    (cut := tmp_path / "s.jar").write_bytes(b"x")
    assert probes._sums(cut) is None
    cut.with_name("s.jar.sha256").write_text("0 s.jar")
    assert probes._sums(cut) == (hashlib.sha256(b"x").hexdigest(), "0")


def test_the_connector_is_looked_for_where_a_session_may_get_it_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a doctor that misses the jar of the distribution, or takes a comment for a setting."""
    (home := tmp_path / "spark").mkdir()
    for name in ("jars", "conf"):
        (home / name).mkdir()
    (home / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0.jar").touch()
    (home / "jars" / "kafka-clients-3.9.2.jar").touch()
    setting = "spark.jars.packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0"
    (home / "conf" / "spark-defaults.conf").write_text(f"{setting}\n# {setting}\n")
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("EXACTLY_ONCE_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert found_on_this_host(None) == [setting, str(home / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0.jar")]


def test_the_checkpoint_is_judged_with_its_place() -> None:
    """Loss: a stream whose checkpoint was in memory starts anew after a reboot; a full disk tears the files."""
    gib = 1024**3
    found = Checkpoint("/c", "q", 5, 4)

    def judged(checkpoint: Checkpoint, place: CheckpointPlace) -> list[Diagnosis]:
        return judge_checkpoint(SinkFacts(Inspection("s"), checkpoint=checkpoint), place)

    content, place = judged(found, CheckpointPlace("local", "ext4", True, 20 * gib))
    check(content, OK, "query q", "batch 4 committed", "batch 5 in flight")
    check(place, OK, "local file system (ext4)", "20.0 GiB")
    torn = replace(found, torn={"commits/5": "it is empty"})
    check(judged(torn, CheckpointPlace("s3"))[0], WRONG, "commits/5", "checkpoint repair /c --sink s")
    check(judged(Checkpoint("/c"), CheckpointPlace("s3"))[0], WARN, "no checkpoint at /c")
    check(judged(found, CheckpointPlace("s3"))[1], OK, "s3", "only an attempt to write")
    check(judged(found, CheckpointPlace("local", "ext4", False, 20 * gib))[1], WRONG, "may not write")
    check(judged(found, CheckpointPlace("local", "tmpfs", True, 20 * gib))[1], WARN, "tmpfs")
    check(judged(found, CheckpointPlace("local", "ext4", True, gib // 2))[1], WARN, "0.5 GiB")


def test_a_checkpoint_is_looked_at_where_it_will_be_made(tmp_path: Path) -> None:
    """Outage: a first start fails for a folder above that is not writable."""
    content, place = probes.examine_checkpoint(str(tmp_path / "a" / "b"), None)
    check(content, WARN, "There is no checkpoint")
    assert "local file system" in place.sentence and place.severity is not WRONG
    (tmp_path / "file").write_text("")
    [line] = probes.examine_checkpoint(str(tmp_path / "file"), None)[:1]
    assert line.severity is not OK


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_brokers_without_the_requests_of_the_protocol_are_wrong() -> None:
    """Outage: EO-BROKER-OLD at the first start, after the migration."""
    check(
        judge_level(Level((4, 3), {"transaction.version": 2, "metadata.version": 30}, 5, True)), OK, "4.3", "is 2", "30"
    )
    check(judge_level(Level((3, 9), {}, 4, True)), WARN, "3.9", "transaction.version=2")
    check(judge_level(Level((3, 9), {}, 4, True), [4]), WARN, "transaction.version=2")
    check(judge_level(Level((4, 3), {}, 5, True), [4, 5]), WRONG, "EO-BROKER-REFUSED", "=2", "restart the brokers")
    check(judge_level(Level((4, 3), {"transaction.version": 1}, 5, True), [5]), WARN, "KIP-890")
    check(judge_level(Level((2, 7), {}, 2, True)), WRONG, "EO-BROKER-OLD")
    check(judge_level(Level((2, 8), {}, 3, False)), WRONG, "EO-BROKER-OLD")


def test_each_broker_that_does_not_answer_this_host_is_named() -> None:
    """Outage: one broker of three is behind a firewall; every third part waits until its delivery timeout."""
    first, second = judge_brokers({"broker 1 at a:1": 2.4, "broker 2 at b:1": "timed out"}, {"a:1": 1.0})
    check(first, OK, "broker 1 at a:1", "2 ms")
    check(second, WRONG, "broker 2 at b:1", "timed out", "advertised.listeners")
    [line] = judge_brokers({}, {"a:1": 1.0, "old:1": "unknown host"})
    check(line, WARN, "old:1", "1 of 2")


def test_a_cluster_of_which_no_broker_answers_has_a_line_for_each_address() -> None:
    """Outage: every error sends a person to doctor, and doctor sends them to doctor."""
    e = BrokerUnreachable("no broker answers", "Run exactly-once doctor")
    first, second, last = judge_unreached(e, {"a:1": "unknown host", "b:1": "refused"})
    check(first, WRONG, "a:1", "unknown host", "0 of 2")
    check(second, WRONG, "b:1", "refused", "0 of 2")
    check(last, WRONG, "EO-UNREACHABLE", "bootstrap.servers")
    [line] = judge_unreached(e, {"a:1": 1.0})
    check(line, WRONG, "EO-UNREACHABLE", "kafka.security.protocol")
    assert "doctor" not in last.remedy + line.remedy


@pytest.mark.parametrize(
    ("ahead_ms", "within_ms", "verdict", "said"),
    [
        (40, 100, OK, "40 ms behind"),
        (-1_900, 10, OK, "1.9 s ahead of"),
        (-3_000, 1_500, OK, "3.0 s"),
        (3_000, 500, WARN, "3.0 s behind"),
        (-7_200_000, 10, WRONG, "7,200.0 s ahead of"),
        (7_200_000, 10, WARN, "7,200.0 s behind"),
    ],
)
def test_a_clock_is_off_only_by_what_the_round_trip_does_not_explain(
    ahead_ms: float, within_ms: float, verdict: Severity, said: str
) -> None:
    """Outage: brokers refuse every record of a host that lives two hours ahead; and no alarm for a slow network."""
    check(judge_clock(Clock(ahead_ms, within_ms)), verdict, said)
    check(judge_clock(None, "no right"), WARN, "no right")


@pytest.mark.parametrize(
    ("longest", "in_use", "asked", "verdict", "said"),
    [
        (900_000, None, None, OK, "900,000"),
        (900_000, 600_000, None, OK, "600,000"),
        (300_000, None, None, WARN, "300"),
        (300_000, 900_000, None, WARN, "EO-LOST"),  # the sink's default, which a start lowers by itself
        (300_000, 600_000, None, WRONG, "EO-TIMEOUT"),
        (950_000, 1_000_000, None, WRONG, "on the brokers to 1000000"),
        (900_000, None, 3_600_000, WRONG, "on the brokers to 3600000, or lower the option to 900000"),
        (300_000, 60_000, 900_000, WRONG, "EO-TIMEOUT"),  # asked for by name: a start does not lower it
        (900_000, 3_600_000, 600_000, OK, "would have 600,000"),
        (20_000, None, None, WRONG, "30,000"),
        (None, None, None, WARN, "DESCRIBE_CONFIGS"),
    ],
)
def test_the_brokers_longest_timeout_is_compared_with_the_sink_s(
    longest: int | None, in_use: int | None, asked: int | None, verdict: Severity, said: str
) -> None:
    """Loss: decided parts are rolled back while the driver is down for longer than their timeout."""
    check(judge_timeout(longest, in_use, asked), verdict, said)


@pytest.mark.parametrize(
    ("replicas", "in_sync", "least", "brokers", "verdict", "said"),
    [
        (3, 3, 2, 3, OK, "3 replicas, 3 in sync"),
        (3, 2, 2, 2, OK, "2 in sync"),
        (3, 1, 2, 1, WRONG, "no record can be written"),
        (2, 2, 3, 3, WRONG, "no record can be written"),
        (3, None, 2, 2, WRONG, "cannot be created"),
        (1, 1, 1, 1, WARN, "the loss of one disk"),
        (3, 3, 1, 3, WARN, "min.insync.replicas=2"),
        (2, 2, 2, 3, WARN, "nothing can be written while one"),
        (3, 3, None, 3, OK, "not readable"),
    ],
)
def test_replication_is_judged_by_what_the_next_failure_costs(
    replicas: int, in_sync: int | None, least: int | None, brokers: int, verdict: Severity, said: str
) -> None:
    """Loss: committed records, or the state of decided transactions, on one disk; outage: writes that are refused."""
    check(judge_replication("t", replicas, in_sync, least, brokers), verdict, said)


def test_partitions_without_a_leader_are_wrong() -> None:
    """Outage: a part that waits for a leader until its delivery timeout."""
    check(judge_replication("t", 3, 3, 2, 3, leaderless=2), WRONG, "2 partitions without a leader")


def test_a_topic_that_may_lose_what_is_committed_is_one_line() -> None:
    """Loss: a broker that was away becomes leader, and records that every reader has seen are gone."""
    [line] = judge_election("t", {"unclean.leader.election.enable": "true"})
    check(line, WARN, "unclean.leader.election.enable=true on t", "EO-WARN-UNCLEAN", "=false on t")
    assert judge_election("t", {"unclean.leader.election.enable": "false"}) == judge_election("t", {}) == []


LOG = Topic("eo.s.commit-log", rights={"READ", "WRITE"}, config=TOPIC_CONFIG)


def test_a_commit_log_that_forgets_by_age_is_wrong() -> None:
    """Loss and duplicates: the decision of the last batch is deleted before its driver comes back."""
    [line] = judge_log_settings(LOG)
    check(line, OK, "cleanup.policy=compact")
    deleting = replace(LOG, config={**TOPIC_CONFIG, "cleanup.policy": "compact,delete", "retention.ms": "604800000"})
    [line] = judge_log_settings(deleting)
    check(line, WRONG, "cleanup.policy=compact,delete", "retention.ms=604800000", "Set cleanup.policy=compact on")
    [line] = judge_log_settings(replace(LOG, config={**TOPIC_CONFIG, "message.timestamp.type": "CreateTime"}))
    check(line, WRONG, "message.timestamp.type=CreateTime")
    [line] = judge_log_settings(replace(LOG, partitions=2))
    check(line, WARN, "2 partitions")
    [line] = judge_log_settings(replace(LOG, config={}))
    check(line, WARN, "DESCRIBE_CONFIGS")


def test_sizes_that_refuse_a_record_or_a_decision_are_named_with_their_figures() -> None:
    """Outage: the first batch with many parts stops the stream with EO-LOG-SIZE, the first large one with EO-RECORD."""
    check(judge_log_size(LOG)[0], OK, "8,388,608", "209,715")
    small = {**TOPIC_CONFIG, "max.message.bytes": "40000"}
    check(judge_log_size(replace(LOG, config=small))[0], WARN, "40,000", "1,000 parts", "EO-LOG-SIZE")
    check(judge_topic_size("t", 1_048_588)[0], OK, "1,048,588")
    check(judge_topic_size("t", 500_000)[0], WARN, "500,000", "kafka.max.request.size=500000")
    assert judge_topic_size("t", None) == judge_log_size(replace(LOG, config={})) == []


def test_each_right_that_is_missing_is_named_with_what_it_costs() -> None:
    """Outage: EO-DENIED in the first task, when the rights were given for the driver's look alone."""
    topic = Topic("t", rights={"READ", "WRITE", "DESCRIBE"})
    check(judge_output_rights(topic), OK, "t")
    check(judge_output_rights(replace(topic, rights={"READ"})), WRONG, "lacks WRITE", "Grant WRITE on t")
    check(judge_output_rights(replace(topic, rights={"WRITE"})), WARN, "lacks READ", "EO-EXPIRED")
    check(judge_output_rights(replace(topic, rights=None)), WARN, "do not report")
    check(judge_output_rights(Topic("t", exists=False)), WRONG, "does not exist")
    check(judge_output_rights(Topic("t", exists=False, hidden=True)), WRONG, "may not describe")
    check(judge_log_rights(LOG, None), OK, LOG.name)
    check(judge_log_rights(replace(LOG, rights={"READ"}), None), WRONG, "lacks WRITE")
    check(judge_log_rights(replace(LOG, rights=None), None), WARN, "do not report")
    check(judge_log_rights(replace(LOG, exists=False), True), OK, "first start creates it")
    check(judge_log_rights(replace(LOG, exists=False), None), WARN, "CREATE")
    check(judge_log_rights(replace(LOG, exists=False, hidden=True), True), WRONG, "may not describe")
    check(judge_ids_rights("s", True), OK, "eo:s:", "only a transaction can show")
    check(judge_ids_rights("s", False), WRONG, "Grant WRITE on the transactional ids with the prefix eo:s:")
    check(judge_cluster_rights({"DESCRIBE_CONFIGS"}), OK)
    check(judge_cluster_rights(set()), WARN, "DESCRIBE_CONFIGS")
    check(judge_cluster_rights(None), WARN, "do not report")


ONE = Description("eo:s:1:0:0.0", "Ongoing", 1, 0, 60_000, 10_000, (("t", 0),), 1)


def test_what_is_open_is_counted_and_each_sink_has_the_diagnoses_of_every_screen() -> None:
    """Outage: readers that wait for a transaction which no one ends."""
    found = Inspection("s", None, (judge_transaction(ONE, LogState(), 50_000),), checked_ms=50_000)
    check(judge_transactions("Sink s", 16, [], [], 0)[0], OK, "16 transactional ids, 0 transactions open")
    counted, stale = judge_transactions("Sink s", 16, [ONE], [found], 1)
    check(counted, OK, "1 transaction open", "eo:s:1:0:0.0")
    assert stale in diagnose(SinkFacts(found)) and stale.code == "HEALTH-STALE-TRANSACTIONS"


def test_sinks_that_were_not_looked_at_are_counted_with_the_command_that_looks() -> None:
    """Outage: of twelve sinks with an open transaction the doctor asked about eight, and its line spoke for all."""
    found = [Inspection(f"s{n}") for n in range(8)]
    [line] = judge_transactions("All sinks", 16, [ONE], found, 12)
    check(line, WARN, "Of 12 sinks with open transactions, only the 8", "exactly-once transactions list")


def test_every_line_has_a_code_that_the_table_explains() -> None:
    """Guards against a code that no page has."""
    lines = [DoctorCheck(check).ok() for checks, _ in DOCTOR_CODES.values() for check in checks]
    lines += [DoctorCheck(check).ok() for check in ("topic t", "__transaction_state", "pyarrow")]
    assert {line.code for line in lines} == set(DOCTOR_CODES) - {"DOCTOR-NO-ANSWER"}

"""Gathers what the doctor judges: of this host, a checkpoint, a cluster. Asks only what changes nothing.

A probe that fails is one line of the table, and the others go on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil

from exactly_once import hdfs
from exactly_once import location as locations
from exactly_once.checkpoint import Checkpoint, file_system, read_checkpoint
from exactly_once.commitlog import log_topic
from exactly_once.commitlog.commit_log import read_log
from exactly_once.connector import found_on_this_host
from exactly_once.errors import (
    CheckpointAway,
    CheckpointUnusable,
    CommitLogBlocked,
    CommitLogDamaged,
    ExactlyOnceError,
    NotAuthorized,
)
from exactly_once.inspection.findings import Inspection, sink_of
from exactly_once.inspection.sink import UNDER_WAY, inspect_sink
from exactly_once.kafka import cluster_info, servers
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.cluster_info import Topic
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.new_topic import what_is_left_out
from exactly_once.kafka.servers import Address
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_id, commit_log_topic, namespace
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts
from exactly_once.tools.diagnosis.model import worst
from exactly_once.tools.doctor import cluster, rights
from exactly_once.tools.doctor.cluster import Clock
from exactly_once.tools.doctor.host import (
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
from exactly_once.txn.coordinators import describe, list_transactions

#: The jar's path, as :func:`exactly_once.jar` names it; this package does not import Spark's adapter.
_JAR = Path(__file__).parents[2] / "spark" / "exactly-once-spark.jar"

#: The name of this package in an index.
_DISTRIBUTION = "pyspark-kafka-exactly-once"

#: The brokers' own topics that the sink needs, for transactional ids and for the consumer group of lag tools. Beside
#: each, the settings that it is created with: its replicas, and how many of them must be in sync.
_STATE = ("__transaction_state", "transaction.state.log.replication.factor", "transaction.state.log.min.isr")
_GROUPS = ("__consumer_offsets", "offsets.topic.replication.factor", "min.insync.replicas")

#: Sinks whose owner the doctor looks up, oldest open transaction first: each takes up to a second, and a transaction
#: that nobody ends is older than one that a stream is about to commit.
_INSPECTED = 8

#: Time for an answer. A broker that is up needs milliseconds; a first request also connects and logs in.
_ANSWER_MS = 3_000

#: Requests for the broker's clock; the fastest round trip counts.
_CLOCK_TRIES = 5

#: The sink id in verdicts on every sink.
_ANY_SINK = "SINK"


def examine(
    connect: Callable[[], Connection],
    sink_id: str | None,
    topics: Sequence[str],
    checkpoint: str | None,
    budget_s: float,
    timeout_ms: int | None = None,
) -> list[Diagnosis]:
    """Examine this host, the checkpoint if there is one, and the cluster that ``connect`` names: the other steps need
    none.

    Parameters
    ----------
    budget_s : float
        For each probe of the cluster.
    timeout_ms : int, optional
        The kafka.transaction.timeout.ms that the stream is to have.
    """
    lines, judged = examine_host(), list[Diagnosis]()
    try:
        with Admin(connect(), budget_s) as admin:
            if checkpoint is not None:
                judged = examine_checkpoint(checkpoint, sink_id, admin)
            return [*lines, *judged, *_Cluster(admin.renew(budget_s), sink_id, topics, budget_s, timeout_ms).lines()]
    except ExactlyOnceError as e:
        if checkpoint is not None and not judged:
            judged = examine_checkpoint(checkpoint, sink_id)
        return [*lines, *judged, _failed("cluster", e)]


def examine_host() -> list[Diagnosis]:
    """Look at the versions on this host, those of jars too."""
    executable = _java()
    python = sys.version_info
    return [
        judge_python((python.major, python.minor, python.micro)),
        judge_java(executable, java_major(_says(executable)) if executable else None),
        *judge_packages(_requirements(), _version),
        *judge_connector(found_on_this_host(_pyspark_folder()), _version("pyspark")),
        judge_jar(str(_JAR), _sums(_JAR), _version(_DISTRIBUTION) or "of a checkout"),
    ]


def examine_checkpoint(location: str, sink_id: str | None, admin: Admin | None = None) -> list[Diagnosis]:
    """Judge a checkpoint: beside the sink's commit log where ``sink_id`` and ``admin`` are given, else alone. Raise
    BrokerUnreachable where the brokers do not answer.
    """
    read = partial(read_log, admin.connection, sink_id, admin=admin) if sink_id and admin is not None else None
    try:
        return judge_checkpoint(checkpoint_facts(location, sink_id or "", read)[1], _place(location))
    except (CheckpointUnusable, CheckpointAway) as e:
        return [_failed("checkpoint", e)]
    except (NotAuthorized, CommitLogDamaged, CommitLogBlocked):  # the lines of the cluster say so
        return examine_checkpoint(location, sink_id)


def checkpoint_facts(location: str, sink_id: str, read: Callable[[], LogState] | None) -> tuple[Checkpoint, SinkFacts]:
    """Return a checkpoint, and the facts of it beside the commit log that ``read`` reads, before it and behind it; with
    None, of the checkpoint alone. Raise what ``read`` raises, CheckpointUnusable or CheckpointAway.
    """
    log = read() if read is not None else LogState()
    checkpoint = read_checkpoint(location)
    after = read() if read is not None and checkpoint.last_commit is not None else None
    return checkpoint, SinkFacts(Inspection(sink_id, log=log), checkpoint=checkpoint, after=after)


def _failed(check: str, e: ExactlyOnceError) -> Diagnosis:
    return Diagnosis("DOCTOR-NO-ANSWER", Severity.ERROR, check, f"{e.code}: {e.what}", e.way_out)


# -- this host ---------------------------------------------------------------------------------------------------------


def _requirements() -> list[str]:
    try:
        return metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout on the path
        return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pyspark_folder() -> Path | None:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _sums(jar: Path) -> tuple[str, str] | None:
    """Return the sha256 of a file, and the one in the file beside it; None when one of them cannot be read."""
    try:
        return hashlib.sha256(jar.read_bytes()).hexdigest(), jar.with_name(f"{jar.name}.sha256").read_text().split()[0]
    except (OSError, UnicodeDecodeError, IndexError):
        return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def _says(executable: str) -> str:
    try:
        return subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _place(location: str) -> CheckpointPlace:
    files, path = file_system(location)
    if files.type_name != "local":
        return CheckpointPlace("hdfs" if locations.is_on(location, *hdfs.SCHEMES) else files.type_name)
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    mounts = [p for p in psutil.disk_partitions(all=True) if there.is_relative_to(p.mountpoint)]
    mount = max(mounts, key=lambda p: len(p.mountpoint), default=None)
    return CheckpointPlace(
        "local", mount.fstype if mount else "", os.access(there, os.W_OK | os.X_OK), psutil.disk_usage(str(there)).free
    )


# -- the cluster -------------------------------------------------------------------------------------------------------


@dataclass
class _Cluster:
    """The probes of one cluster, over one connection."""

    admin: Admin
    sink_id: str | None
    topics: Sequence[str]
    budget_s: float
    timeout_ms: int | None
    _alive: int = 1
    _coordinated: bool = True
    _config: Mapping[str, str] = field(default_factory=dict)
    _rights: Collection[str] | None = None

    def lines(self) -> list[Diagnosis]:
        probes: list[tuple[str, Callable[[], list[Diagnosis]]]] = [
            ("broker", self._brokers),
            ("broker's level", self._level),
            ("clock", self._clock),
            ("transaction timeout", self._timeout),
            ("transaction state", self._state),
            ("commit log", self._log),
            ("output topics", self._topics),
            ("transactions", self._transactions),
        ]
        lines: list[Diagnosis] = []
        for check, probe in probes:
            self.admin.renew(self.budget_s)
            try:
                lines += probe()
            except ExactlyOnceError as e:
                lines.append(_failed(check, e))
        return lines

    def _brokers(self) -> list[Diagnosis]:
        members, self._rights = cluster_info.members(self.admin)
        self._alive = len(members)
        self._config = self.admin.broker_config()
        answers = {
            f"broker {m.node} at {m.host}:{m.port}": cluster_info.answer_ms(self.admin, m.node, _ANSWER_MS)
            for m in members
        }
        reachable = {str(a): _connects_ms(a) for a in servers.read(self.admin.connection.bootstrap_servers)}
        return [*cluster.judge_brokers(answers, reachable), rights.judge_cluster_rights(self._rights)]

    def _level(self) -> list[Diagnosis]:
        found, used = cluster_info.level(self.admin), list[int]()
        if self.sink_id is not None and not found.features.get("transaction.version"):
            log = read_log(self.admin.connection, self.sink_id, self.budget_s)
            used = [d.end_txn_version for d in log.decisions]
        return [cluster.judge_level(found, used)]

    def _clock(self) -> list[Diagnosis]:
        clocks: list[Clock] = []
        for _ in range(_CLOCK_TRIES):
            began = time.time() * 1000
            try:
                there = cluster_info.controllers_clock(self.admin)
            except ExactlyOnceError as e:
                return [cluster.judge_clock(None, e.what)]
            ended = time.time() * 1000
            if there is None:
                return [cluster.judge_clock(None, "they have no KRaft quorum with timestamps")]
            clocks.append(Clock(there - (began + ended) / 2, (ended - began) / 2))
        return [cluster.judge_clock(min(clocks, key=lambda clock: clock.within_ms))]

    def _timeout(self) -> list[Diagnosis]:
        longest = self._number("transaction.max.timeout.ms")
        in_use: list[int] = []
        if self.sink_id is not None:
            ids = [t.transactional_id for t in list_transactions(self.admin, namespace(self.sink_id), ())]
            log_id = commit_log_id(self.sink_id)
            in_use = [d.timeout_ms for d in describe(self.admin, ids).values() if d.transactional_id != log_id]
        return [cluster.judge_timeout(longest, max(in_use, default=0) or None, self.timeout_ms)]

    def _state(self) -> list[Diagnosis]:
        state, groups = self._brokers_own(*_STATE), self._brokers_own(*_GROUPS)
        self._coordinated = worst(state) is not Severity.ERROR
        return [*state, *(line for line in groups if line.severity is Severity.ERROR)]  # which only lag tools need

    def _brokers_own(self, name: str, replication: str, in_sync: str) -> list[Diagnosis]:
        """Judge a topic that the brokers make when they first need it."""
        [topic] = cluster_info.topics(self.admin, [name])
        if topic.exists and not topic.hidden:
            return self._replication(name, topic, self._number(in_sync))
        return self._to_create(name, replication, in_sync)

    def _to_create(self, name: str, replication: str, in_sync: str) -> list[Diagnosis]:
        """Judge a topic that is not there by the two settings that it would be created with."""
        replicas, least = self._number(replication), self._number(in_sync)
        return [] if replicas is None else [cluster.judge_replication(name, replicas, None, least, self._alive)]

    def _log(self) -> list[Diagnosis]:
        if self.sink_id is None:
            return self._creation(commit_log_topic(_ANY_SINK))
        [log] = cluster_info.topics(self.admin, [commit_log_topic(self.sink_id)])
        may_create = None if self._rights is None else "CREATE" in self._rights
        lines = [rights.judge_log_rights(log, may_create)]
        if log.exists and not log.hidden:
            lines += [*cluster.judge_log_settings(log), *cluster.judge_log_size(log)]
            lines += self._replication("commit log", log)
        elif not log.hidden:
            lines += self._creation(log.name)
        if self._coordinated:  # else there is no coordinator to ask, and the line of its topic says why
            lines.append(self._ids_rights(self.sink_id))
        return lines

    def _creation(self, log: str) -> list[Diagnosis]:
        """Ask the brokers whether they would create the commit log as a sink wants it."""
        try:
            refused = log_topic.left_out(self.admin, log)
        except NotAuthorized:  # a sink's line of rights says it
            return []
        except ExactlyOnceError as e:
            return [_failed("commit log", e)]
        way_out = "No action is needed; a start reads more of the log, and a batch may have fewer parts (EO-WARN-LOG)"
        return [DoctorCheck("message size").warn(what_is_left_out(log, refused), way_out)] if refused else []

    def _ids_rights(self, sink_id: str) -> Diagnosis:
        try:
            describe(self.admin, [f"{namespace(sink_id)}check"])  # never initialised
        except NotAuthorized:
            return rights.judge_ids_rights(sink_id, False)
        return rights.judge_ids_rights(sink_id, True)

    def _topics(self) -> list[Diagnosis]:
        names = list(dict.fromkeys([*self.topics, *self._written()]))
        if not names:
            return self._to_create("new topics", "default.replication.factor", "min.insync.replicas")
        return [line for topic in cluster_info.topics(self.admin, names) for line in self._output(topic)]

    def _written(self) -> list[str]:
        """Return the topics of the sink's decisions."""
        if self.sink_id is None:
            return []
        try:
            log = read_log(self.admin.connection, self.sink_id, self.budget_s)
        except NotAuthorized:  # a line on the commit log says it
            return []
        return sorted({topic for d in log.decisions for topic in d.topics})

    def _output(self, topic: Topic) -> list[Diagnosis]:
        lines = [rights.judge_output_rights(topic)]
        if topic.exists and not topic.hidden:
            limit = topic.config.get("max.message.bytes")
            lines += self._replication(f"topic {topic.name}", topic)
            lines += cluster.judge_topic_size(topic.name, int(limit) if limit else None)
        return lines

    def _transactions(self) -> list[Diagnosis]:
        prefix, whose = "eo:", "All sinks"
        if self.sink_id is not None:
            prefix, whose = namespace(self.sink_id), f"Sink {self.sink_id}"
        ids = list_transactions(self.admin, prefix, ())
        under_way = [t.transactional_id for t in ids if t.state in UNDER_WAY]
        described = [d for d in describe(self.admin, under_way).values() if d.state in UNDER_WAY]
        by_age = sorted(described, key=lambda d: d.started_ms)
        named = [] if self.sink_id is None else [self.sink_id]
        at_work = list(dict.fromkeys([*named, *(s for d in by_age if (s := sink_of(d.transactional_id)) is not None)]))
        inspected = [inspect_sink(self.admin.connection, name, self.budget_s) for name in at_work[:_INSPECTED]]
        return cluster.judge_transactions(whose, len(ids), described, inspected, len(at_work))

    def _replication(self, name: str, topic: Topic, least: int | None = None) -> list[Diagnosis]:
        """Judge a topic that exists, and who may lead it; ``least`` stands in for a min.insync.replicas that is not
        readable.
        """
        set_to = topic.config.get("min.insync.replicas")
        least = int(set_to) if set_to else least
        found = cluster.judge_replication(name, topic.replicas, topic.in_sync, least, self._alive, topic.leaderless)
        return [found, *cluster.judge_election(topic.name, topic.config)]

    def _number(self, setting: str) -> int | None:
        value = self._config.get(setting)
        return int(value) if value else None


def _connects_ms(address: Address) -> float | str:
    """Return how long a connection to one address of ``bootstrap.servers`` takes, or why there is none."""
    began = time.monotonic()
    try:
        with socket.create_connection((address.host, address.port), _ANSWER_MS / 1000):
            return (time.monotonic() - began) * 1000
    except OSError as e:
        return str(e)

"""Gathers what the doctor judges of a cluster. A probe that fails is one line of the table, and the others go on."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from exactly_once.commitlog import log_topic
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import ExactlyOnceError, NotAuthorized
from exactly_once.inspection.findings import sink_of
from exactly_once.inspection.sink import UNDER_WAY, inspect_sink
from exactly_once.kafka import cluster_info, servers
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.cluster_info import Topic
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.new_topic import what_is_left_out
from exactly_once.kafka.servers import Address
from exactly_once.protocol.names import commit_log_id, commit_log_topic, namespace
from exactly_once.protocol.records import Decision
from exactly_once.tools.diagnosis import Diagnosis, Severity
from exactly_once.tools.diagnosis.model import worst
from exactly_once.tools.doctor import cluster, rights
from exactly_once.tools.doctor.cluster import Clock
from exactly_once.tools.doctor.host import DoctorCheck, not_answered
from exactly_once.txn.coordinators import describe, list_transactions

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


@dataclass
class ClusterProbes:
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
    _decided: tuple[Decision, ...] | None = None

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
                lines.append(not_answered(check, e))
        return lines

    def _brokers(self) -> list[Diagnosis]:
        members, self._rights = cluster_info.members(self.admin)
        self._alive = len(members)
        self._config = self.admin.broker_config()
        answers = {
            f"broker {m.node} at {m.host}:{m.port}": cluster_info.answer_ms(self.admin, m.node, _ANSWER_MS)
            for m in members
        }
        bootstrap = reachable(self.admin.connection)
        return [*cluster.judge_brokers(answers, bootstrap), rights.judge_cluster_rights(self._rights)]

    def _level(self) -> list[Diagnosis]:
        found, used = cluster_info.level(self.admin), list[int]()
        if self.sink_id is not None and not found.features.get("transaction.version"):
            used = [d.end_txn_version for d in self._decisions(self.sink_id)]
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
            return [not_answered("commit log", e)]
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
            return sorted({topic for d in self._decisions(self.sink_id) for topic in d.topics})
        except NotAuthorized:  # a line on the commit log says it
            return []

    def _decisions(self, sink_id: str) -> tuple[Decision, ...]:
        """Return the decisions in the commit log, which is read once."""
        if self._decided is None:
            self._decided = read_log(self.admin.connection, sink_id, self.budget_s, admin=self.admin).decisions
        return self._decided

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


def reachable(connection: Connection) -> dict[str, float | str]:
    """Return how long a connection to each address of ``bootstrap.servers`` takes, in ms, or why there is none."""
    return {str(address): _connects_ms(address) for address in servers.read(connection.bootstrap_servers)}


def _connects_ms(address: Address) -> float | str:
    began = time.monotonic()
    try:
        with socket.create_connection((address.host, address.port), _ANSWER_MS / 1000):
            return (time.monotonic() - began) * 1000
    except OSError as e:
        return str(e)

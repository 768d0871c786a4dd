"""The doctor's verdicts on a cluster: pure, from what the brokers answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from exactly_once.commitlog.commit_log import LOG_TRANSACTION_TIMEOUT_MS
from exactly_once.commitlog.log_topic import BYTES_OF_A_PART, NEEDED, SMALL_BATCH, TOPIC_CONFIG
from exactly_once.errors import BrokerUnreachable
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.words import plural
from exactly_once.kafka.cluster_info import UNCLEAN_ELECTION, Level, Topic, may_elect_uncleanly
from exactly_once.kafka.errors import LOWERED, RAISE
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SHORTEST_TRANSACTION_TIMEOUT_MS
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, diagnose
from exactly_once.tools.doctor.host import DoctorCheck, not_answered
from exactly_once.txn.coordinators import FENCING_VERSION, Description

#: Kafka's default of max.request.size: what a sink sends in one batch at most.
REQUEST_BYTES = 1_048_576

#: Clock difference that misleads people; the sink itself corrects for it at each write to the commit log.
CLOCK_WARN_MS = 2_000

#: The brokers' default of message.timestamp.after.max.ms: they refuse a record whose time stamp is further ahead.
CLOCK_WRONG_MS = 3_600_000

#: Replicas of which one may be lost without stopping writers, with min.insync.replicas=2.
SAFE_REPLICAS = 3


@dataclass(frozen=True)
class Clock:
    """The brokers' clock minus this host's, in ms, and how far off that may be: half of the fastest round trip."""

    ahead_ms: float
    within_ms: float


# -- brokers -----------------------------------------------------------------------------------------------------------


def judge_level(found: Level, used: Iterable[int] = ()) -> Diagnosis:
    """Judge what the brokers can do; ``used`` has the EndTxn versions of the sink's decisions."""
    release = ".".join(map(str, found.version))
    level = found.features.get("transaction.version", 0)
    state = f"The brokers support the requests of Kafka {release}; transaction.version is {level}"
    if metadata := found.features.get("metadata.version"):
        state += f", metadata.version {metadata}"
    check = DoctorCheck("broker's level", state)
    if found.end_txn < 3 or not found.describes:
        return check.wrong(": they cannot describe transactions (EO-BROKER-OLD)", "Use Kafka 3.0 or newer")
    if level == 0 and max(used, default=0) >= FENCING_VERSION:
        return check.wrong(f". The next start of the sink is refused (EO-BROKER-REFUSED): {LOWERED}", RAISE)
    if level < 2:
        return check.warn(
            ": a transaction's late records are not fenced by its epoch (KIP-890)",
            "When all brokers are Kafka 4.0 or newer, run kafka-features.sh upgrade --feature transaction.version=2",
        )
    return check.ok()


def judge_brokers(brokers: Mapping[str, float | str], bootstrap: Mapping[str, float | str]) -> list[Diagnosis]:
    """Judge whether every broker answers this host, and every address of ``bootstrap.servers``: both by name, with how
    many ms the answer took, or why there is none.
    """
    silent = {address: why for address, why in bootstrap.items() if isinstance(why, str)}
    others = f"{len(bootstrap) - len(silent)} of {len(bootstrap)} addresses do"
    return [_reached(name, took_ms) for name, took_ms in brokers.items()] + [
        DoctorCheck("bootstrap.servers").warn(
            f"{address} does not answer ({why}); {others}",
            f"Correct the address {address}, or start its broker: the next client may try this address first",
        )
        for address, why in silent.items()
    ]


def judge_unreached(e: BrokerUnreachable, bootstrap: Mapping[str, float | str]) -> list[Diagnosis]:
    """Judge a cluster of which no broker answers, and each address of bootstrap.servers as :func:`judge_brokers`."""
    silent = judge_brokers({}, {address: why for address, why in bootstrap.items() if isinstance(why, str)})
    way_out = (
        "Do what the lines of bootstrap.servers say"
        if silent
        else "Each address takes a connection: see that its listener speaks kafka.security.protocol, and is Kafka's"
    )
    lines = [replace(line, severity=Severity.ERROR) for line in silent]
    return [*lines, replace(not_answered("cluster", e), remedy=way_out)]


def _reached(name: str, took_ms: float | str) -> Diagnosis:
    check = DoctorCheck("broker", name)
    if isinstance(took_ms, str):
        return check.wrong(
            f" does not answer this host ({took_ms})",
            "Start the broker, or correct its advertised.listeners, the network or DNS",
        )
    return check.ok(f" answers within {took_ms:.0f} ms")


def judge_clock(clock: Clock | None, why: str = "") -> Diagnosis:
    """Judge this host's clock against the brokers'; None when no answer tells theirs, for the reason ``why``."""
    if clock is None:
        return DoctorCheck("clock").warn(
            f"The brokers do not report their time ({why})",
            "No action is needed if all hosts follow one time service (chronyc tracking shows it); otherwise grant "
            "DESCRIBE on the cluster, so that doctor can compare the clocks",
        )
    off = abs(clock.ahead_ms)
    surely = off - clock.within_ms
    where = "behind" if clock.ahead_ms > 0 else "ahead of"
    state = f"This host's clock is {_seconds(off)} {where} the controller's, give or take {_seconds(clock.within_ms)}"
    check, way_out = DoctorCheck("clock", state), "Set the clock, and keep it right by a time service (NTP)"
    if surely > CLOCK_WRONG_MS and clock.ahead_ms < 0:
        return check.wrong(": the brokers refuse records with its timestamps", way_out)
    if surely > CLOCK_WARN_MS:
        misled = ", so commands and sensors show ages of transactions that are wrong by that much"
        return check.warn(misled, way_out)
    return check.ok()


def _seconds(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1_000:,.1f} s"


# -- settings ----------------------------------------------------------------------------------------------------------


def judge_timeout(longest_ms: int | None, in_use_ms: int | None, asked_ms: int | None = None) -> Diagnosis:
    """Judge the brokers' transaction.max.timeout.ms.

    Parameters
    ----------
    longest_ms : int or None
        None when the principal may not read it.
    in_use_ms : int or None
        The timeout of the sink's transactions so far; None when it has none.
    asked_ms : int or None
        The kafka.transaction.timeout.ms that the stream is to have; counts in place of ``in_use_ms``.
    """
    wanted = asked_ms or in_use_ms or DEFAULT_TRANSACTION_TIMEOUT_MS
    whose = "the sink's transactions have" if in_use_ms else "the sink's default is"
    if asked_ms is not None:
        whose = "the stream would have"
    if longest_ms is None:
        return DoctorCheck("transaction timeout").warn(
            f"This principal may not read transaction.max.timeout.ms; {whose} {wanted:,} ms",
            "Grant DESCRIBE_CONFIGS on the cluster: without it, a timeout that is too long fails in the first task",
        )
    state = f"The brokers' transaction.max.timeout.ms is {longest_ms:,}; {whose} {wanted:,} ms"
    check = DoctorCheck("transaction timeout", state)
    raise_it = f"Raise transaction.max.timeout.ms on the brokers to {max(wanted, DEFAULT_TRANSACTION_TIMEOUT_MS)}"
    if longest_ms < max(SHORTEST_TRANSACTION_TIMEOUT_MS, LOG_TRANSACTION_TIMEOUT_MS):
        return check.wrong(f"; the commit log needs {LOG_TRANSACTION_TIMEOUT_MS:,} ms (EO-TIMEOUT)", raise_it)
    if longest_ms >= wanted:
        return check.ok()
    if asked_ms is not None or wanted != DEFAULT_TRANSACTION_TIMEOUT_MS:  # a start lowers the default itself
        refused = ": a start with this kafka.transaction.timeout.ms is refused (EO-TIMEOUT)"
        return check.wrong(refused, f"{raise_it}, or lower the option to {longest_ms}")
    late = f"a driver that is down for longer than {longest_ms / 1000:,.0f} s after a decision"
    return check.warn(f": {late} finds parts lost (EO-LOST)", raise_it)


def judge_replication(
    name: str, replicas: int, in_sync: int | None, least: int | None, brokers: int, leaderless: int = 0
) -> Diagnosis:
    """Judge how many brokers may fail before records of a topic are lost, or cannot be written.

    Parameters
    ----------
    in_sync : int or None
        Replicas that are in sync now; None for a topic that does not exist yet.
    least : int or None
        min.insync.replicas; None when the principal may not read it.
    brokers : int
        How many brokers are alive.
    leaderless : int
        Partitions without a leader.
    """
    now = "" if in_sync is None else f", {in_sync} in sync"
    needs = "min.insync.replicas is not readable" if least is None else f"min.insync.replicas is {least}"
    state = f"{plural(replicas, 'replica')}{now}; {needs}; the cluster has {plural(brokers, 'broker')}"
    check = DoctorCheck(name, state)
    if leaderless:
        missing = f"; {plural(leaderless, 'partition')} without a leader"
        return check.wrong(missing, "Start the brokers that hold the replicas of these partitions")
    if in_sync is None and replicas > brokers:
        too_many = ": the topic cannot be created with that many replicas"
        return check.wrong(too_many, "Start the missing brokers, or lower the replication factor")
    if least is not None and least > replicas:
        return check.wrong(": no record can be written", "Lower min.insync.replicas, or add replicas")
    if least is not None and in_sync is not None and in_sync < least:
        return check.wrong(": no record can be written", "Start the brokers that hold the missing replicas")
    if replicas == 1:
        return check.warn(
            ": the loss of one disk loses records that are committed",
            f"On a cluster of three brokers or more, use {SAFE_REPLICAS} replicas and min.insync.replicas=2",
        )
    if least == 1:
        return check.warn(
            ": a record is acknowledged when one broker has it, and the loss of that broker loses the record",
            "Set min.insync.replicas=2",
        )
    if least == replicas:
        return check.warn(
            ": nothing can be written while one of these brokers is down",
            f"Use {max(SAFE_REPLICAS, replicas)} replicas and one less for min.insync.replicas",
        )
    return check.ok()


def judge_election(topic: str, config: Mapping[str, str]) -> list[Diagnosis]:
    """Judge whether brokers without a topic's newest records may lead it; nothing when they may not, or when the
    configuration is not readable.
    """
    if not may_elect_uncleanly(config):
        return []
    loses = "a broker without the newest records may become leader, and records that are committed are lost"
    return [
        DoctorCheck("leader election").warn(
            f"{UNCLEAN_ELECTION}=true on {topic}: {loses} (EO-WARN-UNCLEAN)",
            f"Set {UNCLEAN_ELECTION}=false on {topic}",
        )
    ]


def judge_log_settings(log: Topic) -> list[Diagnosis]:
    """Judge the settings of a commit log that exists."""
    check = DoctorCheck("commit log's settings")
    if not log.config:
        by_hand = f"Grant DESCRIBE_CONFIGS on the topic {log.name}, or check {_settings(NEEDED)} by hand"
        return [check.warn(f"This principal may not read the settings of {log.name}", by_hand)]
    lines = [
        check.wrong(
            f"{setting}={log.config[setting]}{_retention(log, setting)}: {otherwise} (EO-LOG)",
            f"Set {setting}={TOPIC_CONFIG[setting]} on {log.name}",
        )
        for setting, otherwise in NEEDED.items()
        if log.config.get(setting, TOPIC_CONFIG[setting]) != TOPIC_CONFIG[setting]
    ]
    if log.partitions > 1:
        lines += [
            check.warn(
                f"{log.name} has {log.partitions} partitions; the sink uses the first",
                "No action is needed while the others are empty; once one of them holds a record, the sink refuses "
                "to start (EO-LOG)",
            )
        ]
    return lines or [check.ok(f"{_settings(NEEDED)}; the brokers keep every key, whatever retention.ms says")]


def _retention(log: Topic, setting: str) -> str:
    kept = log.config.get("retention.ms")
    return f" with retention.ms={kept}" if setting == "cleanup.policy" and kept else ""


def _settings(names: Collection[str]) -> str:
    return ", ".join(f"{n}={TOPIC_CONFIG[n]}" for n in names)


def judge_log_size(log: Topic) -> list[Diagnosis]:
    """Judge how large a decision the commit log takes; nothing when its settings are not readable."""
    limits = [(int(log.config[s]), s) for s in ("max.message.bytes", "segment.bytes") if s in log.config]
    if not limits:
        return []
    size, setting = min(limits)
    parts = f"room for the decision of a batch of about {size // BYTES_OF_A_PART:,} parts"
    check = DoctorCheck("message size", f"{setting} of {log.name} is {size:,} bytes: {parts}")
    if size >= SMALL_BATCH:
        return [check.ok()]
    refused = "; a batch with more is refused (EO-LOG-SIZE)"
    return [check.warn(refused, f"Set {setting}={TOPIC_CONFIG[setting]} on {log.name}")]


def judge_topic_size(topic: str, limit: int | None) -> list[Diagnosis]:
    """Judge max.message.bytes of an output; nothing when it is not readable."""
    if limit is None:
        return []
    check = DoctorCheck("message size", f"max.message.bytes of {topic} is {limit:,}")
    if limit >= REQUEST_BYTES:
        return [check.ok(f"; a sink's default max.request.size is {REQUEST_BYTES:,}")]
    return [
        check.warn(
            f", below the sink's max.request.size of {REQUEST_BYTES:,}, so the brokers refuse records (with "
            "foreach_batch, whole record batches) between the two sizes (EO-RECORD)",
            f"Set max.message.bytes={REQUEST_BYTES} on {topic}, or kafka.max.request.size={limit} in the options",
        )
    ]


# -- transactions ------------------------------------------------------------------------------------------------------


def judge_transactions(
    whose: str, ids: int, under_way: Sequence[Description], inspections: Sequence[Inspection], sinks: int
) -> list[Diagnosis]:
    """Diagnose the inspected sinks, and count what is open by the coordinators; ``sinks`` have a transaction open."""
    state = f"{whose}: {plural(ids, 'transactional id')}, {plural(len(under_way), 'transaction')} open"
    if under_way:
        oldest = min(under_way, key=lambda d: d.started_ms)
        state += f", the oldest ({oldest.transactional_id}) of {oldest.timeout_ms / 1000:,.0f} s"
    check = DoctorCheck("transactions", state)
    line = check.ok()
    if len(inspections) < sinks:
        line = check.warn(
            f". Of {sinks:,} sinks with open transactions, only the {len(inspections):,} with the oldest were examined",
            "Run exactly-once transactions list, which examines all",
        )
    return [line, *(d for inspection in inspections for d in diagnose(SinkFacts(inspection)))]

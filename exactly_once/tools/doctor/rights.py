"""The doctor's verdicts on rights: pure, from what the brokers allow this principal."""

from __future__ import annotations

from collections.abc import Collection

from exactly_once.kafka.cluster_info import Topic
from exactly_once.protocol.names import namespace
from exactly_once.tools.diagnosis import Diagnosis
from exactly_once.tools.doctor.host import DoctorCheck

_CHECK = DoctorCheck("rights")


def judge_output_rights(topic: Topic) -> Diagnosis:
    """Judge an output: it is there, and this principal may write to it and read it back."""
    if topic.hidden:
        may_not = f"This principal may not describe topic {topic.name!r} (EO-TOPIC)"
        return _CHECK.wrong(may_not, f"Grant WRITE and READ on {topic.name}")
    if not topic.exists:
        return _CHECK.wrong(
            f"The output topic {topic.name!r} does not exist (EO-TOPIC)",
            f"Create the topic {topic.name} with the number of partitions that you want, or correct the name",
        )
    if topic.rights is None:
        return _untold(f"topic {topic.name}")
    if "WRITE" not in topic.rights:
        lacks = f"This principal lacks WRITE on topic {topic.name!r} (EO-DENIED)"
        return _CHECK.wrong(lacks, f"Grant WRITE on {topic.name}")
    if "READ" not in topic.rights:
        return _CHECK.warn(
            f"This principal lacks READ on topic {topic.name!r}: decided parts that were lost are not written again "
            "(EO-EXPIRED)",
            f"Grant READ on {topic.name}",
        )
    return _CHECK.ok(f"WRITE and READ on topic {topic.name}")


def judge_log_rights(log: Topic, may_create: bool | None) -> Diagnosis:
    """Judge the rights on a commit log, or on making it; None when the brokers do not tell."""
    both = f"Grant READ and WRITE on the topic {log.name}"
    if log.hidden:
        return _CHECK.wrong(f"This principal may not describe the commit log {log.name} (EO-DENIED)", both)
    if not log.exists:
        check = DoctorCheck("rights", f"The commit log {log.name} does not exist yet: the first start creates it")
        if may_create:
            return check.ok(", and this principal may create topics")
        return check.warn(", for which it needs CREATE on that topic", f"{both}, and CREATE, or create it beforehand")
    if log.rights is None:
        return _untold(f"topic {log.name}")
    if missing := [right for right in ("READ", "WRITE") if right not in log.rights]:
        return _CHECK.wrong(
            f"This principal lacks {' and '.join(missing)} on the commit log {log.name} (EO-DENIED)", both
        )
    return _CHECK.ok(f"READ and WRITE on the commit log {log.name}")


def judge_ids_rights(sink_id: str, may_describe: bool) -> Diagnosis:
    """Judge the right to the sink's transactional ids, of which brokers tell only DESCRIBE without a write."""
    ids = f"the transactional ids with the prefix {namespace(sink_id)}"
    if not may_describe:
        return _CHECK.wrong(f"This principal lacks WRITE on {ids} (EO-DENIED)", f"Grant WRITE on {ids}")
    return _CHECK.ok(f"DESCRIBE on {ids}; only a transaction can show whether WRITE is granted")


def judge_cluster_rights(rights: Collection[str] | None) -> Diagnosis:
    if rights is None:
        return _untold("the cluster")
    if "DESCRIBE_CONFIGS" not in rights:
        return _CHECK.warn(
            "This principal lacks DESCRIBE_CONFIGS on the cluster: a transaction timeout that is too long fails in the "
            "first task",
            "Grant DESCRIBE_CONFIGS on the cluster",
        )
    return _CHECK.ok("DESCRIBE_CONFIGS on the cluster")


def _untold(what: str) -> Diagnosis:
    return _CHECK.warn(
        f"The brokers do not report the rights on {what} (KIP-430)",
        "Compare the ACLs with docs/reference.md, 'Rights'",
    )

"""The checks of rejected records and of dead letters: how many nobody has sent again or acknowledged."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_exactly_once.checks.evaluate import CheckContext, check_on, earlier_notes, result
from dagster_exactly_once.checks.judgements import Rejections, too_many_rejected
from dagster_exactly_once.declare.config import SideTopicConfig
from dagster_exactly_once.declare.rejected import SideTopic
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.names import CHECKS_JOB
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S
from dagster_exactly_once.streaming.ranges import RejectedSpan, asked, remaining, sent
from dagster_exactly_once.streaming.source import OffsetSpan
from dagster_exactly_once.tables import table
from exactly_once.commitlog.commit_log import read_log
from exactly_once.error_headers import reason_in
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.txn.scan import batches

#: The most offsets that an evaluation reads: tens of megabytes. Of more, it counts the offsets and reads the newest for
#: the reasons.
MOST_OFFSETS = 50_000

#: The number of reasons on the page of the check, the most frequent ones.
REASONS = 20

#: The key of the one row in the sink's sentence: two dead letters of the same reason differ in it.
_KEY = re.compile(r", key [^)]*(?=\))")

#: The entry of an evaluation's metadata: by partition, before which offset a person has acknowledged all records.
ACKNOWLEDGED = "acknowledged"


def side_topic_check(stream: Stream, topic: str, declared: SideTopic) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of ``topic``, which has what is ``declared``."""
    asset = stream.key_of(topic)
    op = f"{asset.to_python_identifier()}_{declared.check}"
    config = f"{{ops: {{{op}: {{config: {{acknowledge: true}}}}}}}}"
    remedy = f"To end this warning without sending them, launch the job {CHECKS_JOB} with {config}"
    resend_sink = stream.resend_spec.sink_id if stream.resent else ""
    if resend_sink:
        remedy = f"Send them again with the job {stream.resend_spec.job} and dry_run: false. {remedy}"

    def waiting(at: CheckContext) -> dg.AssetCheckResult:
        earlier = earlier_notes(at, asset, declared.check).get(ACKNOWLEDGED)
        before = {str(p): int(end) for p, end in earlier.items()} if isinstance(earlier, Mapping) else {}
        found = count_rejected(at.connection, topic, resend_sink, before, at.config.acknowledge)
        rows = [(reason, f"{count:,}") for reason, count in found.reasons.most_common(REASONS)]
        more: dict[str, Any] = {"reasons": table(("reason", "records"), rows)} if rows else {}
        more |= {ACKNOWLEDGED: dg.MetadataValue.json(found.acknowledged)} if found.acknowledged else {}
        return result(too_many_rejected(found, declared, remedy), more)

    again = f"sent again (the job {stream.resend_spec.job}) or " if resend_sink else ""
    return check_on(
        stream,
        declared.check,
        f"Counts the {declared.noun}s of {stream.name} that nobody has {again}acknowledged (acknowledge: true), as a "
        f"read_committed reader of {topic} sees them, and names the most frequent reasons. "
        f"{_limit('Warns', declared.warn_above)} {_limit('Fails', declared.error_above)}",
        waiting,
        SideTopicConfig,
        resources=["kafka"],
        asset=asset,
    )


def count_rejected(
    connection: Connection, topic: str, resend_sink: str, before: Mapping[str, int], acknowledge: bool = False
) -> Rejections:
    """Count the records of ``topic`` that wait for a person, and all.

    None waits that the job with the sink ``resend_sink`` ("": there is no such job) has sent, or that was acknowledged:
    those ``before`` an offset, by partition; with ``acknowledge``, all that are there now.
    """
    done = list[RejectedSpan]()
    with Admin(connection, READ_BUDGET_S) as admin:
        try:
            marks = admin.watermarks(topic)
        except UnknownTopic:  # the first start makes it
            return Rejections(0, 0)
        if resend_sink:
            log, topic_id = read_log(connection, resend_sink, READ_BUDGET_S), admin.topic_ids([topic]).get(topic, "")
            done += sent((d.write_id for d in log.decisions), topic, topic_id)
        ends = {str(p): mark.last_stable for p, mark in sorted(marks.items())}
        acknowledged = ends if acknowledge else still(before, marks)
        done += [RejectedSpan(int(p), OffsetSpan(0, end)) for p, end in acknowledged.items()]
        everything = asked({}, marks)
        left = remaining(everything, done)
        waiting, total = _counted(admin, topic, left), _offsets(everything)
        if total <= MOST_OFFSETS:
            total = waiting.count + _counted(admin, topic, remaining(everything, left)).count
    return replace(waiting, total=total, acknowledged=acknowledged)


def still(before: Mapping[str, int], marks: Mapping[int, Watermarks]) -> dict[str, int]:
    """Return what is acknowledged: nothing of a partition that ends before that, since its topic was made again."""
    return {str(p): end for p, mark in sorted(marks.items()) if 0 < (end := before.get(str(p), 0)) <= mark.high}


def _offsets(pieces: Sequence[RejectedSpan]) -> int:
    return sum(span.end - span.start for _, span in pieces)


def _counted(admin: Admin, topic: str, pieces: Sequence[RejectedSpan]) -> Rejections:
    offsets, reasons = _offsets(pieces), Counter[str]()
    exact, share = offsets <= MOST_OFFSETS, MOST_OFFSETS // max(1, len(pieces))
    for partition, (start, end) in pieces:
        begin = start if exact else max(start, end - share)
        reasons.update(_reasons(admin, (topic, partition), begin, end))
    count = reasons.total() if exact else offsets
    return Rejections(count, count, exact, reasons)


def _reasons(admin: Admin, where: tuple[str, int], start: int, end: int) -> Counter[str]:
    found = Counter[str]()
    if start < end:
        for batch in batches(admin, where, start, end, end):
            if batch.marker is None and not batch.hidden:
                found.update(reason_of(r.headers or ()) for r in batch.records() if start <= r.offset < end)
    return found


def reason_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return why a row was rejected, without the key of its row: so equal reasons count as one."""
    return _KEY.sub("", reason_in(headers)) or "no reason in its headers"


def _limit(verb: str, above: int | None) -> str:
    return f"{verb} above {above:,}." if above is not None else f"Never {verb.lower()}."

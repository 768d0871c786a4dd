"""The checks ``rejected_since_last_look`` and ``dead_letters_since_last_look``: how many came since the check was
evaluated last.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import dagster as dg

from dagster_exactly_once.checks.evaluate import check_on, earlier_notes, result
from dagster_exactly_once.checks.judgements import Rejections, too_many_rejected
from dagster_exactly_once.checks.readers import READ_BUDGET_S
from dagster_exactly_once.declare.rejected import Letters
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.tables import table
from exactly_once.error_headers import reason_in
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.txn.scan import batches

#: A look reads so many offsets: tens of megabytes. Of more, it counts the offsets and reads the newest for the reasons.
MOST_OFFSETS = 50_000

#: Reasons on the page of the check, the most frequent ones.
REASONS = 20

#: In the sink's own words, the key of the one row: what two letters of the same reason differ in.
_KEY = re.compile(r", key [^)]*(?=\))")

#: By partition, the end of what was looked at.
Ends = dict[str, int]


def letters_check(stream: Stream, topic: str, declared: Letters) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of ``topic``, which has what is ``declared``."""
    asset = stream.key_of(topic)

    @check_on(
        stream,
        declared.check,
        f"Counts the {declared.noun}s that {stream.name} has {declared.did} since this check was evaluated last, as a "
        f"read_committed reader of {topic} sees them, and names the most frequent reasons. "
        f"{_limit('Warns', declared.warn_above)} {_limit('Fails', declared.error_above)}",
        asset=asset,
    )
    def letters(
        context: dg.AssetCheckExecutionContext, kafka: KafkaTransactionalProducerFactory
    ) -> dg.AssetCheckResult:
        found = count_rejected(
            kafka.connection(), topic, _ends_of(earlier_notes(context.instance, asset, declared.check))
        )
        verdict = too_many_rejected(found, declared)
        rows = [(reason, f"{count:,}") for reason, count in found.reasons.most_common(REASONS)]
        more = {"reasons": table(("reason", "records"), rows)} if rows else {}
        return result(verdict, {**more, "ends": dg.MetadataValue.json(found.ends)})

    return letters


def count_rejected(connection: Connection, topic: str, last: Mapping[str, int] | None) -> Rejections:
    """Count the records of ``topic`` after the ends of the last look; None: all that are there."""
    with Admin(connection, READ_BUDGET_S) as admin:
        try:
            marks = admin.watermarks(topic)
        except UnknownTopic:  # the first start makes it
            return Rejections(0, True, Counter(), {}, last is None)
        starts = {p: _start(mark, (last or {}).get(str(p))) for p, mark in marks.items()}
        offsets = sum(mark.last_stable - starts[p] for p, mark in marks.items())
        share, reasons = MOST_OFFSETS // max(1, len(marks)), Counter[str]()
        for p, mark in marks.items():
            start = starts[p] if offsets <= MOST_OFFSETS else max(starts[p], mark.last_stable - share)
            reasons.update(_reasons(admin, (topic, p), start, mark.last_stable))
    exact = offsets <= MOST_OFFSETS
    ends = {str(p): mark.last_stable for p, mark in sorted(marks.items())}
    return Rejections(reasons.total() if exact else offsets, exact, reasons, ends, last is None)


def _start(mark: Watermarks, last: int | None) -> int:
    """Return where the look begins: a topic that was made again may end before the last look did."""
    return mark.low if last is None or last > mark.high else max(mark.low, min(last, mark.last_stable))


def _reasons(admin: Admin, where: tuple[str, int], start: int, end: int) -> Counter[str]:
    found = Counter[str]()
    if start < end:
        for batch in batches(admin, where, start, end, end):
            if batch.marker is None and not batch.hidden:
                found.update(reason_of(r.headers or ()) for r in batch.records() if start <= r.offset < end)
    return found


def reason_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return why a letter is one, without the key of its row: so equal reasons count as one."""
    return _KEY.sub("", reason_in(headers)) or "no reason in its headers"


def _ends_of(notes: Mapping[str, object] | None) -> Ends | None:
    ends = (notes or {}).get("ends")
    return {str(p): int(end) for p, end in ends.items()} if isinstance(ends, Mapping) else None


def _limit(verb: str, above: int | None) -> str:
    return f"{verb} above {above:,}." if above is not None else f"Never {verb.lower()}."

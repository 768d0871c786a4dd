"""The input in Spark: as a bounded table, in spans of offsets, and its offsets by time."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import exactly_once
from dagster_exactly_once.declare.inputs import EARLIEST, KafkaTopic
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S, Offsets
from dagster_exactly_once.resources.spark import kafka_source_options
from exactly_once.checkpoint import Checkpoint, beginning_of, source_names
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.named_sources import Ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OffsetSpan(NamedTuple):
    """Offsets of one partition, from ``start`` up to, not including, ``end``."""

    start: int
    end: int

    @property
    def empty(self) -> bool:
        """True without any offset."""
        return self.end <= self.start


#: Spans of offsets by partition.
Spans = Mapping[int, OffsetSpan]


def worth_reading(share: Spans, since: Mapping[int, int | None]) -> dict[int, OffsetSpan]:
    """Return the part of ``share`` that can hold records from some time on.

    Parameters
    ----------
    since : mapping
        The brokers' answer for that time: no earlier offset has a time stamp at or after it; None: no offset has.
    """
    found = {}
    for p, span in share.items():
        first = since.get(p)
        start = span.end if first is None else min(max(span.start, first), span.end)
        found[p] = OffsetSpan(start, span.end)
    return found


def from_start(spans: Spans, most: int) -> dict[int, OffsetSpan]:
    """Return the first ``most`` offsets of each span."""
    return {p: OffsetSpan(span.start, min(span.end, span.start + most)) for p, span in spans.items()}


#: The offsets of the first query: they hold the one to find if records carry the time of writing; otherwise each
#: further query goes ten times as far.
FIRST_OFFSETS = 100_000


def read_input(
    spark: SparkSession, connection: Connection, topic: str, spans: Spans, with_headers: bool = False
) -> DataFrame:
    """Read the committed records of ``topic`` in ``spans``, which name every partition of it."""
    options = kafka_source_options(connection, topic) | {
        "startingOffsets": offsets_json(topic, {p: span.start for p, span in spans.items()}),
        "endingOffsets": offsets_json(topic, {p: span.end for p, span in spans.items()}),
        "includeHeaders": str(with_headers).lower(),
    }
    return spark.read.format("kafka").options(**options).load()


def source_name(topic: str) -> str:
    """Return the name of a topic's source: Spark takes letters, digits and underscores."""
    return re.sub("[^A-Za-z0-9_]", "_", topic)


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Format offsets of ``topic`` for Spark's options."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(offsets.items())}})


def first_since(spark: SparkSession, connection: Connection, topic: str, timestamp_ms: int) -> dict[int, int]:
    """Find, by partition, the first committed record of ``topic`` with a time stamp at or after ``timestamp_ms``;
    without one, the current end of the committed records.

    Spark's own option ``startingTimestamp`` stops at transaction markers too. Markers carry the time of writing, so
    with old event times it would begin at the very first marker.
    """
    from pyspark.sql import functions as F

    with Admin(connection, READ_BUDGET_S) as admin:
        marks = admin.watermarks(topic)
        since = admin.offsets_since(topic, timestamp_ms)
    rest: Spans = worth_reading({p: OffsetSpan(w.low, w.last_stable) for p, w in marks.items()}, since)
    ends, found, step = {p: span.end for p, span in rest.items()}, dict[int, int](), FIRST_OFFSETS
    while not all(span.empty for span in rest.values()):
        asked = from_start(rest, step)
        later = read_input(spark, connection, topic, asked).where(F.unix_millis("timestamp") >= timestamp_ms)
        found |= {
            r.partition: r["first"] for r in later.groupBy("partition").agg(F.min("offset").alias("first")).collect()
        }
        rest = {p: OffsetSpan(ends[p] if p in found else asked[p].end, ends[p]) for p in rest}
        step *= 10
    return {p: found.get(p, end) for p, end in ends.items()}


Sources = Mapping[str, KafkaTopic]


def check_begun(begun: Offsets, stream: Stream, checkpoint: Checkpoint) -> None:
    """Refuse other topics than those that the checkpoint began with: Spark's own error speaks of lost input.

    Named sources may be added and dropped. Before its first planned batch Spark may know only some of the sources.
    """
    wanted = set(stream.source_topics)
    if checkpoint.last_offsets is None:
        fits = begun.keys() <= wanted
    else:
        fits = checkpoint.names_sources or not begun or begun.keys() == wanted
    if not fits:
        raise CheckpointUnusable(
            f"the checkpoint {checkpoint.location} began with the topics {', '.join(sorted(begun))}, but the stream "
            f"{stream.name} reads {', '.join(stream.source_topics)}",
            "Name the topics of the checkpoint in source=, or give the stream a new sink_id, with which it begins "
            "again from the start",
            "Nothing was started",
        )


def as_said(sources: Sources, start_from: str, begun: Offsets) -> dict[str, KafkaTopic]:
    """Return the sources with their starts: where the run or the declaration says, if the checkpoint has none yet."""
    return {
        name: replace(topic, start_from=EARLIEST if topic.name in begun else start_from or topic.start_from)
        for name, topic in sources.items()
    }


def named(sources: Sources, location: str, ended: Ends) -> tuple[dict[str, KafkaTopic], dict[str, str]]:
    """Return the sources, and the names of topics by which Spark keeps their offsets.

    A source keeps its name as long as the query reads it. Spark forgets where a topic ``ended`` that the query has
    dropped: it returns under a name that is new, and begins where it ended.
    """
    known = source_names(location)
    names = {t.name: known.get(t.name, source_name(t.name)) for t in sources.values()}
    back = [topic for topic in names if topic not in known and ended.get(topic)]
    for topic in back:
        names[topic] = _unused(location, topic, ended[topic], {*names.values(), *known.values()})
    begins = {topic: offsets_json(topic, ended[topic]) for topic in back}
    return {
        name: replace(t, options={**t.options, "startingOffsets": begins[t.name]}) if t.name in begins else t
        for name, t in sources.items()
    }, names


def _unused(location: str, topic: str, ends: Mapping[int, int], taken: Collection[str]) -> str:
    """Return a name under which no source has read another part of the topic."""
    for n in count(2):
        name = f"{source_name(topic)}_{n}"
        began = beginning_of(location, name)
        if name not in taken and (not began or began.get(topic, {}).items() >= ends.items()):
            return name
    raise AssertionError("unreachable")


def after_older(sources: Sources, stream: Stream, options: Mapping[str, str], begun: bool) -> tuple[Sources, str]:
    """Return the sources of a stream that takes the place of another sink, or reads along with one, and a sentence for
    its log; with a checkpoint (``begun``) they are as they were. Each begins where that sink's last decided batch ends.

    Raises Refused while the sink whose place it takes is not retired for this one, also with a checkpoint: one that has
    read along so far would write beside it.
    """
    old = stream.continues or stream.beside
    if begun:
        if stream.continues:
            exactly_once.starting_offsets(options, old)
        return sources, ""

    def begins(topic: KafkaTopic) -> KafkaTopic:
        at = exactly_once.starting_offsets(options, old, topic.name, beside=bool(stream.beside))
        return replace(topic, start_from=EARLIEST, options={**topic.options, "startingOffsets": at})

    found = {name: begins(topic) for name, topic in sources.items()}
    said = "continues" if stream.continues else "reads along with"
    return found, f"The stream {said} sink {old}, after its last decided batch."

"""The samples of the comparison, read from Kafka within bounds: the window of the input, the tails of the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from dagster_exactly_once.checks.reader import read_committed
from dagster_exactly_once.checks.window import Comparison, InputWindow, WindowOutputs, compare, newest_window
from dagster_exactly_once.declare.origin import InputPlace, Partition
from dagster_exactly_once.resources.checkpoints import CheckpointReader, Offsets
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.kafka.connection import Connection

#: For each query of the brokers.
READ_BUDGET_S = 20.0

#: The brokers write the markers of a committed batch a moment after its proof, and a live stream always works on the
#: next batch: one that was found is settled well within this time.
SETTLE_BUDGET_S = 15.0

#: For reading one record.
RECORD_BUDGET_S = 5.0

#: The first step back from the end of an output partition; each further step is four times as long.
FIRST_STEP = 5_000

#: The check reads at most this many times the input's window from the outputs: they may hold markers and a backfill.
OUTPUTS_PER_INPUT = 4


def stream_window(
    connection: Connection, checkpoints: CheckpointReader, checkpoint: str, sources: Sequence[str], limit: int
) -> InputWindow | None:
    """Return the newest committed part of the topics ``sources``, at most ``limit`` offsets; None before the first
    batch.
    """
    if checkpoints.read(checkpoint).last_commit is None:
        return None
    with Admin(connection, READ_BUDGET_S) as admin:
        low = {(topic, p): w.low for topic in sources for p, w in admin.watermarks(topic).items()}
    ends = ((batch_id, positions(topics, sources)) for batch_id, topics in checkpoints.batch_ends(checkpoint))
    return newest_window(ends, positions(checkpoints.first_offsets(checkpoint), sources), low, limit)


def positions(offsets: Offsets, sources: Sequence[str]) -> dict[Partition, int]:
    """Return the offsets of the topics ``sources``, by partition."""
    return {(topic, p): offset for topic in sources for p, offset in offsets.get(topic, {}).items()}


def compare_window(
    connection: Connection, window: InputWindow, topics: Sequence[str], outputs: WindowOutputs, limit: int
) -> tuple[Comparison, int]:
    """Compare ``window`` of the input with the tails of the output ``topics``; returns the finding and the number of
    output records read.

    Parameters
    ----------
    outputs : WindowOutputs
        Empty; takes the tails.
    limit : int
        As for the window; bounds the reading of the outputs.
    """
    slices: dict[str, dict[int, tuple[int, int]]] = {}
    for source, p in window.end:
        slices.setdefault(source, {})[p] = window.first[source, p], window.end[source, p]
    inputs: set[InputPlace] = {
        ((source, r.partition), r.offset)
        for source, only in slices.items()
        for r in read_committed(connection, source, only=only)
    }
    marks, held_back = _settled(connection, topics)
    left = OUTPUTS_PER_INPUT * max(limit, FIRST_STEP)
    starts = {(t, p): w.last_stable for t, ps in marks.items() for p, w in ps.items()}
    step = FIRST_STEP
    while left > 0:
        todo = [tp for tp in starts if not outputs.far_enough(*tp)]
        if not todo:
            break
        step = min(step, max(FIRST_STEP, left // len(todo)))
        for output in topics:
            back = {}
            for t, p in todo:
                if t == output:
                    low = marks[t][p].low
                    back[p] = (max(low, starts[t, p] - step), starts[t, p])
                    starts[t, p] = back[p][0]
            for record in read_committed(connection, output, only=back) if back else ():
                outputs.add(output, record)
            for p, (start, _) in back.items():
                if start == marks[output][p].low:
                    outputs.read_from_the_start(output, p)
        left -= step * len(todo)
        step *= 4
    return compare(inputs, outputs, starts, held_back), outputs.records


def record_time_ms(connection: Connection, topic: str, partition: int, offset: int) -> int | None:
    """Return the time stamp of the first record from ``offset`` on, committed or not; None if it could not be read."""
    consumer = KafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        check_crcs=False,  # in pure Python it takes 0.1 s for a large batch, of which one time stamp is wanted
        **connection.kafka_python(),
    )
    try:
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        deadline = Deadline(RECORD_BUDGET_S)
        while not deadline.over:
            for records in consumer.poll(200, max_records=1).values():
                return int(records[0].timestamp)
        return None
    except KafkaError:  # the check takes an unknown age for too old
        return None
    finally:
        consumer.close(autocommit=False)


def _settled(
    connection: Connection, topics: Sequence[str]
) -> tuple[Mapping[str, Mapping[int, Watermarks]], set[tuple[str, int]]]:
    """Wait until readers can see all current records; return the outputs' ends, and the partitions still held back.

    Does not wait for records that a batch in flight adds meanwhile.
    """
    with Admin(connection, SETTLE_BUDGET_S + READ_BUDGET_S) as admin:
        wanted = {topic: admin.watermarks(topic) for topic in topics}
        marks, held_back = wanted, set[tuple[str, int]]()
        for _ in Deadline(SETTLE_BUDGET_S).tries():
            held_back = {(t, p) for t, ps in wanted.items() for p, w in ps.items() if marks[t][p].last_stable < w.high}
            if not held_back:
                break
            marks = {topic: admin.watermarks(topic) for topic in topics}
        return marks, held_back

"""The input records that must be in the outputs: by the decisions of the commit log, and by Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from exactly_once.checkpoint import Checkpoint, first_offsets, read_checkpoint, read_text
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointUnusable, InvalidOption, UnknownTopic
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import digest_of, kafka_offsets, source_lines
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Decision
from exactly_once.verify.window import Positions, Window, flat, newest_window, until


@dataclass(frozen=True)
class BatchRange:
    """The input of one batch: by partition, its first offset and the one after its last."""

    batch: str
    offsets: Mapping[Partition, tuple[int, int]]


@dataclass(frozen=True)
class Expected:
    """The input that a stream has worked off.

    Attributes
    ----------
    first : mapping
        By partition, where the stream began.
    end : mapping
        By partition, the end of the last batch that is decided and completed (or that Spark committed): every record
        before it must be in the outputs.
    reach : mapping
        By partition, the end of the last batch that may be in the outputs: decided, or planned where nothing is
        decided.
    batches : tuple of BatchRange
        Batches whose input is known, oldest first.
    topics : tuple of str
        The output topics that the decisions name.
    window : Window or None
        The newest part of this input, when only that is to be compared.
    """

    first: Positions
    end: Positions
    reach: Positions
    batches: tuple[BatchRange, ...] = ()
    topics: tuple[str, ...] = ()
    window: Window | None = None

    @property
    def wanted(self) -> Positions:
        """The first record of each partition that must be in the outputs."""
        return self.first if self.window is None else self.window.first


def expected_input(
    connection: Connection,
    sink_id: str,
    checkpoint: str | None = None,
    inputs: Sequence[str] = (),
    budget_s: float = 60.0,
    last: int | None = None,
    stop: Positions | None = None,
) -> Expected:
    """Return the input that the sink's stream has worked off by now.

    Parameters
    ----------
    checkpoint : str, optional
        The location of the stream's checkpoint, which says where the stream began. Without a commit log (another
        guarantee, another sink), it also says how far Spark got.
    inputs : sequence of str
        Only these input topics. Without a checkpoint, they are compared from their beginning.
    last : int, optional
        Find the newest batches with at most so many offsets of input, too.
    stop : mapping, optional
        With ``last``: leave out what these batches read from there on.

    Raises
    ------
    InvalidOption
        When neither says where the stream began.
    CheckpointUnusable
        When nothing says what the stream has read.
    BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged, CommitLogBlocked
    """
    if checkpoint is None and not inputs:
        raise InvalidOption(
            f"nothing says where the stream of sink {sink_id!r} began",
            "Give --checkpoint LOCATION; or --input TOPIC, to compare that topic from its beginning",
        )
    progress = read_checkpoint(checkpoint) if checkpoint is not None else None
    began = flat(first_offsets(checkpoint)) if checkpoint is not None else {}
    log = read_log(connection, sink_id, budget_s)  # after the checkpoint: what Spark has committed is decided in it
    ends = [(d, _end(d, checkpoint)) for d in _of_stream(log)]
    done = [(d.batch_id, end) for d, end in ends if (d.query_id, d.batch_id) in log.marks]
    number, worked_off = done[-1] if done else (-1, {})
    reach = ends[-1][1] if ends else {}
    newest = ends[-1][0].batch_id if ends else -1
    if progress is not None and progress.last_commit is not None and progress.last_commit > newest:
        # a guarantee without decisions: Spark's word counts, and what it has planned may be there
        number, worked_off = progress.last_commit, _planned_for(progress.location, progress.last_commit)
        reach = _planned(progress)
    elif progress is not None and not ends:
        reach = _planned(progress)
    end = _only({**began, **worked_off}, inputs)
    if not end:
        raise _nothing_read(sink_id, checkpoint, inputs)
    beginnings = _beginnings(connection, end, began, budget_s)
    first = {p: began.get(p, beginnings.get(p, 0)) for p in end}
    further = {p: max(end.get(p, 0), offset) for p, offset in _only({**end, **reach}, inputs).items()}
    first |= {p: began.get(p, 0) for p in further if p not in first}
    window = None
    if last is not None:
        older = ((n, _only(positions, inputs)) for n, positions in _before(number, dict(done), checkpoint))
        known = chain([(number, end)] if number >= 0 else (), older)
        window = newest_window(known if stop is None else until(known, stop), first, last)
    topics = tuple(sorted({topic for d in log.decisions for topic in d.topics}))
    return Expected(first, end, further, _ranges(ends, began, inputs), topics, window)


def _before(number: int, done: Mapping[int, Positions], checkpoint: str | None) -> Iterator[tuple[int, Positions]]:
    """Yield the batches before ``number``, newest first, with the end of their input, as far as it is known."""
    for batch_id in range(number - 1, -1, -1):
        end = done.get(batch_id)
        if not end and checkpoint is not None:
            try:
                end = _planned_for(checkpoint, batch_id)
            except CheckpointUnusable:  # Spark keeps a hundred
                return
        if not end:
            return
        yield batch_id, end


def _of_stream(log: LogState) -> list[Decision]:
    """Return the decisions of the query that wrote last, by batch."""
    streams = [d for d in log.decisions if not d.write_id]
    query = streams[-1].query_id if streams else None
    return sorted((d for d in streams if d.query_id == query), key=lambda d: d.batch_id)


def _end(decision: Decision, checkpoint: str | None) -> dict[Partition, int]:
    """Return where the input of a decision ends, that of topics which named sources have dropped among it; empty when
    nothing says it.
    """
    found = _end_of_batch(decision, checkpoint)
    return {**flat(decision.ended or {}), **found} if found else {}


def _end_of_batch(decision: Decision, checkpoint: str | None) -> dict[Partition, int]:
    if decision.offsets:
        return flat(kafka_offsets(source_lines(decision.offsets)))
    if checkpoint is None:
        raise InvalidOption(
            f"the decision of batch {decision.batch_id} keeps no offsets: they are longer than the commit log accepts",
            "Give --checkpoint LOCATION",
        )
    try:
        text = read_text(checkpoint, f"offsets/{decision.batch_id}")
    except CheckpointUnusable:  # Spark keeps a hundred
        return {}
    if digest_of(text) != decision.offsets_digest:
        raise CheckpointUnusable(
            f"offsets/{decision.batch_id} of the checkpoint {checkpoint} is not the input that was decided",
            "Give the location of this sink's own checkpoint",
        )
    return flat(kafka_offsets(source_lines(text)))


def _planned_for(checkpoint: str, batch_id: int) -> dict[Partition, int]:
    """Return where the input of a batch ends, by the checkpoint. Raises CheckpointUnusable."""
    return flat(kafka_offsets(source_lines(read_text(checkpoint, f"offsets/{batch_id}"))))


def _planned(progress: Checkpoint) -> dict[Partition, int]:
    return flat(kafka_offsets(progress.source_offsets))


def _only(positions: Positions, inputs: Sequence[str]) -> dict[Partition, int]:
    return {p: offset for p, offset in positions.items() if not inputs or p[0] in inputs}


def _beginnings(connection: Connection, end: Positions, began: Positions, budget_s: float) -> dict[Partition, int]:
    """Return the beginnings of partitions for which no checkpoint says where the stream began."""
    if began or not end:  # a partition that came later is read from its first offset
        return {}
    topics = sorted({topic for topic, _ in end})
    with Admin(connection, budget_s) as admin:
        for topic in topics:
            admin.check_rights(topic, ("READ",))
        admin.topic_partitions(topics)
        return admin.earliest(end)


def _ranges(
    ends: Sequence[tuple[Decision, dict[Partition, int]]], began: Positions, inputs: Sequence[str]
) -> tuple[BatchRange, ...]:
    """Return the input of the batches whose predecessor is known too."""
    found = []
    before = [(-1, dict(began))] if ends and began and ends[0][0].batch_id == 0 else []
    for (number, start), (following, end) in pairwise([*before, *((d.batch_id, end) for d, end in ends)]):
        if following == number + 1 and start and end:
            offsets = {p: (start.get(p, began.get(p, 0)), o) for p, o in _only(end, inputs).items()}
            found.append(BatchRange(f"batch {following}", offsets))
    return tuple(found)


def _nothing_read(sink_id: str, checkpoint: str | None, inputs: Sequence[str]) -> CheckpointUnusable | UnknownTopic:
    if inputs:
        return UnknownTopic(
            f"the stream of sink {sink_id!r} has read nothing of {', '.join(inputs)}",
            "Name a topic that the stream reads, or wait for its first batch",
        )
    return CheckpointUnusable(
        f"neither the commit log of sink {sink_id!r} nor the checkpoint {checkpoint} names Kafka input",
        "Give the location of this sink's own checkpoint; a stream without Kafka input is proven by the commit log "
        "alone, without --origin",
    )

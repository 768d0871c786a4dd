"""The input records that must be in the outputs, by the decisions of the commit log and by Spark's checkpoint; and the
window: the newest part of them, which a comparison with the outputs may be limited to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from exactly_once.checkpoint import first_offsets, read_checkpoint, read_text
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointUnusable, InvalidOption, UnknownTopic
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import digest_of, kafka_offsets, source_lines
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Decision

Positions = Mapping[Partition, int]


def flat(topics: Mapping[str, Mapping[int, int]]) -> dict[Partition, int]:
    """Return offsets by topic and partition as positions."""
    return {(topic, p): offset for topic, partitions in topics.items() for p, offset in partitions.items()}


@dataclass(frozen=True)
class Window:
    """The newest part of the input: by partition, the ``first`` offset to compare, and the beginning (``since``) of the
    oldest batch with a record in it.

    ``batches`` are its oldest and its newest batch; ``offsets`` the number of offsets in it, markers and aborted
    records included; ``last`` the number that was asked for. ``cut`` says why it is smaller; empty when it is not.
    """

    first: Positions
    since: Positions
    batches: tuple[int, int]
    offsets: int
    last: int
    cut: str = ""

    def __str__(self) -> str:
        oldest, newest = self.batches
        return f"{self.offsets:,} offsets, batches {oldest} to {newest}" + (f"; {self.cut}" if self.cut else "")


@dataclass(frozen=True)
class BatchRange:
    """The input of one batch: by partition, its first offset and the one after its last."""

    batch: str
    offsets: Mapping[Partition, tuple[int, int]]


@dataclass(frozen=True)
class Expected:
    """The input that a stream has worked off, by partition: from where the stream began (``first``) to the ``end`` of
    the last batch that is decided and completed, or that Spark committed; every record before that must be in the
    outputs. Those up to ``reach`` may be: decided, or planned where nothing is decided.

    ``batches`` are those whose input is known, oldest first; ``topics`` the output topics that the decisions name;
    ``window`` is the newest part of this input, when only that is to be compared.
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

    ``checkpoint``, the location of the stream's, says where the stream began; without a commit log (another guarantee,
    another sink), it also says how far Spark got. Only the topics in ``inputs``, if it names any; without a checkpoint,
    they are compared from their beginning. With ``last``, it has a window of the newest batches with at most that many
    offsets of input, which ends at ``stop``.

    Raises InvalidOption when neither says where the stream began; CheckpointUnusable when nothing says what the stream
    has read; BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged or CommitLogBlocked.
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
        number, worked_off = progress.last_commit, _planned(progress.location, progress.last_commit)
        reach = flat(kafka_offsets(progress.source_offsets))
    elif progress is not None and not ends:
        reach = flat(kafka_offsets(progress.source_offsets))
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
                end = _planned(checkpoint, batch_id)
            except CheckpointUnusable:  # Spark keeps only the last hundred
                return
        if not end:
            return
        yield batch_id, end


def _of_stream(log: LogState) -> list[Decision]:
    """Return the decisions of the query that wrote last, by batch."""
    streams = [d for d in log.decisions if not d.write_id]
    query = streams[-1].query_id if streams else None
    return sorted((d for d in streams if d.query_id == query), key=lambda d: d.batch_id)


def input_of(decision: Decision) -> dict[Partition, int]:
    """Return where the input of a decision ends; empty when it keeps no offsets."""
    return flat(kafka_offsets(source_lines(decision.offsets)))


def _end(decision: Decision, checkpoint: str | None) -> dict[Partition, int]:
    """Return where the input of a decision ends, with the topics that named sources have dropped; empty when nothing
    says it.
    """
    end = input_of(decision) if decision.offsets else _planned_for(checkpoint, decision)
    return {**flat(decision.ended or {}), **end} if end else {}


def _planned_for(checkpoint: str | None, decision: Decision) -> dict[Partition, int]:
    if checkpoint is None:
        raise InvalidOption(
            f"the decision of batch {decision.batch_id} keeps no offsets: they are longer than the commit log accepts",
            "Give --checkpoint LOCATION",
        )
    try:
        text = read_text(checkpoint, f"offsets/{decision.batch_id}")
    except CheckpointUnusable:  # Spark keeps only the last hundred
        return {}
    if digest_of(text) != decision.offsets_digest:
        raise CheckpointUnusable(
            f"offsets/{decision.batch_id} of the checkpoint {checkpoint} is not the input that was decided",
            "Give the location of this sink's own checkpoint",
        )
    return flat(kafka_offsets(source_lines(text)))


def _planned(checkpoint: str, batch_id: int) -> dict[Partition, int]:
    """Return where the input of a batch ends, by the checkpoint. Raises CheckpointUnusable."""
    return flat(kafka_offsets(source_lines(read_text(checkpoint, f"offsets/{batch_id}"))))


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


def newest_window(ends: Iterable[tuple[int, Positions]], began: Positions, last: int) -> Window:
    """Return the newest batches with at most ``last`` offsets together; of a longer newest batch, its newest part.
    Empty without a batch. ``ends`` yields batch number and end offsets by partition, newest first, without a gap; it is
    read no further than needed. ``began`` is where the stream began.
    """
    found = iter(ends)
    newest = next(found, None)
    if newest is None:
        return Window(began, began, (0, 0), 0, last, "no batch is completed yet")
    number, end = newest
    oldest, cut, since = number, "", end
    while number >= 0:
        _, before = next(found, (-1, None)) if number else (-1, began)
        if before is None:
            cut = f"neither commit log nor checkpoint says where batch {number} began"
            break
        # a partition that was added later is read from its first offset
        start = {p: before.get(p, began.get(p, 0)) for p in end}
        fits = sum(end[p] - start[p] for p in end) <= last
        if not fits and number < newest[0]:
            break
        oldest, since = number, start
        if not fits:  # the newest batch is taken whatever its length
            cut = f"batch {number} alone is longer: only its newest {last:,} offsets"
            break
        number -= 1
    first = since
    if cut and oldest == number:
        first = {p: max(since[p], end[p] - last // max(1, len(end))) for p in end}
    return Window(first, since, (oldest, newest[0]), sum(end[p] - first[p] for p in end), last, cut)


def until(ends: Iterable[tuple[int, Positions]], stop: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield batches, newest first, as if the input ended at ``stop``: without those that read nothing before it, and
    without the partitions that it does not name.
    """
    newest: tuple[int, Positions] | None = None
    for number, end in ends:
        cut = {p: min(end[p], offset) for p, offset in stop.items() if p in end}
        if newest is not None and cut != stop:
            yield newest
        newest = number, cut
    if newest is not None:
        yield newest

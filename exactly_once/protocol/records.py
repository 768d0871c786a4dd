"""The records of the commit log: claims, decisions, completed marks, the last abort, a running tally, the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from exactly_once.protocol.named_sources import Ends

#: Rotating keys under which the log keeps decisions of batches, so that compaction bounds the topic. Safety needs only
#: the last one; the others are the audit trail. Decisions of batch writes stay forever, each under its own key: because
#: of them, a second write with the same id writes nothing.
KEPT_DECISIONS = 64

#: Most parts with which a completed decision of a stream stays as it is; the driver writes one with more again, without
#: its handles. 64 decisions of a thousand parts take 7 MB in the log, and 35 MB in the memory of every process that
#: reads the log.
MANY_PARTS = 1_000

#: The name of the participant that every sink has.
KAFKA = "kafka"

#: State of a completed batch: every part is proven committed.
COMMITTED = "committed"
#: State of a batch of which a person gave up the parts that are lost or in doubt (``sink.accept.lost``).
ACCEPTED = "accepted"

#: Beginning of the query id of a batch write's decision; a Spark query's id is a UUID.
WRITE = "write:"


class Place(NamedTuple):
    """The place of a transaction's first record on one of its partitions."""

    topic: str
    partition: int
    offset: int


class OffsetRange(NamedTuple):
    """The records of a transaction in one partition: where it begins there (-1 when no broker said), and how much; and
    the oldest time of its records, in ms, where rows chose times.
    """

    first_offset: int
    records: int
    oldest_ms: int | None = None


#: Records that a task wrote, by topic and partition, as the brokers acknowledged them.
Written = Mapping[tuple[str, int], OffsetRange]


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """The handle of one prepared transaction: all that another process needs to end it.

    Attributes
    ----------
    transactional_id, producer_id, epoch
        Identify exactly one transaction, because every transaction has its own InitProducerId.
    part : int
        Spark's partition id of the task.
    records : int
        Records acknowledged by the broker in this transaction, at least 1.
    bytes : int
        The size of their keys and values.
    digest : str
        Digest of the records, whatever their order (:class:`exactly_once.digest.RowDigest`); "" when unknown.
    place : Place or None
        Where to look for evidence of how the transaction ended.
    written : mapping
        What the task wrote, for the driver to compare with what is open (:mod:`exactly_once.protocol.checksum`). A
        decision keeps only its digest, ``distribution``.
    end_txn_version : int
        The version that EndTxn must use, retries included; 0 before :meth:`Decision.parts_of` fills it in.
    topic_ids : mapping
        The topics to which its batch wrote, and the ids that they had then ("" when unknown); empty before
        :meth:`Decision.parts_of` fills it in.
    form : str
        The scope of the digest, for whoever reads the records back
        (:mod:`exactly_once.participants.kafka.digest_scope`); "" in handles of earlier versions.
    distribution : str
        In a decision, the digest of ``written``: for whoever reads the records back, and asks whether each still stands
        in its partition. "" in handles of earlier versions, and where a broker did not say at which offset it wrote.
    dead : int
        How many of the records are dead letters (:mod:`exactly_once.protocol.dead_letters`).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    part: int
    records: int
    bytes: int = 0
    digest: str = ""
    place: Place | None = None
    written: Written = field(default_factory=dict, compare=False)
    end_txn_version: int = field(default=0, compare=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False)
    form: str = field(default="", compare=False)
    distribution: str = field(default="", compare=False)
    dead: int = 0

    @property
    def participant(self) -> str:
        """The participant that prepared it."""
        return KAFKA

    @property
    def name(self) -> str:
        """The name that a person gives it."""
        return self.transactional_id

    @property
    def topics(self) -> set[str]:
        """The topics that its task wrote to; the decision keeps those of all parts together."""
        return {topic for topic, _ in self.written}


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """The handle of one part that a participant other than Kafka prepared.

    Attributes
    ----------
    participant : str
        The participant that prepared it.
    name : str
        The part's own name (:class:`exactly_once.participant.PartName` as text).
    part, records, digest
        As in :class:`PreparedTransaction`.
    data : mapping
        Everything that the participant needs to finish the part after a restart: text and numbers, no secrets.
    """

    participant: str
    name: str
    part: int
    records: int
    digest: str = ""
    data: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim: from here on, only its owner may decide for the sink.

    ``token`` grows by one with each claim. ``query_id`` binds the sink to a Spark query, or to batch writes
    (:data:`WRITE`); a claim by a recovery keeps the existing binding. ``purpose`` is ``stream``, ``write`` or
    ``recovery``. ``pid`` and ``pid_started`` (seconds since the epoch) name the process that lives as long as the
    owner: the driver's JVM, or the recovering process. ``operator`` says who operates that process, in the operator's
    own words ("" when nobody said); ``machine`` identifies the process table that ``pid`` is from
    (:func:`exactly_once.coordinator.machine.this_machine`; "" when unknown). ``progress`` is the topic that tells
    readers which batches are whole ("" without one); the claim of a recovery takes it over. The three are never a
    condition for safety. Versions before them wrote none.
    """

    token: int
    query_id: str | None
    claimed_ms: int
    purpose: str
    host: str
    pid: int
    checkpoint: str = ""
    pid_started: float = 0.0
    operator: str = ""
    machine: str = ""
    progress: str = ""

    @property
    def title(self) -> str:
        """Name the claim for an error: ``claim 7 (stream on host-a, driver 4711, operated by dagster/prod/0a1b)``."""
        by = f", operated by {self.operator}" if self.operator else ""
        return f"claim {self.token} ({self.purpose} on {self.host}, {self._kind} {self.pid}{by})"

    @property
    def process(self) -> str:
        """Name the process: ``driver 4711 on host-a (operated by dagster/prod/0a1b)``; a recovery has no driver."""
        by = f" (operated by {self.operator})" if self.operator else ""
        return f"{self._kind} {self.pid} on {self.host}{by}"

    @property
    def _kind(self) -> str:
        return "process" if self.purpose == "recovery" else "driver"


@dataclass(frozen=True, slots=True)
class Count:
    """Records that streams have committed to a sink, up to a decision: see :mod:`exactly_once.protocol.counting`.

    ``records`` has them by topic; ``since_ms`` is when the first batch that it counts was decided.
    """

    records: Mapping[str, int]
    since_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Batch ``batch_id`` of ``query_id`` commits with exactly these handles.

    ``offsets_digest`` is the SHA-256 of Spark's ``offsets/<batch id>``; ``end_txn_version`` is the version that every
    EndTxn for these handles must use, retries included. ``began_ms`` is when the first of the transactions began, by
    its coordinator's clock, or a time before: when the batch was planned; 0 without a transaction. ``handles`` are
    those of all participants, Kafka's first. ``rewritten`` names the parts (``participant/part``) that were lost after
    an earlier decision of the same batch and have been written again. ``topic_ids`` are the brokers' ids of ``topics``
    (KIP-516), where they have them: a topic that was deleted and recreated has another one. ``offsets`` is the text of
    Spark's ``offsets/<batch id>``, for a checkpoint in which that file is torn; "" for a batch write, or when it is too
    long to keep. ``totals`` stand in for the handles of a completed decision that has been written again without them:
    participant -> [parts, records, bytes], and a fourth number where some of the records are dead letters: how many.
    ``counted`` is what the sink's streams have committed with this batch, for people; None in decisions of earlier
    versions. ``ended`` says where each topic ended that named sources have read and this batch does not; None where
    Spark counts the sources, and in decisions of earlier versions. ``input_ids`` are the brokers' ids of the topics
    that ``offsets`` refer to: empty in decisions of earlier versions, for an input that is not Kafka, and with
    ``sink.input.offsets=false``.
    """

    query_id: str
    batch_id: int
    token: int
    handles: tuple[PreparedTransaction | PreparedPart, ...]
    offsets_digest: str
    end_txn_version: int
    decided_ms: int
    run_id: str = ""
    topics: tuple[str, ...] = ()
    began_ms: int = 0
    rewritten: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    offsets: str = ""
    totals: Mapping[str, Sequence[int]] = field(default_factory=dict)
    counted: Count | None = None
    ended: Ends | None = None
    input_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """Kafka's handles."""
        return tuple(h for h in self.handles if isinstance(h, PreparedTransaction))

    @property
    def ids_by_topic(self) -> dict[str, str]:
        """The ids that its topics had when it was made; "" when unknown."""
        return {topic: self.topic_ids.get(topic, "") for topic in self.topics}

    def parts_of(self, participant: str) -> list[Any]:
        """Return the handles of one participant, each with all that it takes to commit it."""
        if participant == KAFKA:
            ids = self.ids_by_topic
            return [replace(h, end_txn_version=self.end_txn_version, topic_ids=ids) for h in self.transactions]
        return [h for h in self.handles if h.participant == participant]

    @property
    def by_participant(self) -> dict[str, tuple[PreparedTransaction | PreparedPart, ...]]:
        """The handles of each participant with handles."""
        found: dict[str, list[PreparedTransaction | PreparedPart]] = {}
        for handle in self.handles:
            found.setdefault(handle.participant, []).append(handle)
        return {participant: tuple(handles) for participant, handles in found.items()}

    @property
    def write_id(self) -> str:
        """The id of the batch write that this decides; "" for a batch of a stream."""
        return self.query_id.removeprefix(WRITE) if self.query_id.startswith(WRITE) else ""

    @property
    def consent(self) -> str:
        """The value of ``sink.accept.lost`` for exactly this decision: batch or write, and when it was decided."""
        return f"{self.write_id or self.batch_id}@{self.decided_ms}"

    def title(self, sink_id: str) -> str:
        """Name the batch or write for an error."""
        subject = f"write {self.write_id!r}" if self.write_id else f"batch {self.batch_id}"
        return f"{subject} of sink {sink_id!r}"

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """The number of parts, and of records in them, by participant."""
        if self.totals:
            return {participant: (total[0], total[1]) for participant, total in self.totals.items()}
        return {p: (len(handles), sum(h.records for h in handles)) for p, handles in self.by_participant.items()}

    @property
    def records(self) -> int:
        """The number of records of the batch; each counts once, although every output has it."""
        return max((records for _, records in self.counts.values()), default=0)

    @property
    def part_count(self) -> int:
        """The number of parts with rows."""
        return max((parts for parts, _ in self.counts.values()), default=0)

    @property
    def dead_letters(self) -> int:
        """The number of its records that are dead letters."""
        if self.totals:
            return sum(total[3] for total in self.totals.values() if len(total) > 3)
        return sum(h.dead for h in self.transactions)

    def without_handles(self, decided_ms: int) -> Decision:
        """Return the decision without its handles, which are all proven committed.

        ``decided_ms`` is the time of its first write, by the brokers' clock: the record with that time stamp goes.
        """
        totals = {
            name: [len(parts), sum(h.records for h in parts), sum(getattr(h, "bytes", 0) for h in parts)]
            for name, parts in self.by_participant.items()
        }
        if dead := self.dead_letters:
            totals[KAFKA].append(dead)
        return replace(self, handles=(), totals=totals, decided_ms=decided_ms)


@dataclass(frozen=True, slots=True)
class Completed:
    """The decision is brought to its end: ``how`` says whether every handle is proven committed, or a person gave up
    those that are not (:data:`ACCEPTED`). Versions before it wrote no ``how``, and older ones do not read it.

    The durations, in ms, are the decider's: from the start of the first transaction until all parts were found alive,
    to write the decision, and to end the transactions. -1 when another driver or a recovery completed the batch.
    """

    query_id: str
    batch_id: int
    token: int
    completed_ms: int
    prepare_ms: int = -1
    decide_ms: int = -1
    complete_ms: int = -1
    how: str = COMMITTED


@dataclass(frozen=True, slots=True)
class Aborted:
    """An execution of a batch ended without a decision, and its driver aborts the parts that it prepared.

    A task that reads this record of its own execution is too late, and aborts its transaction itself.

    Attributes
    ----------
    query_id, batch_id, offsets_digest
        The batch.
    token : int
        The claim under which it ran.
    execution : str
        The run of the batch's tasks that ended.
    aborted_ms : int
        When it ended, by the driver's clock.
    took_ms, limit_ms : int
        How long the execution ran, and how long it may run before its transactions are too old to decide.
    too_long : int
        How many executions of this very batch in a row took longer than their limit; 0 when this one ended for another
        reason.
    """

    query_id: str
    batch_id: int
    offsets_digest: str
    token: int
    execution: str
    aborted_ms: int
    took_ms: int = 0
    limit_ms: int = 0
    too_long: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of deviations from the plan over the life of the sink.

    Attributes
    ----------
    token : int
        The claim under which it was written.
    completed : int
        Decisions that a process other than their decider completed.
    aborted : int
        Undecided transactions that sweeps aborted.
    drained : int
        Decided batches that Spark ran again: their rows were read and not written.
    rewritten : int
        Decided parts that were lost and written again, counted when their decision is completed.
    """

    token: int
    completed: int = 0
    aborted: int = 0
    drained: int = 0
    rewritten: int = 0

    def plus(self, token: int, **counts: int) -> Tally:
        """Return the tally with these counts added."""
        return replace(self, token=token, **{name: getattr(self, name) + count for name, count in counts.items()})


@dataclass(frozen=True, slots=True)
class Retired:
    """The sink is retired for good: ``successor`` continues after its last decided batch.

    It follows the claim ``token``, under which nothing was left open. ``query_id`` and ``batch_id`` name that batch,
    and ``offsets`` say where its input ended: topic -> partition -> the next offset to read.
    """

    token: int
    successor: str
    query_id: str
    batch_id: int
    offsets: Mapping[str, Mapping[str, int]]
    retired_ms: int

    @property
    def title(self) -> str:
        """Name it for people."""
        return f"retirement: {self.successor} continues after batch {self.batch_id} of {self.query_id}"


Record = Claim | Decision | Completed | Aborted | Tally | Retired

#: The name of each kind of record.
KINDS: dict[str, type] = {
    "claim": Claim,
    "decision": Decision,
    "completed": Completed,
    "aborted": Aborted,
    "tally": Tally,
    "retired": Retired,
}

#: The key of a retirement begins like a claim's, which code from before it knows: such code refuses the log (EO-LOG),
#: and would else offer to drop the record as one that no sink writes.
_RETIRED = "claim/retired"


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the log."""

    record: Record
    offset: int
    timestamp_ms: int = field(default=-1)


def key_of(record: Record) -> str:
    """Return the compaction key. The log keeps one claim, one tally, one abort, one retirement, the last
    :data:`KEPT_DECISIONS` decisions of batches with their marks, and every decision of a batch write with its mark.
    """
    if isinstance(record, Retired):
        return _RETIRED
    if isinstance(record, Claim | Aborted | Tally):
        return next(k for k, t in KINDS.items() if isinstance(record, t))
    kind = "decision" if isinstance(record, Decision) else "completed"
    place = record.query_id if record.query_id.startswith(WRITE) else record.batch_id % KEPT_DECISIONS
    return f"{kind}/{place}"


def decision_key(mark: Completed) -> str:
    """Return the key of the decision that ``mark`` completes."""
    return "decision/" + key_of(mark).removeprefix("completed/")


def in_order(handles: Iterable[PreparedTransaction | PreparedPart]) -> tuple[PreparedTransaction | PreparedPart, ...]:
    """Sort the handles by participant, Kafka first, as the log gives them back."""
    return tuple(sorted(handles, key=lambda h: (h.participant != KAFKA, h.participant)))


def identity(handle: PreparedTransaction | PreparedPart) -> tuple[str | int, ...]:
    """Identify exactly this part. Its name is not enough: transactional ids are used again."""
    if isinstance(handle, PreparedTransaction):
        return handle.transactional_id, handle.producer_id, handle.epoch
    return handle.participant, handle.name


def is_own_key(key: str) -> bool:
    """Return whether ``key`` looks like one of :func:`key_of`."""
    return key.partition("/")[0] in KINDS

"""The JSON between Spark's JVM and the coordinators: requests, the reports of tasks in them, and answers.

java/exactlyonce/border/Border.java has records of the same names and fields. Tests on both sides hold them to the files
in tests/golden/border. A field with a default may be missing, as in the JSON of an older jar; fields that are not here,
a newer jar's, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import ClassVar, NamedTuple, Self

from exactly_once.errors import ProtocolViolation
from exactly_once.framing import Encoding
from exactly_once.options import Guarantee
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import OffsetRange, Place, PreparedTransaction
from exactly_once.protocol.ticket import Part
from exactly_once.spark.typed_json import WrongJson, of_json

#: Getter of a member's value, by which it goes: JSON has no enums.
_VALUE = attrgetter("value")


@dataclass(frozen=True, slots=True)
class Message:
    """A value with a form in JSON."""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return what parsed JSON says; raise WrongJson, which names the field."""
        return of_json(cls, value)

    def as_json(self) -> str:
        return json.dumps(asdict(self), default=_VALUE)


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request(Message):
    """One step that Java asks for; ``call`` is its name."""

    call: ClassVar[str]

    def as_json(self) -> str:
        return json.dumps({"call": self.call} | asdict(self), default=_VALUE)


@dataclass(frozen=True, slots=True)
class CheckRequest(Request):
    """Refuse inside ``start()``, or ``save()`` of a ``batch`` write, what mode, options and columns tell, and then, if
    they are to be asked, what the ``brokers`` tell.

    ``schema`` is Spark's JSON; None when nobody has said it yet, as for ``mode``. ``pem`` holds key-store contents that
    only the JVM can read.
    """

    call: ClassVar[str] = "check"
    options: Mapping[str, str | None]
    batch: bool = False
    schema: str | None = None
    pem: Mapping[str, str] | None = None
    mode: str | None = None
    brokers: bool = True


@dataclass(frozen=True, slots=True)
class PlanRequest(Request):
    """Plan an execution of a micro-batch, or a try of a batch write (``write``), which has neither query nor batch nor
    sources; its answer is a :class:`TaskTicket`.

    ``pem`` comes with the first plan of a ``run`` alone. ``overwrite``: Spark asks for mode Complete.
    ``batch`` is None in continuous mode, ``sources`` where Spark does not name them. ``settings`` are those of the
    session that may have to be refused.
    """

    call: ClassVar[str] = "plan"
    run: str
    options: Mapping[str, str | None]
    schema: str
    overwrite: bool = False
    write: bool = False
    query: str = ""
    batch: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] | None = None
    pem: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EndRequest(Request):
    """End what was planned last; a task without a result has None among the ``parts``."""

    run: str
    parts: tuple[TaskReport | None, ...]
    batch: int = 0

    def results(self) -> list[Part | None]:
        return [None if report is None else report.part_of(self.run) for report in self.parts]


class CommitRequest(EndRequest):
    """Commit it."""

    __slots__ = ()
    call = "commit"


class AbortRequest(EndRequest):
    """Abort it."""

    __slots__ = ()
    call = "abort"


@dataclass(frozen=True, slots=True)
class CloseRequest(Request):
    """The run has ended."""

    call: ClassVar[str] = "close"
    run: str


_REQUESTS = {r.call: r for r in (CheckRequest, PlanRequest, CommitRequest, AbortRequest, CloseRequest)}


def request_of(text: str) -> Request:
    """Return the request that Java sent; raise ProtocolViolation, which names a field that is missing or wrong."""
    value = json.loads(text)
    call = value.get("call") if isinstance(value, dict) else None
    try:
        if call not in _REQUESTS:
            raise WrongJson("this package has no step of that name")
        return _REQUESTS[call].of(value)
    except WrongJson as e:
        raise ProtocolViolation(
            "the sink's jar and the Python package are of two versions, and one cannot read what the other has sent "
            f"({call!r}: {e})",
            "Put the jar that exactly_once.jar() names into spark.jars, in place of the other one, and start again",
        ) from e


# -- the reports of tasks ---------------------------------------------------------------------------------------------


class PartitionRange(NamedTuple):
    """A partition, and a transaction's :class:`~exactly_once.protocol.records.OffsetRange` there; a list in JSON."""

    topic: str
    partition: int
    first_offset: int
    records: int
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TaskReport(Message):
    """The result of a task that has left no transaction open; ``again`` says whether Spark gave up an attempt of its
    part before. ``others`` are the handles of the outputs that Python writes, in hexadecimal, as
    :mod:`exactly_once.spark.foreach_batch` gave them to Java.
    """

    part: int
    again: bool
    execution: str
    plan: Plan
    others: tuple[str, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a :class:`PreparedReport` for JSON with a transactional id."""
        return of_json(PreparedReport if isinstance(value, dict) and "id" in value else cls, value)  # type: ignore[return-value]

    def part_of(self, run: str) -> Part:
        return Part(self.execution, run, self.part, self.again, self.plan)


@dataclass(frozen=True, slots=True)
class PreparedReport(TaskReport):
    """The result of a task that has left a transaction open, with the fields of its
    :class:`~exactly_once.protocol.records.PreparedTransaction`.

    ``refused`` is what was wrong with the first dead letter, and the way out; () without one.
    """

    id: str
    producer: int
    epoch: int
    records: int
    bytes: int
    digest: str
    form: str
    written: tuple[PartitionRange, ...]
    dead: int = 0
    refused: tuple[str, ...] = ()

    def part_of(self, run: str) -> Part:
        written = {(e.topic, e.partition): OffsetRange(*e[2:]) for e in self.written}
        handle = PreparedTransaction(
            transactional_id=self.id,
            producer_id=self.producer,
            epoch=self.epoch,
            part=self.part,
            records=self.records,
            bytes=self.bytes,
            digest=self.digest,
            place=min((Place(*p, e.first_offset) for p, e in written.items() if e.first_offset >= 0), default=None),
            written=written,
            form=self.form,
            dead=self.dead,
        )
        return Part(self.execution, run, self.part, self.again, self.plan, (handle,), self.refused)


# -- answers ----------------------------------------------------------------------------------------------------------


class LostPart(NamedTuple):
    """The rows of a lost part that a replay writes again; a list in JSON."""

    records: int
    digest: str


@dataclass(frozen=True, slots=True)
class DeadLetterTarget(Message):
    """The topic for rows that cannot be written, at most ``most`` of a batch. ``largest`` is its max.message.bytes;
    ``origin`` the header that names a row's input record, "" for none.
    """

    topic: str
    most: int
    largest: int
    origin: str


@dataclass(frozen=True, slots=True)
class TaskTicket(Message):
    """The instructions for Java's tasks of one execution; Ticket.java and Rows.java say what each of them does there.

    ``query``, ``too_long`` and the prefixes, which are hexadecimal, may be "", and ``limit_ms`` 0. ``topic`` is None
    where a column names it. ``columns`` has the place of each column that makes a record, ``lost`` the parts that a
    replay writes again, and ``client`` the producer's settings by their Java names, as the user gave them.
    """

    plan: Plan
    execution: str
    batch: int
    query: str
    guarantee: Guarantee
    sink: str
    ids: str
    log: str
    log_end: int
    timeout_ms: int
    limit_ms: int
    too_long: str
    topic: str | None
    columns: Mapping[str, int]
    key_prefix: str
    value_prefix: str
    encodings: Mapping[str, Encoding]
    allowed: tuple[str, ...]
    dead_letters: DeadLetterTarget | None
    batch_headers: bool
    lost: tuple[LostPart, ...]
    client: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineError(Message):
    """An error of the engine; ``text`` begins with its code."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class CallAnswer(Message):
    """The answer to a request: ``ok`` is the ticket of a plan, and None of every other step that went well."""

    ok: TaskTicket | None = None
    error: EngineError | None = None

    def as_json(self) -> str:
        """Return ``{"ok": ...}``, or ``{"error": ...}``."""
        side = {"error": self.error} if self.error else {"ok": self.ok}
        return json.dumps({k: v and asdict(v) for k, v in side.items()}, default=_VALUE)

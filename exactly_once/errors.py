"""Every error that a user of the sink can meet: a stable code, what happened, what is safe, what to do.

Spark flattens a Python exception into text and drops its type, so each message begins with its code, and
:func:`code_in` finds the code in any traceback.
"""

from __future__ import annotations

import re

#: Pattern of an exception of this project's: as Python prints it in a traceback, and as Spark repeats it; of its Java,
#: behind the task that it failed, or as a cause; and as PySpark raises one of the driver's Java. A quotation is none.
_RAISED = re.compile(
    r"(?:\A|terminated with exception: |^[ \t|:]*(?:[\w.]+Exception: )*(?:dagster_)?exactly_once(?:\.\w+)+: "
    r"|(?:^[ \t:]*|^Caused by: |\([^()\n]* executor [^()\n]*\): )exactlyonce\.SinkException: "
    r"|^\(exactlyonce\.SinkException\) |^pyspark\.errors(?:\.\w+)+\.IllegalArgumentException: )"
    r"(?P<code>EO-[A-Z][A-Z-]*[A-Z]): ",
    re.MULTILINE,
)

#: The SQLSTATE that Spark writes behind the message of an exception, on the same line.
_SQLSTATE = re.compile(r"(?: SQLSTATE: \w{5})+$")

#: Words between an exception and the one that it caused, which is the one that was raised in the end.
_THEN = ("direct cause of the following exception", "another exception occurred")

#: A colour that a library puts into its errors for a terminal.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

#: Words before the way out in a message, so that :func:`way_out_in` finds all of it, however many sentences it has.
_WAY_OUT = " What to do: "


class ExactlyOnceError(Exception):
    """Base class of all errors that the sink raises.

    Parameters
    ----------
    what : str
        What happened, with the name of the topic, sink, transactional id or option.
    way_out : str
        What the reader should do now, clear without the rest of the message.
    safe : str, optional
        What is known to be safe. Default: ``default_safe`` of the class.

    Attributes
    ----------
    code : str
        Stable and greppable: ``EO-...``. Part of the public contract.
    restart_heals : bool
        True when the right reaction is to start the stream again, unchanged.
    """

    code = "EO-INTERNAL"
    restart_heals = False
    default_safe = "Nothing was written"

    def __init__(self, what: str, way_out: str, safe: str | None = None):
        self.what, self.safe, self.way_out = map(_line, (what, safe or self.default_safe, way_out))
        super().__init__(f"{self.code}: {self.what}. {self.safe}.{_WAY_OUT}{self.way_out}.")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.what, self.way_out, self.safe)


def _line(text: str) -> str:
    """Return it as one line, so that :func:`sentence_in` finds all of it, without what a terminal would obey."""
    line = _COLOUR.sub("", " ".join(text.split())).rstrip(".")
    return line if line.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in line)


class TransformFailed(ExactlyOnceError):
    """The user's own function or expression raised an exception: in a task, or while the query was built."""

    code = "EO-TRANSFORM"
    default_safe = "Nothing of the batch was written; the next start reads the same input again"


class InvalidOption(ExactlyOnceError):
    """A sink option is missing, unknown, or has an invalid value."""

    code = "EO-OPTION"


class InvalidSchema(ExactlyOnceError):
    """The DataFrame lacks a column that a record needs, or a column has the wrong type."""

    code = "EO-SCHEMA"


class UnsupportedMode(ExactlyOnceError):
    """A Spark that is too old, or a mode that rules out exactly-once output (Complete, real-time, speculation, ...)."""

    code = "EO-MODE"


class SessionWithoutJar(ExactlyOnceError):
    """The JVM of the Spark session does not find the sink's classes."""

    code = "EO-SESSION-JAR"


class CheckpointUnusable(ExactlyOnceError):
    """The checkpoint location is missing or torn, or the driver's Python process cannot read it."""

    code = "EO-CHECKPOINT"


class CheckpointAway(ExactlyOnceError):
    """The file system of the checkpoint does not answer."""

    code = "EO-CHECKPOINT-AWAY"
    restart_heals = True


class CheckpointRewound(ExactlyOnceError):
    """The checkpoint and the commit log disagree: one of them was deleted, restored, rewound or replaced."""

    code = "EO-REWOUND"


class SinkOwned(ExactlyOnceError):
    """The sink id belongs to another query."""

    code = "EO-SINK-OWNED"


class SinkRetired(ExactlyOnceError):
    """The sink has a successor, which continues after its last decided batch: no stream may use it any more."""

    code = "EO-RETIRED"


class CoordinatorGone(ExactlyOnceError):
    """The Python process that runs the sink's protocol has ended, or does not answer the JVM, which says so itself."""

    code = "EO-COORDINATOR"
    restart_heals = True
    default_safe = "The next start commits what is decided; nothing else is visible"


class CoordinatorMissing(ExactlyOnceError):
    """The JVM cannot start the Python process that runs the sink's protocol."""

    code = "EO-COORDINATOR-MISSING"
    default_safe = CoordinatorGone.default_safe


class BrokerUnreachable(ExactlyOnceError):
    """No broker answered within the time budget."""

    code = "EO-UNREACHABLE"
    restart_heals = True


class RegistryUnreachable(ExactlyOnceError):
    """The schema registry did not answer within the time budget, or answered with an error that may pass."""

    code = "EO-REGISTRY"
    restart_heals = True


class BrokerRefused(ExactlyOnceError):
    """The brokers answered a request with an error that a retry will not change."""

    code = "EO-BROKER-REFUSED"


class BrokerTooOld(ExactlyOnceError):
    """The cluster does not support a request that the protocol needs, such as DescribeTransactions (KIP-664)."""

    code = "EO-BROKER-OLD"


class UnknownTopic(ExactlyOnceError):
    """A topic that the sink needs does not exist (or the principal may not describe it)."""

    code = "EO-TOPIC"


class InvalidTransactionTimeout(ExactlyOnceError):
    """transaction.timeout.ms is above the brokers' maximum or below what a batch needs."""

    code = "EO-TIMEOUT"


class NotAuthorized(ExactlyOnceError):
    """The principal lacks a right that the sink needs."""

    code = "EO-DENIED"


class InvalidRecord(ExactlyOnceError):
    """A row cannot be written: it is too large, has no topic, or names a partition that does not exist, for example."""

    code = "EO-RECORD"
    default_safe = "None of this batch is visible to a read_committed reader"


class PrepareFailed(ExactlyOnceError):
    """A part could not be prepared: a delivery failed, or its timeout or another client ended its transaction."""

    code = "EO-PREPARE"
    restart_heals = True
    default_safe = "The batch is not decided; none of it is visible to a read_committed reader"


class TopicLimitLowered(ExactlyOnceError):
    """An output topic's max.message.bytes was lowered below the batches of a task that was sending them."""

    code = "EO-TOPIC-LIMIT"
    restart_heals = True
    default_safe = PrepareFailed.default_safe


class Fenced(ExactlyOnceError):
    """A newer claim, of a driver or a recovery, owns the sink; this driver may no longer decide."""

    code = "EO-FENCED"
    default_safe = "The newer owner continues; nothing is lost or duplicated"


class Expiring(ExactlyOnceError):
    """A prepared transaction is gone, not what its task wrote, or would expire too soon after a decision."""

    code = "EO-EXPIRING"
    restart_heals = True
    default_safe = "The batch is not decided; none of it is visible, and the next start writes its rows"


class AlreadyDecided(ExactlyOnceError):
    """The driver was about to decide a batch that the commit log has already decided."""

    code = "EO-DECIDED"
    restart_heals = True
    default_safe = (
        "The batch is already decided, and the parts that this driver prepared are rolled back; nothing is written "
        "twice"
    )


class BatchTooLong(ExactlyOnceError):
    """The same batch took too long for its transactions twice in a row: running it again does not help."""

    code = "EO-TOO-LONG"
    default_safe = "The batch is not decided; none of it is visible to a read_committed reader"


class Unfinished(ExactlyOnceError):
    """A batch is decided, but not every commit could be proven within the budget."""

    code = "EO-UNFINISHED"
    restart_heals = True
    default_safe = "The batch is decided, and the next start commits it"


class Expired(ExactlyOnceError):
    """Records of a decided part are in doubt: its outcome is unknown, or the same micro-batch now gives other rows."""

    code = "EO-EXPIRED"
    default_safe = "Every other part of the batch is committed; the stream does not continue past this batch"


class Lost(ExactlyOnceError):
    """A decided part was provably rolled back before its commit; the next start writes its rows again."""

    code = "EO-LOST"
    restart_heals = True
    default_safe = (
        "Every other part of the batch is committed; the rows of the lost parts can still be written exactly once"
    )


class ParticipantMissing(ExactlyOnceError):
    """A decision names a participant that this process does not have."""

    code = "EO-PARTICIPANT"
    default_safe = "The parts of the other participants are committed; the batch stays decided"


class TopicRecreated(ExactlyOnceError):
    """An output topic that the sink has written to was deleted and recreated."""

    code = "EO-TOPIC-RECREATED"
    default_safe = "None of this batch is visible to a read_committed reader"


class InputRecreated(ExactlyOnceError):
    """An input topic was deleted and recreated: the query would go on at the offsets of the deleted one."""

    code = "EO-INPUT-RECREATED"
    default_safe = "Nothing of the new topic was written"


class StoreRefused(ExactlyOnceError):
    """A file store cannot give what the participant needs, such as atomic rename or write access."""

    code = "EO-STORE"


class CommitLogDamaged(ExactlyOnceError):
    """The commit log cannot be read to its end, or contains something that no driver of this version writes."""

    code = "EO-LOG"
    default_safe = "Decided batches stay decided; no part of any other batch is visible to a read_committed reader"


class CommitLogBlocked(ExactlyOnceError):
    """Another writer's open transaction on the commit log hides later records, perhaps a claim or a decision."""

    code = "EO-LOG-BLOCKED"
    restart_heals = True
    default_safe = "Decided batches stay decided; no part of any other batch is visible to a read_committed reader"


class DecisionTooLarge(ExactlyOnceError):
    """The commit log's topic does not accept a record as large as this decision."""

    code = "EO-LOG-SIZE"
    default_safe = "The batch is not decided; none of it is visible to a read_committed reader"


class ProtocolViolation(ExactlyOnceError):
    """An invariant that the code relies on does not hold: a bug in Spark or in this package."""

    code = "EO-PROTOCOL"
    default_safe = "The batch is not decided; none of it is visible to a read_committed reader"


class DatabaseUnusable(ExactlyOnceError):
    """A database or its table cannot support two-phase commit, or is not the database in which parts were prepared."""

    code = "EO-DATABASE"


class ConnectorUnusable(ExactlyOnceError):
    """The Spark session lacks Spark's Kafka connector or a class of Kafka, or has one of another Spark or Scala."""

    code = "EO-CONNECTOR"
    default_safe = "Nothing was started"


class ExtraMissing(ExactlyOnceError):
    """A package of an extra is not installed."""

    code = "EO-EXTRA"
    default_safe = "Nothing was started"

    @classmethod
    def of(
        cls, what: str, package: str, extra: str, e: Exception | None = None, where: str = "where you run it"
    ) -> ExtraMissing:
        """Make the error of ``what``, which needs ``package`` of the extra."""
        why = f" ({e})" if e is not None else ""
        return cls(
            f"{what} needs {package}, which cannot be imported here{why}",
            f"Install the extra {where}: pip install 'pyspark-kafka-exactly-once[{extra}]'",
        )

    @classmethod
    def of_output(cls, output: str, package: str, extra: str, e: ImportError) -> ExtraMissing:
        """Make the error of an output whose package cannot be imported."""
        return cls.of(f"the {output} participant", package, extra, e, "on the driver and on every executor")


def all_errors() -> dict[str, type[ExactlyOnceError]]:
    """Return every error class by its code."""
    return {c.code: c for c in ExactlyOnceError.__subclasses__()}


def code_in(text: str) -> str | None:
    """Return the code of this module's exception in ``text`` (a traceback, a StreamingQueryException), or None.

    A text that only quotes a code, such as a record in the message of a user's exception, has none.
    """
    found = _raised(text)
    return found["code"] if found else None


def _raised(text: str) -> re.Match[str] | None:
    """Return the first exception of this module in ``text``; of a chain, the one that was raised in the end."""
    known = all_errors()
    found: re.Match[str] | None = None
    for m in _RAISED.finditer(text):
        if m["code"] not in known:
            continue
        if found is not None and not any(then in text[found.end() : m.start()] for then in _THEN):
            break
        found = m
    return found


def sentence_in(text: str) -> str | None:
    """Return the full message ``EO-...: what. safe. What to do: way out.`` in ``text``, or None."""
    found = _raised(text)
    return _SQLSTATE.sub("", text[found.start("code") :].splitlines()[0].strip()) if found else None


def way_out_in(sentence: str) -> str:
    """Return the whole way out of a message from :func:`sentence_in`; the message itself when it has none."""
    return sentence.rpartition(_WAY_OUT)[2]

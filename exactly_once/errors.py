"""Every error a user of the sink can meet: a stable code, what happened, what is safe, what to do.

Spark flattens a Python exception into text on its way to the user (the type is lost), so the code is the first word
of the message and :func:`code_in` finds it again in any traceback.
"""

from __future__ import annotations

import re

_CODE = re.compile(r"\bEO-[A-Z][A-Z-]*[A-Z]\b")


class ExactlyOnceError(Exception):
    """Base of all errors of the sink.

    Parameters
    ----------
    what : str
        What happened, naming the thing (topic, sink, transactional id, option).
    way_out : str
        What the reader should do now.
    safe : str, optional
        What is known to be safe. Default: the statement that holds for most errors, "Nothing was written".

    Attributes
    ----------
    code : str
        Stable, greppable: ``EO-...``. Part of the public contract.
    restart_heals : bool
        True when starting the stream again, unchanged, is the right reaction.
    """

    code = "EO-INTERNAL"
    restart_heals = False
    default_safe = "Nothing was written"

    def __init__(self, what: str, way_out: str, safe: str | None = None):
        # on one line: that is how the sentence is found again in a traceback
        self.what, self.safe, self.way_out = (
            " ".join(text.split()).rstrip(".") for text in (what, safe or self.default_safe, way_out)
        )
        super().__init__(f"{self.code}: {self.what}. {self.safe}. {self.way_out}.")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.what, self.way_out, self.safe)


class InvalidOption(ExactlyOnceError):
    """An option of the sink is missing, unknown or has a value that cannot work."""

    code = "EO-OPTION"


class InvalidSchema(ExactlyOnceError):
    """The DataFrame has not the columns, or not the types, that a Kafka record needs."""

    code = "EO-SCHEMA"


class UnsupportedMode(ExactlyOnceError):
    """A Spark mode in which exactly-once cannot be given (Complete, continuous, real-time, speculation)."""

    code = "EO-MODE"


class CheckpointUnusable(ExactlyOnceError):
    """The checkpoint location is missing or cannot be read by the driver's Python process."""

    code = "EO-CHECKPOINT"


class CheckpointRewound(ExactlyOnceError):
    """The checkpoint and the commit log tell different stories: it was deleted, restored, rewound or exchanged."""

    code = "EO-REWOUND"


class SinkOwned(ExactlyOnceError):
    """The sink id belongs to another query."""

    code = "EO-SINK-OWNED"


class BrokerUnreachable(ExactlyOnceError):
    """No broker answered within the time budget."""

    code = "EO-UNREACHABLE"
    restart_heals = True


class RegistryUnreachable(ExactlyOnceError):
    """The schema registry did not answer within the time budget, or not in a way that says what to do."""

    code = "EO-REGISTRY"
    restart_heals = True


class BrokerRefused(ExactlyOnceError):
    """The brokers answered a request with an error that repeating it does not change."""

    code = "EO-BROKER-REFUSED"


class BrokerTooOld(ExactlyOnceError):
    """The cluster lacks a request that the protocol needs."""

    code = "EO-BROKER-OLD"


class UnknownTopic(ExactlyOnceError):
    """A topic that is to be written does not exist (or may not be described)."""

    code = "EO-TOPIC"


class InvalidTransactionTimeout(ExactlyOnceError):
    """transaction.timeout.ms is above the broker's maximum or below what a batch needs."""

    code = "EO-TIMEOUT"


class NotAuthorized(ExactlyOnceError):
    """The principal lacks a right."""

    code = "EO-DENIED"


class InvalidRecord(ExactlyOnceError):
    """A row cannot be a Kafka record: too large, no topic, or no such partition."""

    code = "EO-RECORD"
    default_safe = "Nothing of this batch is visible to a read_committed reader"


class PrepareFailed(ExactlyOnceError):
    """A part could not be prepared: a delivery failed, or its transaction was ended by somebody else."""

    code = "EO-PREPARE"
    restart_heals = True
    default_safe = "The batch is not decided; nothing of it is visible to a read_committed reader"


class Fenced(ExactlyOnceError):
    """A newer driver owns the sink; this one may not decide any more."""

    code = "EO-FENCED"
    default_safe = "The newer owner continues; nothing is lost or duplicated"


class Expiring(ExactlyOnceError):
    """A prepared transaction or its records are gone, or it would be gone too soon to decide."""

    code = "EO-EXPIRING"
    restart_heals = True
    default_safe = "The batch is not decided; nothing of it is visible, and its rows will be written by the next start"


class AlreadyDecided(ExactlyOnceError):
    """A batch was about to be decided that the commit log has decided already."""

    code = "EO-DECIDED"
    restart_heals = True
    default_safe = (
        "The batch is decided already, and what this driver prepared is rolled back; nothing is written twice"
    )


class BatchTooLong(ExactlyOnceError):
    """The same batch took too long for its transactions twice in a row: running it again does not help."""

    code = "EO-TOO-LONG"
    default_safe = "The batch is not decided; nothing of it is visible to a read_committed reader"


class Unfinished(ExactlyOnceError):
    """A batch is decided, but not every EndTxn could be proven within the budget."""

    code = "EO-UNFINISHED"
    restart_heals = True
    default_safe = "The batch is decided and will be committed by the next start"


class Expired(ExactlyOnceError):
    """What became of a decided part cannot be told, or its rows cannot be proven the same: records are in doubt."""

    code = "EO-EXPIRED"
    default_safe = "Every other part of the batch is committed; the stream does not go past it"


class Lost(ExactlyOnceError):
    """A decided part was rolled back before its commit, which is proven; the next start writes its rows again."""

    code = "EO-LOST"
    restart_heals = True
    default_safe = "Every other part of the batch is committed, and the rows of the lost ones will be, once"


class ParticipantMissing(ExactlyOnceError):
    """A decision names a participant that this process does not have."""

    code = "EO-PARTICIPANT"
    default_safe = "What other participants have to commit is committed; the batch stays decided"


class TopicRecreated(ExactlyOnceError):
    """An output topic was deleted and made again while the sink had written to it."""

    code = "EO-TOPIC-RECREATED"
    default_safe = "Nothing of this batch is visible to a read_committed reader"


class StoreRefused(ExactlyOnceError):
    """A place for files cannot keep what a participant promises: no atomic rename, not writable, or another place."""

    code = "EO-STORE"


class CommitLogDamaged(ExactlyOnceError):
    """The commit log cannot be read to its end or holds what no driver of this version writes."""

    code = "EO-LOG"
    default_safe = "What is decided stays decided; nothing of any other batch is visible to a read_committed reader"


class CommitLogBlocked(ExactlyOnceError):
    """Somebody else's open transaction on the commit log hides what stands behind it, perhaps a claim or a decision."""

    code = "EO-LOG-BLOCKED"
    restart_heals = True
    default_safe = "What is decided stays decided; nothing of any other batch is visible to a read_committed reader"


class DecisionTooLarge(ExactlyOnceError):
    """The commit log's topic does not take a record of the size of this decision."""

    code = "EO-LOG-SIZE"
    default_safe = "The batch is not decided; nothing of it is visible to a read_committed reader"


class ProtocolViolation(ExactlyOnceError):
    """An invariant that the code relies on does not hold: a bug, in Spark or here."""

    code = "EO-PROTOCOL"
    default_safe = "The batch is not decided; nothing of it is visible to a read_committed reader"


class DatabaseUnusable(ExactlyOnceError):
    """A database, or the table that is to be written, cannot keep what a two-phase commit needs; or it is another one
    than the parts were prepared in.
    """

    code = "EO-DATABASE"


def all_errors() -> dict[str, type[ExactlyOnceError]]:
    """Every error class by its code."""
    return {c.code: c for c in ExactlyOnceError.__subclasses__()}


def code_in(text: str) -> str | None:
    """The first code of this module found in ``text`` (a traceback, a StreamingQueryException), or None."""
    known = all_errors()
    return next((m for m in _CODE.findall(text) if m in known), None)


def sentence_in(text: str) -> str | None:
    """The whole sentence ``EO-...: what. safe. way out.`` found in ``text``, or None."""
    code = code_in(text)
    if code is None:
        return None
    start = text.index(f"{code}: ") if f"{code}: " in text else text.index(code)
    return text[start:].splitlines()[0].strip()

"""The meaning of the brokers' answers to EndTxn.

The table was tried on Apache Kafka 3.0 to 4.4 for versions 3 to 5 (``make test-kafkas``). It holds under three rules:
each transaction has its own InitProducerId, no driver initialises an id that an open decision names (unless its
coordinator says that it has aborted that transaction), and a retry uses the version of the first try.
"""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The proof that an answer to EndTxn gives about a transaction."""

    DONE = "done"
    """The requested end is durable on the coordinator, now or from an earlier try."""

    RETRY = "retry"
    """Nothing is known yet; ask again."""

    LOST = "lost"
    """The transaction ended the other way: its timeout or another client aborted it."""

    UNKNOWN = "unknown"
    """The id was initialised again or has expired, so the broker can no longer tell how the transaction ended. Below
    version 5, a transaction that timed out looks the same."""

    DENIED = "denied"
    """The principal may not write with this transactional id."""


def read_answer(error: str) -> Outcome:
    """Interpret ``error`` (the broker's name, ``NONE`` for success) as an answer to EndTxn.

    For a timed-out transaction the broker answers INVALID_TXN_STATE to version 5 and PRODUCER_FENCED below that; the
    latter also means that the id was initialised again.
    """
    if error == "NONE":
        return Outcome.DONE
    if error == "INVALID_TXN_STATE":
        return Outcome.LOST
    if error in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"):
        return Outcome.UNKNOWN
    if error == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
        return Outcome.DENIED
    return Outcome.RETRY  # a moved coordinator, a lost answer, or an error that says nothing about the transaction

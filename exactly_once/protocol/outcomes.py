"""The meaning of the brokers' answers to EndTxn.

The table was tried on Apache Kafka 4.3.1 for versions 4 and 5 (see ARCHITECTURE.md). It is read with three rules in
force: one
InitProducerId for each transaction, nobody initialises an id while a decision that names it is open, and a retry uses
the version of the first try.
"""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The knowledge about a transaction after the answer to an EndTxn."""

    DONE = "done"
    """The requested end is durable on the coordinator, now or from an earlier try."""

    RETRY = "retry"
    """Nothing is known yet; ask again."""

    LOST = "lost"
    """The transaction was ended otherwise: by its timeout, or by somebody who aborted it."""

    UNKNOWN = "unknown"
    """The id was initialised again or has expired, so the broker can no longer tell what became of the transaction;
    below version 5, a transaction that timed out looks the same."""

    DENIED = "denied"
    """The principal may not write with this transactional id."""


def read_answer(error: str) -> Outcome:
    """The meaning of ``error`` (the broker's name of it, ``NONE`` for success) as an answer to EndTxn.

    A timed-out transaction answers INVALID_TXN_STATE to version 5 and PRODUCER_FENCED to version 4, where it cannot be
    told from an id that was initialised again.
    """
    if error == "NONE":
        return Outcome.DONE
    if error == "INVALID_TXN_STATE":
        return Outcome.LOST
    if error in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"):
        return Outcome.UNKNOWN
    if error == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
        return Outcome.DENIED
    return Outcome.RETRY  # a moving coordinator, a lost answer, or an error that says nothing about the transaction

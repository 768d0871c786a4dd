"""The limits at which a symptom begins, in one table: every screen and every option takes its default from here."""

from __future__ import annotations

from dataclasses import dataclass

from exactly_once.txn.leaders import OLDER_THAN_S


@dataclass(frozen=True)
class Thresholds:
    """The limits. All in seconds, but for ``lag_limit``, in offsets.

    Attributes
    ----------
    stale_after_s : float
        The age at which an open transaction is stale: well above the longest batch, well below the default timeout of
        15 min.
    hanging_older_than_s : float
        The age from which a transaction that no coordinator knows counts as hanging: the brokers' default of
        ``transaction.max.timeout.ms``.
    completing_s : float
        The age until which a decided batch without its completed mark is work under way.
    starting_s : float
        The time from a run's start to its first batch: 30 to 37 s on two shared cores, of which Spark takes 23 s.
    stall_after_s : float
        How long input may wait without a commit.
    lag_limit : int
        The offsets that a stream may be behind.
    """

    stale_after_s: float = 300.0
    hanging_older_than_s: float = OLDER_THAN_S
    completing_s: float = 10.0
    starting_s: float = 90.0
    stall_after_s: float = 120.0
    lag_limit: int = 200_000

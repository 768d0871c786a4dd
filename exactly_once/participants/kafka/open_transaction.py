"""A task asks two things about its open transaction: does it still own it, and is the task in time."""

from __future__ import annotations

import time

from exactly_once.errors import ExactlyOnceError, PrepareFailed
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin
from exactly_once.participants.kafka.late import LateCheck
from exactly_once.protocol.checksum import mismatch, not_whole
from exactly_once.protocol.records import Place, PreparedTransaction, Written
from exactly_once.txn.coordinators import Description, describe, describe_beside

#: Opening a transaction is a few round trips; a coordinator that fails over answers again within this.
OPEN_BUDGET_S = 30.0

#: Of one question.
_ASK_BUDGET_S = 10.0


class OpenTransaction:
    """A transaction of one part, as its coordinator and the commit log see it.

    Parameters
    ----------
    late : LateCheck, optional
        Whether the task is too late.
    """

    def __init__(self, transactional_id: str, admin: Admin, late: LateCheck | None):
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = -1, -1
        self._admin = admin
        self._late = late
        self._began = time.monotonic()
        reach("before-begin")

    def begun(self, producer_id: int, epoch: int) -> None:
        """Record that the transaction is open from now on, under this identity."""
        self.producer_id, self.epoch = producer_id, epoch
        self._began = time.monotonic()

    @property
    def age_ms(self) -> float:
        """Milliseconds that it has been open, by this process's clock; the broker's begins with the first record."""
        return (time.monotonic() - self._began) * 1000

    def check_in_time(self) -> None:
        """Ask the commit log alone.

        Raises
        ------
        Fenced, PrepareFailed
            When the task is too late.
        """
        if self._late is not None:
            self._late.judge(self._admin.renew(_ASK_BUDGET_S).high_watermark(self._late.topic, 0))

    def describe(self) -> Description:
        """Return its coordinator's description, after asking the commit log; raise as :meth:`check_in_time` does."""
        admin = self._admin.renew(_ASK_BUDGET_S)
        if self._late is None:
            return describe(admin, [self.transactional_id])[self.transactional_id]
        described, high = describe_beside(admin, self.transactional_id, self._late.topic)
        self._late.judge(high)
        return described

    def prepared(
        self, part: int, records: int, size: int, digest: str, form: str, written: Written
    ) -> PreparedTransaction:
        """Make sure, when all is sent, that this very transaction is open, and the task in time; return the handle.

        Raises
        ------
        PrepareFailed
            When the broker does not confirm it.
        Expiring
            When it confirms it without a partition of ``written``, or with another one.
        Fenced, PrepareFailed
            When the task is too late.
        """
        reach("after-flush")
        seen = self.describe()
        if seen.state != "Ongoing" or (seen.producer_id, seen.producer_epoch) != (self.producer_id, self.epoch):
            raise PrepareFailed(
                f"{self.transactional_id}: the broker reports {seen.state or 'unknown'} at producer epoch "
                f"{seen.producer_epoch}, not Ongoing at {self.epoch}: the transaction was ended by its timeout of "
                f"{seen.timeout_ms} ms or by another client",
                "Raise kafka.transaction.timeout.ms if batches take that long; otherwise find out what else uses this "
                "transactional id",
            )
        if why := mismatch(written, seen.partitions):
            raise not_whole(self.transactional_id, part, why)
        place = min((Place(*p, e.first_offset) for p, e in written.items() if e.first_offset >= 0), default=None)
        return PreparedTransaction(
            self.transactional_id,
            self.producer_id,
            self.epoch,
            part,
            records,
            size,
            digest,
            place,
            written,
            form=form,
        )

    def longest_timeout_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, if this principal may know it."""
        try:
            longest = self._admin.renew(5.0).broker_config().get("transaction.max.timeout.ms")
        except ExactlyOnceError:
            return None
        return int(longest) if longest else None

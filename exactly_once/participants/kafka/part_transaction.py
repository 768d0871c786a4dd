"""One transaction of one part, on the executor: begin, produce, prepare.

Before a task hands its transaction over, it asks whether it still owns it, and whether it is in time. The producer is
librdkafka's. It is never closed after a successful prepare: close() aborts (confluent-kafka >= 2.16). Dropping the last
reference leaves the transaction open, for the driver to end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from exactly_once.digest import RowDigest
from exactly_once.errors import ExactlyOnceError, PrepareFailed
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import of_sender
from exactly_once.kafka.login_probe import reason_of
from exactly_once.participants.kafka.digest_scope import (
    BATCH,
    CHOOSE,
    MIXED,
    NOW,
    PLAIN,
    Headers,
    place_of,
    scope_of,
)
from exactly_once.participants.kafka.late import LateCheck
from exactly_once.participants.kafka.sender import Sender
from exactly_once.protocol.batch_headers import Header
from exactly_once.protocol.checksum import mismatch, not_whole
from exactly_once.protocol.records import Extent, Place, PreparedTransaction
from exactly_once.txn.coordinators import Description, describe, describe_beside

#: Opening a transaction is a few round trips; a coordinator that fails over answers again within this.
OPEN_BUDGET_S = 30.0

#: Of one question.
_ASK_BUDGET_S = 10.0


def fixed_settings(transactional_id: str, timeout_ms: int) -> dict[str, Any]:
    """Return the producer settings that exactly-once fixes.

    Each delivery is reported: the handle says what was written.
    """
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "acks": "all",
        "delivery.report.only.error": False,
    }


class PartTransaction(Sender):
    """An open transaction under a transactional id that no other living attempt uses.

    Parameters
    ----------
    producer_config : mapping
        librdkafka settings of the user, without the connection and without what exactly-once fixes.
    timeout_ms : int
        transaction.timeout.ms; the broker aborts what is not ended by then.
    admin : Admin
        For the broker's own word on the transaction.
    late : LateCheck, optional
        Whether the task is too late, asked before the transaction begins and when it is prepared.
    batch : sequence
        The headers by which each record names its batch; the digest leaves them out.

    Raises
    ------
    PrepareFailed
        When the transaction cannot be opened.
    Fenced, PrepareFailed
        When the task is too late.
    """

    def __init__(
        self,
        connection: Connection,
        producer_config: Mapping[str, str],
        transactional_id: str,
        timeout_ms: int,
        admin: Admin,
        late: LateCheck | None = None,
        batch: Sequence[Header] = (),
    ):
        self._admin = admin
        self._late = late
        self._digest, self._scopes = RowDigest(), set[str]()
        self._first_offsets: dict[tuple[str, int], int] = {}
        self._acknowledged: dict[tuple[str, int], int] = {}
        self._dated, self._oldest = False, dict[tuple[str, int], int]()
        fixed = fixed_settings(transactional_id, timeout_ms)
        super().__init__(connection, producer_config, fixed, transactional_id, batch)
        assert self._producer is not None
        reach("before-begin")
        try:
            self._producer.init_transactions(OPEN_BUDGET_S)
            seen = self._describe()
            self._producer.begin_transaction()
        except KafkaException as e:
            raise of_sender(reason_of(e, connection), self.name) from e
        self.producer_id, self.epoch = seen.producer_id, seen.producer_epoch
        self._began = time.monotonic()

    @property
    def age_ms(self) -> float:
        """Milliseconds that it has been open, by this process's clock; the broker's begins with the first record."""
        return (time.monotonic() - self._began) * 1000

    def check_in_time(self) -> None:
        """Ask the commit log alone; raise Fenced or PrepareFailed when the task is too late."""
        if self._late is not None:
            self._late.judge(self._admin.renew(_ASK_BUDGET_S).high_watermark(self._late.topic, 0))

    def longest_timeout_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, if this principal may know it."""
        try:
            longest = self._admin.renew(5.0).broker_config().get("transaction.max.timeout.ms")
        except ExactlyOnceError:
            return None
        return int(longest) if longest else None

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = CHOOSE,
        headers: Headers = None,
        timestamp_ms: int | None = NOW,
    ) -> None:
        """Send a record as :meth:`Sender.send` does; the digest counts all that the row chose."""
        self._dated = self._dated or timestamp_ms is not NOW
        super().send(topic, key, value, partition, headers, timestamp_ms)
        self._digest.add(topic.encode(), key, value, place_of(partition, headers, timestamp_ms))
        self._scopes.add(scope_of(partition, timestamp_ms))

    def send_many(self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None], size: int) -> None:
        """Send records as :meth:`Sender.send_many` does; the digest counts keys and values."""
        super().send_many(topic, keys, values, size)
        self._digest.add_pairs(keys, values)
        self._scopes.add(PLAIN)

    def flush(self, timeout_s: float) -> None:
        """Flush as :meth:`Sender.flush` does, also when another producer has initialised the id again meanwhile."""
        try:
            super().flush(timeout_s)
        except (KafkaException, SystemError) as e:
            # the client raises a fatal error between two delivery reports, and the second fails in its C code over it
            fatal = e if isinstance(e, KafkaException) else e.__cause__
            if not isinstance(fatal, KafkaException):
                raise
            raise of_sender(fatal, self.name) from e

    def prepare(self, part: int, timeout_s: float) -> PreparedTransaction:
        """Flush, verify every delivery, and return the handle. The transaction stays open on the broker.

        Raises
        ------
        PrepareFailed
            When a record was not acknowledged, or the broker does not confirm that this very transaction is open.
        Expiring
            When the broker confirms it without a partition that was written, or with another one.
        Fenced, PrepareFailed
            When the task is too late.
        """
        self.flush(timeout_s)
        written = {
            p: Extent(max(-1, first), self._acknowledged[p], self._oldest.get(p))
            for p, first in self._first_offsets.items()
        }
        reach("after-flush")
        seen = self._describe()
        if seen.state != "Ongoing" or (seen.producer_id, seen.producer_epoch) != (self.producer_id, self.epoch):
            raise PrepareFailed(
                f"{self.name}: the broker reports {seen.state or 'unknown'} at producer epoch "
                f"{seen.producer_epoch}, not Ongoing at {self.epoch}: the transaction was ended by its timeout of "
                f"{seen.timeout_ms} ms or by another client",
                f"Raise kafka.transaction.timeout.ms if batches take longer than {seen.timeout_ms} ms; otherwise find "
                f"out what else uses the transactional id {self.name}",
            )
        if why := mismatch(written, seen.partitions):
            raise not_whole(self.name, part, why)
        self._producer = None
        return PreparedTransaction(
            self.name,
            self.producer_id,
            self.epoch,
            part,
            self.records,
            self.bytes,
            self._digest.text,
            place=min((Place(*p, e.first_offset) for p, e in written.items() if e.first_offset >= 0), default=None),
            written=written,
            form=self._form,
        )

    @property
    def _form(self) -> str:
        """The scope of the digest."""
        if len(self._scopes) != 1:
            return MIXED if self._scopes else ""
        return f"{next(iter(self._scopes))}{BATCH if self._behind else ''}"

    def _describe(self) -> Description:
        """Return the coordinator's description, after asking the commit log as :meth:`check_in_time` does."""
        admin = self._admin.renew(_ASK_BUDGET_S)
        if self._late is None:
            return describe(admin, [self.name])[self.name]
        described, high = describe_beside(admin, self.name, self._late.topic)
        self._late.judge(high)
        return described

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note a delivery; the reports of one partition come in order.

        A batch that was sent again may have no offset: -1001.
        """
        if error is not None:
            super()._on_delivery(error, message)
            return
        where = message.topic() or "", message.partition() or 0
        if where not in self._first_offsets:
            self._first_offsets[where] = message.offset() or 0
            reach("some-sent")
        self._acknowledged[where] = self._acknowledged.get(where, 0) + 1
        if self._dated:
            _, ms = message.timestamp()
            self._oldest[where] = min(ms, self._oldest.get(where, ms))

    def _raise_failure(self) -> None:
        # the client drops what it holds when a transaction may not go on, and does not say why: perhaps a missing right
        if self._failed and self._failed[0][0].code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._admin.renew(10.0).check_rights(self._failed[0][1].rpartition("-")[0], ("WRITE",))
        super()._raise_failure()

    def abort(self) -> None:
        """Give up: abort at once, so that readers are not blocked until a sweep. Never raises."""
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.abort_transaction(5.0)
        except KafkaException:  # the sweep finds what is left
            pass

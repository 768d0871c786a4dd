"""One transaction of one part on the fast way: begin, produce, prepare, as :mod:`.transaction` on librdkafka's."""

from __future__ import annotations

import contextlib

from exactly_once.digest import RowDigest
from exactly_once.errors import BrokerRefused, BrokerUnreachable, ExactlyOnceError, PrepareFailed
from exactly_once.kafka.late import LateCheck
from exactly_once.kafka.open_transaction import OPEN_BUDGET_S, Opening, OpenTransaction
from exactly_once.kafka.produce.forms import form_of, joined
from exactly_once.kafka.produce.records import Records, digest_columns
from exactly_once.kafka.produce.requests import Producer
from exactly_once.kafka.produce.sender import ArrowSender, Routes, Settings
from exactly_once.kafka.transactions import end_one, end_txn_version
from exactly_once.protocol.records import Extent, PreparedTransaction

#: For an abort by the task: what it leaves open, a sweep ends.
_ABORT_BUDGET_S = 5.0


class ArrowTransaction(ArrowSender):
    """An open transaction under a transactional id that no other living attempt uses.

    Parameters
    ----------
    opening : Opening
        Of its id.
    version : int
        Of EndTxn, for an abort.
    implicit : bool
        Produce adds partitions to the transaction itself (KIP-890); else AddPartitionsToTxn does.
    late : LateCheck, optional
        Whether the task is too late, asked when it is prepared; the opening asks before it begins.

    Raises
    ------
    PrepareFailed
        When the transaction cannot be opened.
    Fenced, PrepareFailed
        When the task is too late.
    """

    def __init__(
        self,
        routes: Routes,
        settings: Settings,
        opening: Opening,
        version: int,
        implicit: bool,
        late: LateCheck | None = None,
    ):
        transactional_id = opening.transactional_id
        self.open = OpenTransaction(transactional_id, routes.admin, late)
        self._version = version
        self._digest, self._form = RowDigest(), ""
        producer_id, epoch = _initialised(opening)
        self.open.begun(producer_id, epoch)
        producer = Producer(transactional_id, producer_id, epoch, implicit)
        super().__init__(routes, producer, settings, transactional_id)

    def send_columns(self, topic: str, rows: Records) -> None:
        """As :meth:`ArrowSender.send_columns`; the digest counts all that the rows chose."""
        super().send_columns(topic, rows)
        digest_columns(self._digest, topic, rows)
        self._form = joined(self._form, form_of(rows))

    def prepare(self, part: int, timeout_s: float) -> PreparedTransaction:
        """Flush, verify every delivery, and return the handle. The transaction stays open on the broker.

        Raises
        ------
        PrepareFailed
            When a record was not acknowledged, or the broker does not confirm that this very transaction is open.
        Fenced, PrepareFailed
            When the task is too late.
        """
        self.flush(timeout_s)
        written = {p: Extent(first, self._sequences[p]) for p, first in self._outbox.offsets.items()}
        return self.open.prepared(part, self.records, self.bytes, self._digest.text, self._form, written)

    def abort(self) -> None:
        """Give up: abort at once, so that readers are not blocked until a sweep. Never raises."""
        self._outbox.close(_ABORT_BUDGET_S)
        admin, mine = self._routes.admin.renew(_ABORT_BUDGET_S), self.open
        with contextlib.suppress(ExactlyOnceError):  # the sweep finds what is left
            version = self._version or end_txn_version(admin)
            end_one(admin, mine.transactional_id, mine.producer_id, mine.epoch, False, version)


def _initialised(opening: Opening) -> tuple[int, int]:
    try:
        return opening.wait(OPEN_BUDGET_S)
    except (BrokerUnreachable, BrokerRefused) as e:
        raise PrepareFailed(f"{opening.transactional_id}: {e.what}", e.way_out) from e

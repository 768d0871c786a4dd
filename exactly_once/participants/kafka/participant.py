"""Kafka as a participant: one transaction for each part."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.sharing import CLIENTS
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant, PartName, PartWriter, Proposal, Scope
from exactly_once.participants.kafka.checks import input_topics
from exactly_once.participants.kafka.deletion import Deletion
from exactly_once.participants.kafka.settings import TopicSettings
from exactly_once.participants.kafka.transactions import (
    ALIVE_BUDGET_S,
    commit_transactions,
    confirm,
    fence_idle,
    foresee,
    open_of,
    sweep,
)
from exactly_once.protocol.names import SLOTS, PartId, older_slots, slot_of
from exactly_once.protocol.records import KAFKA, Decision, PreparedTransaction
from exactly_once.txn.coordinators import End, end_all, end_txn_version

log = logging.getLogger(__name__)

#: Budget for proving every outcome of one batch, or for a sweep. The rest of the transactions' time stays for the next
#: start.
BUDGET_S = 60.0

#: Budget for aborting what a failed execution left open: Spark waits for it, and the next start does it again.
ABORT_BUDGET_S = 10.0

#: Age of a confirmation up to which its parts are ended beside the look at leaders and topics, and not behind it: a few
#: round trips, in which neither should change.
CONFIRMED_S = 0.25

#: Budget for what a warning is about: the next batch waits for it.
WARNING_BUDGET_S = 5.0

#: Budget for the first answer of a broker at a start: long enough for one that restarts, short enough for a mistyped
#: name.
CONTACT_BUDGET_S = 15.0


class KafkaParticipant(Participant[PreparedTransaction]):
    """Kafka's transactions of one sink. A recovery has no ``options``, and a connection of its own; streams share
    theirs. ``deadline`` is that of everything together; with None, each call has a budget of its own.
    """

    name = KAFKA

    def __init__(
        self,
        connection: Connection,
        sink_id: str,
        options: SinkOptions | None = None,
        deadline: Deadline | None = None,
    ):
        self._connection = connection
        self._sink_id = sink_id
        self._options = options
        self.deadline = deadline
        self._admin: Admin | None = None
        self._warned = False
        self._deletion = Deletion(sink_id)
        self._settings = TopicSettings(options) if options is not None else None
        self._confirmed: tuple[float, Sequence[PreparedTransaction]] = (float("-inf"), ())

    @property
    def topics(self) -> set[str]:
        """The topics that the options name: the output and the dead letters; a recovery has no options."""
        options = self._options
        dead = options.dead_letters.topic if options and options.dead_letters else None
        return {topic for topic in (options.topic if options else None, dead) if topic}

    def admin(self, budget_s: float = BUDGET_S) -> Admin:
        """Return the connection, with this much time, or what is left until the deadline."""
        budget_s = self._within(budget_s)
        if self._admin is None:
            contact_s = CONTACT_BUDGET_S if self.deadline else ALIVE_BUDGET_S
            connect = CLIENTS.borrow if self._options is not None else Admin
            self._admin = connect(self._connection, min(budget_s, contact_s))
        return self._admin.renew(budget_s)

    def beside(self, budget_s: float) -> Admin:
        """Return the connection with a budget of its own: for the commit log, which asks while a sweep does."""
        return (self._admin or self.admin(budget_s)).within(self._within(budget_s))

    def _within(self, budget_s: float) -> float:
        return budget_s if self.deadline is None else min(budget_s, max(1.0, self.deadline.left))

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def begin(self, part: PartName) -> PartWriter[PreparedTransaction]:
        """Raise NotImplementedError: Java's tasks write the parts of Kafka."""
        raise NotImplementedError

    def gone(self, handles: Sequence[PreparedTransaction]) -> Iterable[PreparedTransaction]:
        found = {d.transactional_id for d in open_of(handles, self.admin())}
        return [h for h in handles if h.transactional_id not in found]

    def ask_settings(self) -> None:
        """Ask for the settings of topics by which :meth:`confirm` will judge the batch that was just planned. The claim
        has connected; without a connection nothing is asked.
        """
        if self._settings is not None and self._admin is not None:
            self._settings.ask(self._admin, self._deletion.topics)

    def foresee(self, proposal: Proposal) -> Decision | None:
        """Return the decision as :meth:`confirm` will most likely return it, without asking; None where that cannot be
        told. It is sent beside the confirmation, which says whether it is committed.
        """
        return foresee(proposal, self._inputs(proposal))

    def _inputs(self, proposal: Proposal) -> list[str]:
        return input_topics(self._options, proposal.batch) if self._options is not None else []

    def confirm(self, proposal: Proposal) -> Decision:
        if self._settings is not None and self._admin is not None:
            found = self._settings.answer(self._admin)
            self._deletion.take(found)
            self._settings.check(found)
        adopted = self._options.adopt if self._options is not None else ()
        inputs = self._inputs(proposal)
        asked_s = time.monotonic()
        decision, unasked = confirm(proposal, self.admin(), lambda topic_id: topic_id in adopted, inputs)
        if unasked and not self._warned:
            self._warned = True
            log.warning(
                "sink %s: EO-WARN-PLACES leaders of output partitions do not report what is open (%s): the sink "
                "cannot notice before a decision that records are gone there, and may be unable to prove that a "
                "decided transaction was lost (EO-EXPIRED)",
                self._sink_id,
                unasked,
            )
        self._confirmed = asked_s, () if unasked else decision.transactions
        return decision

    def recover_and_commit(self, handles: Sequence[PreparedTransaction]) -> Iterable[PreparedTransaction]:
        """Commit as :meth:`commit` does; those that are still open come first."""
        return self.commit(handles, recovering=True)

    def commit(self, handles: Sequence[PreparedTransaction], recovering: bool = False) -> Iterable[PreparedTransaction]:
        """Send EndTxn for each, and ask the output for evidence where its answer tells nothing."""
        when_s, known = self._confirmed
        ids = {h.transactional_id: h.epoch for h in known}
        all_seen = all(ids.get(h.transactional_id) == h.epoch for h in handles)
        seen = not recovering and all_seen and time.monotonic() - when_s < CONFIRMED_S
        return commit_transactions(self._sink_id, handles, self.admin(), self._within(BUDGET_S), recovering, seen)

    def warn_of_deletion(self, decision: Decision) -> None:
        self._deletion.warn(self.admin(WARNING_BUDGET_S), decision)

    def abort(self, handles: Sequence[PreparedTransaction]) -> None:
        admin = self.admin(ABORT_BUDGET_S)
        if found := open_of(handles, admin):
            end_all(admin, [d.end for d in found], False, end_txn_version(admin))

    def recover_and_abort(self, scope: Scope) -> list[str]:
        """Abort what is open under the slots of the claims in ``scope``, which many claims share: so a decided
        transaction is spared by its producer id and epoch, and a superseded driver touches its slot only while no later
        claim can have come round to it.
        """
        slots = set(older_slots(scope.before, SLOTS)) if scope.before else set()
        own = slot_of(scope.own) if scope.own is not None and scope.owner - scope.own < SLOTS // 2 else None

        def mine(part: PartId) -> bool:
            return part.slot in slots or part.slot == own

        admin = self.admin(ABORT_BUDGET_S if scope.own is not None else BUDGET_S)
        if scope.running:
            try:
                fence_idle(scope.sink_id, admin, lambda p: p.slot == own, scope.spare)
            except ExactlyOnceError as e:  # the parts that are open now can be ended all the same
                log.warning("sink %s: could not keep late tasks from beginning: %s", scope.sink_id, e)
        # an epoch is spared, not its id: a task that began anew under the id has ended the decided transaction
        spare = frozenset(End.of(h) for h in scope.decided if isinstance(h, PreparedTransaction))
        return [d.transactional_id for d in sweep(scope.sink_id, admin, mine, spare)]

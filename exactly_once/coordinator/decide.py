"""The decision of a batch: every transaction alive, one durable record, then the commits; or all of it aborted."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from exactly_once.coordinator.claim import COMPLETE_BUDGET_S, KAFKA_ALONE, Others, check_topics, count, sweep_others
from exactly_once.coordinator.complete import COMMITTED, complete, decided_error
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import AlreadyDecided, BatchTooLong, BrokerUnreachable, ExactlyOnceError, Expiring, Fenced
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import CommitLog
from exactly_once.kafka.leaders import beginnings, with_places
from exactly_once.kafka.transactions import Description, End, describe, end_all, fence, list_transactions
from exactly_once.options import SinkOptions
from exactly_once.participant import Handle, Scope
from exactly_once.participants.kafka_transactions import IDLE, open_of, sweep
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.loss import lost_parts
from exactly_once.protocol.names import SLOTS, namespace, parse_part_id, slot_of
from exactly_once.protocol.planning import check_undecided
from exactly_once.protocol.records import Completed, Decision, PreparedPart, PreparedTransaction, in_order
from exactly_once.protocol.too_long import SPARE, limit_ms, too_long_error

log = logging.getLogger(__name__)

#: At this part of the timeout a warning says that batches are getting too long for it.
WARN = 0.5

_PERHAPS_DECIDED = "Whether the batch is decided is not known here; the next start finds out, and writes its rows once"
DECIDE_BUDGET_S = 30.0

#: For evidence that is nearly never needed; the transactions' time runs meanwhile.
PLACES_BUDGET_S = 5.0
ABORT_BUDGET_S = 10.0

#: A decision keeps the ids of this many topics, those written last: more than one batch names, and with the longest
#: names a third of a megabyte. A topic that was made again after so many others were written is not recognised.
KEPT_TOPIC_IDS = 1_000


class Decider:
    """Decides, completes and aborts for one sink; keeps its connections until it is closed.

    ``others`` are the participants other than Kafka, by name.
    """

    def __init__(self, options: SinkOptions, others: Others = KAFKA_ALONE):
        self._options = options
        self._others = others
        self.log = CommitLog(options.connection, options.sink_id)
        self._control: Admin | None = None
        self._warned = False

    def close(self) -> None:
        """Close the connections."""
        self.log.close()
        if self._control is not None:
            self._control.close()
            self._control = None

    def control(self) -> Admin:
        """The control connection."""
        if self._control is None:
            self._control = Admin(self._options.connection, DECIDE_BUDGET_S)
        return self._control

    def decide_and_complete(self, proposed: Decision, state: DriverState, amended: Decision | None = None) -> Decision:
        """Decide ``proposed`` under the claim of ``state``, and see it through.

        ``amended`` is the earlier decision of the same batch of which ``proposed`` replaces lost parts: its other
        handles stay, and are committed already.

        Returns
        -------
        Decision
            As it was written.

        Raises
        ------
        Fenced, AlreadyDecided, Expiring, BatchTooLong, Expired, Lost, Unfinished, BrokerUnreachable, TopicRecreated,
        ParticipantMissing
        """
        reach("all-prepared")
        try:
            began_ms, left_s, proposed = self._check_alive(proposed, state)
        except (Expiring, BatchTooLong):
            self.log.close()  # look afresh: when a newer owner did this, that is the error to report
            self.log.own(state.token, Deadline(DECIDE_BUDGET_S))
            raise
        prepare_ms = max(0, now_ms() + state.clock_ahead_ms - began_ms) if began_ms else 0
        decision = replace(proposed, decided_ms=now_ms(), began_ms=began_ms)
        if amended is not None:
            decision = amend(amended, decision)
        started = time.monotonic()
        ends = {t: {int(p): o for p, o in offsets.items()} for t, offsets in state.input_offsets.items()}

        def check(log_state: LogState) -> None:
            check_undecided(self._options.sink_id, decision, log_state, amended)

        try:
            # half of what is left: a decision that is written late must still leave time to complete it
            self.log.append(decision, Deadline(min(DECIDE_BUDGET_S, left_s / 2)), ends, check)
        except BrokerUnreachable as e:
            raise BrokerUnreachable(e.what, e.way_out, safe=_PERHAPS_DECIDED) from e
        except AlreadyDecided:
            self._roll_back(proposed.handles, state)
            raise
        decided = time.monotonic()
        reach("decided")
        lost = complete(self._options.sink_id, decision, self.control(), COMPLETE_BUDGET_S, self._others)
        if lost:
            raise lost_parts(self._options.sink_id, decision, lost)
        durations = prepare_ms, _ms(started, decided), _ms(decided, time.monotonic())
        done = Completed(decision.query_id, decision.batch_id, state.token, now_ms(), *durations)
        try:
            self.log.append(done, Deadline(DECIDE_BUDGET_S))
        except ExactlyOnceError as e:
            raise decided_error(e, COMMITTED) from e
        count(self.log, state.token, Deadline(DECIDE_BUDGET_S), rewritten=len(decision.rewritten))
        reach("completed")
        return decision

    def abort_undecided(self, state: DriverState, reported: bool) -> list[Description]:
        """Abort the execution of ``state``, which is not decided: say so in the log, then sweep.

        The record comes first: a task that opens its transaction after the sweep reads it
        (:mod:`exactly_once.kafka.late`). One that may be killed before it can do so is kept from opening any.

        Parameters
        ----------
        reported : bool
            All tasks have handed in their results, so that none of them is alive.

        Raises
        ------
        Fenced
            When a later claim exists; nothing is swept then.
        """
        try:
            if not self._is_marked(state):
                self.log.append(state.aborted(now_ms()), Deadline(ABORT_BUDGET_S))
            if not reported:
                self._fence_own(state)
        except Fenced:
            raise
        except ExactlyOnceError as e:  # what is open now can be ended all the same
            log.warning(
                "sink %s: could not tell late tasks of batch %d to stop: %s", self._options.sink_id, state.batch_id, e
            )
        return self.abort_own(state)

    def _is_marked(self, state: DriverState) -> bool:
        """Whether the log says already that this execution is aborted."""
        aborted = self.log.own(state.token, Deadline(ABORT_BUDGET_S)).aborted
        return aborted is not None and aborted.execution == state.execution

    def _fence_own(self, state: DriverState) -> None:
        """Keep the tasks of this claim that have initialised their id, and have not begun, from beginning."""
        slot = slot_of(state.token)
        spare = {h.name for d in self.log.own(state.token, Deadline(ABORT_BUDGET_S)).open_decisions for h in d.handles}
        control = self.control().renew(ABORT_BUDGET_S)
        for listed in list_transactions(control, namespace(self._options.sink_id), IDLE):
            part = parse_part_id(listed.transactional_id)
            if part is not None and part.slot == slot and listed.transactional_id not in spare:
                fence(control, listed.transactional_id, state.timeout_ms)

    def abort_own(self, state: DriverState) -> list[Description]:
        """Abort everything that is open under the claim of ``state``, of which nothing open may be decided."""
        slot = slot_of(state.token)
        control = self.control().renew(ABORT_BUDGET_S)
        aborted = sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot == slot)
        self.sweep_others(state)
        return aborted

    def sweep_others(self, state: DriverState) -> dict[str, list[str]]:
        """Roll back what this claim and older ones left undecided in the participants other than Kafka."""
        scope = Scope(self._options.sink_id, state.token, state.token, incarnation=state.incarnation)
        return sweep_others(self._others, scope)

    def abandon(self, handles: Sequence[Handle], state: DriverState) -> list[Description]:
        """Abort what the tasks of this superseded driver prepared: its successor may be a recovery that is gone by now,
        and that knew no participant other than Kafka.

        Exactly the transactions of ``handles``, by producer id and epoch; what else is open under this claim's slot, as
        long as no later claim can have come round to it; and in the other participants the names of this claim, which
        nobody uses again. Only what is not decided: the log producer of this driver is fenced, so no decision of its
        own can follow; those before are all in what is read, to the log's end. The handles of one that is proven may be
        gone from there: then nothing of it is open.
        """
        log_state = self.log.read(Deadline(ABORT_BUDGET_S), whole=True)
        decided = [h for d in log_state.decisions for h in d.handles]
        spare = frozenset(End.of(h) for h in decided if isinstance(h, PreparedTransaction))
        mine = [h for h in handles if isinstance(h, PreparedTransaction) and End.of(h) not in spare]
        control = self.control().renew(ABORT_BUDGET_S)
        found = open_of(mine, control)
        end_all(control, [d.end for d in found], False, state.end_txn_version)
        if log_state.owner is not None and log_state.owner.token - state.token < SLOTS // 2:  # its slot is not ours yet
            slot = slot_of(state.token)
            found += sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot == slot, spare)
        names = frozenset(h.name for h in decided)
        own = Scope(self._options.sink_id, 0, state.token, names, state.incarnation)
        for name, participant in self._others.items():
            try:
                sweep_others({name: participant}, own)
            except ExactlyOnceError as e:  # the other participants are not to wait for it
                log.warning("sink %s: participant %s: %s", self._options.sink_id, name, e)
        return found

    def _roll_back(self, handles: Sequence[Handle], state: DriverState) -> None:
        """Abort what was prepared for a batch that somebody else has decided; never raises."""
        try:
            self.abandon(handles, state)
        except ExactlyOnceError as e:  # its timeout ends what is left, or the sweep of the next start
            log.warning("sink %s: %s", self._options.sink_id, e)

    def _check_alive(self, proposed: Decision, state: DriverState) -> tuple[int, float, Decision]:
        """Invariant 3: every part is there, is the one that was prepared, and has time to spare.

        Returns
        -------
        (int, float, Decision)
            When the first of the transactions began, by its coordinator's clock (0 without any), the seconds that the
            one which expires first has left, and the decision with what the brokers add to it.
        """
        self._check_others(proposed)
        handles = proposed.transactions
        described = describe(self.control().renew(DECIDE_BUDGET_S), (h.transactional_id for h in handles))
        broker_now = time.time() * 1000 + state.clock_ahead_ms
        oldest, left_s = 0.0, state.timeout_ms / 1000
        for h in handles:
            d = described[h.transactional_id]
            used = (broker_now - d.started_ms) / max(1, d.timeout_ms)
            if (d.state, d.producer_id, d.producer_epoch) != ("Ongoing", h.producer_id, h.epoch) or used > 1 - SPARE:
                raise self._expiring(h, d, broker_now, state)
            oldest = max(oldest, used)
            left_s = min(left_s, (d.timeout_ms - broker_now + d.started_ms) / 1000)
        if oldest > WARN:
            log.warning(
                "sink %s: EO-WARN-TIMEOUT the batch used %.0f%% of transaction.timeout.ms=%d before its decision; "
                "above %.0f%% the sink does not decide a batch",
                self._options.sink_id,
                oldest * 100,
                state.timeout_ms,
                (1 - SPARE) * 100,
            )
        began_ms = min((d.started_ms for d in described.values()), default=0)
        return began_ms, left_s, self._placed(proposed, described, state)

    def _expiring(
        self, h: PreparedTransaction, d: Description, broker_now: float, state: DriverState
    ) -> ExactlyOnceError:
        """The error of a prepared transaction that is too old to be decided, or gone."""
        name = f"the transaction {h.transactional_id} of part {h.part}"
        if (d.state, d.producer_id, d.producer_epoch) == ("Ongoing", h.producer_id, h.epoch):
            took_ms = broker_now - d.started_ms
            why = f"{name} has used {took_ms / 1000:.1f} s of its {d.timeout_ms / 1000:g} s"
        else:
            took_ms = now_ms() - state.planned_ms
            found = d.state or "unknown"
            why = f"{name} is gone (the broker reports {found} at epoch {d.producer_epoch}, not {h.epoch})"
            if took_ms < limit_ms(state.timeout_ms):
                return Expiring(
                    why,
                    "Start the stream (or the write) again; if the error repeats, find out which operator or "
                    "application ends transactions with this id",
                )
            why = f"{why}, {took_ms / 1000:.1f} s after the batch was planned"
        longest = self.control().renew(PLACES_BUDGET_S).broker_config().get("transaction.max.timeout.ms")
        return too_long_error(
            self._options.sink_id,
            self._options.checkpoint,
            state.batch,
            why,
            took_ms,
            state.timeout_ms,
            state.too_long,
            int(longest) if longest else None,
        )

    def _check_others(self, proposed: Decision) -> None:
        """The share of the participants other than Kafka in invariant 3."""
        by_participant = proposed.by_participant
        for name, participant in self._others.items():
            mine = [h for h in by_participant.get(name, ()) if isinstance(h, PreparedPart)]
            if gone := list(participant.gone(mine)) if mine else []:
                raise Expiring(
                    f"participant {name!r}: {gone[0].name} of batch {proposed.batch_id} was prepared but no longer "
                    "exists",
                    "Start the stream again, and find out what rolls back the parts that this sink prepares",
                )

    def _placed(self, proposed: Decision, described: Mapping[str, Description], state: DriverState) -> Decision:
        """The decision with where its transactions begin, after making sure that their records are there, and that its
        topics are the ones they were.

        Raises
        ------
        Expiring
            By the word of a partition's leader. A leader that cannot be asked says nothing.
        """
        last = self.log.own(state.token, Deadline(DECIDE_BUDGET_S)).last_decision(proposed.query_id)
        ids = check_topics(self.control(), last, list(proposed.topics), Consent.of(self._options))
        found = beginnings(self.control().renew(PLACES_BUDGET_S), described.values())
        for h in proposed.transactions:
            if where := found.missing.get(h.transactional_id):
                raise Expiring(
                    f"the transaction {h.transactional_id} of part {h.part} is open, but its records are gone: the "
                    f"leader of {where[0]}-{where[1]} has no open transaction of producer {h.producer_id} at epoch "
                    f"{h.epoch}",
                    f"Find out whether topic {where[0]} was deleted and recreated, or whether a broker without the "
                    "records became leader (unclean.leader.election.enable); then start again",
                )
        if found.unasked and not self._warned:
            self._warned = True
            log.warning(
                "sink %s: EO-WARN-PLACES the leaders of the output's partitions do not report where transactions begin "
                "(%s); if a decided transaction is lost, the loss cannot be proven, and the stream stops with "
                "EO-EXPIRED",
                self._options.sink_id,
                found.unasked,
            )
        topic_ids = kept_topic_ids(last.topic_ids if last else {}, ids)
        others = (h for h in proposed.handles if isinstance(h, PreparedPart))
        handles = in_order([*with_places(proposed.transactions, found.places), *others])
        return replace(proposed, handles=handles, topic_ids=topic_ids)


def kept_topic_ids(known: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
    """The topic ids for the next decision: those just ``written``, and those written last before, as many as
    :data:`KEPT_TOPIC_IDS` in all.
    """
    others = [item for item in known.items() if item[0] not in written]
    room = max(0, KEPT_TOPIC_IDS - len(written))
    return {**dict(others[len(others) - min(room, len(others)) :]), **written}


def amend(earlier: Decision, replacement: Decision) -> Decision:
    """The decision of a batch after its lost parts were written again: ``replacement`` holds those alone.

    All its handles are ended with one version of EndTxn. Of the two claims' versions that is the lower one: what was
    committed with it must be asked for with it again, and a broker takes it for new transactions too.
    """
    again = {(h.participant, h.part) for h in replacement.handles}
    return replace(
        replacement,
        handles=in_order((*(h for h in earlier.handles if (h.participant, h.part) not in again), *replacement.handles)),
        topics=tuple(sorted({*earlier.topics, *replacement.topics})),
        rewritten=tuple(sorted({*earlier.rewritten, *(f"{name}/{part}" for name, part in again)})),
        end_txn_version=min(earlier.end_txn_version, replacement.end_txn_version),
    )


def _ms(start: float, end: float) -> int:
    return round((end - start) * 1000)

"""Inspects a sink that is to have a successor, retires it as its owner, and says where the new query begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from exactly_once.checkpoint import first_offsets, listed, read_checkpoint, read_text
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.recover import claim_sink
from exactly_once.coordinator.resolve import resolve
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import CheckpointAway, CheckpointUnusable, ExactlyOnceError, Fenced, NotAuthorized
from exactly_once.failpoints import reach
from exactly_once.inspection.processes import AliveOf
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import published_batches
from exactly_once.operation.rules import Refused
from exactly_once.operation.successor.verdicts import (
    OldCheckpoint,
    check_at_rest,
    check_history,
    check_input,
    check_names,
    check_state,
    check_takes_over,
    ends_of,
    last_decided,
    not_retired,
)
from exactly_once.participant import Participant
from exactly_once.protocol import succession
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.loss import lost_parts
from exactly_once.protocol.names import check_sink_id, offsets_group
from exactly_once.protocol.records import Decision, Retired
from exactly_once.protocol.succession import Ends

#: For one inspection of a sink.
INSPECTION_BUDGET_S = 10.0

#: For claiming and retiring the sink: as long as a claim may take.
RETIRE_BUDGET_S = 60.0

#: Of a refusal after the claim, which a driver that is alive has noticed.
_NOT_RETIRED = "The sink is not retired, and nothing is lost or doubled"


@dataclass(frozen=True)
class Succession:
    """The end of an old sink, and the beginning of its successor.

    Attributes
    ----------
    query_id, batch_id
        The last decided batch of the old stream.
    ends : mapping
        Where its input ended.
    starting_offsets : str
        Spark's option of that name, for the new query.
    has_run : bool
        The successor has written elsewhere so far, and continues with its own checkpoint.
    retired : Retired or None
        The record in the old sink's commit log; None before it is written.
    refusal : Refused or None
        Why the old sink may not be retired now.
    topics : tuple of str
        The output topics that the old sink's decisions name.
    """

    sink_id: str
    successor: str
    query_id: str
    batch_id: int
    ends: Ends
    starting_offsets: str
    has_run: bool = False
    retired: Retired | None = None
    refusal: Refused | None = field(default=None, compare=False)
    topics: tuple[str, ...] = field(default=(), compare=False)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sink_id": self.sink_id,
            "successor": self.successor,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "starting_offsets": self.starting_offsets,
            "has_run": self.has_run,
            "retired": self.retired is not None,
            "claim": self.retired.token if self.retired else None,
            "retired_ms": self.retired.retired_ms if self.retired else None,
            "refused": self.refusal.what if self.refusal else None,
        }

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        after = f"{self.successor} continues after batch {self.batch_id}"
        if self.retired is not None:
            return f"Sink {self.sink_id} is retired for good: {after}."
        if self.refusal is not None:
            return f"Sink {self.sink_id} cannot be retired now: {self.refusal.what}."
        return f"Sink {self.sink_id} can be retired for good; then {after}."


@dataclass(frozen=True)
class _Old:
    """The old sink, and what a person said of it."""

    connection: Connection
    sink_id: str
    successor: str
    location: str
    loses_state: str

    def judged(self, log: LogState, has_run: bool) -> tuple[Decision, dict[str, dict[int, int]]]:
        """Return the last decided batch and the ends of its input, after every verdict that needs no broker's word of
        what is open; raise Refused.
        """
        last = last_decided(self.sink_id, log)
        checkpoint = self._checkpoint(log, last)
        ends = ends_of(self.sink_id, last, checkpoint)
        check_history(self.sink_id, last, self._published(last.query_id), checkpoint)
        check_input(self.sink_id, last, self._ids(last))
        if not has_run:
            check_state(last, checkpoint, self.loses_state)
        return last, ends

    def ends(self, log: LogState) -> tuple[Decision, dict[str, dict[int, int]]]:
        """Return the last decided batch and the ends of its input, whatever else there is to say."""
        last = last_decided(self.sink_id, log)
        return last, ends_of(self.sink_id, last, self._checkpoint(log, last))

    def _checkpoint(self, log: LogState, last: Decision) -> OldCheckpoint:
        location = self.location or (log.owner.checkpoint if log.owner else "")
        if not location:
            return OldCheckpoint("", fault="no claim names it")
        try:
            found = read_checkpoint(location)
            if found.query_id is None:
                return OldCheckpoint(location, fault="; ".join(f"{f}: {why}" for f, why in found.torn.items()))
            text = ""
            if not last.offsets:
                with suppress(CheckpointUnusable):
                    text = read_text(location, f"offsets/{last.batch_id}")
            operators = sum(1 for entry in listed(location, "state") if entry.base_name.isdigit())
            began = first_offsets(location)
            return OldCheckpoint(location, found.query_id, found.last_commit, text, began, operators)
        except (CheckpointUnusable, CheckpointAway) as e:
            return OldCheckpoint(location, fault=e.what)

    def _published(self, query_id: str) -> int | None:
        with suppress(ExactlyOnceError), Admin(self.connection, INSPECTION_BUDGET_S) as admin:
            return published_batches(admin, offsets_group(self.sink_id)).get(query_id)
        return None

    def _ids(self, last: Decision) -> dict[str, str]:
        with suppress(ExactlyOnceError), Admin(self.connection, INSPECTION_BUDGET_S) as admin:
            return admin.topic_ids(sorted(last.input_ids))
        return {}

    def succession(self, query_id: str, batch_id: int, ends: Ends, has_run: bool = False, **more: Any) -> Succession:
        text = succession.option(ends, _sizes(self.connection, ends))
        return Succession(self.sink_id, self.successor, query_id, batch_id, ends, text, has_run, **more)

    def done(self, retired: Retired, **more: Any) -> Succession:
        ends = succession.ends_of(retired)
        return self.succession(retired.query_id, retired.batch_id, ends, retired=retired, **more)


def examine(
    connection: Connection,
    sink_id: str,
    successor: str,
    location: str = "",
    loses_state: str = "",
    alive_of: AliveOf | None = None,
    budget_s: float = INSPECTION_BUDGET_S,
) -> Succession:
    """Say where ``successor`` would begin now, and why ``sink_id`` may not be retired for it; changes nothing.

    Parameters
    ----------
    location : str
        The checkpoint of the old stream; "": the one that its last claim names.
    loses_state : str
        The query whose state a person gives up.
    alive_of : callable, optional
        Is asked first whether the old driver is alive (:func:`~exactly_once.inspection.sink.owner_of`).

    Raises
    ------
    Refused
        When there is nothing to continue after, or the sink has another successor.
    InvalidOption, BrokerUnreachable, CommitLogDamaged, NotAuthorized
    """
    old = _Old(connection, check_sink_id(sink_id), check_sink_id(successor), location, loses_state)
    found = inspect_sink(connection, sink_id, budget_s, alive_of=alive_of)
    check_names(sink_id, successor, found.log)
    topics = tuple(sorted({topic for d in found.log.decisions for topic in d.topics}))
    if found.log.retired is not None:
        return old.done(found.log.retired, topics=topics)
    last, ends = old.ends(found.log)
    new = inspect_sink(connection, successor, budget_s, alive_of=alive_of)
    has_run, refusal = bool(new.log.decisions), None
    try:
        check_at_rest(found)
        check_takes_over(ends, new)
        old.judged(found.log, has_run)
    except Refused as e:
        refusal = e
    return old.succession(last.query_id, last.batch_id, ends, has_run, refusal=refusal, topics=topics)


def retire(
    connection: Connection,
    sink_id: str,
    successor: str,
    location: str = "",
    loses_state: str = "",
    alive_of: AliveOf | None = None,
    operator: str = "",
    others: Iterable[Participant[Any]] = (),
    budget_s: float = RETIRE_BUDGET_S,
) -> Succession:
    """Retire the old sink for good, and say where its successor begins. Idempotent.

    1. Examine, and refuse (:func:`examine`). A sink that is retired for this successor is left as it is.
    2. Claim the sink: a driver that starts at this moment is fenced. Complete what it has decided, and abort the rest.
       Claim a successor that has run as well: it must not read on meanwhile.
    3. Judge again, by the log after the claim: that driver may have decided one more batch.
    4. Write the retirement, as the owner, after a state of the log in which no decision is open. From here on every
       start of the old sink is refused.

    Parameters are those of :func:`examine`; ``operator`` goes into the claim, and ``others`` are the outputs beside
    Kafka.

    Raises
    ------
    Refused
        As :func:`examine` says, or when a driver takes the sink meanwhile.
    Lost, Expired, Unfinished, ParticipantMissing
        A batch that such a driver decided cannot be completed: the sink is not retired.
    InvalidOption, BrokerUnreachable, CommitLogDamaged, NotAuthorized
    """
    found = examine(connection, sink_id, successor, location, loses_state, alive_of, min(INSPECTION_BUDGET_S, budget_s))
    if found.retired is not None:
        return found
    if found.refusal is not None:
        raise found.refusal
    old = _Old(connection, sink_id, successor, location, loses_state)
    deadline = Deadline(budget_s)
    claim = claim_sink(connection, sink_id, budget_s, operator)
    assert claim is not None  # a sink with a decision has an owner
    reach("retiring")
    with Session.without_driver(connection, sink_id, others, deadline) as session:
        try:
            did = resolve(session, claim.token, Consent(), deadline)
            for _, failure in did.failures:
                raise failure
            for loss in did.losses:
                raise lost_parts(sink_id, loss.decision, loss.handles)
            log = session.log.own(claim.token, deadline)
            check_names(sink_id, successor, log)
            if log.retired is not None:
                return old.done(log.retired)
            last, ends = old.judged(log, found.has_run)
            if found.has_run:
                claim_sink(connection, successor, max(1.0, deadline.left), operator)
                check_takes_over(ends, inspect_sink(connection, successor, INSPECTION_BUDGET_S, alive_of=alive_of))
            text = {topic: {str(p): offset for p, offset in its.items()} for topic, its in ends.items()}
            retired = Retired(claim.token, successor, last.query_id, last.batch_id, text, now_ms())
            session.log.append(retired, deadline, check=lambda state: _check_closed(sink_id, state))
        except Fenced as e:
            raise Refused(
                f"another driver claimed sink {sink_id!r} while this command was retiring it: {e.what}",
                "Stop the driver that has claimed it, then repeat this command",
                safe=_NOT_RETIRED,
            ) from e
    reach("retired")
    return old.succession(last.query_id, last.batch_id, ends, found.has_run, retired=retired)


def _check_closed(sink_id: str, state: LogState) -> None:
    if state.open_decisions or state.retired is not None:
        raise _moved(sink_id)


def _moved(sink_id: str) -> Refused:
    return Refused(
        f"sink {sink_id!r} changed while this command was retiring it",
        "Stop its driver, then repeat this command",
        safe=_NOT_RETIRED,
    )


def starting_offsets(
    options: Mapping[str, str],
    predecessor: str,
    *topics: str,
    beside: bool = False,
    budget_s: float = INSPECTION_BUDGET_S,
) -> str:
    """Return Spark's ``startingOffsets`` for the query that continues the sink ``predecessor``; see
    :func:`exactly_once.starting_offsets`.
    """
    connection, sink_id = Connection.from_options(options), check_sink_id(options.get("sink.id", ""))
    old = _Old(connection, check_sink_id(predecessor), sink_id, "", "")
    location = options.get("checkpointLocation", "")
    if location and (begun := first_offsets(location)):
        if not beside:
            check_taken_over(connection, predecessor, sink_id, budget_s)
        return succession.option(begun, {}, topics)  # which Spark will not read any more
    log = read_log(connection, predecessor, budget_s, whole=True)
    check_names(predecessor, sink_id, log)
    if log.retired is not None:
        ends = succession.ends_of(log.retired)
    elif beside:
        _, ends = old.ends(log)
    else:
        raise not_retired(predecessor, sink_id)
    return succession.option(ends, _sizes(connection, {*ends, *topics}), topics)


def check_taken_over(connection: Connection, predecessor: str, sink_id: str, budget_s: float) -> None:
    """Raise Refused where ``predecessor`` is not retired for this sink, whose query has read along with it so far: both
    would write the same records.

    Passes where nothing can be told: that sink's log is gone, or may not be read any more.
    """
    with suppress(NotAuthorized):
        log = read_log(connection, predecessor, budget_s, whole=True)
        if log.owner is not None:
            check_names(predecessor, sink_id, log)
            if log.retired is None:
                raise not_retired(predecessor, sink_id)


def _sizes(connection: Connection, topics: Iterable[str]) -> dict[str, int]:
    """Return the partitions of the topics that this cluster has; the input may be on another one."""
    with suppress(ExactlyOnceError), Admin(connection, INSPECTION_BUDGET_S) as admin:
        return admin.sizes(sorted(topics))
    return {}

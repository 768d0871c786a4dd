"""The end of a hanging transaction, by its name: one that no coordinator will ever end, so that readers wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exactly_once.commitlog.commit_log import read_log
from exactly_once.inspection.findings import sink_of, title
from exactly_once.inspection.hanging import Attributed, attribute
from exactly_once.inspection.sink import UNDER_WAY, sinks
from exactly_once.inspection.words import utc
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import commit_log_topic
from exactly_once.tools.operation.model import (
    BUDGET_S,
    STREAM,
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    ResultTable,
    dry_run_parameter,
    force_parameter,
    parameter,
    reason_parameter,
    table,
)
from exactly_once.tools.operation.rules import Refused, check_hanging, refusal_of
from exactly_once.txn.coordinators import describe, list_transactions
from exactly_once.txn.leaders import OLDER_THAN_S, end_by_marker, find_hanging

#: The effect of ending a transaction that needs no phrase, by whether it is decided.
_NO_PHRASE = {True: "its rows become visible", False: "the stream writes its rows again"}


@dataclass(frozen=True, kw_only=True)
class HangingParameters:
    """The parameters of ``exactly_once_end_hanging``: which transactions it works on."""

    sink_id: str = parameter("", "The stream whose readers wait.", form=STREAM)
    transaction: str = parameter(
        "",
        "The name of the hanging transaction to end, as the dry run and the sensor print it: topic-partition@offset.",
        "--hanging",
        metavar="TOPIC-PARTITION@OFFSET",
        flag_text="a hanging transaction, by its name in the list",
        form="transaction",
        chooses=True,
    )
    dry_run: bool = dry_run_parameter("Only list the hanging transactions, each with its consequence; change nothing.")
    force: str = force_parameter(
        "consequence",
        "The consequence of ending the transaction, typed out exactly as the dry run prints it; empty if it prints "
        "none.",
    )
    reason: str = reason_parameter()
    older_than_s: float = parameter(
        OLDER_THAN_S,
        "Hanging, and no coordinator knows the producer: only transactions at least this old, by the timestamp of the "
        "last record.",
        "--older-than",
        metavar="SECONDS",
        least=0,
    )
    commit: bool | None = parameter(None, "Only this end, of the two; by default what the commit log says.")


def _examine(context: OperationContext, p: HangingParameters) -> OperationOutcome:
    """Find what hangs on the topics of a sink; every sink's log is read, to say whose it is."""
    log = read_log(context.connection, p.sink_id, context.budget_s)
    topics = {*context.topics, *(t for d in log.decisions for t in d.topics), commit_log_topic(p.sink_id)}
    hanging = list_hanging(context.connection, None, topics, p.older_than_s, context.budget_s)
    hanging = [h for h in hanging if h.hanging.topic in topics or h.sink_id == p.sink_id]
    names = [h.hanging.name for h in hanging]
    sentence = f"Hanging on the topics of sink {p.sink_id}: {', '.join(names)}."
    if not names:
        sentence = f"No transaction hangs on the topics of sink {p.sink_id}."
    return OperationOutcome(
        p.sink_id,
        sentence,
        {"hanging": _table(hanging)},
        {"hanging": [hanging_json(h) for h in hanging]},
        to_do=p.transaction in names,
        refusal=None if p.transaction in names else _not_named(p.transaction, sentence, names),
    )


def _end(context: OperationContext, p: HangingParameters, before: OperationOutcome | None) -> OperationOutcome:
    """End the transaction in its partition: commit it if it is decided, else abort it; raise as check_hanging does."""
    place, _, start = p.transaction.rpartition("@")
    topic, _, partition = place.rpartition("-")
    gone = Refused(
        f"no hanging transaction is named {p.transaction!r}",
        "Run exactly-once transactions list --hanging and use a name from it; names are topic-partition@start_offset",
    )
    if not (topic and partition.isdigit() and start.isdigit()):
        raise gone
    hanging = list_hanging(context.connection, None, [topic], p.older_than_s, context.budget_s)
    ended = next((h for h in hanging if h.hanging.name == p.transaction), None)
    if ended is None:
        raise gone
    if ended.sink_id is not None and topic != commit_log_topic(ended.sink_id):
        # a decision may be hidden from observers, behind an open transaction in the log
        log = read_log(context.connection, ended.sink_id, context.budget_s, whole=True)
        ended = attribute(ended.hanging, {ended.sink_id: log})
    committed = check_hanging(ended, p.force or None, p.commit)
    if not end_by_marker(context.connection, ended.hanging, committed, context.budget_s):
        raise gone
    done = "committed" if committed else "aborted"
    of = f" of sink {p.sink_id}" if p.sink_id else ""
    return OperationOutcome(
        p.transaction,
        f"{done.capitalize()} the hanging transaction {p.transaction}{of}; its readers continue.",
        {
            "transaction": p.transaction,
            "whose": _whose(ended),
            "consequence": consequence(ended),
            "records": ended.hanging.records,
        },
        {done: p.transaction, **hanging_json(ended), "forced": p.force or None},
        value=committed,
    )


def _as_named(context: OperationContext, p: HangingParameters) -> OperationOutcome:
    """Take the name as it is: the end looks for it again, on every sink's topics."""
    return OperationOutcome(p.transaction, f"The hanging transaction {p.transaction} is to be ended.")


END_HANGING = Operation(
    HangingParameters,
    _examine,
    (
        OperationStep(
            "end",
            "Looks for the transaction again and, if it still hangs, writes the end marker that no coordinator will "
            "write, and readers continue: its records become visible if it is decided, and otherwise never. Where "
            "records may be lost, refuses unless the consequence is typed out.",
            _end,
        ),
    ),
    job=OperationJob(
        "exactly_once_end_hanging",
        "Lists the hanging transactions on a sink's topics. A partition leader keeps each of them open and no "
        "coordinator will ever end it, so readers wait forever. Ends the one that a person names, with its "
        "consequence typed out. A dry run unless dry_run is switched off. No sensor launches this job. Safe to run "
        "twice.",
        first="search",
        first_text="Asks the leaders of the sink's topics for transactions that no coordinator will end. Reports who "
        "wrote each, and what ending it does; a dry run ends here.",
        examined="found",
        passed="chosen",
    ),
)
COMMIT_HANGING = replace(END_HANGING, examine=_as_named, job=None, verb="transactions commit", preset={"commit": True})
ABORT_HANGING = replace(COMMIT_HANGING, verb="transactions abort", preset={"commit": False})


def list_hanging(
    connection: Connection,
    sink_id: str | None = None,
    topics: Iterable[str] = (),
    older_than_s: float = OLDER_THAN_S,
    budget_s: float = BUDGET_S,
) -> list[Attributed]:
    """List the hanging transactions on ``topics`` and on the topics of the sink (of every sink when none is named),
    each with its owner.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        See :func:`exactly_once.txn.leaders.find_hanging`. Each sink, and the search, gets ``budget_s``.
    """
    logs = {s: read_log(connection, s, budget_s) for s in ([sink_id] if sink_id else sinks(connection, budget_s))}
    wanted = set(topics) | {t for log in logs.values() for d in log.decisions for t in d.topics}
    with Admin(connection, budget_s) as admin:
        ids = [t.transactional_id for t in list_transactions(admin, "eo:", UNDER_WAY)]
        ours = describe(admin, (i for i in ids if sink_of(i) in logs))
    wanted |= {topic for t in ours.values() for topic, _ in t.partitions}
    return [attribute(h, logs) for h in find_hanging(connection, wanted, older_than_s, budget_s)]


def consequence(transaction: Attributed) -> str:
    """Return the phrase that a person must type out before the transaction is ended; empty where none is needed; else
    why nobody may end it yet.
    """
    refused = refusal_of(check_hanging, transaction)
    return refused.phrase or refused.way_out if refused else ""


def hanging_json(transaction: Attributed) -> dict[str, Any]:
    return {
        "name": transaction.hanging.name,
        **transaction.hanging._asdict(),
        "owner": transaction.owner,
        "sink_id": transaction.sink_id,
        "decided": title(transaction.decided.decision) if transaction.decided else None,
    }


def _not_named(name: str, sentence: str, names: Sequence[str]) -> Refused:
    """Refuse a name that the search has not found: its audit record would stand with the wrong sink."""
    missing = f"{name!r} is not one of the hanging transactions" if name else "the field transaction is empty"
    ended = "No action is needed: the transaction may have ended in the meantime"
    return Refused(
        f"{sentence} Nothing was ended: {missing}", f"Set transaction to one of: {', '.join(names)}" if names else ended
    )


def _table(hanging: Sequence[Attributed]) -> ResultTable:
    return table(
        hanging,
        transaction=lambda h: h.hanging.name,
        whose=_whose,
        records=lambda h: f"{h.hanging.records:,}",
        last_record=lambda h: utc(h.hanging.last_timestamp_ms),
        consequence=lambda h: consequence(h) or f"no consequence to type: {_NO_PHRASE[h.decided is not None]}",
    )


def _whose(transaction: Attributed) -> str:
    name = transaction.hanging.transactional_id
    if transaction.decided is not None:
        return f"sink {transaction.sink_id}, {title(transaction.decided.decision)}, decided"
    if transaction.owner == "ours":
        return f"sink {transaction.sink_id}, not decided"
    return f"another application: {name}" if transaction.owner == "foreign" else "unknown"

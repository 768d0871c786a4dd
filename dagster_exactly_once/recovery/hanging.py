"""The job ``exactly_once_end_hanging``: lists transactions that no coordinator will end, and ends one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import HangingConfig
from dagster_exactly_once.names import HANGING_JOB, HANGING_OP
from dagster_exactly_once.recovery.audited import JobFinding, first_step, passed_on
from dagster_exactly_once.recovery.work import Audit, SinkRegistry
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.tables import table, when
from exactly_once.commitlog.commit_log import read_log
from exactly_once.inspection.hanging import Attributed
from exactly_once.operation import transactions as operations
from exactly_once.operation.rules import Refused, check_hanging, name_of
from exactly_once.protocol.names import commit_log_topic


@dataclass(frozen=True)
class Chosen:
    """The transaction to end, and the ``consequence`` that a person typed out."""

    sink_id: str
    transaction: str
    consequence: str
    audit: Audit


def search_op(registry: SinkRegistry) -> dg.OpDefinition:
    """Make the first step."""

    def search(context: dg.OpExecutionContext, config: HangingConfig, sink_id: str) -> JobFinding:
        # without the sink: ending a hanging transaction claims nothing, so a recovery need not wait for this run
        tag_run(context.instance, context.run_id)
        older_than_s = context.resources.watch_policy.hanging_older_than_s
        found = _found(context.resources.transactions, registry, sink_id, older_than_s)
        sentence = _sentence(sink_id, found)

        def task(audit: Audit) -> Chosen:
            _check_named(config, sentence, found)
            return Chosen(sink_id, config.transaction, config.consequence, audit)

        metadata = {"sentence": sentence, "hanging": _hanging(found)}
        return JobFinding(sentence, [f.hanging.name for f in found], metadata, task)

    return first_step(
        registry,
        HangingConfig,
        search,
        op=HANGING_OP,
        trail=("end_hanging", "hanging"),
        found=("found", passed_on(list, "The names of the hanging transactions.")),
        task=("chosen", passed_on(Chosen, "The transaction to end; no output on a dry run.", required=False)),
        resources=("transactions", "watch_policy"),
        description=(
            "Asks the leaders of the sink's topics for transactions that no coordinator will end. Reports who wrote "
            "each, and what ending it does; a dry run ends here."
        ),
    )


@dg.op(
    description=(
        "Looks for the transaction again and, if it still hangs, writes the end marker that no coordinator will "
        "write, and readers continue: its records become visible if it is decided, and otherwise never. Where "
        "records may be lost, refuses unless the consequence is typed out."
    )
)
def end(
    context: dg.OpExecutionContext, chosen: Chosen, transactions: TransactionAdmin, watch_policy: WatchPolicy
) -> None:
    with classified():
        try:
            ended, committed = operations.end_hanging(
                transactions.connection(),
                chosen.transaction,
                chosen.consequence or None,
                watch_policy.hanging_older_than_s,
                transactions.budget_s,
            )
        except Refused as refused:
            raise refused.in_form("consequence") from None
    done = "Committed" if committed else "Aborted"
    sentence = f"{done} the hanging transaction {chosen.transaction} of sink {chosen.sink_id}; its readers continue."
    metadata: dict[str, Any] = {
        "sentence": sentence,
        "transaction": chosen.transaction,
        "whose": _whose(ended),
        "consequence": consequence(ended),
        "records": ended.hanging.records,
    }
    chosen.audit.ended(context, sentence, metadata)
    context.add_output_metadata(metadata)


def hanging_job(registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job that ends a hanging transaction on the topics of any sink."""
    search = search_op(registry)

    @dg.job(
        name=HANGING_JOB,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0"},
        description=(
            "Lists the hanging transactions on a sink's topics. A partition leader keeps each of them open and no "
            "coordinator will ever end it, so readers wait forever. Ends the one that a person names, with its "
            "consequence typed out. A "
            "dry run unless dry_run is switched off. No sensor launches this job. Safe to run twice."
        ),
    )
    def end_hanging() -> None:
        _, chosen = search()
        end(chosen)

    return end_hanging


def consequence(found: Attributed) -> str:
    """Return the phrase that a person must type out before the transaction is ended; empty where none is needed; else
    why nobody may end it yet.
    """
    try:
        check_hanging(found)
    except Refused as refused:
        return refused.phrase or refused.way_out
    return ""


def _found(
    transactions: TransactionAdmin, registry: SinkRegistry, sink_id: str, older_than_s: float
) -> Sequence[Attributed]:
    """Find what hangs on the topics of a sink; every sink's log is read, to say whose it is."""
    connection, budget_s = transactions.connection(), transactions.budget_s
    log = read_log(connection, sink_id, budget_s)
    topics = {*registry.topics(sink_id), *(t for d in log.decisions for t in d.topics), commit_log_topic(sink_id)}
    found = operations.list_hanging(connection, None, topics, older_than_s, budget_s)
    return [f for f in found if f.hanging.topic in topics or f.sink_id == sink_id]


def _check_named(config: HangingConfig, sentence: str, found: Sequence[Attributed]) -> None:
    """Refuse a name that the search has not found: its audit record would stand with the wrong sink."""
    names = [f.hanging.name for f in found]
    if config.transaction not in names:
        said = "the field transaction is empty"
        if config.transaction:
            said = f"{config.transaction!r} is not one of the hanging transactions"
        listed = ", ".join(names)
        raise Refused(
            f"{sentence} Nothing was ended: {said}",
            f"Set transaction to one of: {listed}"
            if names
            else "No action is needed: the transaction may have ended in the meantime",
        )


def _sentence(sink_id: str, found: Sequence[Attributed]) -> str:
    if not found:
        return f"No transaction hangs on the topics of sink {sink_id}."
    return f"Hanging on the topics of sink {sink_id}: {', '.join(f.hanging.name for f in found)}."


def _hanging(found: Sequence[Attributed]) -> dg.TableMetadataValue:
    return table(
        ("transaction", "whose", "records", "last_record", "consequence"),
        [
            (
                f.hanging.name,
                _whose(f),
                f"{f.hanging.records:,}",
                when(f.hanging.last_timestamp_ms),
                consequence(f) or f"no consequence to type: {_NO_WORD[f.decided is not None]}",
            )
            for f in found
        ],
    )


#: What comes of it where no word is needed, by whether the transaction is decided.
_NO_WORD = {True: "its rows become visible", False: "the stream writes its rows again"}


def _whose(found: Attributed) -> str:
    name = found.hanging.transactional_id
    if found.decided is not None:
        return f"sink {found.sink_id}, {name_of(found.decided.decision)}, decided"
    if found.owner == "ours":
        return f"sink {found.sink_id}, not decided"
    return f"another application: {name}" if found.owner == "foreign" else "unknown"

"""The job ``exactly_once_end_hanging``: lists transactions that no coordinator will end, and ends one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import HangingConfig, sink_of, with_streams
from dagster_exactly_once.names import HANGING_JOB, HANGING_OP, MEMORY
from dagster_exactly_once.recovery.steps import who
from dagster_exactly_once.recovery.work import SinkRegistry
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.tables import table, when
from exactly_once.commitlog.commit_log import read_log
from exactly_once.ops import transactions as operations
from exactly_once.ops.rules import Attributed, Refused, check_hanging, name_of
from exactly_once.protocol.names import commit_log_topic


@dataclass(frozen=True)
class Chosen:
    """The transaction to end, and the ``consequence`` that a person typed out; ``asset`` keeps the audit trail."""

    sink_id: str
    asset: str
    transaction: str
    consequence: str
    by: str
    reason: str


def search_op(registry: SinkRegistry) -> dg.OpDefinition:
    """Make the first step, which knows the streams of the code location."""
    config_class = with_streams(HangingConfig, registry.sink_ids())

    @dg.op(
        name=HANGING_OP,
        out={
            "found": dg.Out(list, io_manager_key=MEMORY, description="The names of the hanging transactions."),
            "chosen": dg.Out(
                Chosen,
                io_manager_key=MEMORY,
                is_required=False,
                description="The transaction to end; no output on a dry run.",
            ),
        },
        description=(
            "Asks the leaders of the sink's topics for transactions that no coordinator will end. Reports who wrote "
            "each, and what ending it does; a dry run ends here."
        ),
    )
    def search(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
        transactions: TransactionAdmin,
        watch_policy: WatchPolicy,
    ) -> Iterator[dg.Output[Any]]:
        yield from _search(context, config, transactions, watch_policy, registry)

    return search


def _search(
    context: dg.OpExecutionContext,
    config: HangingConfig,
    transactions: TransactionAdmin,
    watch_policy: WatchPolicy,
    registry: SinkRegistry,
) -> Iterator[dg.Output[Any]]:
    # without the sink: ending a hanging transaction claims nothing, so a recovery need not wait for this run
    tag_run(context.instance, context.run_id)
    with classified():
        sink_id = sink_of(config)
        found = _found(transactions, registry, sink_id, watch_policy.hanging_older_than_s)
    by, reason = who(context.run), config.reason or "no reason was given"
    context.log.info(f"{_sentence(sink_id, found)} Launched by {by}: {reason}")
    asset = registry.asset(sink_id)
    sentence = _sentence(sink_id, found)
    metadata: dict[str, Any] = {"sentence": sentence, "hanging": _hanging(found)}
    context.log_event(
        dg.AssetObservation(
            asset,
            description=sentence,
            metadata={
                "end_hanging": "dry run" if config.dry_run else "began",
                "hanging_by": by,
                "hanging_reason": reason,
                **metadata,
            },
        )
    )
    yield dg.Output([f.hanging.name for f in found], "found", metadata=metadata)
    if config.dry_run:
        return
    with classified():
        _check_named(config, found)
    chosen = Chosen(sink_id, asset, config.transaction, config.consequence, by, reason)
    yield dg.Output(chosen, "chosen")


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
    context.log.info(sentence)
    metadata: dict[str, Any] = {
        "sentence": sentence,
        "transaction": chosen.transaction,
        "whose": _whose(ended),
        "consequence": consequence(ended),
        "records": ended.hanging.records,
    }
    context.log_event(
        dg.AssetMaterialization(
            chosen.asset,
            description=sentence,
            metadata={
                "end_hanging": "ended",
                "hanging_by": chosen.by,
                "hanging_reason": chosen.reason,
                **metadata,
            },
        )
    )
    context.add_output_metadata(metadata)


def hanging_job(registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job that ends a hanging transaction on the topics of any sink."""
    search = search_op(registry)

    @dg.job(
        name=HANGING_JOB,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0"},
        description=(
            "Lists the hanging transactions on a sink's topics: open at a partition's leader, and no coordinator will "
            "ever end them, so readers wait forever. Ends one that a person names, with its consequence typed out. A "
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


def _check_named(config: HangingConfig, found: Sequence[Attributed]) -> None:
    """Refuse a name that the search has not found: its audit record would stand with the wrong sink."""
    names = [f.hanging.name for f in found]
    if config.transaction not in names:
        said = f"{config.transaction!r} is none of them" if config.transaction else "the configuration names none"
        listed = ", ".join(names)
        raise Refused(
            f"{_sentence(sink_of(config), found)} No transaction can be ended: {said}",
            f"Set transaction to one of: {listed}"
            if names
            else "Nothing needs to be done: it may have ended in the meantime",
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

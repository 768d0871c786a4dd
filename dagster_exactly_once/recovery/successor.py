"""The job ``exactly_once_successor``: retires the sink of an older version, so that a stream takes its place."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import SuccessorConfig
from dagster_exactly_once.names import SUCCESSOR_JOB, SUCCESSOR_OP
from dagster_exactly_once.recovery.audited import JobFinding, first_step, passed_on
from dagster_exactly_once.recovery.work import Audit, SinkRegistry
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.operator import alive_of, operator_of
from dagster_exactly_once.runs.process import tag_run
from exactly_once.errors import InvalidOption
from exactly_once.operation import successor as engine
from exactly_once.operation.successor import Succession
from exactly_once.participant import Participant


@dataclass(frozen=True)
class Successor:
    """The old sink, the new one, and what a person said of the old one; ``others`` are its outputs beside Kafka."""

    old: str
    new: str
    checkpoint: str
    loses_state: str
    audit: Audit
    others: tuple[Participant[Any], ...] = ()


def compare_op(registry: SinkRegistry) -> dg.OpDefinition:
    """Make the first step."""

    def compare(context: dg.OpExecutionContext, config: SuccessorConfig, sink_id: str) -> JobFinding:
        old = config.predecessor or registry.continues(sink_id)
        if not old:
            raise InvalidOption(
                f"the run does not say which old sink {sink_id} continues", "Set predecessor to the id of the old sink"
            )
        # without the sink: a claim in between has this run refuse, so neither a start nor a recovery need wait for it
        tag_run(context.instance, context.run_id)
        transactions: TransactionAdmin = context.resources.transactions
        found = engine.examine(
            transactions.connection(),
            old,
            sink_id,
            config.checkpoint,
            config.loses_state,
            alive_of(context.instance),
            transactions.budget_s,
        )

        def task(audit: Audit) -> Successor:
            if found.refusal is not None:
                raise found.refusal
            return Successor(old, sink_id, config.checkpoint, config.loses_state, audit, registry.others(sink_id))

        does = (
            "This is a dry run, which changes nothing."
            if config.dry_run
            else (f"This run retires sink {old} for good: no stream can start with it any more.")
        )
        said = [does, found.sentence, *_goes_on(found, registry.topics(sink_id))]
        return JobFinding(" ".join(said), found.as_json(), _metadata(found), task)

    return first_step(
        registry,
        SuccessorConfig,
        compare,
        op=SUCCESSOR_OP,
        trail=("successor", "successor"),
        found=("compared", passed_on(dict, "The old sink's last decided batch, and where the new stream begins.")),
        task=("successor", passed_on(Successor, "The sink to retire; no output on a dry run.", required=False)),
        resources=("transactions",),
        description=(
            "Finds the last decided batch of the old sink, and where the new stream begins after it. Refuses while a "
            "batch of the old sink is open or its driver may be alive, and refuses to drop the old query's state "
            "unless loses_state names that query; a dry run ends here."
        ),
    )


@dg.op(
    description=(
        "Claims the old sink, which fences a driver that starts at this moment, and writes its retirement into its "
        "commit log. From then on every start of the old sink fails with EO-RETIRED. Safe to run twice."
    )
)
def retire(context: dg.OpExecutionContext, successor: Successor, transactions: TransactionAdmin) -> None:
    with classified():
        done = engine.retire(
            transactions.connection(),
            successor.old,
            successor.new,
            successor.checkpoint,
            successor.loses_state,
            alive_of=alive_of(context.instance),
            operator=operator_of(context.instance, context.run_id),
            others=successor.others,
            budget_s=transactions.recovery_budget_s,
        )
    then = (
        "Launch the new stream: it begins there."
        if not done.has_run
        else "Launch the new stream: it continues from its own checkpoint."
    )
    metadata = _metadata(done)
    successor.audit.ended(context, f"{done.sentence} {then}", metadata)
    context.add_output_metadata(metadata)


def successor_job(registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job that retires the sink of an older version, for any of the registry's streams."""
    compare = compare_op(registry)

    @dg.job(
        name=SUCCESSOR_JOB,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0"},
        description=(
            "Retires the sink of an older version for good, so that a new stream (new sink_id, new checkpoint, changed "
            "query) continues after its last decided batch: each record is in the output of one of the two. Stop the "
            "old stream first. A dry run unless dry_run is switched off. No sensor launches this job. Safe to run "
            "twice."
        ),
    )
    def exactly_once_successor() -> None:
        _, successor = compare()
        retire(successor)

    return exactly_once_successor


def _goes_on(found: Succession, declared: Sequence[str]) -> Iterator[str]:
    """Say with what the new stream goes on, and where it writes."""
    if found.has_run:
        yield f"{found.successor} has read the same input, and continues from its own checkpoint."
    if found.topics and declared and not {*found.topics} & {*declared}:
        yield (
            f"{found.successor} is declared to write to {', '.join(declared)}: readers of {', '.join(found.topics)} "
            "will get nothing more. To change that, correct outputs= before you go on."
        )


def _metadata(found: Succession) -> dict[str, Any]:
    return {
        "sentence": found.sentence,
        "old_sink": found.sink_id,
        "new_sink": found.successor,
        "last_batch": found.batch_id,
        "starting_offsets": dg.MetadataValue.json(json.loads(found.starting_offsets)),
        **({"refused": found.refusal.what, "way_out": found.refusal.way_out} if found.refusal else {}),
    }

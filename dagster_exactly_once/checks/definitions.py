"""The asset checks of a stream: each reads brokers, checkpoint and commit log within bounds, and leaves the verdict to
:mod:`dagster_exactly_once.checks.judgements`.
"""

from dataclasses import replace

import dagster as dg

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.checks.beside import same_as_blue_check
from dagster_exactly_once.checks.evaluate import NeverBegun, check_begun, check_on, earlier_notes, result
from dagster_exactly_once.checks.readers import READ_BUDGET_S, held_back, read_sink, read_stream
from dagster_exactly_once.checks.rejected import letters_check
from dagster_exactly_once.checks.verified import question_of
from dagster_exactly_once.checks.windows import windows_closed_check
from dagster_exactly_once.declare.config import FreshnessConfig, PolicyConfig, ReconcileConfig
from dagster_exactly_once.declare.stream import Checks, Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.sensors.sink_state import facts_of
from exactly_once.commitlog.commit_log import read_log
from exactly_once.diagnosis import Thresholds, health
from exactly_once.verify.by_origin.comparison import compare_origins
from exactly_once.verify.expected import Expected, expected_input

FRESHNESS = "freshness"
_POLICY = f"{Thresholds().stale_after_s:g} s unless configured"


def checks_of(stream: Stream, blue: Stream | None = None) -> list[dg.AssetChecksDefinition]:
    """Make the checks of a stream, on the asset of its first output, and one each on that of its rejected records, of
    its dead letters and of its complete windows; none when it declares none. ``blue`` is the stream that it reads along
    with.
    """
    if stream.checks is None:
        return []
    made = [
        _no_old_open_transaction(stream),
        _last_stable_offset(stream),
        _checkpoint_equals_commit_log(stream),
        _freshness(stream, stream.checks),
        *(letters_check(stream, topic, declared) for topic, declared in stream.letters.items()),
        *([same_as_blue_check(stream, blue)] if blue is not None else []),
        *([windows_closed_check(stream)] if stream.complete is not None else []),
    ]
    return [_no_duplicates_and_no_loss(stream), *made] if stream.checks.origin is not None else made


def _no_duplicates_and_no_loss(stream: Stream) -> dg.AssetChecksDefinition:
    @check_on(
        stream,
        "no_duplicates_and_no_loss",
        f"Each record of {', '.join(stream.source_topics)} appears exactly once across {', '.join(stream.topics)}, "
        "by source partition and offset. Compares the newest committed part of the input (100,000 offsets unless "
        "configured) with the outputs, and reports what it sampled.",
    )
    def no_duplicates_and_no_loss(
        config: ReconcileConfig, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
    ) -> dg.AssetCheckResult:
        connection, budget_s = kafka.connection(), READ_BUDGET_S
        location = checkpoint_of(connection, stream.sink_id, kafka, checkpoints)
        if checkpoints.read(location).last_commit is None:
            check_begun(stream, read_log(connection, stream.sink_id, budget_s))
            return result(judgements.no_duplicates_and_no_loss(None))

        def expected() -> Expected:
            topics = stream.source_topics
            return expected_input(connection, stream.sink_id, location, topics, budget_s, last=config.offsets)

        question = question_of(stream, refuse_foreign=True, backfilled=True)
        found = compare_origins(connection, stream.topics, question, expected, budget_s=budget_s)
        return result(judgements.no_duplicates_and_no_loss(found))

    return no_duplicates_and_no_loss


def _no_old_open_transaction(stream: Stream) -> dg.AssetChecksDefinition:
    @check_on(
        stream,
        "no_old_open_transaction",
        "No transaction of the stream, of its backfill or of records that it sends again is open that nobody works "
        f"on, or for longer than the policy ({_POLICY}) and the sink's own limit for a batch (70 % of the timeout). "
        "Covers all of them.",
    )
    def no_old_open_transaction(
        context: dg.AssetCheckExecutionContext, config: PolicyConfig, transactions: TransactionAdmin
    ) -> dg.AssetCheckResult:
        connection, budget_s = transactions.connection(), transactions.budget_s
        specs = (stream.spec, *stream.side_specs)
        found = {s.sink_id: read_sink(context.instance, s, connection, budget_s) for s in specs}
        return result(judgements.no_old_open_transaction(found, Thresholds(stale_after_s=config.policy_s)))

    return no_old_open_transaction


def _last_stable_offset(stream: Stream) -> dg.AssetChecksDefinition:
    @check_on(
        stream,
        "last_stable_offset_is_high_watermark",
        "read_committed readers reach the end of every partition of the outputs; a batch in flight may hold them back "
        f"for as long as the policy allows ({_POLICY}), and one that nobody works on not at all. Covers all "
        "partitions.",
    )
    def last_stable_offset_is_high_watermark(
        context: dg.AssetCheckExecutionContext, config: PolicyConfig, kafka: KafkaTransactionalProducerFactory
    ) -> dg.AssetCheckResult:
        facts = read_sink(context.instance, stream.spec, kafka.connection(), READ_BUDGET_S)
        standing, partitions = held_back(kafka.connection(), stream.topics, facts.sink.blocked)
        limits = Thresholds(stale_after_s=config.policy_s)
        return result(judgements.last_stable_is_high_watermark(replace(facts, standing=standing), partitions, limits))

    return last_stable_offset_is_high_watermark


def _checkpoint_equals_commit_log(stream: Stream) -> dg.AssetChecksDefinition:
    @check_on(
        stream,
        "checkpoint_equals_commit_log",
        "The checkpoint and the commit log agree: the checkpoint knows every decided batch, and no batch stays between "
        f"the two for longer than the policy ({_POLICY}).",
    )
    def checkpoint_equals_commit_log(
        context: dg.AssetCheckExecutionContext,
        config: PolicyConfig,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
    ) -> dg.AssetCheckResult:
        limits = Thresholds(stale_after_s=config.policy_s, stall_after_s=config.policy_s)
        found, history = read_stream(context.instance, stream, kafka, checkpoints, READ_BUDGET_S)
        began_ms, checked_ms = found.progress.batch_started_ms, found.inspection.checked_ms
        age_s = 0.0 if began_ms is None else (checked_ms - began_ms) / 1000
        facts = facts_of(context.instance, stream.spec, found, history, waited_s=age_s)
        if found.inspection.owner is None:
            raise NeverBegun(health(facts))
        newest = history.stream
        unwanted = newest is None or newest.status == "FAILURE" or (newest.in_progress and not newest.waits)
        unfinished = age_s > config.policy_s or (facts.at_work is False and unwanted)
        verdict = judgements.checkpoint_equals_commit_log(facts, found.progress, unfinished, limits)
        return result(verdict, {"checkpoint": found.checkpoint.location})

    return checkpoint_equals_commit_log


def _freshness(stream: Stream, declared: Checks) -> dg.AssetChecksDefinition:
    @check_on(
        stream,
        FRESHNESS,
        f"Input does not wait for longer than the limit ({declared.freshness_s:g} s unless configured) without a "
        "commit. A stream without input is fresh. The wait counts from the first evaluation that saw the input "
        "waiting.",
    )
    def freshness(
        context: dg.AssetCheckExecutionContext,
        config: FreshnessConfig,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
    ) -> dg.AssetCheckResult:
        found, history = read_stream(context.instance, stream, kafka, checkpoints, READ_BUDGET_S)
        facts = facts_of(context.instance, stream.spec, found, history)
        if found.inspection.owner is None:
            raise NeverBegun(health(facts))
        if found.checkpoint.torn:
            return result(health(facts))
        last, committed = found.checkpoint.last_commit, found.committed
        marked = checkpoints.marked_ms(found.checkpoint.location, after=last - 1) if last is not None else {}
        verdict = judgements.freshness(
            facts,
            sum(sum(committed.get(topic, {}).values()) for topic in stream.source_topics) if committed else None,
            max(marked.values(), default=None),
            judgements.waiting_of(earlier_notes(context.instance, stream.outputs[0].key, FRESHNESS) or {}),
            config.limit_s or declared.freshness_s,
        )
        return result(verdict)

    return freshness

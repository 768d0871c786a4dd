"""The asset checks of a stream: each reads brokers, checkpoint and commit log within bounds, and leaves the verdict to
:mod:`dagster_exactly_once.checks.judgements`.
"""

import dagster as dg

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.checks.beside import same_as_blue_check
from dagster_exactly_once.checks.evaluate import check_begun, check_on, earlier_notes, result
from dagster_exactly_once.checks.readers import READ_BUDGET_S, held_back
from dagster_exactly_once.checks.rejected import letters_check
from dagster_exactly_once.checks.verified import question_of
from dagster_exactly_once.checks.windows import windows_closed_check
from dagster_exactly_once.checks.writer import writer_of
from dagster_exactly_once.declare.config import FreshnessConfig, PolicyConfig, ReconcileConfig
from dagster_exactly_once.declare.stream import Checks, Stream
from dagster_exactly_once.names import UNDER_WAY_POLICY_S
from dagster_exactly_once.resources.checkpoints import CheckpointReader, compare, lag
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.resources.transactions import TransactionAdmin
from exactly_once.commitlog.commit_log import read_log
from exactly_once.deadline import now_ms
from exactly_once.kafka.admin import Admin
from exactly_once.verify.by_origin.comparison import compare_origins
from exactly_once.verify.expected import Expected, expected_input

FRESHNESS = "freshness"
_POLICY = f"{UNDER_WAY_POLICY_S:g} s unless configured"


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
    sinks = [stream.sink_id, *(spec.sink_id for spec in stream.side_specs)]

    @check_on(
        stream,
        "no_old_open_transaction",
        "No transaction of the stream, of its backfill or of records that it sends again has been under way for longer "
        f"than the policy ({_POLICY}), according to the coordinators. Covers all of them.",
    )
    def no_old_open_transaction(config: PolicyConfig, transactions: TransactionAdmin) -> dg.AssetCheckResult:
        under_way = [t for sink_id in sinks for t in transactions.open_transactions(sink_id)]
        return result(judgements.no_old_open_transaction(under_way, now_ms(), config.policy_s))

    return no_old_open_transaction


def _last_stable_offset(stream: Stream) -> dg.AssetChecksDefinition:
    @check_on(
        stream,
        "last_stable_offset_is_high_watermark",
        "read_committed readers reach the end of every partition of the outputs; a batch in flight may hold them back "
        f"for as long as the policy allows ({_POLICY}). Covers all partitions.",
    )
    def last_stable_offset_is_high_watermark(
        config: PolicyConfig, kafka: KafkaTransactionalProducerFactory
    ) -> dg.AssetCheckResult:
        blocks, partitions = held_back(kafka.connection(), stream.topics)
        return result(judgements.last_stable_is_high_watermark(blocks, partitions, now_ms(), config.policy_s))

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
        connection = kafka.connection()
        # in this order: a stream that continues meanwhile can only plan batches that the log does not know yet
        log = read_log(connection, stream.sink_id, READ_BUDGET_S)
        location = checkpoint_of(connection, stream.sink_id, kafka, checkpoints)
        progress = compare(checkpoints.read(location), log)
        if progress.state == "unused":
            check_begun(stream, log)
        writer = writer_of(context.instance, stream, log)
        verdict = judgements.checkpoint_equals_commit_log(progress, writer, now_ms(), config.policy_s)
        return result(verdict, {"checkpoint": location})

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
        connection = kafka.connection()
        location = checkpoint_of(connection, stream.sink_id, kafka, checkpoints)
        committed = checkpoints.committed_offsets(location)
        last = checkpoints.read(location).last_commit
        marked = checkpoints.marked_ms(location, after=last - 1) if last is not None else {}
        waiting = 0
        if not committed:
            check_begun(stream, read_log(connection, stream.sink_id, READ_BUDGET_S))
        else:
            with Admin(connection, READ_BUDGET_S) as admin:
                waiting = sum(lag(committed, topic, admin.watermarks(topic)) for topic in stream.source_topics)
        verdict = judgements.freshness(
            sum(sum(committed.get(topic, {}).values()) for topic in stream.source_topics) if committed else None,
            waiting,
            max(marked.values(), default=None),
            judgements.waiting_of(earlier_notes(context.instance, stream.outputs[0].key, FRESHNESS) or {}),
            now_ms(),
            config.limit_s or declared.freshness_s,
        )
        return result(verdict)

    return freshness

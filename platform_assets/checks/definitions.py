"""The asset checks: each reads brokers, checkpoint and commit log within bounds, and leaves the verdict to
:mod:`platform_assets.checks.judgements`.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import dagster as dg

from exactly_once.deadline import now_ms
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.connection import Connection
from platform_assets.checks import judgements
from platform_assets.checks.judgements import Block, Verdict, Waiting
from platform_assets.checks.sampling import LOOK_BUDGET_S, OUTPUTS, compare_window, record_time_ms, stream_window
from platform_assets.classified import classified
from platform_assets.config import FreshnessConfig, PolicyConfig, ReconcileConfig
from platform_assets.constants import (
    BACKFILL_SINK_ID,
    FLIGHT_DELAYS,
    FLIGHTS,
    FRESHNESS_LIMIT_S,
    SINK_ID,
    UNDER_WAY_POLICY_S,
)
from platform_assets.streaming.location import checkpoint_of
from resources.checkpoints import CheckpointReader, compare, lag
from resources.kafka import KafkaTransactionalProducerFactory
from resources.transactions import TransactionAdmin

FRESHNESS = "freshness"
_POLICY = f"{UNDER_WAY_POLICY_S:g} s unless configured"

#: The search for the last finished evaluation of a check looks at this many evaluations.
EARLIER = 10


@dg.asset_check(
    asset=FLIGHT_DELAYS,
    description=(
        "Each record of flights appears exactly once across flight_delays and flight_delays_rejected, by source "
        "partition and offset. Compares the newest committed part of the input (100,000 offsets unless configured) "
        "with the outputs, and reports what it sampled."
    ),
)
def no_duplicates_and_no_loss(
    config: ReconcileConfig, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> dg.AssetCheckResult:
    with classified():
        connection = kafka.connection()
        location = checkpoint_of(connection, SINK_ID, kafka, checkpoints)
        window = stream_window(connection, checkpoints, location, config.offsets)
        if window is None:
            return _result(judgements.no_duplicates_and_no_loss(None, None, 0))
        began = checkpoints.first_offsets(location).get(FLIGHTS, {})
        found, outputs_read = compare_window(connection, window, began, config.offsets)
    return _result(judgements.no_duplicates_and_no_loss(window, found, outputs_read))


@dg.asset_check(
    asset=FLIGHT_DELAYS,
    description=(
        f"No transaction of the stream or of its backfill has been under way for longer than the policy ({_POLICY}), "
        "according to the coordinators. Covers all of them."
    ),
)
def no_old_open_transaction(config: PolicyConfig, transactions: TransactionAdmin) -> dg.AssetCheckResult:
    with classified():
        under_way = [t for sink_id in (SINK_ID, BACKFILL_SINK_ID) for t in transactions.open_transactions(sink_id)]
    return _result(judgements.no_old_open_transaction(under_way, now_ms(), config.policy_s))


@dg.asset_check(
    asset=FLIGHT_DELAYS,
    description=(
        "read_committed readers reach the end of every partition of both outputs; a batch in flight may hold them back "
        f"for as long as the policy allows ({_POLICY}). Covers all partitions."
    ),
)
def last_stable_offset_is_high_watermark(
    config: PolicyConfig, kafka: KafkaTransactionalProducerFactory
) -> dg.AssetCheckResult:
    with classified():
        blocks, partitions = _blocks(kafka.connection())
    return _result(judgements.last_stable_is_high_watermark(blocks, partitions, now_ms(), config.policy_s))


@dg.asset_check(
    asset=FLIGHT_DELAYS,
    description=(
        "The checkpoint and the commit log agree: the checkpoint knows every decided batch, and no batch stays between "
        f"the two for longer than the policy ({_POLICY})."
    ),
)
def checkpoint_equals_commit_log(
    config: PolicyConfig, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> dg.AssetCheckResult:
    with classified():
        connection = kafka.connection()
        # in this order: a stream that continues meanwhile can only plan batches that the log does not know yet
        log = read_log(connection, SINK_ID, LOOK_BUDGET_S)
        location = checkpoint_of(connection, SINK_ID, kafka, checkpoints)
        standing = compare(checkpoints.read(location), log)
    verdict = judgements.checkpoint_equals_commit_log(standing, now_ms(), config.policy_s)
    return _result(verdict, {"checkpoint": location})


@dg.asset_check(
    asset=FLIGHT_DELAYS,
    name=FRESHNESS,
    description=(
        f"Input does not wait for longer than the limit ({FRESHNESS_LIMIT_S:g} s unless configured) without a commit. "
        "A stream without input is fresh. The wait counts from the first evaluation that saw the input waiting."
    ),
)
def freshness(
    context: dg.AssetCheckExecutionContext,
    config: FreshnessConfig,
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
) -> dg.AssetCheckResult:
    with classified():
        connection = kafka.connection()
        location = checkpoint_of(connection, SINK_ID, kafka, checkpoints)
        committed = checkpoints.committed_offsets(location)
        last = checkpoints.read(location).last_commit
        marked = checkpoints.marked_ms(location, after=last - 1) if last is not None else {}
        waiting = 0
        if committed:
            with Admin(connection, LOOK_BUDGET_S) as admin:
                waiting = lag(committed, FLIGHTS, admin.watermarks(FLIGHTS))
    verdict = judgements.freshness(
        committed.get(FLIGHTS) if committed else None,
        waiting,
        max(marked.values(), default=None),
        _earlier(context.instance),
        now_ms(),
        config.limit_s,
    )
    return _result(verdict)


CHECKS = [
    no_duplicates_and_no_loss,
    no_old_open_transaction,
    last_stable_offset_is_high_watermark,
    checkpoint_equals_commit_log,
    freshness,
]


def _result(verdict: Verdict, more: Mapping[str, Any] | None = None) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=verdict.passed,
        severity=dg.AssetCheckSeverity.ERROR if verdict.grave else dg.AssetCheckSeverity.WARN,
        description=verdict.said,
        metadata={**verdict.metadata, **(more or {})},
    )


def _blocks(connection: Connection) -> tuple[list[Block], int]:
    """Return the output partitions that hold readers back now, and the number of all partitions."""
    marks = []
    with Admin(connection, LOOK_BUDGET_S) as admin:
        for topic in OUTPUTS:
            with suppress(UnknownTopic):  # the first start makes it
                marks += [(topic, p, w) for p, w in admin.watermarks(topic).items()]
    return [
        Block(topic, p, w.last_stable, w.high, record_time_ms(connection, topic, p, w.last_stable))
        for topic, p, w in marks
        if w.last_stable < w.high
    ], len(marks)


def _earlier(instance: dg.DagsterInstance) -> Waiting | None:
    """Return the notes of the newest finished evaluation of the freshness."""
    key = dg.AssetCheckKey(dg.AssetKey(FLIGHT_DELAYS), FRESHNESS)
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=EARLIER):
        event = record.event.dagster_event if record.event else None
        data = event.event_specific_data if event else None
        if isinstance(data, dg.AssetCheckEvaluation):
            return judgements.waiting_of({name: value.value for name, value in data.metadata.items()})
    return None

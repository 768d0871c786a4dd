"""The output topics filled for days before the live stream began, one exactly-once write for each day."""

import os
import socket
from collections.abc import Iterator

import dagster as dg

from exactly_once.coordinator.batch_write import written
from exactly_once.errors import CheckpointUnusable, ExactlyOnceError, ProtocolViolation
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.connection import Connection
from exactly_once.ops.processes import belongs_to, owner_alive
from exactly_once.protocol.records import Claim, Decision
from platform_assets.backfill import spark as in_spark
from platform_assets.backfill.days import (
    FIRST_DAY,
    LAST_DAY,
    Day,
    before_stream,
    days_found,
    next_day,
    start_ms,
    write_id,
)
from platform_assets.backfill.worker import SparkWorker
from platform_assets.classified import as_failure, classified
from platform_assets.config import BackfillConfig
from platform_assets.constants import (
    BACKFILL_POOL,
    BACKFILL_SINK_ID,
    FLIGHT_DELAYS,
    FLIGHT_DELAYS_BY_DAY,
    FLIGHT_DELAYS_REJECTED,
    FLIGHTS,
    GROUP,
    PARTITIONS,
    SINK_ID,
)
from platform_assets.flights.source import LOOK_BUDGET_S
from platform_assets.flights.spans import Spans, worth_reading
from platform_assets.streaming.failures import diagnose
from platform_assets.streaming.location import checkpoint_of
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
from resources.run_process import tag_run
from resources.spark import SparkSessionResource
from resources.transactions import TransactionAdmin

#: The op's name in run configuration.
BACKFILL_OP = "backfill_flight_delays"

DAYS = dg.DailyPartitionsDefinition(start_date=FIRST_DAY.isoformat(), end_date=next_day(LAST_DAY.isoformat()))

_BY_DAY = dg.AssetSpec(
    FLIGHT_DELAYS_BY_DAY,
    deps=[FLIGHTS],
    group_name=GROUP,
    kinds={"kafka", "spark"},
    partitions_def=DAYS,
    skippable=True,  # the op reports each day when it is done, not all of them at its end
    description=(
        "The departures of a UTC day in the topics flight_delays and flight_delays_rejected, up to where the live "
        "stream first started; the stream writes the rest. Each day is written exactly once, however many attempts it "
        "takes. A range of days is one run."
    ),
)


@dg.multi_asset(specs=[_BY_DAY], name=BACKFILL_OP, pool=BACKFILL_POOL, backfill_policy=dg.BackfillPolicy.single_run())
def backfill_flight_delays(
    context: dg.AssetExecutionContext,
    config: BackfillConfig,
    spark: SparkSessionResource,
    kafka: KafkaTransactionalProducerFactory,
    transactions: TransactionAdmin,
    checkpoints: CheckpointReader,
) -> Iterator[dg.MaterializeResult]:
    """Write the days of this run that are not written yet; :mod:`platform_assets.backfill.days` defines the shares.

    1. Skip the days in the commit log; if it has all of them, do not start Spark.
    2. Find the records of the other days in the backfill's share of the input, in one pass.
    3. Write day by day, and report each day when it is committed.
    """
    tag_run(context.instance, context.run.run_id, BACKFILL_SINK_ID)
    with classified():
        connection = kafka.connection()
    try:
        share = backfill_share(kafka, checkpoints, config.checkpoint)
        kafka.create_topics({FLIGHT_DELAYS: PARTITIONS, FLIGHT_DELAYS_REJECTED: PARTITIONS})
        _bring_to_rest(context, connection, transactions)
        _fill(context, spark, connection, share)
    except Exception as error:  # not an interrupt: Dagster must see that one unchanged
        diagnosis = diagnose(error)
        context.log.error(f"The backfill failed: {error}")
        _bring_to_rest(context, connection, transactions)
        raise as_failure(diagnosis) from error
    except BaseException:
        _bring_to_rest(context, connection, transactions)
        raise
    yield from ()  # Dagster would take a function that only returns to have made all of its days


def backfill_share(kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader, checkpoint: str) -> Spans:
    """Return the backfill's share of the input, given the live stream's checkpoint ("": the one that it last used).

    Raises
    ------
    NoBoundary, CheckpointUnusable, BrokerUnreachable, UnknownTopic
    """
    connection = kafka.connection()
    location = checkpoint or checkpoint_of(connection, SINK_ID, kafka, checkpoints)
    began = checkpoints.first_offsets(location).get(FLIGHTS, {})
    if not began and read_log(connection, SINK_ID, LOOK_BUDGET_S).owner is not None:
        raise CheckpointUnusable(
            f"the stream has run, but its checkpoint {location} is missing, so where the stream began is unknown",
            "Run the backfill where the checkpoint can be read, or restore the checkpoint",
        )
    with Admin(connection, LOOK_BUDGET_S) as admin:
        return before_stream(began, admin.watermarks(FLIGHTS))


def _fill(context: dg.AssetExecutionContext, spark: SparkSessionResource, connection: Connection, share: Spans) -> None:
    keys = sorted(context.partition_keys)
    log = read_log(connection, BACKFILL_SINK_ID, LOOK_BUDGET_S)
    before = {key: decision for key in keys if (decision := log.write(write_id(key))) is not None}
    for key, decision in before.items():
        _report(context, key, decision.records, f"{key} was written before, {decision.records:,} records.", decision)
    todo = [key for key in keys if key not in before]
    if not todo:
        return
    spans = _worth_reading(connection, share, todo[0])
    if all(span.empty for span in spans.values()):
        for key in todo:
            _report(context, key, 0, f"{key}: the live stream owns all input from that day on; nothing to write.")
        return
    with SparkWorker(spark.session, spark.kill) as worker:
        found = worker.call(lambda session: in_spark.find_days(session, connection, todo, spans))
        for day in days_found(todo, found, share):
            if day.records:
                worker.call(lambda session, day=day: in_spark.write_day(session, connection, day))  # type: ignore[misc]
                decision = _proven(connection, day)
                _report(context, day.key, day.records, f"{day.key}: wrote {day.records:,} records.", decision)
            else:
                said = f"{day.key}: no record of that day lies before the live stream's start; nothing to write."
                _report(context, day.key, 0, said)


def _worth_reading(connection: Connection, share: Spans, first_day: str) -> Spans:
    with Admin(connection, LOOK_BUDGET_S) as admin:
        return worth_reading(share, admin.offsets_since(FLIGHTS, start_ms(first_day)))


def _proven(connection: Connection, day: Day) -> Decision:
    """Return the decision of a day that was just written."""
    decision = written(connection, BACKFILL_SINK_ID, day.write_id, LOOK_BUDGET_S)
    if decision is None or decision.records != day.records:
        have = "nothing" if decision is None else f"{decision.records:,} records"
        raise ProtocolViolation(
            f"{day.key} has {day.records:,} records in the input, but the commit log says that {have} was written",
            "Report this as a bug, with this message",
            "Days reported earlier are complete",
        )
    return decision


def _report(
    context: dg.AssetExecutionContext, day: str, records: int, said: str, decision: Decision | None = None
) -> None:
    context.log.info(said)
    metadata: dict[str, int | str] = {"records_written": records, "said": said}
    if decision is not None:
        metadata |= {"transactions": decision.part_count, "write_id": decision.write_id}
    context.log_event(dg.AssetMaterialization(FLIGHT_DELAYS_BY_DAY, partition=day, metadata=metadata))


def _bring_to_rest(context: dg.AssetExecutionContext, connection: Connection, transactions: TransactionAdmin) -> None:
    """Commit the decided days of this run and abort its open transactions, unless another process is still writing.

    Readers of the live stream's output wait for an open transaction of the backfill too.
    """
    try:
        log = read_log(connection, BACKFILL_SINK_ID, LOOK_BUDGET_S)
        if log.owner is None or not (owner_alive(log.owner) is False or _is_ours(log.owner)):
            return
        if log.open_decisions or transactions.list(BACKFILL_SINK_ID):
            context.log.info(f"At rest: {transactions.recover(BACKFILL_SINK_ID).as_metadata()}")
    except ExactlyOnceError as error:
        context.log.warning(f"Could not bring the sink to rest; the next run does. {error}")


def _is_ours(owner: Claim) -> bool:
    """Return whether this run's JVM, which stays until the process ends, made the claim."""
    return owner.host == socket.gethostname() and belongs_to(owner.pid, os.getpid())

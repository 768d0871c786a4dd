"""The assets and jobs of a declared stream."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.names import ALL_STREAMS, MONITORING
from dagster_exactly_once.private import UnresolvedAssetJobDefinition, loading_location
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import opener
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.tags import ENDLESS, NOT_RETRIED, TAG_JOB, TAG_STREAM
from dagster_exactly_once.streaming.run import StreamRun


def stream_asset(stream: Stream) -> dg.AssetsDefinition:
    """Make the asset of the stream's outputs; materializing it runs the stream."""
    config_class = stream.config

    @dg.multi_asset(specs=stream.assets, name=stream.spec.op)
    def run(
        context: dg.AssetExecutionContext,
        config: config_class,  # type: ignore[valid-type]
        spark: dg.ResourceParam[Any],
        kafka: KafkaTransactionalProducerFactory,
        transactions: TransactionAdmin,
        checkpoints: CheckpointReader,
    ) -> Iterator[dg.MaterializeResult]:
        """Run the stream until it is stopped or has caught up."""
        yield from StreamRun(context, config, stream, opener(spark), kafka, transactions, checkpoints).run()

    return run


def source_assets(streams: Sequence[Stream]) -> list[dg.AssetSpec]:
    """Make the assets of the topics that the streams read and none of them writes, each once."""
    written = {spec.key for stream in streams for spec in stream.assets}
    read = [
        (spec, topic.asset)
        for stream in reversed(streams)  # the first one describes it
        for spec, topic in zip(stream.inputs, stream.sources.values(), strict=True)
    ]
    others = written | {spec.key for spec, here in read if not here}
    return list({spec.key: spec for spec, _ in read if spec.key not in others}.values())


def transactions_asset(stream: Stream) -> dg.AssetSpec:
    """Make the asset that shows the stream's transactions, and keeps the audit trail of recoveries.

    It depends on nothing: it is no data that is made from the outputs.
    """
    return dg.AssetSpec(
        stream.spec.asset,
        group_name=MONITORING,
        owners=stream.outputs[0].owners,
        kinds={"kafka"},
        description=(
            f"The transactions of the sink {stream.sink_id}. Observed by the sensor exactly_once_checkpoint_progress "
            "(plots; tables of open transactions with their age against their timeout, and of recent ones) and by "
            "every recovery: who launched it, when and why, and the sink before and after."
        ),
    )


def streams_asset() -> dg.AssetSpec:
    """Make the asset that shows all streams of the code location on one page."""
    return dg.AssetSpec(
        ALL_STREAMS,
        group_name=MONITORING,
        kinds={"kafka"},
        description=(
            "All streams with exactly-once output in one table: state, lag, open transactions and the oldest of them, "
            "the newest run and the sink; below it links to these runs, and what is wrong with a stream that needs "
            "somebody. The sensor exactly_once_checkpoint_progress observes it when a stream changes its state, "
            "within half a minute when a lag has moved, and every ten minutes; looked_at says when the lag was "
            "measured, by the brokers' end offsets."
        ),
    )


def completed_asset(stream: Stream) -> dg.AssetSpec:
    """Make the asset of the windows of event time that the stream has completed; the stream's runs materialize them."""
    assert stream.complete is not None
    first = stream.outputs[0]
    windows = stream.complete
    kind = dg.HourlyPartitionsDefinition if windows.every == "hour" else dg.DailyPartitionsDefinition
    start = f"{windows.start}-00:00" if windows.every == "hour" else windows.start
    end = windows.name(windows.until) if windows.until is not None else None
    return dg.AssetSpec(
        stream.completed,
        deps=[spec.key for spec in stream.outputs],
        group_name=first.group_name,
        owners=first.owners,
        kinds={"kafka"},
        partitions_def=kind(start_date=start, end_date=end, timezone=windows.timezone),
        description=(
            f"The {windows.every}s ({windows.timezone}) of event time whose records are completely in "
            f"{', '.join(stream.topics)}: the stream materializes each when the watermark has passed it and the batch "
            "is committed. Build on this asset what needs complete data."
        ),
    )


def stream_job(stream: Stream) -> UnresolvedAssetJobDefinition:
    """Make the job that runs the stream in one process: one less to start, and interrupts reach the op directly."""
    return dg.define_asset_job(
        stream.spec.job,
        # the checks have their own job: a stream should not compare 100,000 records when it ends
        selection=dg.AssetSelection.assets(*(spec.key for spec in stream.assets)).without_checks(),
        executor_def=dg.in_process_executor,
        tags={**ENDLESS, TAG_JOB: stream.queue(loading_location()), TAG_STREAM: stream.name},
        description=(
            f"Reads {', '.join(stream.source_topics)}, writes {', '.join(stream.topics)} exactly once. Terminate stops "
            "it gracefully; the next start continues where it stopped."
        ),
    )


def backfill_job(stream: Stream) -> UnresolvedAssetJobDefinition:
    """Make the job that writes days from before the stream's start."""
    return dg.define_asset_job(
        stream.backfill_spec.job,
        selection=dg.AssetSelection.assets(stream.by_day).without_checks(),
        executor_def=dg.in_process_executor,
        # a pool without a limit of its own limits no run that leaves the queue with the pool's first one
        tags={
            **NOT_RETRIED,
            TAG_JOB: stream.queue(loading_location(), stream.backfill_spec),
            TAG_STREAM: stream.backfill_spec.name,
        },
        description=f"Writes days of {', '.join(stream.topics)} from before the stream began, each exactly once.",
    )

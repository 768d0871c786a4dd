"""The job ``<name>_close_windows``: closes windows of event time that the stream has left behind open."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import dagster as dg

from dagster_exactly_once.declare.complete import Complete, check_window, in_ranges, left_open, window_of
from dagster_exactly_once.declare.config import CloseConfig
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.recovery.operations import who
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S, CheckpointReader, Offsets, checkpoint_of
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.tags import NOT_RETRIED
from exactly_once.errors import UnknownTopic
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.txn.scan import batches

#: The entry of an observation of the asset that names the first window with events.
FIRST = "first_window"

#: The bytes to read of a partition: enough for its first batch of records.
_FEW_BYTES = 64 * 1024


@dataclass(frozen=True)
class Windows:
    """The windows of a stream, as Dagster, its checkpoint and its input have them.

    ``reported`` are closed. ``noted`` is the first window with events, as the stream or a person noted it; where nobody
    did (""), ``by_input`` is that of the oldest record where the stream began to read, by the records' time stamps.
    ``watermark_ms`` is the watermark of the last committed batch; 0 before the first one.
    """

    declared: Complete
    reported: Collection[str]
    noted: str
    by_input: str
    watermark_ms: int

    @property
    def first(self) -> str:
        """The first window with events, as noted, or else by the input; "": the oldest closed one, for all we know."""
        return self.noted or (self.by_input if self.by_input < min(self.reported, default="") else "")

    def left_open(self, first: str = "") -> list[str]:
        """Return the windows that no run of the stream comes back to, oldest first; those from ``first`` on, if a
        person gives it.
        """
        return left_open(self.declared, self.reported, first or self.first, self.watermark_ms)


def windows_of(
    instance: dg.DagsterInstance,
    stream: Stream,
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
) -> Windows:
    """Read the facts about the windows of a stream with ``complete``; ExactlyOnceError where they cannot be read."""
    assert stream.complete is not None
    key, connection = dg.AssetKey(stream.completed), kafka.connection()
    reported, noted, oldest = instance.get_materialized_partitions(key), first_noted(instance, key), None
    if not reported:
        return Windows(stream.complete, reported, noted, "", 0)
    location = checkpoint_of(connection, stream.sink_id, kafka, checkpoints)
    if not noted:
        oldest = oldest_input_ms(connection, checkpoints.first_offsets(location))
    by_input = "" if oldest is None else window_of(stream.complete, oldest)
    return Windows(stream.complete, reported, noted, by_input, checkpoints.watermark_ms(location))


def first_noted(instance: dg.DagsterInstance, asset: dg.AssetKey) -> str:
    """Return the first window with events, as the newest observation of the asset has it; "" without one."""
    for record in instance.fetch_observations(asset, limit=1).records:
        observed = record.asset_observation
        if observed is not None and FIRST in observed.metadata:
            return str(observed.metadata[FIRST].value)
    return ""


def note_first(asset: dg.AssetKey, window: str, by: str) -> dg.AssetObservation:
    """Return the observation of the asset that notes the first window with events."""
    return dg.AssetObservation(asset, metadata={FIRST: window, "noted_by": by})


def oldest_input_ms(connection: Connection, began: Offsets) -> int | None:
    """Return the oldest time stamp in ms of the partitions' first records from where a stream ``began``."""
    times = list[int]()
    with Admin(connection, READ_BUDGET_S) as admin:
        for topic, starts in began.items():
            with suppress(UnknownTopic):
                for p, mark in admin.watermarks(topic).items():
                    start, end = max(mark.low, starts.get(p, 0)), mark.last_stable
                    read = batches(admin, (topic, p), start, end, end, _FEW_BYTES) if start < end else ()
                    first = next((b for b in read if b.marker is None and not b.hidden), None)
                    if first is not None:
                        times += [r.timestamp for r in first.records() if r.offset >= start and r.timestamp >= 0]
    return min(times, default=None)


def close_windows_job(stream: Stream) -> dg.JobDefinition:
    """Make the job, for a stream with ``complete``."""
    assert stream.complete is not None
    every = stream.complete.every

    @dg.op(
        name=f"close_windows_{stream.name}",
        description=(
            f"Finds {every}s of {stream.completed} that are open although the watermark has passed them and a newer "
            f"{every} is closed, and materializes them; a dry run only names them."
        ),
    )
    def close(
        context: dg.OpExecutionContext,
        config: CloseConfig,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
    ) -> None:
        with classified():
            windows = windows_of(context.instance, stream, kafka, checkpoints)
            first = check_window(windows.declared, config.first, windows.reported) if config.first else ""
        closing = windows.left_open(first)
        sentence = _sentence(windows, closing, stream.closes, config.dry_run)
        context.log.info(sentence)
        context.add_output_metadata({"sentence": sentence, "windows": closing})
        if config.dry_run:
            return
        key, by = dg.AssetKey(stream.completed), who(context.run)
        for name in closing:
            why = {"closed_by": by, **({"reason": config.reason} if config.reason else {})}
            context.log_event(dg.AssetMaterialization(key, partition=name, metadata=why))
        if (first := first or windows.first) not in ("", windows.noted):
            context.log_event(note_first(key, first, by))

    @dg.job(
        name=stream.closes,
        executor_def=dg.in_process_executor,
        tags=NOT_RETRIED,
        description=(
            f"Closes {every}s of {stream.completed} that the stream has left behind open: the watermark has passed "
            "them, so nothing more of them will be written. A dry run unless dry_run is switched off. Safe to run "
            "twice, and beside a run of the stream."
        ),
    )
    def job() -> None:
        close()

    return job


def _sentence(windows: Windows, closing: list[str], job: str, dry_run: bool) -> str:
    every = windows.declared.every
    if not closing:
        return f"No {every} is open that the watermark has passed and that is older than a closed one."
    does = "Would close" if dry_run else "Closes"
    then = f" To do it, launch {job} again with dry_run: false." if dry_run else ""
    return f"{does} {plural(len(closing), every)}: {in_ranges(windows.declared, closing)}.{then}"

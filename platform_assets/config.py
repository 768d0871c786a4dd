"""The configuration of ops: typed, checked before a run starts, explained in the launchpad."""

from enum import Enum

import dagster as dg
from pydantic import Field

from platform_assets.constants import (
    DELAY_BY_HOUR_SINK_ID,
    FRESHNESS_LIMIT_S,
    SINK_ID,
    UNDER_WAY_POLICY_S,
    WATERMARK_DELAY_H,
)
from platform_assets.flights.start import EARLIEST


class Mode(Enum):
    """When a run of the stream ends. Dagster shows the members' names, so a person types these."""

    until_stopped = "until_stopped"
    caught_up = "caught_up"


class FeedConfig(dg.Config):
    """How ``flights`` is fed."""

    events_per_transaction: int = Field(default=20_000, ge=1, description="Events that become visible together.")
    events_per_second: int = Field(default=0, ge=0, description="An upper limit, to watch a live stream; 0 for none.")


class StreamConfig(dg.Config):
    """How a stream runs; the defaults are those of ``flight_delays_stream``."""

    mode: Mode = Field(
        default=Mode.until_stopped,
        description="until_stopped: until Terminate. caught_up: until the input present at the start is processed.",
    )
    trigger_interval_s: float = Field(
        default=1.0,
        ge=0.0,
        description="Seconds between the starts of two batches (until_stopped); 0: without a pause.",
    )
    max_offsets_per_trigger: int = Field(
        default=100_000, ge=1, description="An upper limit for one batch; bounds how long its transactions stay open."
    )
    start_from: str = Field(
        default=EARLIEST,
        description=(
            "Where a stream without a checkpoint begins: earliest, latest, or a date or time like 2013-07-01 or "
            "2013-07-01T12:00:00Z (UTC unless it says otherwise): then at the first record since. No effect once a "
            "checkpoint exists. The backfill writes what comes before."
        ),
    )
    checkpoint: str = Field(
        default="", description="Checkpoint location; empty: the stream's own, where checkpoints are."
    )
    sink_id: str = Field(
        default=SINK_ID, description="Identity of the stream on the cluster. With a new id, the stream starts over."
    )
    report_interval_s: float = Field(default=30.0, ge=1.0, description="Seconds between two reports to Dagster.")


class DelayByHourConfig(StreamConfig):
    """How ``delay_by_hour_stream`` runs."""

    sink_id: str = Field(
        default=DELAY_BY_HOUR_SINK_ID,
        description="Identity of the stream on the cluster. With a new id, the stream starts over.",
    )
    watermark_delay_h: float = Field(
        default=WATERMARK_DELAY_H,
        gt=0,
        description=(
            "Hours of event time that an hour waits for late departures before it is written. Later departures are "
            "dropped and counted as late_rows. Must exceed both the distance between input partitions and the span of "
            "the departures in one input transaction."
        ),
    )


class ReconcileConfig(dg.Config):
    """How much the check ``no_duplicates_and_no_loss`` compares."""

    offsets: int = Field(
        default=100_000, ge=1, description="The newest committed offsets of the input, over all its partitions."
    )


class PolicyConfig(dg.Config):
    """How long something may be under way before a check fails."""

    policy_s: float = Field(default=UNDER_WAY_POLICY_S, gt=0, description="Seconds.")


class FreshnessConfig(dg.Config):
    """How long input may wait."""

    limit_s: float = Field(default=FRESHNESS_LIMIT_S, gt=0, description="Seconds without a commit, with input there.")


class BackfillConfig(dg.Config):
    """How ``flight_delays_by_day`` is filled."""

    checkpoint: str = Field(
        default="",
        description="Checkpoint of the live stream, which says where the stream began; empty: the one it last used.",
    )


class RecoveryConfig(dg.Config):
    """What ``recovery`` works on."""

    sink_id: str = Field(default=SINK_ID, description="The sink to bring to rest.")
    take_over: bool = Field(
        default=False,
        description="Also recover when a run of the stream is alive: that run is fenced (EO-FENCED), nothing is lost.",
    )
    dry_run: bool = Field(default=False, description="Only inspect: show what a recovery would find, change nothing.")
    reason: str = Field(default="", description="Why, for the audit trail; a sensor says what it saw.")
    restart: bool = Field(
        default=False, description="Start the stream again: the sensor liveness does so when this run has succeeded."
    )


class RepairConfig(dg.Config):
    """What ``checkpoint_repair`` works on."""

    sink_id: str = Field(default=SINK_ID, description="The sink of the stream.")
    checkpoint: str = Field(
        default="", description="Checkpoint location; empty: the location for which the sink was last claimed."
    )
    dry_run: bool = Field(default=True, description="Only show what is torn and how to repair it; change nothing.")
    plan_anew: bool = Field(
        default=False,
        description=(
            "Also make Spark plan the batch in flight again: the way out when a batch takes too long (EO-TOO-LONG). "
            "Lower max_offsets_per_trigger for the next start. Refused if the batch is decided."
        ),
    )
    consequence: str = Field(
        default="", description="For plan_anew without dry_run: its consequence, typed out as the dry run prints it."
    )
    take_over: bool = Field(
        default=False,
        description="Also repair when a driver of the stream is alive, or may be: that driver is fenced (EO-FENCED).",
    )
    reason: str = Field(default="", description="Why, for the audit trail.")

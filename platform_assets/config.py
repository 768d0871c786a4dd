"""The configuration of ops: typed, checked before a run starts, explained in the launchpad."""

from enum import Enum

import dagster as dg
from pydantic import Field

from platform_assets.constants import SINK_ID


class Mode(Enum):
    """When a run of the stream ends. Dagster shows the names, so they are what a person types."""

    until_stopped = "until_stopped"
    caught_up = "caught_up"


class FeedConfig(dg.Config):
    """How ``flights`` is fed."""

    events_per_transaction: int = Field(default=20_000, ge=1, description="Events that become visible together.")
    events_per_second: int = Field(default=0, ge=0, description="An upper limit, to watch a live stream; 0 for none.")


class StreamConfig(dg.Config):
    """How ``flight_delays_stream`` runs."""

    mode: Mode = Field(
        default=Mode.until_stopped,
        description="until_stopped: until Terminate. caught_up: until the input of the start is done.",
    )
    trigger_interval_s: float = Field(
        default=1.0,
        ge=0.0,
        description="Seconds between the starts of two batches (until_stopped); 0: without a pause.",
    )
    max_offsets_per_trigger: int = Field(
        default=100_000, ge=1, description="An upper limit for one batch; it bounds how long its transactions are open."
    )
    checkpoint: str = Field(
        default="", description="Checkpoint location; empty: the stream's own, where checkpoints are."
    )
    sink_id: str = Field(default=SINK_ID, description="Identity of the stream on the cluster. A new one starts anew.")
    report_interval_s: float = Field(default=30.0, ge=1.0, description="Seconds between two reports to Dagster.")


class RecoveryConfig(dg.Config):
    """What ``recovery`` works on."""

    sink_id: str = Field(default=SINK_ID, description="The sink to bring to rest.")
    take_over: bool = Field(
        default=False,
        description="Also when a run of the stream is alive: it is fenced and fails with EO-FENCED, nothing is lost.",
    )

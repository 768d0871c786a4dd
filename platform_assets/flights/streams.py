"""The two streams over ``flights``: what each reads, writes and promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dagster_exactly_once import Backfill, Checks, Complete, KafkaTopic, StreamConfig, exactly_once_stream
from exactly_once_local.duel.departures import airline_names, airport_names
from platform_assets.constants import (
    DELAY_BY_HOUR,
    FLIGHT_DELAYS,
    FLIGHT_DELAYS_REJECTED,
    FLIGHTS,
    GROUP,
    PARTITIONS,
    STATE_PARTITIONS,
    WATERMARK_DELAY_H,
)
from platform_assets.flights import by_hour, transform
from platform_assets.flights.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FLIGHTS = KafkaTopic(FLIGHTS, asset=False)  # its feed declares the asset


@exactly_once_stream(
    source=_FLIGHTS,
    outputs=[FLIGHT_DELAYS],
    rejected=FLIGHT_DELAYS_REJECTED,
    checks=Checks(origin=origin),
    # in UTC, New York's last evening of 2013 is the first of January
    backfill=Backfill.daily("2013-01-01", "2014-01-01"),
    output_partitions=PARTITIONS,
    group_name=GROUP,
)
def flight_delays(events: DataFrame) -> DataFrame:
    """Departures, cleaned and joined with the names of airlines and airports, as JSON keyed by tail number. Written
    exactly once; read it with isolation.level=read_committed.
    """
    spark = events.sparkSession
    names = transform.lookup(spark, airline_names()), transform.lookup(spark, airport_names())
    return transform.flight_delays(events, *names)


class DelayByHourConfig(StreamConfig):
    """The configuration of a run of ``delay_by_hour_stream``."""

    watermark_delay_h: float = Field(
        default=WATERMARK_DELAY_H,
        gt=0,
        description=(
            "Hours of event time that an hour waits for late departures before it is written. Later departures are "
            "dropped and counted as late_rows. Must exceed both the distance between input partitions and the span of "
            "the departures in one input transaction."
        ),
    )


@exactly_once_stream(
    source=_FLIGHTS,
    outputs=[DELAY_BY_HOUR],
    complete=Complete.hourly("2013-01-01", "2014-01-01"),  # as the backfill above: 8,784 hours, not all since 2013
    output_partitions=PARTITIONS,
    state_partitions=STATE_PARTITIONS,
    group_name=GROUP,
)
def delay_by_hour(events: DataFrame, config: DelayByHourConfig) -> DataFrame:
    """Departures, cancellations and the average departure delay of each airport of origin and hour (scheduled, UTC), as
    JSON keyed by airport: each hour once, when the watermark has passed it.
    """
    return by_hour.delay_by_hour(transform.parse(events), config.watermark_delay_h)

"""Names that follow from the declarations of the two streams, for the terminal and for tests."""

from platform_assets.flights.streams import delay_by_hour, flight_delays

STREAM_JOB = flight_delays.spec.job
STREAM_OP = flight_delays.spec.op
SINK_ID = flight_delays.sink_id
TRANSACTIONS = flight_delays.spec.asset

DELAY_BY_HOUR_JOB = delay_by_hour.spec.job
DELAY_BY_HOUR_OP = delay_by_hour.spec.op
DELAY_BY_HOUR_SINK_ID = delay_by_hour.sink_id
DELAY_BY_HOUR_TRANSACTIONS = delay_by_hour.spec.asset

BACKFILL_JOB = flight_delays.backfill_spec.job
BACKFILL_OP = flight_delays.backfill_spec.op
BACKFILL_SINK_ID = flight_delays.backfill_spec.sink_id
FLIGHT_DELAYS_BY_DAY = flight_delays.by_day

"""Names that more than one module of the code location uses, and where local state lives."""

from __future__ import annotations

import os
from pathlib import Path

#: Input: one event for each departure, keyed by tail number.
FLIGHTS = "flights"
#: Output: cleaned departures with the names of airline and airports, keyed by tail number.
FLIGHT_DELAYS = "flight_delays"
#: Output: events that could not be read, byte for byte, with the reason in a header.
FLIGHT_DELAYS_REJECTED = "flight_delays_rejected"
#: The transactions of the stream's sink as an asset: plots, a table, and the audit trail of recoveries.
TRANSACTIONS = "flight_delays_transactions"

#: Output of the second stream: departures, cancellations and the average departure delay by airport and hour.
DELAY_BY_HOUR = "delay_by_hour"
#: The transactions of the second stream's sink.
DELAY_BY_HOUR_TRANSACTIONS = "delay_by_hour_transactions"

#: The output again, as the days of a year that a backfill writes into the same topics.
FLIGHT_DELAYS_BY_DAY = "flight_delays_by_day"

#: The stream's identity on the Kafka cluster. It owns the commit log and the transactional ids; never change it for a
#: stream that has run.
SINK_ID = "flight-delays"
#: The second stream's identity on the cluster.
DELAY_BY_HOUR_SINK_ID = "delay-by-hour"
#: The backfill's own identity: its transactional ids and its commit log are not the stream's, so neither can fence the
#: other.
BACKFILL_SINK_ID = "flight-delays-backfill"
#: The one transactional id that feeds ``flights``: a second feeder fences the first one.
FEED_TRANSACTIONAL_ID = "flights-feed"

STREAM_JOB = "flight_delays_stream"
DELAY_BY_HOUR_JOB = "delay_by_hour_stream"
FEED_JOB = "flights_feed"
RECOVERY_JOB = "recovery"
#: The op of the recovery that takes its configuration.
RECOVERY_OP = "inspect"
REPAIR_JOB = "checkpoint_repair"
#: The op of the repair that takes its configuration.
REPAIR_OP = "examine"
BACKFILL_JOB = "flight_delays_backfill"
CHECKS_JOB = "flight_delays_checks"
CODE_LOCATION = "platform_assets"

GROUP = "flights"
#: One run at a time for each pool: dagster.yaml sets the limit, the engine's fencing is the guarantee below it.
STREAM_POOL = f"stream_{STREAM_JOB}"
DELAY_BY_HOUR_POOL = f"stream_{DELAY_BY_HOUR_JOB}"
FEED_POOL = f"feed_{FLIGHTS}"
BACKFILL_POOL = f"backfill_{FLIGHT_DELAYS_BY_DAY}"

#: A batch commits within seconds; the transactions' timeout is 15 minutes, after which a decided one would be lost.
#: A transaction that is under way for longer than this is stuck, and there is still time to recover the sink.
UNDER_WAY_POLICY_S = 300.0
#: Two evaluations at the checks' ten minutes, and a restart in between.
FRESHNESS_LIMIT_S = 900.0

#: How long the second stream waits for late departures, in hours of event time. Spark's watermark is that of the input
#: partition that is ahead, and a limited batch reads the same share of each. In a replay of the year, the partitions of
#: ``flights`` come up to 110 hours apart (computed for batches of 2,000 to 100,000); Spark drops later departures.
WATERMARK_DELAY_H = 168.0
#: State partitions of the second stream, each of them a RocksDB and a transaction in every batch: one for each core of
#: the smallest machine. The state is three airports times the open hours, whatever the input. A checkpoint fixes it.
STATE_PARTITIONS = 2

#: Partitions of the topics. Four parts per batch keep two to four cores busy; more would cost a wave of tasks
#: each.
PARTITIONS = 4

#: Event time stamps lie in 2013, transaction markers carry the time of writing. By default a broker would therefore
#: delete the events at once (retention) and roll a segment at every marker (segment.ms); 100 years of both keep the
#: topic whole.
EVENT_TIME_TOPIC = {"retention.ms": "-1", "segment.ms": str(100 * 365 * 24 * 3600 * 1000)}


def run_dir() -> Path:
    """The one folder for local state (embedded broker, checkpoints, logs, DAGSTER_HOME), absolute.

    ``EXACTLY_ONCE_RUN_DIR`` moves it; by default it is ``.run`` in the project folder, whatever the working directory.
    """
    configured = os.environ.get("EXACTLY_ONCE_RUN_DIR")
    return Path(configured).absolute() if configured else Path(__file__).resolve().parents[1] / ".run"

"""Names that more than one module of the code location uses."""

#: Input: one event for each departure, keyed by tail number.
FLIGHTS = "flights"
#: Output: cleaned departures with the names of airline and airports, keyed by tail number.
FLIGHT_DELAYS = "flight_delays"
#: Output: events that could not be read, byte for byte, with the reason in a header.
FLIGHT_DELAYS_REJECTED = "flight_delays_rejected"
#: Output of the second stream: departures, cancellations and the average departure delay by airport and hour.
DELAY_BY_HOUR = "delay_by_hour"

#: The one transactional id that feeds ``flights``: a second feeder fences the first one.
FEED_TRANSACTIONAL_ID = "flights-feed"
FEED_JOB = "flights_feed"
FEED_POOL = f"feed_{FLIGHTS}"

CODE_LOCATION = "platform_assets"
GROUP = "flights"

#: Hours of event time that the second stream waits for late departures. Spark's watermark is that of the input
#: partition that is ahead, and a limited batch reads the same share of each. In a replay of the year, the partitions of
#: ``flights`` come up to 110 hours apart (computed for batches of 2,000 to 100,000); Spark drops later departures.
WATERMARK_DELAY_H = 168.0
#: State partitions of the second stream, each of them a RocksDB and a transaction in every batch: one for each core of
#: the smallest machine. The state is three airports times the open hours, whatever the input. A checkpoint fixes it.
STATE_PARTITIONS = 2

#: Partitions of the topics. Four parts per batch keep two to four cores busy; more would cost a wave of tasks
#: each.
PARTITIONS = 4

#: Settings of a topic whose event time stamps lie in 2013, while transaction markers carry the time of writing. By
#: default a broker would therefore delete the events at once (retention) and roll a segment at every marker
#: (segment.ms); 100 years of both keep the topic whole.
EVENT_TIME_TOPIC = {"retention.ms": "-1", "segment.ms": str(100 * 365 * 24 * 3600 * 1000)}

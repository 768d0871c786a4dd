"""The example's code location with one more job: the query of ``flight_delays`` with Spark's own sink."""

import dagster as dg

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import SparkSessionResource, kafka_source_options
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.streaming.query import addressed
from exactly_once_local.run_folder import run_folder
from platform_assets import definitions
from platform_assets.constants import FLIGHTS
from platform_assets.flights.streams import flight_delays

SPARKS_JOB = "flight_delays_by_sparks_own_sink"
SPARKS_OUTPUT, SPARKS_REJECTED = "delays_by_sparks_own_sink", "rejected_by_sparks_own_sink"


@dg.op
def stream_by_sparks_own_sink(
    context: dg.OpExecutionContext, spark: SparkSessionResource, kafka: KafkaTransactionalProducerFactory
) -> None:
    """Write, with Spark's at least once, until somebody kills the run."""
    tag_run(context.instance, context.run_id)  # its process, for who kills it
    connection = kafka.connection()
    source = {**kafka_source_options(connection, FLIGHTS), "includeHeaders": "true"}
    sink = {**connection.spark(), "checkpointLocation": str(run_folder() / "sparks-own-checkpoint")}
    with spark.session() as session:
        events = session.readStream.format("kafka").options(**source).load()
        rows = addressed(flight_delays.transform(events), (SPARKS_OUTPUT, SPARKS_REJECTED), SPARKS_REJECTED)
        rows = rows.select("topic", "key", "value", "headers")
        rows.writeStream.format("kafka").options(**sink).start().awaitTermination()


@dg.job(name=SPARKS_JOB, executor_def=dg.in_process_executor)
def by_sparks_own_sink() -> None:
    """Run that op."""
    stream_by_sparks_own_sink()


defs = dg.Definitions.merge(definitions.defs, dg.Definitions(jobs=[by_sparks_own_sink]))

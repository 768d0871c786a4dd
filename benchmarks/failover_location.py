"""The example's code location with one more job: the query of ``flight_delays`` with Spark's own sink."""

import os

import dagster as dg

import exactly_once
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.runs.process import tag_run
from exactly_once_local.duel.departures import airline_names, airport_names
from exactly_once_local.run_folder import run_folder
from platform_assets import definitions
from platform_assets.constants import FLIGHTS
from platform_assets.flights import transform

SPARKS_JOB = "flight_delays_by_sparks_own_sink"
SPARKS_OUTPUT, SPARKS_REJECTED = "delays_by_sparks_own_sink", "rejected_by_sparks_own_sink"


@dg.op
def stream_by_sparks_own_sink(context: dg.OpExecutionContext, spark: SparkSessionResource) -> None:
    """Write, with Spark's at least once, until somebody kills the run."""
    tag_run(context.instance, context.run_id)  # its process, for who kills it
    brokers = {"kafka.bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
    source = {**brokers, "subscribe": FLIGHTS, "startingOffsets": "earliest", "includeHeaders": "true"}
    source["kafka.isolation.level"] = "read_committed"
    sink = {**brokers, "checkpointLocation": str(run_folder() / "sparks-own-checkpoint")}
    with spark.session() as session:
        events = session.readStream.format("kafka").options(**source).load()
        names = transform.lookup(session, airline_names()), transform.lookup(session, airport_names())
        tried = transform.flight_delays(events, *names)
        rows = exactly_once.split(tried, SPARKS_OUTPUT, rejected=SPARKS_REJECTED)  # as the stream does
        rows = rows.select("topic", "key", "value", "headers")
        rows.writeStream.format("kafka").options(**sink).start().awaitTermination()


@dg.job(name=SPARKS_JOB, executor_def=dg.in_process_executor)
def by_sparks_own_sink() -> None:
    """Run that op."""
    stream_by_sparks_own_sink()


defs = dg.Definitions.merge(definitions.defs, dg.Definitions(jobs=[by_sparks_own_sink]))

"""A code location of two streams without Kafka: their runs tag themselves as those of streams do, and wait."""

import time

import dagster as dg

from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_STREAM
from dagster_exactly_once.sensors.liveness import liveness_sensor
from dagster_exactly_once.sensors.settings import RestartPolicy


def spec(name: str) -> StreamSpec:
    return StreamSpec(name=name, job=name, op=f"{name}_op", sink_id=name, sources=(), outputs=(), asset=name)


def job_of(stream: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=stream.op)
    def op(context: dg.OpExecutionContext) -> None:
        tag_run(context.instance, context.run_id, stream.sink_id, {TAG_STREAM: stream.name})
        time.sleep(600)

    @dg.job(name=stream.job, executor_def=dg.in_process_executor)
    def job() -> None:
        op()

    return job


@dg.op
def nothing() -> None:
    pass


@dg.job(executor_def=dg.in_process_executor)
def other() -> None:
    """What the other streams of the code location need of it: that a run starts."""
    nothing()


STREAMS = (spec("orders"), spec("clicks"))
JOBS = [job_of(stream) for stream in STREAMS]

defs = dg.Definitions(
    jobs=[*JOBS, other],
    sensors=[liveness_sensor(STREAMS, JOBS)],
    resources={"restart_policy": RestartPolicy.from_environment("EXACTLY_ONCE_RESTART_")},
)

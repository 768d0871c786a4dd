"""`make cluster`: the main job with its tasks on a Spark standalone cluster, which ends with the command."""

from __future__ import annotations

import os

from rich.console import Console

import exactly_once
from dagster_exactly_once import KafkaTransactionalProducerFactory
from exactly_once.tools.cli import verify
from exactly_once_local.cluster.spark_cluster import NO_PYTHON, SparkCluster
from exactly_once_local.ports import HOST
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.names import SINK_ID
from platform_assets.local.environment import Environment
from platform_assets.local.main_job import run_main_job
from resources.deployment import resources

WORKERS = 2


def run_cluster(environment: Environment, console: Console) -> int:
    """Start the cluster, run the main job on it, say what ran where, and have the cluster prove the output.

    Returns
    -------
    int
        0 if the runs succeeded, neither report finds a problem, and every worker had an executor; else 1.
    """
    console.print("Executors: JVMs without Python; they get the sink's jar and the connector by spark.jars")
    with SparkCluster(environment.folder / "spark-cluster", workers=WORKERS) as cluster:
        console.print(f"Spark: master at {cluster.master}, {WORKERS} workers with a core each")
        os.environ |= settings(environment, cluster)
        failed = run_main_job(environment, console)
        ran = cluster.applications()
        if ran and not failed:
            failed = _prove(environment, console)
        if not ran:
            console.print("[bold red]Not right:[/] no application ran on the cluster")
            return 1
        executors = cluster.executors(ran[0]["id"])
        told = ", ".join(f"worker {number}: {count} executor" for number, count in executors.items())
        console.print(f"On the cluster: {ran[0]['id']} with {ran[0]['cores']} cores; {told}")
    console.print("Ended: driver, executors, workers, master.")
    return failed or int(not all(executors.values()))


def _prove(environment: Environment, console: Console) -> int:
    """Compare the whole output with the whole input on the cluster, and print the report; return 1 for an anomaly."""
    its = resources(environment.folder)
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=environment.bootstrap_servers)
    with its["spark"].session() as spark:
        report = exactly_once.verify(
            kafka.connection(),
            SINK_ID,
            checkpoint=its["checkpoints"].location(kafka.cluster_id(), SINK_ID),
            origin="json:src",
            inputs=[FLIGHTS],
            topics=[FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED],
            spark=spark,
        )
    console.print(f"What exactly-once verify {SINK_ID} --spark says:")
    verify.show(report, console)
    return int(not report.clean)


def settings(environment: Environment, cluster: SparkCluster) -> dict[str, str]:
    """Return the variables by which the code location runs its streams on ``cluster``."""
    return {
        "EXACTLY_ONCE_DEPLOYMENT": "cluster",
        "EXACTLY_ONCE_SPARK_MASTER": cluster.master,
        "EXACTLY_ONCE_SPARK_WORKER_PYTHON": NO_PYTHON,
        "EXACTLY_ONCE_SPARK_CONF": '{"spark.executor.memory": "768m"}',
        # The workers are on this machine, so its disk is the one that all of them reach.
        "EXACTLY_ONCE_CHECKPOINTS": str(environment.folder / "checkpoints"),
        "SPARK_LOCAL_IP": HOST,
    }

"""The resources and the sensors of the code location, by deployment: what is missing is named when it loads."""

import ast
import os
from inspect import getsource, signature

import pytest

import exactly_once
from dagster_exactly_once import (
    KafkaTransactionalProducerFactory,
    RestartPolicy,
    SparkSessionResource,
    WatchPolicy,
    exactly_once_resources,
    exactly_once_sensors,
)
from exactly_once.kafka.connection import VARIABLES
from platform_assets.definitions import defs
from platform_assets.flights.streams import delay_by_hour, flight_delays
from resources.deployment import resources
from resources.kafka import producer_factory
from resources.spark import cluster_session, local_session
from sensors.notices import notifier
from sensors.policies import policies, restart_policy, watch_policy
from sensors.streams import stream_sensors


@pytest.fixture(autouse=True)
def brokers(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("EXACTLY_ONCE_", "KAFKA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")


def test_without_a_word_everything_stays_on_this_machine(tmp_path):
    found = resources(tmp_path)
    assert found["spark"].master == "local[*]" and found["checkpoints"].root == str(tmp_path / "checkpoints")
    assert found["spark"].ui is True


def test_on_a_cluster_the_environment_says_where(tmp_path, monkeypatch):
    """Sensors and checks must look for checkpoints where the runs keep them."""
    monkeypatch.setattr("exactly_once.spark.launch.launched", lambda: None)  # the JVM of an earlier test has jars
    monkeypatch.setenv("EXACTLY_ONCE_DEPLOYMENT", "cluster")
    monkeypatch.setenv("EXACTLY_ONCE_SPARK_MASTER", "k8s://https://cluster")
    monkeypatch.setenv("EXACTLY_ONCE_SPARK_CONNECTOR", "false")
    monkeypatch.setenv("EXACTLY_ONCE_SPARK_CONF", '{"spark.executor.instances": "4"}')
    monkeypatch.setenv("EXACTLY_ONCE_CHECKPOINTS", "s3://checkpoints/streams")
    found = resources(tmp_path)
    spark = found["spark"]
    assert (spark.master, spark.connector, spark.local_checkpoints) == ("k8s://https://cluster", False, False)
    assert spark.conf == {"spark.executor.instances": "4"} and spark.settings()["spark.jars"] == exactly_once.jar()
    assert found["checkpoints"].root == "s3://checkpoints/streams"


def test_jars_of_ones_own_do_not_push_the_sinks_jar_out(tmp_path):
    """Spark has one setting for all jars, and what ``conf`` says wins: a session without the sink would start."""
    spark = SparkSessionResource(work_dir=str(tmp_path), connector=False, conf={"spark.jars": "/jars/a.jar"})
    assert spark.settings()["spark.jars"] == f"/jars/a.jar,{exactly_once.jar()}"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"EXACTLY_ONCE_DEPLOYMENT": "production"}, "local or cluster, not production"),
        ({"EXACTLY_ONCE_DEPLOYMENT": "cluster"}, "EXACTLY_ONCE_SPARK_MASTER and EXACTLY_ONCE_CHECKPOINTS"),
    ],
)
def test_a_deployment_that_cannot_work_is_refused_when_the_location_loads(variables, says, tmp_path, monkeypatch):
    """Checkpoints on the disk of one executor look like a new stream to the next run: everything is written again."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        resources(tmp_path)


def test_a_webhook_of_the_environment_is_told_and_its_address_stays_out_of_the_ui(monkeypatch):
    """The address of a webhook is its password."""
    monkeypatch.delenv("EXACTLY_ONCE_WEBHOOK", raising=False)
    assert notifier() is None
    monkeypatch.setenv("EXACTLY_ONCE_WEBHOOK", "https://hooks.example/secret")
    monkeypatch.setenv("EXACTLY_ONCE_WEBHOOK_FORMAT", "slack")
    webhook = notifier()
    assert webhook.format == "slack" and webhook.url == "EXACTLY_ONCE_WEBHOOK"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        dict.fromkeys(VARIABLES, "a secret"),
        {"EXACTLY_ONCE_RESTART_STRATEGY": "none", "EXACTLY_ONCE_WATCH_LAG_LIMIT": "5"},
        {"EXACTLY_ONCE_SPARK_DRIVER_MEMORY": "3g", "EXACTLY_ONCE_SPARK_UI": "false"},
    ],
)
def test_what_stands_field_by_field_is_what_the_library_makes_by_itself(variables, tmp_path, monkeypatch):
    """Mishap: the library gets a field, and the code location that people copy runs without it, or without a secret."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = exactly_once_resources(work_dir=str(tmp_path / "spark"), checkpoints=str(tmp_path / "checkpoints"))
    found = {**resources(tmp_path), **policies()}
    assert {key: dict(its) for key, its in found.items()} == {key: dict(its) for key, its in made.items()}


@pytest.mark.parametrize(
    ("builder", "made"),
    [
        (local_session, SparkSessionResource),
        (cluster_session, SparkSessionResource),
        (producer_factory, KafkaTransactionalProducerFactory),
        (restart_policy, RestartPolicy),
        (watch_policy, WatchPolicy),
    ],
)
def test_every_field_stands_there(builder, made):
    """Guards against a setting that whoever copies the file does not learn of."""
    call = next(node for node in ast.walk(ast.parse(getsource(builder))) if isinstance(node, ast.Return)).value
    assert {keyword.arg for keyword in call.keywords} == {*made.model_fields}


def test_a_factory_of_ones_own_brings_the_resource_that_ends_transactions_to_the_same_cluster():
    """Mishap: a stream writes to one cluster, and its recovery looks for transactions on that of the variables."""
    factory = KafkaTransactionalProducerFactory(bootstrap_servers="other:9092", sasl_password="p")
    made = exactly_once_resources(work_dir="spark", checkpoints="s3://c", kafka=factory)
    assert made["kafka"] is factory
    assert (made["transactions"].bootstrap_servers, made["transactions"].sasl_password) == ("other:9092", "p")
    assert producer_factory().bootstrap_servers == "KAFKA_BOOTSTRAP_SERVERS"


def test_the_sensors_of_the_code_location_are_those_of_its_folder_and_tick_as_the_librarys_own():
    """Guards against a folder that shows what nobody runs, and against intervals that drift from those of the docs."""

    def seen(sensors):
        return {sensor.name: sensor.minimum_interval_seconds for sensor in sensors}

    streams = (flight_delays, delay_by_hour)
    assert seen(defs.sensors) == seen(stream_sensors(*streams)) == seen(exactly_once_sensors(*streams))
    assert {"restart_policy", "watch_policy"} <= {*policies()} <= {*(defs.resources or {})}
    assert len(signature(exactly_once_sensors).parameters) - 1 == len(defs.sensors), "an interval for each"

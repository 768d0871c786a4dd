"""The resources of the code location, by deployment: what is missing is named when the location loads."""

import pytest

import exactly_once
from dagster_exactly_once.resources.spark import SparkSessionResource
from resources.deployment import resources
from sensors.notices import notifier


@pytest.fixture(autouse=True)
def brokers(monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    for name in ("EXACTLY_ONCE_DEPLOYMENT", "EXACTLY_ONCE_SPARK_MASTER", "EXACTLY_ONCE_CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_word_everything_stays_on_this_machine(tmp_path):
    found = resources(tmp_path)
    assert found["spark"].master == "local[*]" and found["checkpoints"].root == str(tmp_path / "checkpoints")
    assert found["spark"].ui is True


def test_on_a_cluster_the_environment_says_where(tmp_path, monkeypatch):
    """Sensors and checks must look for checkpoints where the runs keep them."""
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
        ({"EXACTLY_ONCE_DEPLOYMENT": "production"}, "use local or cluster"),
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

"""What deploy/ says to Kubernetes, Dagster's Helm chart, the Spark operator and Docker: refused here, and not there.

Kubernetes objects are validated by the API's own schemas (kubernetes-validate); the pod of a run is made as Dagster's
run launcher makes it (dagster-k8s). For the values of Dagster's chart and for SparkApplication no package has a schema.
The two below are made by hand, of what the files use, from the public chart of Dagster 1.13 and from the public CRD of
the Spark operator (v1beta2).
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import kubernetes
import kubernetes_validate
import pytest
import yaml
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config
from dagster_k8s import K8sRunLauncher
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import UserDefinedDagsterK8sConfig, construct_dagster_k8s_job

import exactly_once
from exactly_once.sparkenv.java import OLDEST_JAVA
from testkit.syntax import loaded

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
VALUES = yaml.safe_load((DEPLOY / "kubernetes/dagster-values.yaml").read_text())
CLICKS = yaml.safe_load((DEPLOY / "kubernetes/clicks.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
OBJECTS = [
    pytest.param(thing, id=f"{path.name} {thing['kind']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for thing in yaml.safe_load_all(path.read_text())
    if thing.get("apiVersion", "").partition("/")[0] in ("v1", "rbac.authorization.k8s.io")
]

#: Of the Kubernetes API, whose schemas the manifests are held against.
KUBERNETES = "1.34"

TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
ANY_OBJECT, TEXTS = {"type": "object"}, {"type": "array", "items": TEXT}
ENV = {"type": "array", "items": {"type": "object", "required": ["name"]}}


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    names = required.split()
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


POLICY = {"enum": ["Always", "IfNotPresent", "Never"]}
IMAGE = closed("repository tag pullPolicy", repository=TEXT, tag=TEXT, pullPolicy=POLICY)
LIMIT = closed("key limit", key=TEXT, limit=COUNT, value=closed(applyLimitPerUniqueValue=FLAG))
HELM_VALUES = closed(
    **{
        "dagster-user-deployments": closed(
            "enabled deployments",
            enabled=FLAG,
            deployments={
                "type": "array",
                "items": closed(
                    "name image port",
                    name=TEXT,
                    image=IMAGE,
                    port=COUNT,
                    dagsterApiGrpcArgs=TEXTS,
                    includeConfigInLaunchedRuns=closed("enabled", enabled=FLAG),
                    env=ENV,
                    envSecrets={"type": "array", "items": closed("name", name=TEXT)},
                ),
            },
        ),
        "runLauncher": closed(
            "type config",
            type={"const": "K8sRunLauncher"},
            config=closed(
                k8sRunLauncher=closed(
                    imagePullPolicy=POLICY,
                    runK8sConfig=closed(containerConfig=ANY_OBJECT, podSpecConfig=ANY_OBJECT, jobSpecConfig=ANY_OBJECT),
                )
            ),
        ),
        "dagsterDaemon": closed(
            runCoordinator=closed(
                "enabled type config",
                enabled=FLAG,
                type={"const": "QueuedRunCoordinator"},
                config=closed(queuedRunCoordinator=closed(dequeueIntervalSeconds=COUNT)),
            ),
            runMonitoring=closed(
                enabled=FLAG,
                startTimeoutSeconds=COUNT,
                cancelTimeoutSeconds=COUNT,
                pollIntervalSeconds=COUNT,
                maxResumeRunAttempts=COUNT,
                freeSlotsAfterRunEndSeconds=COUNT,
            ),
        ),
        "concurrency": closed(
            enabled=FLAG,
            pools=closed(granularity={"enum": ["run", "op"]}, defaultLimit=COUNT),
            runs=closed(maxConcurrentRuns=COUNT, tagConcurrencyLimits={"type": "array", "items": LIMIT}),
        ),
        "postgresql": closed(
            enabled=FLAG,
            postgresqlHost=TEXT,
            postgresqlUsername=TEXT,
            postgresqlDatabase=TEXT,
            postgresqlScheme={"const": "postgresql+psycopg2"},
        ),
        "generatePostgresqlPasswordSecret": FLAG,
        "telemetry": closed("enabled", enabled=FLAG),
    }
)

_POD = {"cores": {"type": "integer", "minimum": 1}, "memory": TEXT, "env": ENV, "envFrom": {"type": "array"}}
_POD |= {"serviceAccount": TEXT, "terminationGracePeriodSeconds": COUNT}
SPARK_APPLICATION = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "sparkoperator.k8s.io/v1beta2"},
    kind={"const": "SparkApplication"},
    metadata=closed("name", name=TEXT),
    spec=closed(
        "type sparkVersion mainApplicationFile driver executor",
        type={"const": "Python"},
        pythonVersion={"const": "3"},
        mode={"const": "cluster"},
        sparkVersion=TEXT,
        image=TEXT,
        imagePullPolicy=TEXT,
        mainApplicationFile=TEXT,
        arguments=TEXTS,
        sparkConf={"type": "object", "additionalProperties": TEXT},
        restartPolicy=closed(
            type={"enum": ["Never", "Always", "OnFailure"]},
            onFailureRetries=COUNT,
            onFailureRetryInterval={"type": "integer", "minimum": 1},
            onSubmissionFailureRetries=COUNT,
            onSubmissionFailureRetryInterval={"type": "integer", "minimum": 1},
        ),
        driver=closed(**_POD),
        executor=closed(**_POD, instances=COUNT),
    ),
)


@pytest.mark.parametrize("thing", OBJECTS)
def test_kubernetes_takes_each_manifest(thing: dict[str, Any]) -> None:
    """Guards against a misspelled field: Kubernetes drops it silently, and a right or a port is missing."""
    kubernetes_validate.validate(thing, KUBERNETES, strict=True)


def test_the_values_use_what_the_chart_has() -> None:
    """Helm ignores a value that no template reads: a limit that never holds."""
    jsonschema.validate(VALUES, HELM_VALUES)


def test_the_spark_operator_takes_the_application() -> None:
    jsonschema.validate(CLICKS, SPARK_APPLICATION)
    for pod in ("driver", "executor"):
        container = {"name": "spark", "image": CLICKS["spec"]["image"], "env": CLICKS["spec"][pod].get("env", [])}
        thing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": {"containers": [container]}}
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)


@pytest.fixture(scope="module")
def job_of_run() -> dict[str, Any]:
    """The Job that Dagster's run launcher makes for a run, from what the chart writes into its instance."""
    config = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
    snake = {re.sub("[A-Z]", lambda m: "_" + m[0].lower(), k): v for k, v in config["runK8sConfig"].items()}
    written = {
        "load_incluster_config": True,
        "image_pull_policy": config["imagePullPolicy"],
        "job_namespace": "streams",
        "service_account_name": "dagster",
        "instance_config_map": "dagster-instance",
        "postgres_password_secret": "dagster-postgresql-secret",
        "dagster_home": "/opt/dagster/dagster_home",
        "run_k8s_config": snake,
    }
    processed = process_config(K8sRunLauncher.config_type(), written)
    assert processed.success, processed.errors
    value = processed.value
    [deployment] = VALUES["dagster-user-deployments"]["deployments"]
    of_location = {
        "env": deployment["env"],
        "env_secrets": [secret["name"] for secret in deployment["envSecrets"]],
        "image_pull_policy": deployment["image"]["pullPolicy"],
    }
    context = K8sContainerContext(
        service_account_name=value["service_account_name"],
        run_k8s_config=UserDefinedDagsterK8sConfig.from_dict(value["run_k8s_config"]),
    ).merge(K8sContainerContext.create_from_config({"k8s": of_location}))
    launcher = SimpleNamespace(
        job_image=None, **{k: value[k] for k in ("dagster_home", "instance_config_map", "postgres_password_secret")}
    )
    job = construct_dagster_k8s_job(
        context.get_k8s_job_config("registry.example.com/streams:1", launcher),
        args=["dagster", "api", "execute_run", "{}"],
        job_name="dagster-run-1",
        user_defined_k8s_config=context.run_k8s_config,
        labels={"dagster/job": "paid_orders_stream"},
    )
    return kubernetes.client.ApiClient().sanitize_for_serialization(job)


def test_the_pod_of_a_run_is_what_kubernetes_takes_and_may_make_executors(job_of_run: dict[str, Any]) -> None:
    """A driver without the right to make pods waits for executors forever."""
    kubernetes_validate.validate(job_of_run, KUBERNETES, strict=True)
    pod = job_of_run["spec"]["template"]["spec"]
    [account] = [p.values[0] for p in OBJECTS if p.values[0]["kind"] == "ServiceAccount"]
    assert pod["serviceAccountName"] == account["metadata"]["name"] == CLICKS["spec"]["driver"]["serviceAccount"]
    assert pod["terminationGracePeriodSeconds"] >= 60, "a stream ends within 15 s, and its JVM after it"
    assert pod["restartPolicy"] == "Never" and job_of_run["spec"]["backoffLimit"] == 0


def test_the_service_of_the_driver_finds_its_pod(job_of_run: dict[str, Any]) -> None:
    [service] = [p.values[0] for p in OBJECTS if p.values[0]["kind"] == "Service"]
    labels = job_of_run["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    conf = json.loads(expanded(job_of_run)["EXACTLY_ONCE_SPARK_CONF"])
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert ports == {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]}


def test_the_environment_of_a_run_loads_the_code_location_with_spark_on_kubernetes(
    job_of_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a variable that nobody reads, and against a driver that executors look for at ``$(POD_IP)``."""
    monkeypatch.setattr("exactly_once.spark.launch.launched", lambda: None)  # the JVM of an earlier test has jars
    for name, value in expanded(job_of_run).items():
        monkeypatch.setenv(name, value)
    defs = module("streams").defs
    resources = defs.resources
    settings = resources["spark"].settings()
    assert settings["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert settings["spark.driver.host"] == "10.1.2.3" and settings["spark.kubernetes.driver.pod.name"] == "run-1"
    assert settings["spark.kubernetes.namespace"] == "streams" and settings["spark.jars"] == exactly_once.jar()
    assert "$(" not in json.dumps(settings)
    assert resources["checkpoints"].root == "s3a://checkpoints/streams"
    assert not resources["spark"].local_checkpoints
    assert defs.resolve_job_def("paid_orders_stream").name == labels_of(job_of_run)["dagster/job"]


def test_the_stream_of_the_spark_operator_is_the_one_that_dagster_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLY_ONCE_CHECKPOINTS", "s3a://checkpoints/streams")
    watched = module("streams").clicks.spec
    _, source, output, _ = CLICKS["spec"]["arguments"]
    assert (watched.sources, watched.outputs, watched.managed) == ((source,), (output,), False)
    assert f'"sink.id", "{watched.sink_id}"' in (DEPLOY / "app/clicks.py").read_text()
    assert Path(CLICKS["spec"]["mainApplicationFile"]).name == "clicks.py"


def test_the_image_is_made_of_files_that_exist_and_versions_that_are_supported() -> None:
    """An image that fails to build after ten minutes, or a Java that Spark refuses at the first start."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bases = set(re.findall(r"^FROM python:(3\.\d+)-", DOCKERFILE, re.M))
    supported = {c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c}
    assert len(bases) == 1 and bases <= supported
    assert int(re.findall(r"openjdk-(\d+)-", DOCKERFILE)[0]) >= OLDEST_JAVA
    ignored = (ROOT / ".dockerignore").read_text().split()
    for source in re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.M):
        assert (ROOT / source).exists()
        assert source == "." or f"!{source.partition('/')[0]}" in ignored
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    needed = [
        *built["only-include"],
        *("dagster_exactly_once", "distributions"),
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ]
    assert [name for name in needed if f"!{name}" not in ignored] == []


def test_the_entry_point_starts_an_executor_as_spark_asks_for_it_and_passes_every_other_command_on(
    tmp_path: Path,
) -> None:
    """An option with a blank that falls apart ends the executor at once, and the driver asks for the next one."""
    for name in ("tini", "java"):
        (tmp_path / name).write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
        (tmp_path / name).chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SPARK_HOME": "/opt/spark",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Dspark.app.name=two words",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.1.2.3:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
        "SPARK_EXECUTOR_POD_NAME": "clicks-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3",
    }

    def said(*arguments: str) -> list[str]:
        command = [str(DEPLOY / "entrypoint.sh"), *arguments]
        return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.splitlines()

    executor = said("executor")
    assert executor[2:7] == ["java", "-Dspark.driver.port=7078", "-Dspark.app.name=two words", "-Xms2g", "-Xmx2g"]
    assert executor[7:10:2] == ["-cp", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
    assert executor[10:12] == ["--driver-url", given["SPARK_DRIVER_URL"]] and executor[-1] == "clicks-exec-1"
    assert said("driver", "--properties-file", "a b")[-2:] == ["--properties-file", "a b"]
    assert said("dagster", "api", "grpc") == ["-s", "--", "dagster", "api", "grpc"]


def test_dagster_takes_the_settings_with_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that refuses its settings does not start at all."""
    (tmp_path / "dagster.yaml").write_text((DEPLOY / "dagster/dagster.yaml").read_text())
    config, _ = dagster_instance_config(str(tmp_path))
    ours = yaml.safe_load((ROOT / "dagster_exactly_once" / "dagster.yaml").read_text())
    assert config["run_monitoring"] == ours["run_monitoring"] and config["run_retries"] == ours["run_retries"]
    limits = config["concurrency"]["runs"]["tag_concurrency_limits"]
    assert limits == ours["concurrency"]["runs"]["tag_concurrency_limits"] == chart_limits()


def chart_limits() -> list[dict[str, Any]]:
    return list(VALUES["concurrency"]["runs"]["tagConcurrencyLimits"])


def labels_of(job: dict[str, Any]) -> dict[str, str]:
    return dict(job["spec"]["template"]["metadata"]["labels"])


def expanded(job: dict[str, Any]) -> dict[str, str]:
    """The variables of a run's container, as Kubernetes expands them: in order, each by those before it."""
    fields = {"status.podIP": "10.1.2.3", "metadata.name": "run-1", "metadata.namespace": "streams"}
    found: dict[str, str] = {}
    for entry in job["spec"]["template"]["spec"]["containers"][0]["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            found[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "value" in entry:
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), entry["value"])
    return found


def module(name: str) -> ModuleType:
    return loaded(DEPLOY / "app" / f"{name}.py")

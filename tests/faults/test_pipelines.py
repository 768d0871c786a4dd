"""docs/pipelines.md, its example as it stands there: a sink of Spark Declarative Pipelines."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dagster as dg
import pyspark
import pytest
from dagster.components.core.component_tree import ComponentTree
from dagster_spark import SparkDeclarativePipelineComponent
from dagster_spark.components.spark_declarative_pipeline import SparkPipelinesResource

from exactly_once.kafka.connection import Connection
from testkit import oracle, processes
from testkit.broker import create_topic, fresh_name
from testkit.driverless import pipelines_program, spark_pipeline
from testkit.processes import until
from testkit.stream import PATIENCE_S, ROOT, Job, SparkDriver

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(int(pyspark.__version__.split(".")[0]) < 4, reason="Spark 3.5 has no pipelines"),
]


class Pipeline:
    """A pipeline in a folder of its own, with the flows of the page over the folder ``data/in``."""

    def __init__(self, folder: Path, servers: str, topic: str):
        self.folder, self.topic, self._servers, self._runs, self._files = folder, topic, servers, 0, 0
        (folder / "transformations").mkdir()
        (folder / "data" / "in").mkdir(parents=True)
        storage = (folder / "storage").as_uri()
        spec = f"name: shop\nstorage: {storage}\nlibraries:\n  - glob:\n      include: transformations/**\n"
        (folder / "pipeline.yml").write_text(spec)
        self.write(self.example())

    def example(self) -> str:
        """The page's code, for this broker, this topic and this folder."""
        page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
        code = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
        code = code.replace("/data/in", str(self.folder / "data" / "in")).replace("localhost:9092", self._servers)
        return str(
            code.replace('"sink.id": "orders"', f'"sink.id": "{self.topic}"').replace(
                '"topic": "orders_out"', f'"topic": "{self.topic}"'
            )
        )

    def write(self, code: str) -> None:
        """Make ``code`` the pipeline's."""
        (self.folder / "transformations" / "flows.py").write_text(code)

    def add(self, count: int = 20) -> list[tuple[str, str]]:
        """Add a file of ``count`` rows; return them."""
        self._files += 1
        rows = [(f"k{n % 7}", f"v{self._files}-{n}") for n in range(count)]
        text = "".join(json.dumps({"key": k, "value": v}) + "\n" for k, v in rows)
        (self.folder / "data" / "in" / f"{self._files}.json").write_text(text)
        return rows

    def start(self, *arguments: str, point: str = "") -> tuple[subprocess.Popen[bytes], Path]:
        """Start a run, which hangs at ``point``; return its process and its folder."""
        self._runs += 1
        run = self.folder / f"run-{self._runs}"
        started = spark_pipeline(["--spec", str(self.folder / "pipeline.yml"), *arguments], run)
        if point:  # a JVM begins, and comes to no point for seconds
            (run / "failpoints" / point).write_text("hang")
        return started, run

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run to the end, which nothing of it outlives; return the exit code and the log."""
        started, run = self.start(*arguments)
        try:
            code = started.wait(2 * PATIENCE_S)
            until("the end of the child", lambda: not processes.of_session(started.pid), 10)
        finally:
            if processes.of_session(started.pid):
                processes.kill_session(started.pid)
        return code, (run / "log").read_text(errors="replace")


@pytest.fixture
def pipeline(connection: Connection, tmp_path: Path) -> Pipeline:
    topic = create_topic(connection.bootstrap_servers, fresh_name("flow"), partitions=2)
    return Pipeline(tmp_path, connection.bootstrap_servers, topic)


def visible(pipeline: Pipeline, connection: Connection) -> list[tuple[str | None, str | None]]:
    """The records that a read_committed reader sees, as pairs of key and value."""
    return sorted((m.key, m.value) for m in oracle.read(connection, [pipeline.topic]))


def test_a_run_that_is_killed_behind_its_decision_is_continued_and_a_full_refresh_is_refused(
    pipeline: Pipeline, connection: Connection
) -> None:
    """Guards against duplicates of a pipeline: a run that is repeated, and a full refresh, which with other sinks
    appends everything again.
    """
    rows = pipeline.add()
    code, log = pipeline.run()
    assert code == 0, log[-4000:]
    rows += pipeline.add()
    started, run = pipeline.start(point="decided")
    try:
        until("the decision", lambda: (run / "failpoints" / "decided.reached").exists(), 2 * PATIENCE_S)
    finally:
        processes.kill_session(started.pid)
    started.wait(PATIENCE_S)
    code, log = pipeline.run()
    assert code == 0, log[-4000:]
    assert visible(pipeline, connection) == sorted(rows)

    code, log = pipeline.run("--full-refresh-all")
    assert code != 0 and "EO-SINK-OWNED" in log and visible(pipeline, connection) == sorted(rows)

    shutil.rmtree(pipeline.folder / "storage" / "_checkpoints" / "orders_out" / "orders" / "1")
    rows += pipeline.add()
    code, log = pipeline.run()
    assert code == 0, log[-4000:]
    assert visible(pipeline, connection) == sorted(rows)


def test_a_stream_becomes_a_flow_by_a_copy_of_its_checkpoint(
    pipeline: Pipeline, connection: Connection, warm: SparkDriver
) -> None:
    """Guards against duplicates of a migration: a flow has a checkpoint of its own and would write all input again.
    Spark's ``append_flow`` has no ``import_checkpoint``, as that of Databricks has.
    """
    from pyspark.pipelines import append_flow  # Spark 3.5 and 4.0 have no such module

    assert "import_checkpoint" not in inspect.signature(append_flow).parameters
    rows, checkpoint = pipeline.add(), pipeline.folder / "checkpoint"
    source = {
        "format": "json",
        "schema": "key STRING, value STRING",
        "options": {"path": str(pipeline.folder / "data" / "in")},
    }
    options = {**connection.spark(), "sink.id": pipeline.topic, "topic": pipeline.topic}
    warm.complete(Job(source, {**options, "checkpointLocation": str(checkpoint)}, ["key", "value"]))
    rows += pipeline.add()
    flow = pipeline.folder / "storage" / "_checkpoints" / "orders_out" / "orders"
    shutil.copytree(checkpoint, flow / "0")
    for _ in range(2):  # the second one finds a checkpoint that a pipeline has written to
        code, log = pipeline.run()
        assert code == 0, log[-4000:]
        assert visible(pipeline, connection) == sorted(rows)
        rows += pipeline.add()


def test_a_second_flow_of_one_sink_is_refused_in_one_sentence(pipeline: Pipeline, connection: Connection) -> None:
    """Guards against two queries that fence each other batch by batch, or write the same sink unseen."""
    rows = pipeline.add()
    second = pipeline.example().split("@dp.append_flow")[1].replace('name="orders"', 'name="again"')
    pipeline.write(f"{pipeline.example()}\n\n@dp.append_flow{second.replace('def orders', 'def again')}")
    code, log = pipeline.run()
    assert code != 0
    assert re.search(r"EO-SINK-OWNED: sink '[^']+' belongs to query .* What to do: ", log)
    assert visible(pipeline, connection) == sorted(rows), "one of the two flows wrote its rows, once"


def test_dagsters_resource_runs_a_pipeline_and_its_component_runs_one_that_has_a_dataset_too(
    pipeline: Pipeline, connection: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards against a page that promises what Dagster's preview does not do, and against a run that is green although
    the sink refused it.
    """
    program, conf, environment = pipelines_program(tmp_path / "run")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python file=dagster_pipeline.py\n(.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {"__name__": "dagster_pipeline"}
    code = code.replace('"pipeline.yml"', repr(str(pipeline.folder / "pipeline.yml")))
    exec(compile(code, "dagster_pipeline.py", "exec", dont_inherit=True), names)  # annotations as they stand there
    resource = SparkPipelinesResource(spark_pipelines_cmd=program, dry_run_extra_args=conf, run_extra_args=conf)

    rows = pipeline.add()
    done = dg.materialize([names["orders_out"]], resources={"spark_pipelines": resource})
    assert done.success and visible(pipeline, connection) == sorted(rows)

    dataset = "\n\n@dp.materialized_view\ndef numbers():\n    return spark.range(3)\n"
    pipeline.write(pipeline.example() + dataset)
    component = SparkDeclarativePipelineComponent(
        pipeline_spec_path=str(pipeline.folder / "pipeline.yml"), spark_pipelines=resource
    )
    (tmp_path / "state").mkdir()
    component.write_state_to_path(tmp_path / "state" / "state.json")
    context = ComponentTree.for_test().load_context
    defs = component.build_defs_from_state(context, tmp_path / "state" / "state.json")
    rows += pipeline.add()
    [asset] = [a for a in defs.assets or [] if isinstance(a, dg.AssetsDefinition)]
    assert [key.to_user_string() for key in asset.keys] == ["numbers"]
    done = dg.materialize([asset], resources={"spark_pipelines": resource})
    assert done.success and visible(pipeline, connection) == sorted(rows)

    pipeline.write(pipeline.example().replace('"topic": ', '"topicc": '))
    resource.discover_datasets(pipeline.folder / "pipeline.yml")  # a dry run asks no sink
    refused = dg.materialize([names["orders_out"]], resources={"spark_pipelines": resource}, raise_on_error=False)
    assert not refused.success and visible(pipeline, connection) == sorted(rows)

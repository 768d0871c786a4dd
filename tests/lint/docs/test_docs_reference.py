"""docs/reference.md names every option, right and variable of the code, and no other."""

from __future__ import annotations

import ast
import re
from types import ModuleType

import pytest

from dagster_exactly_once.declare.config import config_of
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once import options, schema_options
from exactly_once.kafka import connection
from exactly_once.protocol.names import commit_log_topic, namespace
from exactly_once.tools.operation import operations
from testkit.syntax import ROOT, loaded, nodes

REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
PREFIXES = {
    "EXACTLY_ONCE_RESTART_": RestartPolicy,
    "EXACTLY_ONCE_SPARK_": SparkSessionResource,
    "EXACTLY_ONCE_WATCH_": WatchPolicy,
}

#: Of our own, of Kafka's and of OpenTelemetry's variables, which the code also keeps in tables.
VARIABLE = re.compile(r"(EXACTLY_ONCE|KAFKA|OTEL)_[A-Z_]+")

#: What looks like a variable there: a part of an error's name in Spark.
NO_VARIABLES = {"KAFKA_DATA_LOSS"}

#: Read by OpenTelemetry's library, not by this code.
OF_LIBRARIES = {"OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"}


def section(heading: str) -> str:
    """The text below a heading of the second level."""
    return REFERENCE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def variables() -> set[str]:
    """Every environment variable that the code reads or sets for what it starts."""
    found = set()
    for node in nodes():
        places: list[ast.AST | None] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_environ(node.func.value):
            places = node.args[:1]
        elif isinstance(node, ast.Subscript) and is_environ(node.value):
            places = [node.slice]
        elif isinstance(node, ast.Compare) and any(is_environ(c) for c in node.comparators):
            places = [node.left]
        elif isinstance(node, ast.AugAssign) and is_environ(node.target) and isinstance(node.value, ast.Dict):
            places = [*node.value.keys]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            places = [node]
        found |= {p.value for p in places if isinstance(p, ast.Constant) and isinstance(p.value, str)}
    for source in (ROOT / "java" / "exactlyonce").rglob("*.java"):
        found |= set(re.findall(r'"(EXACTLY_ONCE_[A-Z_]+)"', source.read_text(encoding="utf-8")))
    assert set(PREFIXES) < found
    fields = {f"{prefix}{field.upper()}" for prefix, model in PREFIXES.items() for field in model.model_fields}
    return (found | fields) - set(PREFIXES) - NO_VARIABLES


def test_every_environment_variable_is_explained_and_no_other() -> None:
    """Guards against a setting that nobody can find, and against one that has no effect."""
    named = re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", section("Environment variables"))
    assert set(named) == variables() | OF_LIBRARIES


@pytest.fixture
def tool() -> ModuleType:
    """The script that writes the generated parts."""
    return loaded(ROOT / "dev" / "tools" / "config_reference.py")


def test_the_generated_parts_are_those_of_the_models_and_of_the_parser(tool: ModuleType) -> None:
    """Guards against a field or a flag that a person types as it was called in another version."""
    errors = tool.ERRORS.read_text(encoding="utf-8")
    assert sorted(tool.parts(REFERENCE)) == sorted([*tool.PARTS, tool.COMMANDS])
    assert tool.parts(errors) == [tool.SYMPTOM_CODES, tool.DOCTOR]
    assert tool.generated(errors) == errors, "run: .venv/bin/python dev/tools/config_reference.py"
    assert tool.generated(REFERENCE) == REFERENCE, "run: .venv/bin/python dev/tools/config_reference.py"


def test_every_configuration_and_every_resource_has_its_part(tool: ModuleType) -> None:
    """Guards against a launchpad that asks for something that no page explains."""
    classes = [n for n in nodes() if isinstance(n, ast.ClassDef)]
    bases = {n.name: {ast.unparse(b).rpartition(".")[2] for b in n.bases} for n in classes}
    configs = {"Config", "ConfigurableResource"}
    for _ in range(3):  # a subclass of a subclass of a subclass
        configs |= {name for name, its in bases.items() if its & configs}
    fields = {n.name for n in classes if n.name in configs and "Field(" in ast.unparse(n)}
    fields |= {config_of(o.parameters).__name__ for o in operations() if o.job}
    assert {"RecoveryConfig", "StreamConfig"} <= fields <= set(tool.PARTS)


def named_options(prefix: str) -> list[str]:
    """The options under ``prefix`` that the section names."""
    return re.findall(rf"`({prefix}\.[a-z0-9.]*[a-z])`", section("Options"))


def test_every_option_of_the_sink_is_explained_and_no_other() -> None:
    """An option in the reference that the code refuses, or one that nobody can find."""
    explained = re.findall(r"^- `(sink\.[a-z.]+)`", section("Options"), re.M)
    assert sorted(explained) == sorted(options._SINK)


def test_every_option_of_the_connection_is_named_and_no_other() -> None:
    """Guards against a setting that a user believes to be refused. The options of Java's producer are Kafka's."""
    known = {f"kafka.{name}" for name in connection.OPTIONS | {"transaction.timeout.ms", "buffer.memory"}}
    assert set(named_options("kafka")) == known


def test_every_producer_option_of_the_reference_is_taken() -> None:
    """The refusal of an unknown option sends people there."""
    good = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"}
    for name in set(named_options("kafka")) - {f"kafka.{o}" for o in connection.OPTIONS}:
        options.SinkOptions.parse({**good, name: {"kafka.compression.type": "lz4"}.get(name, "60000")})


def test_every_option_of_the_schema_registry_is_named_and_no_other() -> None:
    """Guards against a side of a record that nobody can frame."""
    known = {*schema_options.REGISTRY_OPTIONS}
    known |= {f"{side}.{option}" for side in ("key", "value") for option in schema_options.SIDE_OPTIONS}
    assert {name for prefix in ("schema", "key", "value") for name in named_options(prefix)} == known


def test_the_names_to_grant_rights_on_are_the_names_in_use() -> None:
    """A wrong prefix in an ACL looks like "nothing to abort": ids without DESCRIBE are left out silently."""
    assert f"`{namespace('<sink id>')}`" in section("Rights")
    assert f"`{commit_log_topic('<sink id>')}`" in section("Rights")

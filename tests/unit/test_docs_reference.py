"""docs/reference.md names every option, right, error, warning and variable of the code, and no other."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once import options
from exactly_once.errors import ExactlyOnceError, all_errors
from exactly_once.kafka import connection, schema_options
from exactly_once.protocol.names import commit_log_topic, namespace

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
PACKAGES = ("exactly_once", "dagster_exactly_once", "resources", "sensors", "platform_assets")
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


@cache
def nodes() -> list[ast.AST]:
    """The syntax of all modules: importing them all would need Spark and Dagster."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def codes() -> dict[str, bool]:
    """The code of every error class, and whether a restart heals it."""
    found = {}
    for node in nodes():
        if isinstance(node, ast.ClassDef):
            fields = {
                target.id: statement.value.value
                for statement in node.body
                if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
            if str(fields.get("code", "")).startswith("EO-"):
                found[fields["code"]] = bool(fields.get("restart_heals", False))
    return found


def warnings() -> set[str]:
    """Every code that the engine logs."""
    texts = [n.value for n in nodes() if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {code for text in texts for code in re.findall(r"EO-WARN-[A-Z]+", text)}


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
    assert set(PREFIXES) < found
    fields = {f"{prefix}{field.upper()}" for prefix, model in PREFIXES.items() for field in model.model_fields}
    return (found | fields) - set(PREFIXES) - NO_VARIABLES


def test_every_error_code_is_explained_and_no_other() -> None:
    """The person on call looks for the code in the alert."""
    known = codes()
    assert {ExactlyOnceError.code, *all_errors()} <= set(known) and "EO-REFUSED" in known
    explained = re.findall(r"^- `(EO-[A-Z-]+)` \(restart: ", section("Errors"), re.M)
    assert sorted(explained) == sorted(known)


@pytest.mark.parametrize(("code", "heals"), codes().items())
def test_the_reference_says_whether_a_restart_heals_an_error_as_the_code_does(code: str, heals: bool) -> None:
    """A supervisor goes by the code, a person by the text; they must do the same."""
    assert f"\n- `{code}` (restart: {'yes' if heals else 'no'}). " in section("Errors")


def test_every_warning_is_explained_and_no_other() -> None:
    """Guards against a line in the log that nobody can look up."""
    assert sorted(re.findall(r"^- `(EO-WARN-[A-Z]+)`\. ", section("Warnings"), re.M)) == sorted(warnings())


def test_every_environment_variable_is_explained_and_no_other() -> None:
    """Guards against a setting that nobody can find, and against one that has no effect."""
    named = re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", section("Environment variables"))
    assert set(named) == variables() | OF_LIBRARIES


@pytest.fixture
def tool() -> ModuleType:
    """The script that writes the generated parts."""
    spec = importlib.util.spec_from_file_location("config_reference", ROOT / "tools" / "config_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_are_those_of_the_models(tool: ModuleType) -> None:
    """Guards against a field that a person types as it was called in another version."""
    assert sorted(tool.parts(REFERENCE)) == sorted(tool.PARTS)
    assert tool.generated(REFERENCE) == REFERENCE, "run: .venv/bin/python tools/config_reference.py"


def test_every_configuration_of_an_op_has_its_part(tool: ModuleType) -> None:
    """Guards against a launchpad that asks for something that no page explains."""
    tree = ast.parse((ROOT / "dagster_exactly_once" / "config.py").read_text(encoding="utf-8"))
    configs = {
        n.name for n in tree.body if isinstance(n, ast.ClassDef) and [ast.unparse(b) for b in n.bases] == ["dg.Config"]
    }
    assert configs <= set(tool.PARTS)


def named_options(prefix: str) -> list[str]:
    """The options under ``prefix`` that the section names."""
    return re.findall(rf"`({prefix}\.[a-z0-9.]*[a-z])`", section("Options"))


def test_every_option_of_the_sink_is_explained_and_no_other() -> None:
    """An option in the reference that the code refuses, or one that nobody can find."""
    explained = re.findall(r"^- `(sink\.[a-z.]+)`", section("Options"), re.M)
    assert sorted(explained) == sorted(options._SINK)


def test_every_option_of_the_connection_and_of_the_producer_is_named_and_no_other() -> None:
    """Guards against a setting that a user believes to be refused."""
    ours = {"transaction.timeout.ms", "buffer.memory"}
    known = {f"kafka.{name}" for name in connection.OPTIONS | set(options._PRODUCER) | ours}
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

"""docs/streams.md says what a declaration takes and what it makes: its examples are definitions that Dagster loads."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest
import yaml

import dagster_exactly_once
from dagster_exactly_once import (
    Backfill,
    Complete,
    ExactlyOnceStreams,
    Stream,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_sensors,
    exactly_once_stream,
    observed_stream,
)
from dagster_exactly_once.component import StreamModel
from dagster_exactly_once.runs.tags import TAG_CAUSE, TAG_RECOVERS, TAG_RESTART, TAG_STREAM

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "streams.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
YAMLS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)]
RESOURCES = exactly_once_resources(work_dir="/data/spark", checkpoints="/data/checkpoints")


def section(heading: str) -> str:
    """The text below a heading of the second level."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def executed(source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a reader makes of an example."""
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)  # where annotations are looked up
    exec(compile(source, "shop.py", "exec", dont_inherit=True), vars(module))
    return module


@pytest.mark.parametrize("source", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_loads_in_dagster(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a first try that ends with a traceback."""
    found = vars(executed(source, monkeypatch))
    streams = [its for its in found.values() if isinstance(its, Stream)]
    assets = [its for its in found.values() if isinstance(its, dg.AssetsDefinition)]
    made = found.get("defs")
    if made is None and streams:
        made = exactly_once_definitions(*streams, resources=found.get("resources", RESOURCES))
    dg.Definitions.validate_loadable(made or dg.Definitions(assets=assets, resources=found.get("resources")))


@pytest.mark.parametrize("condition", ["of the page", "eager alone"])
def test_hours_that_close_late_are_requested_by_the_condition_of_the_page(
    condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mishap: the watermark's delay, or a stop, closes hours after the next one has ended, and nothing downstream is
    ever built of them. The first tick requests no hour that is closed already: the page sends people to a backfill.
    """
    [source] = [one for one in EXAMPLES if "AutomationCondition" in one]
    if condition == "eager alone":
        source = re.sub(r"eager\(\).*,$", "eager(),", source, flags=re.M)
    hourly = vars(executed(source, monkeypatch))["hourly_revenue"]
    declare = exactly_once_stream(
        name="paid_orders", source="orders", outputs=["orders_paid"], complete=Complete.hourly("2026-01-01")
    )
    stream = declare(lambda events: events)
    defs = dg.Definitions.merge(exactly_once_definitions(stream, resources=RESOURCES), dg.Definitions([hourly]))
    cursor = None

    def requested(at: str, *closed: str) -> set[str]:
        nonlocal cursor
        for hour in closed:
            event = dg.AssetMaterialization(stream.completed, partition=f"2026-01-31-{hour}:00")
            instance.report_runless_asset_event(event)
        now = datetime.fromisoformat(f"2026-01-31T{at}:00+00:00")
        found = dg.evaluate_automation_conditions(defs, instance, cursor=cursor, evaluation_time=now)
        cursor = found.cursor
        return {name[-5:-3] for name in found.get_requested_partitions(hourly.key)}

    with dg.DagsterInstance.ephemeral() as instance:
        assert requested("15:00", "09", "10") == set()
        late = requested("15:30", "11", "12", "13")
        newest = requested("15:50", "14")
    assert (late, newest) == ((set() if condition == "eager alone" else {"11", "12", "13"}), {"14"})


def test_the_example_of_the_readme_is_the_first_one_of_the_page() -> None:
    """Two starts that differ would leave a reader to guess which one is right."""
    assert re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)[1] == EXAMPLES[0]


def test_the_names_that_follow_from_a_stream_are_those_that_dagster_gets() -> None:
    """An alert, a permission or a script is written with them."""
    declare = exactly_once_stream(
        name="paid_orders",
        source="orders",
        outputs=["orders_paid"],
        rejected="orders_rejected",
        backfill=Backfill.daily("2026-01-01"),
        complete=Complete.daily("2026-01-01"),
    )
    stream = declare(lambda events: events)
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    newer = exactly_once_stream(name="paid_orders", source="orders", outputs=["orders_paid"], continues="older")
    successor = exactly_once_definitions(newer(lambda events: events), resources=RESOURCES)
    made = {
        *(job.name for job in successor.jobs or ()),
        *(key.to_user_string() for key in defs.resolve_all_asset_keys()),
        *(x.name for kind in (defs.jobs, defs.schedules, defs.sensors) for x in kind or ()),
        *(spec.op for spec in (stream.spec, *stream.side_specs)),
        *(spec.sink_id for spec in (stream.spec, *stream.side_specs)),
    } - {"orders_rejected"}
    tables = section("A stream").partition("| for each stream |")[2]
    assert (
        set(re.findall(r"`([a-z_-]+)`", tables))
        - {
            "complete",
            "backfill",
            "rejected",
            "dead_letters",
            "continues",
        }
        == made
    )


@pytest.mark.parametrize("made", [exactly_once_stream, exactly_once_resources, exactly_once_sensors])
def test_every_argument_is_explained(made: Callable[..., object]) -> None:
    """Guards against an argument that nobody can find."""
    listed = re.findall(r"^- (`.*?)\. ", "".join(map(section, ("Arguments", "Resources", "Sensors"))), re.M)
    named = {name for item in listed for name in re.findall(r"`(\w+)`", item)}
    assert set(inspect.signature(made).parameters) <= named


def test_the_arguments_of_an_observed_stream_are_named() -> None:
    """A declaration of a stream that runs elsewhere takes fewer."""
    text = section("A stream that runs elsewhere")
    arguments = [*inspect.signature(observed_stream).parameters][1:]  # the first one is its name
    assert [a for a in arguments if not re.search(rf"\b{a}\b", text)] == []


def test_the_page_names_what_the_package_exports() -> None:
    """Guards against a public name without a use."""
    known = PAGE + (ROOT / "docs" / "operate.md").read_text(encoding="utf-8") + README
    known += "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("reference.md", "production.md"))
    policies = {"RestartPolicy", "WatchPolicy"}  # a key of the resources, and variables
    assert [name for name in dagster_exactly_once.__all__ if name not in known and name not in policies] == []


def test_the_component_of_the_page_is_one_that_dagster_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML has no compiler: a wrong field would be found at the first try."""
    declared = next(block for block in YAMLS if "attributes" in block)
    package, _, name = declared["type"].rpartition(".")
    assert getattr(sys.modules[package], name) is ExactlyOnceStreams
    paid = ModuleType("shop.paid")
    paid.paid_orders = lambda events: events  # type: ignore[attr-defined]
    paid.repaired = lambda value: value  # type: ignore[attr-defined]
    paid.bookings = lambda orders, refunds: orders  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.paid", paid)
    component = ExactlyOnceStreams.resolve_from_yaml(yaml.safe_dump(declared["attributes"]))
    defs = component.build_defs(None)  # type: ignore[arg-type]
    dg.Definitions.validate_loadable(defs)
    assert dg.AssetKey(["shop", "orders_paid"]) in defs.resolve_all_asset_keys()


def test_a_stream_in_yaml_takes_the_arguments_of_one_in_python() -> None:
    """The page says so."""
    assert {*StreamModel.model_fields} - {"transform"} == {*inspect.signature(exactly_once_stream).parameters}


def test_the_configuration_of_the_page_is_one_that_a_stream_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody pastes it into a launchpad."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "broker:9092")
    [config] = [block["ops"]["stream_paid_orders"]["config"] for block in YAMLS if "ops" in block]
    stream = exactly_once_stream(source="orders", outputs=["o"], name="paid_orders")(lambda events: events)
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    run_config = {"ops": {"stream_paid_orders": {"config": config}}}
    assert dg.validate_run_config(defs.resolve_job_def("paid_orders_stream"), run_config)


def test_the_tags_of_the_page_are_those_of_the_code() -> None:
    """A limit on a tag that no run has limits nothing."""
    [limits] = [b["concurrency"]["runs"]["tag_concurrency_limits"] for b in YAMLS if "concurrency" in b]
    stream = exactly_once_stream(source="orders", outputs=["o"], name="paid_orders")(lambda events: events)
    job = exactly_once_definitions(stream, resources=RESOURCES).resolve_job_def("paid_orders_stream")
    assert {limit["key"] for limit in limits} <= {*job.tags, TAG_RECOVERS}
    for tag in re.findall(r"`(exactly_once/\w+)`", PAGE):
        assert tag in {TAG_CAUSE, TAG_STREAM, TAG_RESTART, "exactly_once/topic"}

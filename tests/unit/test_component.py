"""Streams in YAML: the component makes what the decorator makes, and its mistakes are named when the code loads."""

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_exactly_once import BadDeclaration, ExactlyOnceStreams
from dagster_exactly_once.component import found

STREAM = {
    "name": "orders",
    "transform": "tests.unit.test_component.clean",
    "source": {"topic": "raw", "start_from": "latest"},
    "outputs": [{"topic": "orders_clean", "key": "shop/orders", "owners": ["team:shop"]}, {"topic": "rejected"}],
    "options": {"kafka.compression.type": "zstd"},
    "checks": {"freshness_s": 60.0},
    "backfill": {"start": "2026-01-01"},
    "complete": {"every": "hour", "start": "2026-01-01"},
}


def clean(events):
    """Orders, cleaned."""
    return events


def loaded(**attributes):
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=ExactlyOnceStreams,
            defs_yaml_contents={"type": "dagster_exactly_once.ExactlyOnceStreams", "attributes": attributes},
        )
        with sandbox.load_component_and_build_defs(path) as (_, defs):
            return defs


def test_a_yaml_file_declares_what_the_decorator_declares():
    """A second way that knew less would end in a rewrite on the day somebody needs the rest."""
    defs = loaded(streams=[STREAM], work_dir="spark", checkpoints="checkpoints")
    graph = defs.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["shop", "orders"])).owners == ["team:shop"]
    assert graph.get(dg.AssetKey("rejected")).parent_keys == {dg.AssetKey("raw")}
    assert {"orders_by_day", "orders_complete", "orders_transactions"} <= {
        key.to_user_string() for key in graph.get_all_asset_keys()
    }
    assert defs.resolve_job_def("orders_stream") and defs.resolve_job_def("orders_backfill")


def test_resources_may_come_from_elsewhere_and_are_given_whole_or_not_at_all():
    with pytest.raises(BadDeclaration, match="work_dir and checkpoints belong together"):
        ExactlyOnceStreams(streams=[], work_dir="spark").resources()
    assert ExactlyOnceStreams(streams=[]).resources() is None


@pytest.mark.parametrize("name", ["no.such.module", "tests.unit.test_component.nothing", "clean"])
def test_a_name_that_leads_to_no_function_is_refused(name):
    with pytest.raises(BadDeclaration, match="leads to no function"):
        found(name)

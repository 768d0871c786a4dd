"""The declaration of a stream: what a person may leave out, and what is refused when the code location loads."""

import dagster as dg
import pytest

from dagster_exactly_once import (
    Backfill,
    BadDeclaration,
    Checks,
    Complete,
    KafkaTopic,
    StreamConfig,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)
from exactly_once.errors import ExactlyOnceError, InvalidOption


class OrdersConfig(StreamConfig):
    """What a person gives to ``orders``."""

    min_amount: float = 1.5


@exactly_once_stream(source="orders", outputs=["orders_clean"])
def clean_orders(events):
    """Orders, cleaned."""
    return events


@exactly_once_stream(
    name="orders",
    source=KafkaTopic("raw.orders", start_from="latest"),
    outputs=[dg.AssetSpec(["shop", "orders"], owners=["team:shop"]), "rejected"],
    sink_id="shop.orders",
    options={"kafka.compression.type": "zstd"},
    checks=Checks(origin=lambda topic, record: None),
    backfill=Backfill.daily("2026-01-01"),
    complete=Complete.hourly("2026-01-01"),
    group_name="shop",
    tags={"tier": "1"},
)
def everything(events, config: OrdersConfig):
    """Orders, cleaned; others are rejected."""
    return events


RESOURCES = exactly_once_resources(
    work_dir="spark", checkpoints="s3://checkpoints", kafka={"bootstrap_servers": "127.0.0.1:1"}
)


def test_the_smallest_declaration_is_complete():
    """What a person must name besides input and output is a decision at a moment when nothing is known yet."""
    defs = clean_orders.definitions(resources=RESOURCES)
    assert {j.name for j in defs.get_repository_def().get_all_jobs()} >= {
        "clean_orders_stream",
        "recovery",
        "checkpoint_repair",
        "stream_checks",
    }
    assert (clean_orders.sink_id, clean_orders.topics) == ("clean-orders", ("orders_clean",))
    graph = defs.resolve_asset_graph()
    node = graph.get(dg.AssetKey("orders_clean"))
    assert node.parent_keys == {dg.AssetKey("orders")} and node.description == "Orders, cleaned."
    assert {key.name for key in graph.asset_check_keys} == {
        "no_old_open_transaction",
        "last_stable_offset_is_high_watermark",
        "checkpoint_equals_commit_log",
        "freshness",
        "health",
    }


def test_everything_that_is_declared_reaches_dagster():
    defs = everything.definitions(resources=RESOURCES)
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    orders, rejected = graph.get(dg.AssetKey(["shop", "orders"])), graph.get(dg.AssetKey("rejected"))
    assert orders.owners == ["team:shop"] and orders.group_name == rejected.group_name == "shop"
    assert orders.tags["tier"] == rejected.tags["tier"] == "1"
    assert graph.get(dg.AssetKey("orders_complete")).partitions_def.start.isoformat().startswith("2026-01-01T00:00")
    assert graph.get(dg.AssetKey("orders_by_day")).partitions_def is not None
    assert {"orders_stream", "orders_backfill"} <= {j.name for j in repository.get_all_jobs()}
    assert {s.name for s in repository.schedule_defs} == {"checks_every_ten_minutes", "orders_fill_missing_days"}
    job = defs.resolve_job_def("orders_stream")
    found = dg.validate_run_config(job, {"ops": {"stream_orders": {"config": {"min_amount": 3.0}}}})
    assert found["ops"]["stream_orders"]["config"]["min_amount"] == 3.0
    backfill = {"ops": {"backfill_orders": {"config": {"stream": {"min_amount": 3.0}}}}}
    assert dg.validate_run_config(defs.resolve_job_def("orders_backfill"), backfill)


def test_checkpoints_on_an_object_store_do_not_get_the_local_file_manager():
    """It renames without a check, which an object store cannot do at once."""
    assert RESOURCES["spark"].local_checkpoints is False
    local = exactly_once_resources(work_dir="spark", checkpoints="ck", kafka={"bootstrap_servers": "b:1"})
    assert local["spark"].local_checkpoints is True


def test_a_stream_that_runs_elsewhere_is_watched_and_never_launched():
    """A job for it would start a second driver beside the one on the cluster."""
    there = observed_stream("elsewhere", source="orders", outputs=["orders_there"])
    defs = exactly_once_definitions(there, clean_orders, resources=RESOURCES)
    jobs = {j.name for j in defs.get_repository_def().get_all_jobs()}
    assert "clean_orders_stream" in jobs and "elsewhere_stream" not in jobs
    graph = defs.resolve_asset_graph()
    assert graph.get(dg.AssetKey("orders_there")).is_executable is False
    assert dg.AssetCheckKey(dg.AssetKey("orders_there"), "health") in graph.asset_check_keys


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "orders-clean"}, "letters, digits and underscores"),
        ({"outputs": []}, "outputs is empty"),
        ({"options": {"sink.id": "x"}}, "comes from the resources"),
        ({"options": {"kafka.bootstrap.servers": "b:1"}}, "comes from the resources"),
    ],
)
def test_a_wrong_declaration_is_refused_when_the_code_loads(change, says):
    """Later, it would be a run that fails at night."""
    with pytest.raises(BadDeclaration, match=says):
        exactly_once_stream(**{"name": "s", "source": "orders", "outputs": ["out"], **change})(lambda events: events)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"options": {"sink.guarante": "none"}}, InvalidOption),
        ({"options": {"kafka.acks": "0"}}, InvalidOption),
        ({"source": lambda: KafkaTopic("in", start_from="yesterday")}, ExactlyOnceError),
        ({"sink_id": "no spaces please"}, ExactlyOnceError),
    ],
)
def test_wrong_options_name_their_code_when_the_code_loads(change, error):
    with pytest.raises(error):
        given = {name: value() if callable(value) else value for name, value in change.items()}
        exactly_once_stream(**{"name": "s", "source": "in", "outputs": ["out"], **given})(lambda events: events)


def test_a_function_with_a_foreign_configuration_is_refused():
    def transform(events, config: int):
        return events

    with pytest.raises(BadDeclaration, match="subclass of StreamConfig"):
        exactly_once_stream(source="in", outputs=["out"])(transform)


def test_two_streams_cannot_share_a_sink_an_output_or_a_name():
    """Two queries with one sink fence each other forever; two with one output cannot both be checked."""
    for change, says in (
        ({"name": "clean_orders", "outputs": ["x"], "sink_id": "x"}, "name"),
        ({"name": "other", "outputs": ["x"], "sink_id": "clean-orders"}, "sink_id"),
        ({"name": "other", "outputs": ["orders_clean"]}, "output"),
    ):
        other = exactly_once_stream(source="in", **change)(lambda events: events)
        with pytest.raises(BadDeclaration, match=says):
            exactly_once_definitions(clean_orders, other)

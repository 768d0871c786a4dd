"""The graph of assets: what is made from what, and nothing else; with the topics that streams read, and their lag."""

import dagster as dg

from dagster_exactly_once import (
    KafkaTopic,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)
from dagster_exactly_once.names import ALL_STREAMS, MONITORING
from dagster_exactly_once.sensors.observation import input_lags
from dagster_exactly_once.streaming.reports import Reports
from dagster_exactly_once.streaming.windows import ReportWindow
from tests.unit.dagster.test_component import Prefixed

RESOURCES = exactly_once_resources(
    work_dir="spark", checkpoints="s3://checkpoints", kafka={"bootstrap_servers": "broker:9092"}
)


def declared(name, source, outputs, **more):
    return exactly_once_stream(name=name, source=source, outputs=outputs, **more)(lambda events: events)


def graph(*streams, **more):
    defs = dg.Definitions.merge(exactly_once_definitions(*streams, resources=RESOURCES), dg.Definitions(**more))
    return defs.resolve_asset_graph()


def test_a_topic_that_a_stream_reads_is_a_node_with_its_address():
    """It was a dead link: no kind, no place, nothing that tells whether its records are read."""
    node = graph(declared("clean_orders", "orders", "orders_clean", group_name="shop")).get(dg.AssetKey("orders"))
    assert (node.is_external, node.kinds, node.group_name) == (True, {"kafka"}, "shop")
    assert node.metadata["dagster/uri"] == "kafka://broker:9092/orders"
    assert "the stream clean_orders reads" in node.description


def test_a_topic_is_one_node_for_the_streams_that_read_it_and_none_beside_the_stream_that_writes_it():
    """Dagster refuses a code location that names an asset twice."""
    found = graph(
        declared("clean", "orders", "orders_clean"),
        observed_stream("paid", source=["orders", "orders_clean"], outputs="orders_paid"),
        observed_stream("there", source="orders_paid", outputs="shipped"),
    )
    assert found.get(dg.AssetKey("orders_clean")).is_materializable
    assert found.get(dg.AssetKey("shipped")).parent_keys == {dg.AssetKey("orders_paid")}
    assert found.get(dg.AssetKey("orders")).child_keys == {dg.AssetKey("orders_clean"), dg.AssetKey("orders_paid")}


def test_a_topic_whose_asset_the_code_location_declares_itself_stays_that_asset():
    """The feed of a topic is an asset of its own, which Dagster materializes."""

    @dg.asset
    def orders():
        pass

    ours = declared("paid", KafkaTopic("orders", asset=False), "orders_paid")
    found = graph(declared("clean", "orders", "orders_clean"), ours, assets=[orders])
    assert found.get(dg.AssetKey("orders")).is_materializable


def test_a_translator_names_a_source_as_it_names_an_output():
    found = graph(declared("clean", "orders", "orders_clean", translator=Prefixed()))
    assert found.get(dg.AssetKey(["kafka", "orders"])).metadata["dagster/uri"] == "kafka://broker:9092/orders"


def test_what_watches_streams_is_no_child_of_their_data():
    """Transactions and the table of streams stood downstream of the data, and looked materialized by a recovery."""
    found = graph(declared("clean", "orders", "orders_clean", group_name="shop"))
    assert found.get(dg.AssetKey("orders_clean")).child_keys == set()
    for key in ("clean_transactions", ALL_STREAMS):
        node = found.get(dg.AssetKey(key))
        assert (node.group_name, node.parent_keys, node.child_keys) == (MONITORING, set(), set())


def test_the_lag_is_observed_on_each_topic_and_a_stream_has_a_plot_of_its_own():
    """One plot for two streams would jump between their lags."""
    stream = observed_stream("paid", source=["orders", "refunds"], outputs="bookings", translator=Prefixed())
    found = input_lags(stream.spec, (7, 0), 1_000.0)
    assert [(o.asset_key.to_user_string(), o.metadata["lag_offsets_paid"].value) for o in found] == [
        ("kafka/orders", 7),
        ("kafka/refunds", 0),
    ]
    assert {o.metadata["lag_measured_paid"].value for o in found} == {1_000.0}


def test_a_run_reports_the_lag_on_its_input_in_every_window():
    """The sensor says it every ten minutes while a run works; the run looks at the ends of its input anyway."""
    events = []

    class Context:
        log = type("Log", (), {"info": lambda *args: None})()
        log_event = staticmethod(events.append)

    stream = declared("paid", "orders", "bookings")
    Reports(Context(), stream).tell(ReportWindow((), 7, 0, 30.0, lags=(7,)))
    [lag] = [e for e in events if e.asset_key == dg.AssetKey("orders")]
    assert lag.metadata["lag_offsets_paid"].value == 7

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
    Table,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)
from dagster_exactly_once.names import NOTIFY
from dagster_exactly_once.notify import Notifier, WebhookNotifier
from exactly_once.errors import ExactlyOnceError, InvalidOption
from exactly_once.outputs.files import FileParticipant


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
    checks=Checks(origin=lambda topic, record: None, verify_cron="15 * * * *"),
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
    defs = exactly_once_definitions(clean_orders, resources=RESOURCES)
    assert {j.name for j in defs.get_repository_def().get_all_jobs()} >= {
        "clean_orders_stream",
        "exactly_once_recovery",
        "exactly_once_checkpoint_repair",
        "exactly_once_stream_checks",
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
        "verified",
        "health",
    }


@pytest.mark.parametrize("outputs", ["paid", dg.AssetSpec("paid"), ["paid"]])
def test_one_output_is_said_like_one_source(outputs):
    """outputs="paid" declared four topics: p, a, i and d."""
    stream = exactly_once_stream(source="orders", outputs=outputs, name="s")(lambda events: events)
    assert stream.topics == ("paid",)
    assert observed_stream("elsewhere", source="orders", outputs=outputs).topics == ("paid",)


def test_everything_that_is_declared_reaches_dagster():
    defs = exactly_once_definitions(everything, resources=RESOURCES)
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    orders, rejected = graph.get(dg.AssetKey(["shop", "orders"])), graph.get(dg.AssetKey("rejected"))
    assert orders.owners == ["team:shop"] and orders.group_name == rejected.group_name == "shop"
    assert orders.tags["tier"] == rejected.tags["tier"] == "1"
    assert graph.get(dg.AssetKey("orders_complete")).partitions_def.start.isoformat().startswith("2026-01-01T00:00")
    assert graph.get(dg.AssetKey("orders_by_day")).partitions_def is not None
    assert {"orders_stream", "orders_backfill"} <= {j.name for j in repository.get_all_jobs()}
    assert {s.name: s.default_status.value for s in repository.schedule_defs} == {
        "exactly_once_checks_every_ten_minutes": "RUNNING",
        "orders_fill_missing_days": "STOPPED",
        "orders_verify_schedule": "RUNNING",
    }
    assert repository.get_schedule_def("orders_verify_schedule").cron_schedule == "15 * * * *"
    job = defs.resolve_job_def("orders_stream")
    found = dg.validate_run_config(job, {"ops": {"stream_orders": {"config": {"min_amount": 3.0}}}})
    assert found["ops"]["stream_orders"]["config"]["min_amount"] == 3.0
    backfill = {"ops": {"backfill_orders": {"config": {"stream": {"min_amount": 3.0}}}}}
    assert dg.validate_run_config(defs.resolve_job_def("orders_backfill"), backfill)


def test_the_schedule_of_verify_is_off_unless_the_stream_says_when():
    """It reads the outputs back, which costs as much as the output is large: a person decides."""
    schedule = (
        exactly_once_definitions(clean_orders, resources=RESOURCES)
        .get_repository_def()
        .get_schedule_def("clean_orders_verify_schedule")
    )
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    unchecked = exactly_once_stream(name="unchecked", source="a", outputs=["b"], checks=None)(lambda events: events)
    defs = exactly_once_definitions(unchecked, resources=RESOURCES)
    assert {key.name for key in defs.resolve_asset_graph().asset_check_keys} == {"health"}
    assert "unchecked_verify" not in {j.name for j in defs.get_repository_def().get_all_jobs()}


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
        ({"outputs": ["a b"]}, "'a b' is not a name"),
        ({"outputs": [dg.AssetSpec("shop/out")]}, "key of several parts"),
        ({"outputs": ["out", "shop/out"]}, "the topic out twice"),
        ({"outputs": ["out.a", "out_a"]}, r"does not distinguish .* out.a and out_a"),
        ({"source": "in"}, r"asset key in: .* reserved keyword. Give it another"),
        ({"outputs": ["context"]}, "allow the asset key context"),
        ({"outputs": ["orders"]}, r"orders is in source .*outputs"),
        ({"source": []}, "source is empty"),
        ({"source": ["a", "a"]}, "the topic a twice"),
        ({"source": "shop/in"}, "'shop/in' is not a name"),
        ({"outputs": []}, "outputs is empty"),
        ({"options": {"sink.id": "x"}}, "comes from sink_id"),
        ({"options": {"kafka.bootstrap.servers": "b:1"}}, "comes from the Kafka resource"),
        ({"state_partitions": "two"}, "state_partitions='two' is no number"),
        # found by the daemon alone, the check would never be evaluated
        ({"checks": Checks(verify_cron="hourly")}, r"s: Checks\(verify_cron='hourly'\) is not a cron"),
        # it would write the days to Kafka alone, and nobody would see that the archive lacks them
        ({"participants": list, "backfill": Backfill.daily("2026-01-01")}, "writes to Kafka alone, .* participants"),
        (
            {"outputs": ["o", Table("t", list)], "backfill": Backfill.daily("2026-01-01")},
            "writes to Kafka alone, .*outputs names other",
        ),
        ({"outputs": Table("t", list)}, "Name the topics"),
    ],
)
def test_a_wrong_declaration_is_refused_when_the_code_loads(change, says):
    """Later, it would be a run that fails at night."""
    with pytest.raises(BadDeclaration, match=says):
        exactly_once_stream(**{"name": "s", "source": "orders", "outputs": ["out"], **change})(lambda events: events)


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: Complete("week", "2026-01-01"), r"'week' is not .* Use Complete.hourly"),
        (lambda: Complete.daily("January"), r"Complete: 'January' is not a day. .* 2026-01-31"),
        (
            lambda: Complete.hourly("2026-01-31", "2026-01-30"),
            "2026-01-30 is before the first",
        ),
        (lambda: Backfill.daily("2026-13-01"), "Backfill: '2026-13-01' is not a day"),
        (lambda: Backfill.daily("2026-01-01", "20260131"), "Backfill: '20260131' is not a day"),
    ],
)
def test_windows_and_days_that_do_not_exist_are_refused_with_what_is_allowed(declare, says):
    """Guards against a traceback of strptime when a code location loads."""
    with pytest.raises(BadDeclaration, match=says):
        declare()


@pytest.mark.parametrize(
    ("output", "key", "topic"),
    [
        ("shop/b", ["shop", "b"], "b"),
        ("shop.b", ["shop.b"], "shop.b"),
        (dg.AssetSpec(["shop", "b"], metadata={"exactly_once/topic": "shop.b"}), ["shop", "b"], "shop.b"),
    ],
)
def test_an_output_may_have_a_group_of_keys_and_a_dot(output, key, topic):
    """Many clusters name their topics with dots, and many code locations their assets with folders."""
    stream = exactly_once_stream(source="raw", outputs=[output], name="s")(lambda events: events)
    exactly_once_definitions(stream, resources=RESOURCES).get_repository_def()
    assert stream.topics == (topic,) and stream.outputs[0].key == dg.AssetKey(key)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"options": {"sink.guarante": "none"}}, InvalidOption),
        ({"options": {"kafka.acks": "0"}}, InvalidOption),
        ({"source": lambda: KafkaTopic("raw", start_from="yesterday")}, ExactlyOnceError),
        ({"sink_id": "no spaces please"}, ExactlyOnceError),
    ],
)
def test_wrong_options_name_their_code_when_the_code_loads(change, error):
    with pytest.raises(error):
        given = {name: value() if callable(value) else value for name, value in change.items()}
        exactly_once_stream(**{"name": "s", "source": "raw", "outputs": ["out"], **given})(lambda events: events)


def test_a_function_with_a_foreign_configuration_is_refused():
    def transform(events, config: int):
        return events

    with pytest.raises(BadDeclaration, match="subclass of StreamConfig"):
        exactly_once_stream(source="raw", outputs=["out"])(transform)


def test_two_streams_cannot_share_a_sink_an_output_or_a_name():
    """Two queries with one sink fence each other forever; two with one output cannot both be checked."""
    for change, says in (
        ({"name": "clean_orders", "outputs": ["x"], "sink_id": "x"}, "name"),
        ({"name": "other", "outputs": ["x"], "sink_id": "clean-orders"}, "sink_id"),
        ({"name": "other", "outputs": ["orders_clean"]}, "output"),
    ):
        other = exactly_once_stream(source="raw", **change)(lambda events: events)
        with pytest.raises(BadDeclaration, match=says):
            exactly_once_definitions(clean_orders, other)


@pytest.mark.parametrize("shared", [RESOURCES, None])
@pytest.mark.parametrize("notify", [WebhookNotifier(url=dg.EnvVar("HOOK")), None])
def test_definitions_of_two_streams_that_are_merged_say_what_to_call(shared, notify):
    """Merging is Dagster's own way, and its refusal named a resource: "different resources with same key 'kafka'"."""
    streams = [exactly_once_stream(name=n, source="orders", outputs=f"{n}_out")(lambda events: events) for n in "ab"]
    each = [exactly_once_definitions(stream, resources=shared, notify=notify) for stream in streams]
    with pytest.raises(dg.DagsterInvariantViolationError, match=r"call exactly_once_definitions.*with all of them"):
        dg.Definitions.merge(*each)
    alone = dg.Definitions.merge(each[0], dg.Definitions(resources=None if shared else RESOURCES))
    assert alone.resources[NOTIFY] == (notify or Notifier())
    dg.Definitions.validate_loadable(alone)


def test_outputs_beside_kafka_are_made_by_runs_and_recoveries_and_not_when_the_code_loads():
    """The function may read a secret that only a run has; called at load, it would take down the code location."""
    made = []

    def archive():
        made.append(FileParticipant("archive", "/data/orders"))
        return made

    stream = exactly_once_stream(source="orders", outputs=["orders_paid"], participants=archive)(clean_orders.transform)
    exactly_once_definitions(stream, resources=RESOURCES).resolve_job_def(stream.spec.job)
    assert made == []
    assert [p.name for p in stream.others()] == ["archive"] and clean_orders.others() == ()


def older(**more):
    """A declaration that says something of an older version."""
    return exactly_once_stream(source="orders", outputs=["shadow"], sink_id="orders-v2", **more)(clean_orders.transform)


def test_a_stream_continues_another_sink_and_fills_no_days_that_one_has_written():
    """Duplicate: the backfill owns all input from before the new stream's start, which is the old one's output."""
    assert older(continues="orders").continues == "orders"
    with pytest.raises(BadDeclaration, match=r"backfill would write .* sink orders has"):
        older(continues="orders", backfill=Backfill.daily("2026-01-01"))
    with pytest.raises(BadDeclaration, match=r"continues names .* own sink orders-v2"):
        older(continues="orders-v2")
    with pytest.raises(InvalidOption, match="valid sink id"):
        older(continues="a:b")


def test_a_stream_that_reads_along_says_where_its_records_come_from_and_takes_over_later():
    """Mishap: a run of weeks beside the old stream, and at its end nothing that compares the two."""
    origin = Checks(origin=lambda topic, record: (0, 0))
    green = older(beside="orders", checks=origin)
    assert green.beside == "orders" and not green.continues
    with pytest.raises(BadDeclaration, match=r"Write beside='orders' while .* and continues='orders' when it takes"):
        older(beside="orders", continues="orders", checks=origin)
    with pytest.raises(BadDeclaration, match=r"beside compares the two .* Declare Checks\(origin=...\)"):
        older(beside="orders")
    with pytest.raises(BadDeclaration, match=r"beside names .* own sink orders-v2"):
        older(beside="orders-v2", checks=origin)
    with pytest.raises(BadDeclaration, match="backfill and beside out"):
        older(beside="orders", checks=origin, backfill=Backfill.daily("2026-01-01"))
    with pytest.raises(InvalidOption, match="valid sink id"):
        older(beside="a:b", checks=origin)


def test_a_stream_that_reads_along_has_the_old_one_in_its_code_location():
    """Mishap: the check cannot tell where the old stream's records come from, and is never green."""
    origin = Checks(origin=lambda topic, record: (0, 0))
    green = older(beside="orders", checks=origin)
    blue = {"source": "orders", "outputs": ["orders_out"], "sink_id": "orders"}
    for others in ([], [exactly_once_stream(**blue, name="blue")(clean_orders.transform)]):
        with pytest.raises(BadDeclaration, match=r"sink orders, .* no stream here .*Checks\(origin=...\)"):
            exactly_once_definitions(green, *others, resources=RESOURCES)
    defs = exactly_once_definitions(green, observed_stream("blue", **blue, checks=origin), resources=RESOURCES)
    names = {key.name for check in defs.asset_checks for key in check.check_keys if key.asset_key.path == ["shadow"]}
    assert "same_as_blue" in names
    names = {key.name for check in defs.asset_checks for key in check.check_keys if key.asset_key.path != ["shadow"]}
    assert "same_as_blue" not in names and "no_duplicates_and_no_loss" in names


def test_a_table_is_declared_in_one_line_beside_its_topic():
    """It is an asset of the same run, made from the same input; whoever only loads the code location opens nothing."""
    made = []

    def archive():
        made.append(FileParticipant("lake", "/data/orders"))
        return made[-1]

    stream = exactly_once_stream(source="orders", outputs=["orders_paid", Table("lake/orders", archive)])(
        clean_orders.transform
    )
    defs = exactly_once_definitions(stream, resources=RESOURCES)
    defs.resolve_job_def(stream.spec.job)
    table = dg.AssetKey(["lake", "orders"])
    node = defs.resolve_asset_graph().get(table)
    assert node.parent_keys == {dg.AssetKey("orders")} and node.description == "Orders, cleaned."
    assert made == [] and stream.topics == ("orders_paid",)
    assert set(stream.spec.asset_keys) == {"orders_paid", "lake/orders"}
    assert [p.name for p in stream.others()] == ["lake"]
    assert stream.tables[0].row_count() is None, "files do not count their rows"

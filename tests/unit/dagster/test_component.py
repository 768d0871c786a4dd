"""Streams in YAML: the component makes what the decorator makes, and its mistakes are named when the code loads."""

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from dagster_exactly_once import BadDeclaration, ExactlyOnceStreams, StreamTranslator
from dagster_exactly_once.component import NotifyModel, StreamModel, found
from dagster_exactly_once.names import NOTIFY
from dagster_exactly_once.notify import EmailNotifier, WebhookNotifier

STREAM = {
    "name": "orders",
    "transform": "tests.unit.dagster.test_component.clean",
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


def booked(orders, refunds):
    """Orders and refunds."""
    return orders.union(refunds)


class Prefixed(StreamTranslator):
    """Topics below ``kafka``."""

    def get_asset_key(self, topic):
        return super().get_asset_key(topic).with_prefix("kafka")


def pager(topic):
    """No translator."""


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


@pytest.mark.parametrize("name", ["no.such.module", "tests.unit.dagster.test_component.nothing", "clean"])
def test_a_name_that_leads_nowhere_is_refused(name):
    with pytest.raises(BadDeclaration, match="cannot be imported"):
        found(name)


FOLDERS = {"work_dir": "spark", "checkpoints": "checkpoints"}
HERE = "tests.unit.dagster.test_component"


def test_several_topics_columns_and_a_translator_are_declared_in_yaml_too():
    stream = {
        "name": "bookings",
        "transform": f"{HERE}.booked",
        "source": [{"topic": "shop.orders", "name": "orders"}, {"topic": "refunds", "start_from": "latest"}],
        "outputs": [{"topic": "bookings"}],
        "column_schema": "customer STRING, cents INT",
        "column_lineage": {"cents": {"orders": "price"}},
        "translator": f"{HERE}.Prefixed",
    }
    node = loaded(streams=[stream], **FOLDERS).resolve_asset_graph().get(dg.AssetKey(["kafka", "bookings"]))
    assert {key.to_user_string() for key in node.parent_keys} == {"kafka/shop.orders", "kafka/refunds"}
    assert [c.name for c in node.metadata["dagster/column_schema"].columns] == ["customer", "cents"]
    price = dg.TableColumnDep(dg.AssetKey(["kafka", "shop.orders"]), "price")
    assert node.metadata["dagster/column_lineage"].deps_by_column == {"cents": [price]}


def test_a_topic_without_more_to_say_is_a_string_in_yaml_too():
    """source: orders, as in Python, was refused; and a second way to say the same must not know less."""
    one = {"name": "one", "transform": f"{HERE}.clean", "source": "raw", "outputs": "orders_clean"}
    two = {"name": "two", "transform": f"{HERE}.booked", "source": ["orders", "refunds"], "outputs": ["a", "b"]}
    hours = {"every": "hour", "start": "2013-01-01", "end": "2013-01-02"}
    graph = loaded(streams=[{**one, "complete": hours}, two], **FOLDERS).resolve_asset_graph()
    assert graph.get(dg.AssetKey("orders_clean")).parent_keys == {dg.AssetKey("raw")}
    assert graph.get(dg.AssetKey("a")).parent_keys == {dg.AssetKey("orders"), dg.AssetKey("refunds")}
    assert graph.get(dg.AssetKey("one_complete")).partitions_def.get_num_partitions() == 48


def test_rejected_records_are_declared_in_yaml_too():
    """Guards against a component that knows less than the function."""
    one = {"name": "one", "transform": f"{HERE}.clean", "source": "raw", "outputs": "clean", "rejected": "bad"}
    more = {"topic": "worse", "key": "shop/worse", "warn_above": 5, "error_above": 9, "repair": f"{HERE}.clean"}
    two = {**one, "name": "two", "outputs": "cleaner", "rejected": more}
    graph = (defs := loaded(streams=[one, two], **FOLDERS)).resolve_asset_graph()
    assert graph.get(dg.AssetKey("bad")).metadata["exactly_once/topic"] == "bad"
    assert graph.get(dg.AssetKey(["shop", "worse"])).metadata["exactly_once/topic"] == "worse"
    assert defs.resolve_job_def("one_resend") and defs.resolve_job_def("two_resend")
    declared = StreamModel.resolve_from_yaml(yaml.safe_dump(two)).stream().rejected
    assert (declared.warn_above, declared.error_above, declared.repair) == (5, 9, clean)


def test_where_records_name_their_input_is_said_in_yaml_too():
    """Guards against a component that knows less than the function: a word of the command, or a function."""
    one = {"name": "one", "transform": f"{HERE}.clean", "source": "raw", "outputs": "clean", "trace_headers": True}
    for said, origin in (("header:src", "header:src"), ("key", "key"), (f"{HERE}.clean", clean)):
        stream = StreamModel.resolve_from_yaml(yaml.safe_dump({**one, "checks": {"origin": said}})).stream()
        assert stream.checks.origin == origin and stream.trace_headers
    with pytest.raises(BadDeclaration, match="'src' does not say"):
        StreamModel.resolve_from_yaml(yaml.safe_dump({**one, "checks": {"origin": "src"}})).stream()


def test_dead_letters_are_declared_in_yaml_too():
    """Guards against a component that knows less than the function."""
    one = {"name": "one", "transform": f"{HERE}.clean", "source": "raw", "outputs": "clean", "dead_letters": "dead"}
    more = {"topic": "deader", "key": "shop/deader", "warn_above": 5, "error_above": 9, "most": 7}
    two = {**one, "name": "two", "outputs": "cleaner", "dead_letters": {**more, "repair": f"{HERE}.clean"}}
    there = {"name": "there", "source": "raw", "outputs": "out", "dead_letters": "deadest"}
    graph = (defs := loaded(streams=[one, two], observed=[there], **FOLDERS)).resolve_asset_graph()
    assert graph.get(dg.AssetKey("dead")) and graph.get(dg.AssetKey("deadest"))
    assert graph.get(dg.AssetKey(["shop", "deader"])).metadata["exactly_once/topic"] == "deader"
    assert defs.resolve_job_def("one_resend") and defs.resolve_job_def("two_resend")
    stream = StreamModel.resolve_from_yaml(yaml.safe_dump(two)).stream()
    declared = stream.dead_letters
    assert (declared.warn_above, declared.error_above, declared.repair, declared.most) == (5, 9, clean, 7)
    assert stream.options == {"sink.dead.letter.topic": "deader", "sink.dead.letter.max": "7"}


def test_a_stream_that_runs_elsewhere_is_declared_in_yaml_too():
    """Guards against a code location that is rewritten in Python when one of its streams moves to a cluster."""
    there = {
        "name": "clicks",
        "source": {"topic": "clicks_in"},
        "outputs": [{"topic": "clicks_out", "key": "web/clicks"}],
        "sink_id": "clicks-prod",
        "checks": None,
        "owners": ["team:web"],
        "description": "Clicks, by EMR.",
    }
    defs = loaded(streams=[STREAM], observed=[there], **FOLDERS)
    jobs = {job.name for job in defs.jobs or ()}
    assert "orders_stream" in jobs and "clicks_stream" not in jobs
    node = defs.resolve_asset_graph().get(dg.AssetKey(["web", "clicks"]))
    assert (node.owners, node.description, node.is_executable) == (["team:web"], "Clicks, by EMR.", False)


def test_who_is_told_is_declared_in_yaml_and_a_secret_stays_a_name(monkeypatch):
    """The address of a webhook is its password: the UI shows the variable, and loading does not look it up."""
    monkeypatch.setenv("SLACK", "https://hooks.example/secret")
    webhook = {"url": {"env": "SLACK"}, "format": "slack"}
    slack = loaded(streams=[STREAM], notify={"webhook": webhook}).resources[NOTIFY]
    assert (
        isinstance(slack, WebhookNotifier)
        and slack.format == "slack"
        and isinstance(slack.url, dg.EnvVar)
        and slack.url == "SLACK"
    )
    mail = {"host": "mail", "sender": "a@shop", "recipients": ["b@shop"], "password": {"env": "MAIL"}}
    found = loaded(streams=[STREAM], notify={"email": mail}).resources[NOTIFY]
    assert isinstance(found, EmailNotifier) and (found.port, found.recipients) == (587, ["b@shop"])
    assert isinstance(found.password, dg.EnvVar) and found.password == "MAIL"


@pytest.mark.parametrize(
    "said", [{}, {"webhook": {"url": "u"}, "email": {"host": "h", "sender": "s", "recipients": []}}]
)
def test_one_receiver_is_named(said):
    with pytest.raises(BadDeclaration, match="notify takes one receiver"):
        NotifyModel(**said).notifier()


def test_a_translator_that_is_none_is_refused():
    with pytest.raises(BadDeclaration, match=r"pager .* subclass of StreamTranslator"):
        StreamModel(**{**STREAM, "translator": f"{HERE}.pager"}).stream()

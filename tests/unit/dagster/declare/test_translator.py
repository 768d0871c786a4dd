"""Which asset a topic is: what a translator changes, and what stays when it changes nothing."""

import dagster as dg
import pytest

from dagster_exactly_once import (
    BadDeclaration,
    KafkaTopic,
    StreamTranslator,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)

RESOURCES = exactly_once_resources(work_dir="spark", checkpoints="ck", kafka={"bootstrap_servers": "b1:9092,b2:9092"})


class ShopTranslator(StreamTranslator):
    """Topics are below ``kafka``; outputs belong to the team that the topic's name begins with."""

    def get_asset_key(self, topic):
        return super().get_asset_key(topic).with_prefix("kafka")

    def get_group_name(self, topic):
        return topic.topic.partition("_")[0]

    def get_owners(self, topic):
        return [f"team:{topic.topic.partition('_')[0]}"]

    def get_tags(self, topic):
        return {**super().get_tags(topic), "stream": topic.stream}

    def get_kinds(self, topic):
        return {"avro"}

    def get_description(self, topic):
        return f"{super().get_description(topic)} Read with read_committed."

    def get_metadata(self, topic):
        return {**super().get_metadata(topic), "topic": topic.topic}


def declared(**change):
    given = {"source": "raw_orders", "outputs": ["shop_orders"], "name": "orders", "tags": {"tier": "1"}, **change}

    def transform(events):
        """Orders."""
        return events

    return exactly_once_stream(**given)(transform)


def asset(stream, key, resources=RESOURCES):
    return exactly_once_definitions(stream, resources=resources).resolve_asset_graph().get(dg.AssetKey(key))


def test_without_a_translator_an_asset_says_where_its_topic_is():
    """Guards against an asset that a person cannot find on the cluster, and against labels that got lost."""
    node = asset(declared(group_name="shop", owners=["team:shop"]), ["shop_orders"])
    assert node.metadata["dagster/uri"] == "kafka://b1:9092,b2:9092/shop_orders"
    assert (node.group_name, node.owners, node.kinds) == ("shop", ["team:shop"], {"kafka", "spark"})
    assert node.tags["tier"] == "1" and node.description == "Orders."
    assert node.parent_keys == {dg.AssetKey("raw_orders")}


def test_brokers_that_the_environment_names_are_in_the_address(monkeypatch):
    """The resources of a code location may be declared elsewhere; brokers that nobody knows yet are not invented."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "env:9092")
    elsewhere = {name: its for name, its in RESOURCES.items() if name != "kafka"} | {"kafka": object()}
    assert asset(declared(), ["shop_orders"], elsewhere).metadata["dagster/uri"] == "kafka://env:9092/shop_orders"
    monkeypatch.setenv("SHOP_BROKERS", "shop:9092")
    theirs = exactly_once_resources(
        work_dir="spark", checkpoints="ck", kafka={"bootstrap_servers": dg.EnvVar("SHOP_BROKERS")}
    )
    assert asset(declared(), ["shop_orders"], theirs).metadata["dagster/uri"] == "kafka://shop:9092/shop_orders"
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "SASL_SSL://h.example:9092 , [::1]:9092,")
    uri = asset(declared(), ["shop_orders"], elsewhere).metadata["dagster/uri"]
    assert uri == "kafka://h.example:9092,[::1]:9092/shop_orders"
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    assert "dagster/uri" not in asset(declared(), ["shop_orders"], elsewhere).metadata


@pytest.mark.parametrize("declare", [declared, lambda **more: observed_stream(**MORE, **more)])
def test_a_translator_names_and_labels_every_topic(declare):
    stream = declare(translator=ShopTranslator())
    node = asset(stream, ["kafka", "shop_orders"])
    assert (node.group_name, node.owners, node.kinds) == ("shop", ["team:shop"], {"avro"})
    assert {"tier": "1", "stream": "orders"}.items() <= node.tags.items()
    assert node.description == "Orders. Read with read_committed."
    assert node.metadata["topic"] == "shop_orders" and "dagster/uri" in node.metadata
    assert node.parent_keys == {dg.AssetKey(["kafka", "raw_orders"])}
    assert stream.topics == ("shop_orders",) and stream.spec.asset_keys == ("kafka/shop_orders",)


MORE = {
    "name": "orders",
    "source": "raw_orders",
    "outputs": ["shop_orders"],
    "tags": {"tier": "1"},
    "description": "Orders.",
}


def test_the_input_stays_an_asset_that_somebody_else_declares():
    """A code location that has the topic's asset already would not load."""
    mine = declared(source=KafkaTopic("raw_orders", asset=False))
    other = declared(name="other", outputs=["others"])
    theirs = dg.Definitions(assets=[dg.AssetSpec("raw_orders", group_name="raw")])
    defs = dg.Definitions.merge(exactly_once_definitions(mine, other, resources=RESOURCES), theirs)
    assert defs.resolve_asset_graph().get(dg.AssetKey("raw_orders")).group_name == "raw"


def test_a_translator_that_gives_two_topics_one_key_is_refused():
    class One(StreamTranslator):
        def get_asset_key(self, topic):
            return dg.AssetKey("one")

    with pytest.raises(BadDeclaration, match=r"does not distinguish .* one and one"):
        declared(outputs=["a", "b"], translator=One())

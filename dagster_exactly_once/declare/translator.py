"""The translation of a stream's topics into assets of Dagster: keys, groups, owners, tags, metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from exactly_once.kafka.servers import shown


@dataclass(frozen=True)
class StreamTopic:
    """A topic of a stream, for a translator.

    Attributes
    ----------
    stream : str
        The stream's name.
    topic : str
        The topic's name on the cluster.
    is_source : bool
        Whether the stream reads it; else it is an output.
    bootstrap_servers : str
        The cluster's brokers, ``host:port`` separated by commas; empty where the code location does not know them yet.
    declared : AssetSpec
        What the declaration says of it: of a source the key and the stream's group.
    """

    stream: str
    topic: str
    is_source: bool
    bootstrap_servers: str
    declared: dg.AssetSpec


class StreamTranslator:
    """Says which asset a topic is. Override what your code location names or labels in another way.

    Of a source with ``asset=False`` only the key counts: whoever makes that topic declares its asset.

    Examples
    --------
    >>> class ShopTranslator(StreamTranslator):
    ...     def get_asset_key(self, topic):
    ...         return super().get_asset_key(topic).with_prefix("kafka")
    """

    def get_asset_key(self, topic: StreamTopic) -> dg.AssetKey:
        """Return the key of the asset."""
        return topic.declared.key

    def get_group_name(self, topic: StreamTopic) -> str | None:
        """Return the group; None: Dagster's default group."""
        return topic.declared.group_name

    def get_owners(self, topic: StreamTopic) -> Sequence[str]:
        """Return the owners: e-mail addresses, or teams like ``team:shop``."""
        return topic.declared.owners

    def get_tags(self, topic: StreamTopic) -> Mapping[str, str]:
        """Return the tags, kinds not among them."""
        return {tag: value for tag, value in topic.declared.tags.items() if not tag.startswith("dagster/kind/")}

    def get_kinds(self, topic: StreamTopic) -> set[str]:
        """Return the kinds."""
        return topic.declared.kinds

    def get_description(self, topic: StreamTopic) -> str | None:
        """Return the description."""
        return topic.declared.description

    def get_metadata(self, topic: StreamTopic) -> Mapping[str, Any]:
        """Return the metadata: the declared one, and ``dagster/uri`` if the brokers are known."""
        servers = topic.bootstrap_servers
        uri = {"dagster/uri": f"kafka://{shown(servers)}/{topic.topic}"} if servers else {}
        return {**uri, **topic.declared.metadata}


def translated(translator: StreamTranslator, topic: StreamTopic, sources: Sequence[dg.AssetKey]) -> dg.AssetSpec:
    """Return the asset of a topic that is made from ``sources``."""
    return topic.declared.replace_attributes(
        key=translator.get_asset_key(topic),
        deps=[*topic.declared.deps, *sources],
        group_name=translator.get_group_name(topic),
        owners=translator.get_owners(topic),
        tags=translator.get_tags(topic),
        kinds=translator.get_kinds(topic),
        description=translator.get_description(topic),
        metadata=translator.get_metadata(topic),
    )

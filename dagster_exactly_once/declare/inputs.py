"""The input of a stream: one topic, or several by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.start import EARLIEST, start_time_ms

#: What Kafka accepts as the name of a topic.
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class KafkaTopic:
    """An input of a stream. Nothing here creates or changes it.

    Attributes
    ----------
    start_from : str
        Where a stream without a checkpoint begins: ``earliest``, ``latest``, or a date or time (UTC unless it says
        otherwise), then at the first record since.
    options : mapping
        More options of Spark's Kafka source; they win over the tuned ones.
    asset : bool
        Make an asset of the topic, which shows the lag. False where this code location declares that asset itself.
    """

    name: str
    start_from: str = EARLIEST
    options: Mapping[str, str] = field(default_factory=dict)
    asset: bool = True

    def __post_init__(self) -> None:
        check_topic(self.name, "source")
        start_time_ms(self.start_from)


#: What a declaration takes: a topic, topics that are called what their parameters are, or topics by parameter.
Source = KafkaTopic | str | Sequence[KafkaTopic | str] | Mapping[str, KafkaTopic | str]


def sources_of(source: Source, stream: str) -> dict[str, KafkaTopic]:
    """Return the input topics by the name of the parameter that takes each; a single one may be called anything.

    Raises
    ------
    BadDeclaration
        No topic is named, or one twice.
    """
    if isinstance(source, str | KafkaTopic):
        source = [source]
    if isinstance(source, Mapping):
        named = [(name, _topic(one)) for name, one in source.items()]
    else:
        named = [(topic.name, topic) for topic in map(_topic, source)]
    if not named:
        raise BadDeclaration(f"{stream}: source is empty. Name the topics that the stream reads")
    counts = Counter(topic.name for _, topic in named)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise BadDeclaration(
            f"{stream}: source names the topic {twice[0]} twice. Name it once, and use its DataFrame twice"
        )
    return dict(named)


def check_parameters(stream: str, sources: Mapping[str, KafkaTopic]) -> None:
    """Refuse several sources with a name that no parameter of a function can have. Raises BadDeclaration."""
    for name, topic in sources.items() if len(sources) > 1 else ():
        if not name.isidentifier():
            raise BadDeclaration(
                f"{stream}: no parameter of a function can be called {name!r}. Name it: "
                f"source={{'{re.sub('[^A-Za-z0-9]', '_', name)}': '{topic.name}', ...}}"
            )


def check_topic(name: str, argument: str) -> str:
    """Return ``name`` if Kafka accepts it as the name of a topic. Raises BadDeclaration."""
    if not _TOPIC.fullmatch(name):
        raise BadDeclaration(
            f"{argument}: {name!r} is not a name that Kafka allows for a topic. Use at most 249 letters, digits, "
            "'.', '_' and '-'"
            + ('; an AssetSpec takes a key of several parts as a list: ["shop", "orders"]' if "/" in name else "")
        )
    return name


def _topic(one: KafkaTopic | str) -> KafkaTopic:
    return KafkaTopic(one) if isinstance(one, str) else one

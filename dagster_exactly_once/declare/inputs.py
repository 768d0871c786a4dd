"""The input of a stream, one topic or several by name: where it begins, and the function that takes it."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dagster_exactly_once.declare.config import StreamConfig
from dagster_exactly_once.declare.errors import BadDeclaration
from exactly_once.errors import ExactlyOnceError
from exactly_once.protocol.topics import NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


EARLIEST, LATEST = "earliest", "latest"


class StartNotATime(ExactlyOnceError):
    """``start_from`` is neither of the two words nor a date or time."""

    code = "EO-START"
    default_safe = "Nothing was started"


def start_time_ms(start_from: str) -> int | None:
    """Convert ``start_from`` to ms since the epoch; None for ``earliest`` and ``latest``.

    A date begins at midnight; a time without a zone is UTC.

    Raises StartNotATime.
    """
    if start_from in (EARLIEST, LATEST):
        return None
    try:
        time = datetime.fromisoformat(start_from)
    except ValueError:
        raise StartNotATime(
            f"start_from={start_from!r} is neither {EARLIEST}, nor {LATEST}, nor a date or time",
            "Write start_from like 2013-07-01 or 2013-07-01T12:00:00Z",
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


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


#: The input that a declaration takes: a topic, topics that are called what their parameters are, or topics by
#: parameter.
Source = KafkaTopic | str | Sequence[KafkaTopic | str] | Mapping[str, KafkaTopic | str]


def sources_of(source: Source, stream: str) -> dict[str, KafkaTopic]:
    """Return the input topics by the name of the parameter that takes each; a single one may be called anything. Raises
    BadDeclaration when no topic is named, or one twice.
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
    if not NAME.fullmatch(name):
        raise BadDeclaration(
            f"{argument}: {name!r} is not a name that Kafka allows for a topic. Use at most 249 letters, digits, "
            "'.', '_' and '-'"
            + ('; an AssetSpec takes a key of several parts as a list: ["shop", "orders"]' if "/" in name else "")
        )
    return name


def _topic(one: KafkaTopic | str) -> KafkaTopic:
    return KafkaTopic(one) if isinstance(one, str) else one


#: The function of a stream: ``transform(events)`` or ``transform(events, config)``; with several sources, a parameter
#: for each of them.
Transform = Callable[..., "DataFrame"]


def config_of(transform: Transform, stream: str, sources: Collection[str]) -> tuple[type[StreamConfig], str | None]:
    """Return the class of the configuration that ``transform`` takes, and the parameter for it; None without one.
    Raises BadDeclaration when it takes other parameters than its sources and a configuration.
    """
    parameters = list(inspect.signature(transform).parameters.values())
    if len(sources) == 1:
        wanted, others = "events", parameters[1:]
        wrong = not parameters or len(parameters) > 2
    else:
        wanted, others = ", ".join(sources), [p for p in parameters if p.name not in sources]
        wrong = len(parameters) - len(others) < len(sources) or len(others) > 1
    if wrong:
        raise BadDeclaration(
            f"{stream} takes the parameters ({', '.join(p.name for p in parameters)}). "
            f"Declare it as f({wanted}) or f({wanted}, config)"
        )
    if not others:
        return StreamConfig, None
    return _annotated(others[0], transform, stream), others[0].name


def _annotated(parameter: inspect.Parameter, transform: Transform, stream: str) -> type[StreamConfig]:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(transform, "__globals__", {}))
        except NameError:
            annotation = None
    if annotation is inspect.Parameter.empty:
        return StreamConfig
    if not (isinstance(annotation, type) and issubclass(annotation, StreamConfig)):
        raise BadDeclaration(
            f"{stream}: the annotation of {parameter.name} is not a subclass of StreamConfig that is defined at "
            "module level. Define the class there"
        )
    return annotation

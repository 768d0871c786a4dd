"""The declaration of a stream: one function from DataFrame to DataFrame, and what Dagster should know about it.

@exactly_once_stream(source="orders", outputs=["orders_clean"])
def clean_orders(events):
    ...

defs = clean_orders.definitions()
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_exactly_once.checks.reader import Record
from dagster_exactly_once.config import StreamConfig
from dagster_exactly_once.names import FRESHNESS_LIMIT_S
from dagster_exactly_once.sensors.stream import StreamSpec
from dagster_exactly_once.streaming.complete import Complete
from dagster_exactly_once.streaming.start import EARLIEST, start_time_ms
from exactly_once.options import SinkOptions
from exactly_once.protocol.names import check_sink_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: On an output's AssetSpec: its topic, where that is not the last part of the asset's key.
TOPIC = "exactly_once/topic"

#: What Dagster accepts as the name of a job or an op.
_NAME = re.compile(r"[A-Za-z0-9_]+")

#: Partition and offset of an input record.
Origin = tuple[int, int]

#: ``transform(events)`` or ``transform(events, config)``.
Transform = Callable[..., "DataFrame"]


class BadDeclaration(dg.DagsterInvalidDefinitionError):
    """A stream is declared in a way that cannot work; the message names the argument."""


@dataclass(frozen=True)
class KafkaTopic:
    """The input of a stream. Nothing here creates or changes it.

    Attributes
    ----------
    start_from : str
        Where a stream without a checkpoint begins: ``earliest``, ``latest``, or a date or time (UTC unless it says
        otherwise), then at the first record since.
    options : mapping
        More options of Spark's Kafka source; they win over the tuned ones.
    """

    name: str
    start_from: str = EARLIEST
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        start_time_ms(self.start_from)


@dataclass(frozen=True)
class Checks:
    """What the asset checks of a stream judge.

    Attributes
    ----------
    freshness_s : float
        Input may wait this long without a commit.
    origin : callable, optional
        ``origin(topic, record)`` returns the partition and offset of the input record that an output record came from,
        None when it does not say. With it, the check ``no_duplicates_and_no_loss`` compares input and outputs record by
        record; only for a stream that makes exactly one output record of each input record.
    """

    freshness_s: float = FRESHNESS_LIMIT_S
    origin: Callable[[str, Record], Origin | None] | None = None


@dataclass(frozen=True)
class Backfill:
    """Days of the input from before the stream's first start, written by the stream's own transformation.

    Attributes
    ----------
    start, end : str
        The first day, and the last one or "" for yesterday; UTC days of the records' time stamps, like 2026-01-31.
    """

    start: str
    end: str = ""

    @classmethod
    def daily(cls, start: str, end: str = "") -> Backfill:
        """Return a backfill by day."""
        return cls(start, end)


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """A declared stream; :func:`exactly_once_stream` makes it and documents the arguments."""

    transform: Transform
    name: str
    source: KafkaTopic
    outputs: tuple[dg.AssetSpec, ...]
    sink_id: str
    config: type[StreamConfig]
    takes_config: bool
    options: Mapping[str, str]
    checks: Checks | None
    backfill: Backfill | None
    complete: Complete | None
    output_partitions: int | None
    state_partitions: int | None
    group_name: str | None
    description: str
    managed: bool = True

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The output topics."""
        return tuple(str(spec.metadata.get(TOPIC, spec.key.path[-1])) for spec in self.outputs)

    @cached_property
    def spec(self) -> StreamSpec:
        """The stream, as its sensors know it."""
        return StreamSpec(
            name=self.name,
            job=f"{self.name}_stream",
            op=f"stream_{self.name}",
            sink_id=self.sink_id,
            topic=self.source.name,
            outputs=self.topics,
            asset_keys=tuple(spec.key.to_user_string() for spec in self.outputs),
            asset=f"{self.name}_transactions",
            managed=self.managed,
        )

    @cached_property
    def backfill_spec(self) -> StreamSpec:
        """The backfill, as the sensors know it: a sink of its own, so neither can fence the other."""
        return StreamSpec(
            name=f"{self.name}_backfill",
            job=f"{self.name}_backfill",
            op=f"backfill_{self.name}",
            sink_id=f"{self.sink_id}-backfill",
            topic=self.source.name,
            outputs=self.topics,
            asset_keys=(self.by_day,),
            asset=self.spec.asset,
        )

    @property
    def one_to_one(self) -> bool:
        """Whether it declares to make exactly one output record of each input record."""
        return self.checks is not None and self.checks.origin is not None

    @property
    def completed(self) -> str:
        """The key of the asset of complete windows."""
        return f"{self.name}_complete"

    @property
    def by_day(self) -> str:
        """The key of the backfill's asset."""
        return f"{self.name}_by_day"

    def records(self, events: DataFrame, config: StreamConfig) -> DataFrame:
        """Transform the rows of Spark's Kafka source into rows of the sink."""
        return self.transform(events, config) if self.takes_config else self.transform(events)

    def definitions(self, **options: Any) -> dg.Definitions:
        """Everything that Dagster needs to operate this one stream; see
        :func:`dagster_exactly_once.definitions.exactly_once_definitions`.
        """
        from dagster_exactly_once.definitions import exactly_once_definitions

        return exactly_once_definitions(self, **options)


def exactly_once_stream(
    *,
    source: KafkaTopic | str,
    outputs: Sequence[dg.AssetSpec | str],
    name: str | None = None,
    sink_id: str | None = None,
    options: Mapping[str, str] | None = None,
    checks: Checks | None = Checks(),
    backfill: Backfill | None = None,
    complete: Complete | None = None,
    output_partitions: int | None = None,
    state_partitions: int | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Callable[[Transform], Stream]:
    """Declare a stream over one function, ``transform(events)`` or ``transform(events, config)``.

    ``events`` has the columns of Spark's Kafka source. The result has ``value`` and, as needed, ``topic`` (with several
    outputs), ``key``, ``headers``, ``partition`` and ``timestamp``. ``config``, annotated with a subclass of
    :class:`StreamConfig` at module level, is what a person gave in the launchpad. The docstring describes the outputs.

    Parameters
    ----------
    source : KafkaTopic or str
        The input topic; a name alone begins at ``earliest``.
    outputs : sequence of AssetSpec or str
        The topics to write, each an asset. The topic is the last part of the key, unless the metadata
        ``exactly_once/topic`` names another one.
    name : str, optional
        Names the job ``<name>_stream``, the op ``stream_<name>`` and the asset ``<name>_transactions``; the function's
        own name by default.
    sink_id : str, optional
        The identity of the sink on the Kafka cluster: it owns the commit log and the transactional ids. Never change it
        for a stream that has run. The name with dashes by default.
    options : mapping, optional
        More options of ``format("kafka_exactly_once")``, such as ``kafka.compression.type``.
    checks : Checks, optional
        None: no asset checks.
    backfill : Backfill, optional
        Adds the asset ``<name>_by_day``, the job ``<name>_backfill`` and a schedule.
    complete : Complete, optional
        Adds the asset ``<name>_complete``: a window of event time is materialized when the watermark of the query has
        passed it and its last batch is committed. Build on it what needs complete data.
    output_partitions : int, optional
        Create output topics that do not exist, with this many partitions; None: they must exist.
    state_partitions : int, optional
        For a query with state: keep it in RocksDB, in this many partitions. Its first start fixes the number.
    group_name, owners, tags
        For all of the stream's assets that do not say otherwise.

    Raises
    ------
    BadDeclaration
    """

    def declare(transform: Transform) -> Stream:
        its_name = name or transform.__name__
        if not _NAME.fullmatch(its_name):
            raise BadDeclaration(f"name={its_name!r}: Dagster takes letters, digits and underscores. Set name=")
        topic = KafkaTopic(source) if isinstance(source, str) else source
        sink = sink_id or its_name.replace("_", "-")
        _check_options(its_name, sink, options or {})
        config, takes_config = _config_of(transform, its_name)
        described = inspect.getdoc(transform) or f"Written by the stream {its_name}."
        specs = tuple(_output(o, topic, described, group_name, owners, tags) for o in outputs)
        if not specs:
            raise BadDeclaration(f"{its_name}: outputs is empty. Name the topics that the stream writes")
        return Stream(
            transform=transform,
            name=its_name,
            source=topic,
            outputs=specs,
            sink_id=sink,
            config=config,
            takes_config=takes_config,
            options=dict(options or {}),
            checks=checks,
            backfill=backfill,
            complete=complete,
            output_partitions=output_partitions,
            state_partitions=state_partitions,
            group_name=group_name,
            description=described,
        )

    return declare


def observed_stream(
    name: str,
    *,
    source: str,
    outputs: Sequence[dg.AssetSpec | str],
    sink_id: str | None = None,
    checks: Checks | None = Checks(),
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    description: str = "",
) -> Stream:
    """Declare a stream that runs elsewhere: spark-submit, a Spark operator, EMR, Databricks.

    It writes through ``format("kafka_exactly_once")``. Dagster shows its assets and its health, checks it and recovers
    its sink, and never launches it.

    Its sink is known by the commit log, its checkpoint by the claim of its driver; both must be readable from here. The
    arguments are those of :func:`exactly_once_stream`.

    Raises
    ------
    BadDeclaration
    """

    def elsewhere(events: DataFrame) -> DataFrame:
        raise BadDeclaration(f"{name} runs elsewhere: this code location cannot start it")

    described = description or f"Written by the stream {name}, which runs elsewhere."
    declared = exactly_once_stream(
        name=name,
        source=source,
        outputs=outputs,
        sink_id=sink_id,
        checks=checks,
        group_name=group_name,
        owners=owners,
        tags=tags,
    )(elsewhere)
    specs = tuple(spec.replace_attributes(description=described) for spec in declared.outputs)
    return replace(declared, outputs=specs, description=described, managed=False)


def _output(
    output: dg.AssetSpec | str,
    source: KafkaTopic,
    described: str,
    group_name: str | None,
    owners: Sequence[str] | None,
    tags: Mapping[str, str] | None,
) -> dg.AssetSpec:
    """Complete the spec of an output with what it does not say itself."""
    spec = output if isinstance(output, dg.AssetSpec) else dg.AssetSpec(output)
    topic = str(spec.metadata.get(TOPIC, spec.key.path[-1]))
    return spec.replace_attributes(
        deps=[*spec.deps, dg.AssetKey(source.name.split("/"))],
        group_name=spec.group_name or group_name or ...,
        owners=spec.owners or owners or ...,
        tags={**(tags or {}), **spec.tags},
        kinds=spec.kinds | {"kafka", "spark"},
        description=spec.description or described,
        metadata={TOPIC: topic, **spec.metadata},
        skippable=True,  # a run that is stopped or rotated has completed nothing
    )


def _check_options(name: str, sink_id: str, options: Mapping[str, str]) -> None:
    """Refuse options that the sink does not know when the code location loads, not when the stream starts."""
    check_sink_id(sink_id)
    ours = {"kafka.bootstrap.servers": "declared:9092", "sink.id": sink_id, "checkpointLocation": "declared"}
    if taken := sorted({k.lower() for k in options} & {k.lower() for k in (*ours, "write.id")}):
        raise BadDeclaration(f"{name}: options names {taken[0]}, which comes from the resources and from sink_id")
    SinkOptions.parse({**options, **ours})


def _config_of(transform: Transform, name: str) -> tuple[type[StreamConfig], bool]:
    """Return the class of ``transform``'s second parameter, and whether there is one."""
    parameters = list(inspect.signature(transform).parameters.values())
    if len(parameters) == 1:
        return StreamConfig, False
    if len(parameters) != 2:
        raise BadDeclaration(f"{name} takes {len(parameters)} parameters. Declare it as f(events) or f(events, config)")
    said = parameters[1].annotation
    if isinstance(said, str):
        try:
            said = eval(said, getattr(transform, "__globals__", {}))
        except NameError:
            said = None
    if said is inspect.Parameter.empty:
        return StreamConfig, True
    if not (isinstance(said, type) and issubclass(said, StreamConfig)):
        raise BadDeclaration(
            f"{name}: the annotation of {parameters[1].name} is no subclass of StreamConfig at module level. "
            "Define the class there"
        )
    return said, True

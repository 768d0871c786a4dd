"""The declaration of a stream: one function from DataFrame to DataFrame, and what Dagster should know about it.

@exactly_once_stream(source="orders", outputs=["orders_clean"])
def clean_orders(events):
    ...

defs = exactly_once_definitions(clean_orders)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_exactly_once.declare.columns import ColumnLineage, ColumnSchema, column_lineage_of
from dagster_exactly_once.declare.complete import Complete
from dagster_exactly_once.declare.config import StreamConfig
from dagster_exactly_once.declare.errors import BadDeclaration, check_day
from dagster_exactly_once.declare.function import Transform, config_of
from dagster_exactly_once.declare.inputs import KafkaTopic, Source, check_parameters, sources_of
from dagster_exactly_once.declare.origin import InputPlace, Origin, Record
from dagster_exactly_once.declare.outputs import LINEAGE, Outputs, Table, check_keys, lineage_of, outputs_of, topic_of
from dagster_exactly_once.declare.rejected import Rejected, rejected_of
from dagster_exactly_once.declare.translator import StreamTopic, StreamTranslator, translated
from dagster_exactly_once.names import FRESHNESS_LIMIT_S
from dagster_exactly_once.private import is_valid_cron_schedule
from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.error_headers import origin_in
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant
from exactly_once.protocol.names import check_sink_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Returns the outputs other than Kafka.
Participants = Callable[[], Sequence[Participant[Any]]]

#: What Dagster accepts as the name of a job or an op.
_NAME = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Checks:
    """The limits by which the asset checks of a stream judge.

    Attributes
    ----------
    freshness_s : float
        Seconds that input may wait without a commit.
    origin : callable, optional
        ``origin(topic, record)`` returns the partition and offset of the input record that an output record came from,
        with several sources ``(source topic, partition, offset)``; None when it does not say. With it, the check
        ``no_duplicates_and_no_loss`` compares input and outputs record by record; only for a stream that makes exactly
        one output record of each input record. It is not asked about rejected records, whose headers say it.
    verify_cron : str, optional
        When the schedule ``<name>_verify_schedule`` evaluates the check ``verified``, such as ``"0 * * * *"``. Without
        it, the schedule is off until a person switches it on, and then runs at 03:00 UTC.
    """

    freshness_s: float = FRESHNESS_LIMIT_S
    origin: Callable[[str, Record], Origin | None] | None = None
    verify_cron: str | None = None


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

    def __post_init__(self) -> None:
        check_day(self.start, "Backfill")
        if self.end:
            check_day(self.end, "Backfill")


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """A declared stream; :func:`exactly_once_stream` makes it and documents the arguments."""

    transform: Transform
    name: str
    sources: Mapping[str, KafkaTopic]
    declared: tuple[dg.AssetSpec, ...]
    tables: tuple[Table, ...]
    sink_id: str
    checks: Checks | None
    group_name: str | None
    description: str
    translator: StreamTranslator
    config: type[StreamConfig] = StreamConfig
    config_parameter: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rejected: Rejected | None = None
    backfill: Backfill | None = None
    complete: Complete | None = None
    output_partitions: int | None = None
    state_partitions: int | None = None
    participants: Participants | None = None
    bootstrap_servers: str = ""
    managed: bool = True
    continues: str = ""
    lineage: Mapping[str, ColumnLineage] = field(default_factory=dict)

    def others(self) -> tuple[Participant[Any], ...]:
        """Make the participants other than Kafka: in the process of a run or a recovery, never when the code loads."""
        said = self.participants() if self.participants is not None else ()
        return (*said, *(table.participant() for table in self.tables))

    @cached_property
    def outputs(self) -> tuple[dg.AssetSpec, ...]:
        """The assets of the outputs."""
        return tuple(
            translated(
                self.translator,
                StreamTopic(self.name, topic_of(spec), False, self.bootstrap_servers, spec),
                self.source_keys,
            ).merge_attributes(metadata=self._lineage(topic_of(spec)))
            for spec in self.declared
        )

    def _lineage(self, topic: str) -> dict[str, dg.TableColumnLineage]:
        """Return the metadata that says from what the columns of an output are made, by the keys of the inputs."""
        if topic not in self.lineage:
            return {}
        inputs = dict(zip(self.sources, self.source_keys, strict=True))
        return {LINEAGE: column_lineage_of(self.lineage[topic], inputs, f"{self.name}: column_lineage")}

    @cached_property
    def assets(self) -> tuple[dg.AssetSpec, ...]:
        """The assets of all outputs: of the topics, then of the tables."""
        tables = (table.spec for table in self.tables)
        return (*self.outputs, *(spec.replace_attributes(deps=[*spec.deps, *self.source_keys]) for spec in tables))

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The output topics."""
        return tuple(topic_of(spec) for spec in self.declared)

    @property
    def rejected_topic(self) -> str | None:
        """The topic of the rejected records, which is the last output; None without one."""
        return self.topics[-1] if self.rejected is not None else None

    @cached_property
    def source_topics(self) -> tuple[str, ...]:
        """The input topics."""
        return tuple(topic.name for topic in self.sources.values())

    @cached_property
    def inputs(self) -> tuple[dg.AssetSpec, ...]:
        """The assets of the input topics, also of those that somebody else declares."""
        return tuple(
            translated(
                self.translator,
                StreamTopic(self.name, topic, True, self.bootstrap_servers, self._input(topic)),
                (),
            )
            for topic in self.source_topics
        )

    def _input(self, topic: str) -> dg.AssetSpec:
        return dg.AssetSpec(
            dg.AssetKey([topic]),
            group_name=self.group_name,
            kinds={"kafka"},
            description=f"A topic that the stream {self.name} reads. Each stream that reads it reports its lag here.",
        )

    @cached_property
    def source_keys(self) -> tuple[dg.AssetKey, ...]:
        """The keys of the assets of the input topics."""
        return tuple(spec.key for spec in self.inputs)

    @cached_property
    def spec(self) -> StreamSpec:
        """The stream, as its sensors know it."""
        return StreamSpec(
            name=self.name,
            job=f"{self.name}_stream",
            op=f"stream_{self.name}",
            sink_id=self.sink_id,
            sources=self.source_topics,
            outputs=self.topics,
            asset_keys=tuple(spec.key.to_user_string() for spec in self.assets),
            source_keys=tuple(key.to_user_string() for key in self.source_keys),
            asset=f"{self.name}_transactions",
            managed=self.managed,
        )

    @cached_property
    def backfill_spec(self) -> StreamSpec:
        """The backfill, as the sensors know it: a sink of its own, so neither can fence the other."""
        name, op, sink_id = f"{self.name}_backfill", f"backfill_{self.name}", f"{self.sink_id}-backfill"
        return replace(
            self.spec, name=name, job=name, op=op, sink_id=sink_id, asset_keys=(self.by_day,), source_keys=()
        )

    @cached_property
    def resend_spec(self) -> StreamSpec:
        """The job that sends rejected records again, as the sensors know it: a sink of its own, too."""
        name, op, sink_id = f"{self.name}_resend", f"resend_{self.name}", f"{self.sink_id}-resend"
        return replace(
            self.spec,
            name=name,
            job=name,
            op=op,
            sink_id=sink_id,
            sources=self.topics[-1:],
            outputs=(),  # what others have open on the input is not this job's affair
            asset_keys=(),
            source_keys=(),
        )

    @property
    def side_specs(self) -> tuple[StreamSpec, ...]:
        """The writers beside the stream, with sinks of their own: the backfill, and the job for rejected records."""
        resend = (self.resend_spec,) if self.resends else ()
        return (self.backfill_spec, *resend) if self.backfill is not None else resend

    @property
    def resends(self) -> bool:
        """True when it has a job that sends rejected records again."""
        return self.managed and self.rejected is not None

    @property
    def one_to_one(self) -> bool:
        """True when it declares to make exactly one output record of each input record."""
        return self.checks is not None and self.checks.origin is not None

    @property
    def completed(self) -> str:
        """The key of the asset of complete windows."""
        return f"{self.name}_complete"

    @property
    def by_day(self) -> str:
        """The key of the backfill's asset."""
        return f"{self.name}_by_day"

    def records(self, inputs: Mapping[str, DataFrame], config: StreamConfig) -> DataFrame:
        """Transform the rows of Spark's Kafka sources, by name, into rows of the sink."""
        more = {self.config_parameter: config} if self.config_parameter else {}
        if len(inputs) == 1:
            [events] = inputs.values()
            return self.transform(events, **more)
        return self.transform(**inputs, **more)

    def place_of(self, output: str, record: Record) -> InputPlace | None:
        """Return the input record that a record of ``output`` came from; None when the record does not say.

        Raises
        ------
        BadDeclaration
            The origin of a stream with several sources names no topic.
        """
        origin = self.checks.origin if self.checks else None
        if origin is not None and output == self.rejected_topic:
            found: Origin | None = origin_in(record.headers)
        else:
            found = origin(output, record) if origin else None
        if found is None:
            return None
        *topic, partition, offset = found
        if not topic and len(self.sources) > 1:
            raise BadDeclaration(
                f"{self.name}: Checks(origin=...) returned {found}, which names none of the sources. "
                "Return (source topic, partition, offset)"
            )
        return (str(topic[0]) if topic else self.source_topics[0], int(partition)), int(offset)


def exactly_once_stream(
    *,
    source: Source,
    outputs: Outputs,
    name: str | None = None,
    sink_id: str | None = None,
    column_schema: ColumnSchema | Mapping[str, ColumnSchema] | None = None,
    column_lineage: ColumnLineage | Mapping[str, ColumnLineage] | None = None,
    options: Mapping[str, str] | None = None,
    participants: Participants | None = None,
    rejected: Rejected | dg.AssetSpec | str | None = None,
    checks: Checks | None = Checks(),
    backfill: Backfill | None = None,
    complete: Complete | None = None,
    output_partitions: int | None = None,
    state_partitions: int | None = None,
    continues: str = "",
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    translator: StreamTranslator | None = None,
) -> Callable[[Transform], Stream]:
    """Declare a stream over one function, ``transform(events)`` or ``transform(events, config)``.

    ``events`` has the columns of Spark's Kafka source. With several sources, the function has a parameter for each of
    them instead: ``transform(orders, refunds)`` or ``transform(orders, refunds, config)``. The result has ``value``
    and, as needed, ``topic`` (with several outputs), ``key``, ``headers``, ``partition`` and ``timestamp``. ``config``,
    annotated with a subclass of :class:`StreamConfig` at module level, is what a person gave in the launchpad. The
    docstring describes the outputs.

    Parameters
    ----------
    source : KafkaTopic, str, or a sequence or mapping of them
        The input topic; a name alone begins at ``earliest``. Several: a sequence, and each parameter of the function is
        called what its topic is; or a mapping from parameter to topic.
    outputs : AssetSpec, str, Table, or a sequence of them
        The topic to write, or several, each an asset; a string is its key, like ``orders_clean`` or
        ``shop/orders_clean``. The topic is the last part of the key, unless the metadata ``exactly_once/topic`` names
        another one. A ``Table("lake/orders", lambda: DeltaParticipant(...))`` is an asset too, beside the topics.
    name : str, optional
        Names the job ``<name>_stream``, the op ``stream_<name>`` and the asset ``<name>_transactions``; the function's
        own name by default.
    sink_id : str, optional
        The identity of the sink on the Kafka cluster: it owns the commit log and the transactional ids. Never change it
        for a stream that has run. The name with dashes by default.
    column_schema : str, StructType, TableSchema, or a mapping from topic to one of them, optional
        The columns of what ``value`` holds, shown on the output's asset; nothing checks the records against it. A
        string is DDL, like ``customer STRING NOT NULL, cents INT``.
    column_lineage : mapping or TableColumnLineage, optional
        The columns of the input that each column of the output is made from, like ``{"cents": ["price", "amount"]}``;
        of several inputs ``{"cents": {"orders": "price", "refunds": "price"}}``, by parameter. With several outputs, a
        mapping from topic to this.
    options : mapping, optional
        More options of ``format("kafka_exactly_once")``, such as ``kafka.compression.type``.
    participants : callable, optional
        Returns the outputs other than Kafka, such as ``lambda: [FileParticipant("archive", "/data/orders")]``: every
        batch is written to all of them and to Kafka under one decision, by :func:`exactly_once.foreach_batch`. Each
        gets all rows with all columns. Runs and recoveries call it; names of participants stay the same.
    rejected : Rejected, AssetSpec or str, optional
        The topic of the records that the function rejects, an asset beside the outputs, with a check and the job
        ``<name>_resend``. The function returns the rows of :func:`exactly_once.attempt`, with the column ``tried``.
    checks : Checks, optional
        None: no asset checks.
    backfill : Backfill, optional
        Adds the asset ``<name>_by_day``, the job ``<name>_backfill`` and a schedule; for a stream with one source.
    complete : Complete, optional
        Adds the asset ``<name>_complete``: a window of event time is materialized when the watermark of the query has
        passed it and its last batch is committed. Build on it what needs complete data.
    output_partitions : int, optional
        Create output topics that do not exist, with this many partitions; None: they must exist.
    state_partitions : int, optional
        For a query with state: keep it in RocksDB, in this many partitions. Its first start fixes the number.
    continues : str, optional
        The sink id of an older version, whose place this stream takes: without a checkpoint it begins behind the last
        decided batch of that sink. Adds the job ``exactly_once_successor``, which retires that sink first.
    group_name, owners, tags
        For all of the stream's assets that do not say otherwise.
    translator : StreamTranslator, optional
        Says which asset each topic is: key, group, owners, tags, metadata.

    Returns
    -------
    callable
        The decorator: it takes the function and returns the :class:`Stream`.

    Raises
    ------
    BadDeclaration
        When the code loads, for an argument that cannot work; the message names it and says what to write.
    """

    def declare(transform: Transform) -> Stream:
        its_name = name or transform.__name__
        sources = sources_of(source, its_name)
        check_parameters(its_name, sources)
        if backfill is not None and len(sources) > 1:
            raise BadDeclaration(
                f"{its_name}: a backfill fills days of one input, and source names {len(sources)}: a day of one topic "
                "may belong to any day of another. Leave backfill out, or declare a stream for each topic"
            )
        described = inspect.getdoc(transform) or f"Written by the stream {its_name}."
        its_rejected = rejected_of(rejected)
        topics, tables = outputs_of(outputs, its_name, described, group_name, owners, tags, column_schema, its_rejected)
        if backfill is not None and (participants is not None or tables):
            raise BadDeclaration(
                f"{its_name}: a backfill writes to Kafka alone, and {'outputs' if tables else 'participants'} names "
                "other outputs. Leave one of the two out"
            )
        config, config_parameter = config_of(transform, its_name, sources)
        return _checked(
            Stream(
                transform=transform,
                name=its_name,
                sources=sources,
                declared=topics,
                tables=tables,
                sink_id=sink_id or its_name.replace("_", "-"),
                config=config,
                config_parameter=config_parameter,
                options=dict(options or {}),
                participants=participants,
                rejected=its_rejected,
                checks=checks,
                backfill=backfill,
                complete=complete,
                output_partitions=output_partitions,
                state_partitions=state_partitions,
                continues=continues,
                lineage=lineage_of(column_lineage, topics[: -1 if its_rejected else None], its_name),
                group_name=group_name,
                description=described,
                translator=translator or StreamTranslator(),
            )
        )

    return declare


def observed_stream(
    name: str,
    *,
    source: Source,
    outputs: Outputs,
    sink_id: str | None = None,
    column_schema: ColumnSchema | Mapping[str, ColumnSchema] | None = None,
    column_lineage: ColumnLineage | Mapping[str, ColumnLineage] | None = None,
    participants: Participants | None = None,
    rejected: Rejected | dg.AssetSpec | str | None = None,
    checks: Checks | None = Checks(),
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    translator: StreamTranslator | None = None,
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
        As :func:`exactly_once_stream`.
    """

    def elsewhere(**inputs: DataFrame) -> DataFrame:
        raise BadDeclaration(f"{name} runs elsewhere: this code location cannot start it")

    described = description or f"Written by the stream {name}, which runs elsewhere."
    its_rejected = rejected_of(rejected)
    topics, tables = outputs_of(outputs, name, described, group_name, owners, tags, column_schema, its_rejected)
    return _checked(
        Stream(
            transform=elsewhere,
            name=name,
            sources=sources_of(source, name),
            declared=topics,
            tables=tables,
            sink_id=sink_id or name.replace("_", "-"),
            participants=participants,
            rejected=its_rejected,
            checks=checks,
            group_name=group_name,
            description=described,
            translator=translator or StreamTranslator(),
            managed=False,
            lineage=lineage_of(column_lineage, topics[: -1 if its_rejected else None], name),
        )
    )


def _checked(stream: Stream) -> Stream:
    """Refuse when the code location loads what could not work when the stream starts."""
    name = stream.name
    if not _NAME.fullmatch(name):
        raise BadDeclaration(f"name={name!r}: Dagster takes letters, digits and underscores. Set name=")
    check_sink_id(stream.sink_id)
    # the sink's own options, which the resources and the run bring
    ours = {"kafka.bootstrap.servers": "declared:9092", "sink.id": stream.sink_id, "checkpointLocation": "declared"}
    if taken := sorted({k.lower() for k in stream.options} & {k.lower() for k in (*ours, "write.id")}):
        raise BadDeclaration(f"{name}: options names {taken[0]}, which comes from the resources and from sink_id")
    SinkOptions.parse({**stream.options, **ours})
    if stream.continues and check_sink_id(stream.continues) == stream.sink_id:
        raise BadDeclaration(f"{name}: continues names the stream's own sink {stream.sink_id}. Give it a new sink_id")
    if stream.continues and stream.backfill is not None:
        raise BadDeclaration(
            f"{name}: a backfill would write the input from before the stream's first start, which the sink "
            f"{stream.continues} has written. Leave one of backfill and continues out"
        )
    cron = stream.checks.verify_cron if stream.checks else None
    if cron is not None and not is_valid_cron_schedule(cron):
        raise BadDeclaration(f"{name}: Checks(verify_cron={cron!r}) is not a cron schedule. Write it like '0 * * * *'")
    if both := sorted(set(stream.source_topics) & set(stream.topics)):
        raise BadDeclaration(f"{name}: the topic {both[0]} is in source and in outputs. Write to another topic")
    dead = {option.lower(): topic for option, topic in stream.options.items()}.get("sink.dead.letter.topic")
    if dead is not None and dead == stream.rejected_topic:  # at run time, the first rejected row would stop the stream
        raise BadDeclaration(f"{name}: rejected and sink.dead.letter.topic both name {dead}. Name two topics")
    check_keys([*stream.source_keys, *(spec.key for spec in stream.assets)], name)
    return stream

"""The declaration of a stream, and the names, assets and specs that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from dagster_exactly_once.declare.columns import ColumnLineage, column_lineage_of
from dagster_exactly_once.declare.complete import Complete
from dagster_exactly_once.declare.config import StreamConfig
from dagster_exactly_once.declare.errors import BadDeclaration, check_day
from dagster_exactly_once.declare.inputs import KafkaTopic, Transform
from dagster_exactly_once.declare.outputs import LINEAGE, Table, topic_of
from dagster_exactly_once.declare.rejected import DeadLetters, Rejected, SideTopic
from dagster_exactly_once.declare.sink_options import with_topic
from dagster_exactly_once.declare.translator import StreamTopic, StreamTranslator, translated
from dagster_exactly_once.names import CHECKS_EVERY_S, FRESHNESS_LIMIT_S
from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.error_headers import OUTPUT_TOPIC, PREFIX, origin_in
from exactly_once.errors import InvalidOption
from exactly_once.participant import Participant
from exactly_once.protocol.dead_letters import own_headers
from exactly_once.tools.verify.by_origin.origin import Origin as OriginIn
from exactly_once.tools.verify.by_origin.origin import Places, Unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Record(NamedTuple):
    """A record as a consumer delivers it, for a function of ``Checks(origin=...)``.

    Attributes
    ----------
    partition, offset : int
        The record's place in its topic.
    key, value : bytes or None
        As they are in Kafka: nothing is decoded.
    headers : tuple of (str, bytes)
        In the order in which the producer wrote them; a name may occur more than once.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


#: A partition of the input: its topic and its number.
Partition = tuple[str, int]
#: An input record: its partition and offset.
InputPlace = tuple[Partition, int]
#: Partition and offset of an input record; with several sources, its topic before them.
Origin = tuple[int, int] | tuple[str, int, int]
#: The function ``origin(topic, record)`` of an output record; it returns None when the record does not say.
OriginOf = Callable[[str, Record], Origin | None]


def origin_in_records(where: str, topics: Sequence[str]) -> OriginOf:
    """Return what reads the origin from the place in the records that ``where`` names, such as ``header:src``. Raises
    InvalidOption where it names no such place.
    """
    text, places = OriginIn.parse(where).text, Places(topics)

    def read(topic: str, record: Record) -> Origin | None:
        said = text(record)
        with suppress(Unreadable):
            place = places.read(said) if said is not None else None
            return (*place.partition, place.offset) if place is not None else None
        return None

    return read


#: A function that makes the outputs other than Kafka.
Participants = Callable[[], Sequence[Participant[Any]]]


@dataclass(frozen=True)
class Checks:
    """The limits by which the asset checks of a stream judge.

    Attributes
    ----------
    freshness_s : float
        Seconds that input may wait without a commit.
    origin : str or callable, optional
        Where an output record says which input record it came from, as ``exactly-once verify --origin`` takes it: with
        a header, such as ``"header:src"``, dead letters name their input record too. Or ``origin(topic, record)``,
        which returns partition and offset, with several sources ``(source topic, partition, offset)``; None when the
        record does not say. With it, the check ``no_duplicates_and_no_loss`` compares input and outputs record by
        record; only for a stream that makes exactly one output record of each input record. It is not asked about
        rejected records, whose headers say it; about a dead letter it is asked as about the record that it would have
        been.
    verify_cron : str, optional
        When the schedule ``<name>_verify_schedule`` evaluates the check ``verified``, such as ``"0 * * * *"``. Without
        it, the schedule is off until a person switches it on, and then runs at 03:00 UTC.
    every_s : float
        Seconds between two evaluations of the other checks while the stream is well, in steps of ten minutes: 600 or
        more. While something is wrong, they are evaluated every ten minutes.
    """

    freshness_s: float = FRESHNESS_LIMIT_S
    origin: OriginOf | str | None = None
    verify_cron: str | None = None
    every_s: float = CHECKS_EVERY_S

    def __post_init__(self) -> None:
        if self.every_s < 600:
            raise BadDeclaration(f"Checks(every_s={self.every_s:g}): the checks have a turn every 600 s. Write no less")
        if isinstance(self.origin, str):
            try:
                OriginIn.parse(self.origin)
            except InvalidOption as error:
                raise BadDeclaration(
                    f"Checks(origin=...): {error.what}. {error.way_out}, or give a function"
                ) from error

    @property
    def in_records(self) -> str:
        """The place in the records where they say it; "" where a function does, or nothing."""
        return self.origin if isinstance(self.origin, str) else ""


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
    """A declared stream, for :func:`exactly_once_definitions`; declaring it reaches neither Kafka nor Spark.

    :func:`exactly_once_stream` and :func:`observed_stream` make it and refuse what cannot work. Fields that are not
    listed here are their arguments, as given.

    Attributes
    ----------
    name, sink_id : str
        Also where the declaration names none.
    sources : mapping
        The input topics, by the parameter of the function that takes each.
    declared : tuple of AssetSpec
        The assets of the output topics before translation, those of rejected records and dead letters last.
    tables : tuple of Table
        The outputs that are no topics.
    config, config_parameter
        The class of a run's configuration, and the parameter of the function that takes it; None without one.
    bootstrap_servers : str
        The brokers, ``host:port`` separated by commas; "" until the definitions know them.
    managed : bool
        Whether Dagster runs it; else it runs elsewhere and is only watched.
    lineage : mapping
        The ``column_lineage`` of each output, by topic.
    """

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
    dead_letters: DeadLetters | None = None
    backfill: Backfill | None = None
    complete: Complete | None = None
    output_partitions: int | None = None
    state_partitions: int | None = None
    participants: Participants | None = None
    bootstrap_servers: str = ""
    managed: bool = True
    trace_headers: bool = False
    continues: str = ""
    beside: str = ""
    lineage: Mapping[str, ColumnLineage] = field(default_factory=dict)

    def others(self) -> tuple[Participant[Any], ...]:
        """Make the participants other than Kafka: in the process of a run or a recovery, never when the code loads."""
        said = self.participants() if self.participants is not None else ()
        return (*said, *(table.participant() for table in self.tables))

    @cached_property
    def outputs(self) -> tuple[dg.AssetSpec, ...]:
        """The assets of the outputs."""
        return tuple(
            self._translated(spec).merge_attributes(metadata=self._lineage(self.lineage.get(topic_of(spec))))
            for spec in self.declared
        )

    def _translated(self, spec: dg.AssetSpec, is_source: bool = False) -> dg.AssetSpec:
        topic = StreamTopic(self.name, topic_of(spec), is_source, self.bootstrap_servers, spec)
        return translated(self.translator, topic, () if is_source else self.source_keys)

    def _lineage(self, said: ColumnLineage | None) -> dict[str, dg.TableColumnLineage]:
        """Return the metadata that says from what the columns of an output are made, by the keys of the inputs."""
        if said is None:
            return {}
        inputs = dict(zip(self.sources, self.source_keys, strict=True))
        return {LINEAGE: column_lineage_of(said, inputs, f"{self.name}: column_lineage")}

    @cached_property
    def assets(self) -> tuple[dg.AssetSpec, ...]:
        """The assets of all outputs: of the topics, then of the tables."""
        tables = (
            table.spec.replace_attributes(deps=[*table.spec.deps, *self.source_keys]).merge_attributes(
                metadata=self._lineage(table.column_lineage)
            )
            for table in self.tables
        )
        return (*self.outputs, *tables)

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The output topics."""
        return tuple(topic_of(spec) for spec in self.declared)

    @cached_property
    def side_topics(self) -> dict[str, SideTopic]:
        """The declarations of rejected records and of dead letters, by topic: these are the last output topics."""
        said = [its for its in (self.rejected, self.dead_letters) if its is not None]
        return dict(zip(self.topics[len(self.topics) - len(said) :], said, strict=True))

    @property
    def rejected_topic(self) -> str | None:
        """The topic of the rejected records; None without one."""
        return next((topic for topic, its in self.side_topics.items() if its is self.rejected), None)

    @property
    def dead_topic(self) -> str | None:
        """The declared topic of the dead letters, which is the last output; None without one."""
        return self.topics[-1] if self.dead_letters is not None else None

    @property
    def row_topics(self) -> tuple[str, ...]:
        """The topics that rows are for: all but that of the dead letters; that of the rejected records is the last."""
        return self.topics[:-1] if self.dead_letters is not None else self.topics

    def sink_options(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the options of the sink for rows that the function makes, with ``more`` of one run."""
        outputs = [topic for topic in self.topics if topic not in self.side_topics]
        return with_topic({**self.options, **(more or {})}, outputs)

    def key_of(self, topic: str) -> dg.AssetKey:
        """Return the key of the asset of an output topic."""
        return self.outputs[self.topics.index(topic)].key

    @cached_property
    def source_topics(self) -> tuple[str, ...]:
        """The input topics."""
        return tuple(topic.name for topic in self.sources.values())

    @cached_property
    def inputs(self) -> tuple[dg.AssetSpec, ...]:
        """The assets of the input topics, also of those that somebody else declares."""
        text = f"A topic that the stream {self.name} reads. Each stream that reads it reports its lag here."
        specs = (
            dg.AssetSpec(dg.AssetKey([topic]), group_name=self.group_name, kinds={"kafka"}, description=text)
            for topic in self.source_topics
        )
        return tuple(self._translated(spec, is_source=True) for spec in specs)

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
        return self._side_spec("backfill", asset_keys=(self.by_day,))

    def queue(self, location: str, spec: StreamSpec | None = None) -> str:
        """Return the tag of the runs of which one at a time leaves Dagster's queue: those of the stream, or of one of
        its :attr:`side_specs`, on its cluster and in its code location, as far as both are known.
        """
        its = spec or self.spec
        return "/".join(filter(None, (location, self.bootstrap_servers, its.sink_id, its.job)))

    def pool(self, location: str) -> str:
        """Return the pool of the runs that write the days: of the stream in its code location, if that is known."""
        return "@".join(filter(None, (f"backfill_{self.by_day}", "_".join(location.split()))))

    @cached_property
    def resend_spec(self) -> StreamSpec:
        """The job that sends these records again, as the sensors know it: a sink of its own, too."""
        # no outputs: what others have open on the input is not this job's affair
        return self._side_spec("resend", sources=tuple(self.resent), outputs=(), asset_keys=())

    def _side_spec(self, what: str, **changes: Any) -> StreamSpec:
        name, op, sink_id = f"{self.name}_{what}", f"{what}_{self.name}", f"{self.sink_id}-{what}"
        return replace(self.spec, name=name, job=name, op=op, sink_id=sink_id, source_keys=(), **changes)

    @property
    def side_specs(self) -> tuple[StreamSpec, ...]:
        """The writers beside the stream, with sinks of their own: the backfill, and the job that sends again."""
        resend = (self.resend_spec,) if self.resent else ()
        return (self.backfill_spec, *resend) if self.backfill is not None else resend

    @cached_property
    def resent(self) -> dict[str, SideTopic]:
        """The declarations whose records the job ``<name>_resend`` sends again, by topic: no such job when empty."""
        return self.side_topics if self.managed else {}

    @property
    def with_headers(self) -> bool:
        """True when its function gets the headers of the input: for the rejected records, or for their traces."""
        return self.trace_headers or self.rejected is not None

    @property
    def one_to_one(self) -> bool:
        """True when it declares to make exactly one output record of each input record."""
        return self.checks is not None and self.checks.origin is not None

    @property
    def completed(self) -> str:
        """The key of the asset of complete windows."""
        return f"{self.name}_complete"

    @property
    def closes(self) -> str:
        """The name of the job that closes windows which no run comes back to."""
        return f"{self.name}_close_windows"

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

    @cached_property
    def _origin_of(self) -> OriginOf | None:
        said = self.checks.origin if self.checks else None
        return origin_in_records(said, self.source_topics) if isinstance(said, str) else said

    def place_of(self, output: str, record: Record) -> InputPlace | None:
        """Return the input record that a record of ``output`` came from; None when the record does not say.

        Raises
        ------
        BadDeclaration
            The origin of a stream with several sources names no topic.
        """
        origin = self._origin_of
        if output == self.dead_topic:
            output, record = _row(output, record)
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


def _row(topic: str, letter: Record) -> tuple[str, Record]:
    """Return the record that a dead letter would have been, and its topic: that of the letter if the row had none."""
    own, said = own_headers(letter.headers)
    meant = said.get(OUTPUT_TOPIC.removeprefix(PREFIX))
    return meant.decode() if meant else topic, letter._replace(headers=letter.headers[: len(own)])

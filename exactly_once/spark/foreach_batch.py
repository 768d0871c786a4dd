"""``foreachBatch`` over the engine: for Update mode, and for several outputs of one batch under one decision.

For each micro-batch, Spark calls a Python function in the driver's own process, which plans, decides and completes the
batch. The tasks run as one action over the batch: a second action would read the input again.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from exactly_once.checkpoint import check_whole
from exactly_once.coordinator.driver_state import MemoryStore
from exactly_once.coordinator.micro_batch import Committer, plan
from exactly_once.coordinator.session import Session
from exactly_once.coordinator.weaker import DeliveryCommitter, plan_delivery
from exactly_once.errors import ExactlyOnceError, InvalidOption, ProtocolViolation
from exactly_once.kafka.rows import Columns
from exactly_once.kafka.schema_registry import Framing, resolve
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participant import Participant
from exactly_once.protocol.part import Part, empty_part
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import KAFKA
from exactly_once.protocol.ticket import Ticket
from exactly_once.spark.columns import columns_of
from exactly_once.spark.modes import check_session
from exactly_once.spark.tasks import check_batch, kafka_output, write_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_PART = "part binary"


class ForeachBatch:
    """A function for ``foreachBatch``: one batch, one decision, in every participant.

    Parameters
    ----------
    options : mapping
        As for ``format("kafka_exactly_once")``; ``checkpointLocation`` equals the query's.
    participants
        Outputs other than Kafka. Every one gets all rows with all columns. Kafka gets them too if the option ``topic``
        or a column ``topic`` names a topic; otherwise the batch goes to the participants alone.

    Raises
    ------
    ExactlyOnceError
        For options that cannot work.
    """

    def __init__(self, options: Mapping[str, str], *participants: Participant[Any]):
        self._options = SinkOptions.parse(options)
        names = [p.name for p in participants]
        if KAFKA in names or len(set(names)) < len(names):
            raise InvalidOption(
                f"the participants' names {', '.join(names)} are not unique, or one of them is {KAFKA!r}",
                "Give each participant a name of its own that stays the same across restarts",
            )
        check_whole(self._options.checkpoint, self._options.sink_id)
        self._others = participants
        self._store = MemoryStore()
        self._strict = self._options.guarantee is Guarantee.EXACTLY_ONCE
        if participants and not self._strict:
            raise InvalidOption(
                f"sink.guarantee={self._options.guarantee.value} supports Kafka only, but the sink has other "
                f"participants: {', '.join(names)}",
                "Remove sink.guarantee: several outputs of one batch need exactly_once, with its one decision",
            )
        self._committer: Committer | DeliveryCommitter = (
            Committer(Session.of(self._options, participants), self._store)
            if self._strict
            else DeliveryCommitter(self._store)
        )
        self._framing: Framing | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch.

        Raises
        ------
        ExactlyOnceError
        """
        columns = self._check(df)
        ticket = self._plan()
        if ticket.batch.batch_id != batch_id:
            raise ProtocolViolation(
                f"Spark runs batch {batch_id}, but the checkpoint {self._options.checkpoint} names batch "
                f"{ticket.batch.batch_id}",
                "Give the query the same checkpointLocation as the sink's options",
            )
        parts: list[Part] = []
        try:
            write = _Write(self._options.sink_id, ticket, self._outputs(columns, ticket), self._strict)
            parts = [pickle.loads(row[0]) for row in df.mapInArrow(write, _PART).collect()] or [empty_part(ticket)]
            self._committer.commit(parts, batch_id)
        except BaseException:
            self._abort(batch_id, parts)
            raise

    def _plan(self) -> Ticket:
        if self._strict:
            return plan(self._options, self._store, self._others)
        return plan_delivery(self._options, self._store)

    def _check(self, df: DataFrame) -> Columns | None:
        """Refuse rows that do not fit a participant; return Kafka's columns, None without Kafka."""
        if self._store.state is None:
            check_session(df.sparkSession)
            schema = to_arrow_schema(df.schema)
            for p in self._others:
                p.check(self._options.sink_id, schema)
        if self._options.topic is None and "topic" not in df.columns:
            return None
        options = self._options
        return columns_of(df.schema, options.topic, options.registry, options.topics)

    def _outputs(self, columns: Columns | None, ticket: Ticket) -> list[Participant[Any]]:
        """Return every participant. Asks the schema registry once, and not if nothing will be written."""
        if columns is None:
            return list(self._others)
        registry = self._options.registry
        if registry is not None and ticket.plan is not Plan.DRAIN:
            self._framing = self._framing or resolve(registry)
            columns = columns.framed(self._framing)
        return [kafka_output(replace(self._options, registry=None), columns, ticket), *self._others]

    def _abort(self, batch_id: int, parts: list[Part]) -> None:
        try:
            self._committer.abort(batch_id, parts)
        except ExactlyOnceError as e:  # the next start sweeps; the first error is the one to report
            log.warning(
                "sink %s: could not abort batch %d; the next start does: %s", self._options.sink_id, batch_id, e
            )


class _Write:
    """The function that the tasks run."""

    def __init__(self, sink_id: str, ticket: Ticket, outputs: list[Participant[Any]], strict: bool):
        self._sink_id = sink_id
        self._strict = strict
        self._ticket = ticket
        self._outputs = outputs

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_batch(self._ticket, self._strict)
        part = write_part(self._sink_id, self._ticket, self._outputs, rows)
        yield pa.RecordBatch.from_pydict({"part": [pickle.dumps(part)]})

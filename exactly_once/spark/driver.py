"""The driver's side of ``format("kafka_exactly_once")``: what its planning and its committing process do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exactly_once.coordinator.driver_state import FileStore
from exactly_once.coordinator.micro_batch import Committer, plan
from exactly_once.coordinator.session import Session
from exactly_once.coordinator.weaker import DeliveryCommitter, plan_delivery
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.ticket import Ticket

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from exactly_once.coordinator.batch_write import Write
    from exactly_once.kafka.rows import Columns


def plan_stream(options: SinkOptions, schema: StructType) -> tuple[Columns, Ticket]:
    """Check the columns, and plan the micro-batch in flight; raises what either of them refuses."""
    columns = _columns(options, schema)
    store = FileStore(options.sink_id, options.checkpoint)
    strict = options.guarantee is Guarantee.EXACTLY_ONCE
    ticket = plan(options, store) if strict else plan_delivery(options, store)
    # after the claim: a registry that is down must not delay the commit of decided batches
    return _framed(columns, options, ticket), ticket


def plan_batch_write(options: SinkOptions, schema: StructType) -> tuple[Columns, Write]:
    """Check the columns, and plan a batch write; raises what either of them refuses."""
    from exactly_once.coordinator.batch_write import plan_write

    columns = _columns(options, schema)
    write = plan_write(options)
    return _framed(columns, options, write.ticket), write


#: The streams of a driver share its processes. With more streams than this, each batch meets another process anyway.
KEPT = 4

_committers: dict[str, Committer | DeliveryCommitter] = {}


def committer(options: SinkOptions) -> Committer | DeliveryCommitter:
    """Return the committer of this process, kept across batches: opening its connections costs more than a commit.

    A process keeps the :data:`KEPT` that it used last.
    """
    key = options.cache_key
    found = _committers.pop(key, None) or _new(options)
    _committers[key] = found  # the newest comes last
    for unused in list(_committers)[:-KEPT]:
        _committers.pop(unused).close()
    return found


def _new(options: SinkOptions) -> Committer | DeliveryCommitter:
    store = FileStore(options.sink_id, options.checkpoint)
    strict = options.guarantee is Guarantee.EXACTLY_ONCE
    return Committer(Session.of(options), store) if strict else DeliveryCommitter(store)


def _columns(options: SinkOptions, schema: StructType) -> Columns:
    from exactly_once.spark.columns import columns_of  # here: a process that commits has no rows

    return columns_of(schema, options.topic, options.registry, options.topics)


def _framed(columns: Columns, options: SinkOptions, ticket: Ticket) -> Columns:
    """Return ``columns`` with the schema ids of the registry; does not ask the registry if nothing will be written."""
    if options.registry is None or ticket.plan is Plan.DRAIN:
        return columns
    from exactly_once.kafka.schema_registry import resolve, resolve_once

    if not options.checkpoint:  # a batch write: each try is a start
        return columns.framed(resolve(options.registry))
    return columns.framed(resolve_once(options.registry, options.sink_id, options.checkpoint))

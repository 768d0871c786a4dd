"""Warns when the input of the batch in flight is gone: Spark stops on it, and its error does not say what is lost."""

from __future__ import annotations

import logging
from contextlib import suppress

from exactly_once.checkpoint import begins_of, repair_command
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.options import SinkOptions
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.protocol.input_topics import shown
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.lost_input import advice, gone, standing_of
from exactly_once.protocol.planning import Batch

log = logging.getLogger(__name__)


def warn_of_lost_input(options: SinkOptions, batch: Batch, admin: Admin, state: LogState) -> None:
    """Say what the commit log, in this state, knows of ``batch`` if records of its Kafka input are gone, as far as this
    principal may ask. Never raises: what becomes of the batch, Spark decides.
    """
    ends = kafka_offsets(batch.sources) if options.input_offsets else {}
    if not ends:
        return
    with suppress(ExactlyOnceError):
        sizes = admin.sizes(sorted(ends))
        earliest = admin.earliest((t, p) for t, its in ends.items() for p in its if p < sizes.get(t, 0))
        if not (lost := gone(begins_of(options.checkpoint, batch.batch_id), ends, earliest)):
            return
        mine = [d.batch_id for d in state.decisions if d.query_id == batch.query_id]
        unproven = [d.batch_id for d in state.open_decisions if d.query_id == batch.query_id]
        standing = standing_of(batch.batch_id, mine, unproven)
        what, way_out = advice(batch.batch_id, standing, repair_command(options.checkpoint, options.sink_id))
        log.warning(
            'sink %s: EO-WARN-INPUT the input of batch %d is gone, or some of it%s. Spark may stop with "Some data may '
            'have been lost". The commit log says: %s. %s',
            options.sink_id,
            batch.batch_id,
            f"; what is left begins at {at}" if (at := shown(lost)) else "",
            what,
            way_out,
        )

"""The old sink of a successor as it can be read, and where the new query begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from exactly_once.checkpoint import first_offsets, listed, read_checkpoint, read_text
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointAway, CheckpointUnusable, ExactlyOnceError, NotAuthorized
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import published_offsets
from exactly_once.protocol import takeover
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import check_sink_id, offsets_group
from exactly_once.protocol.records import Decision
from exactly_once.tools.operation.model import BUDGET_S
from exactly_once.tools.operation.successor.verdicts import (
    OldCheckpoint,
    check_history,
    check_input,
    check_names,
    check_state,
    ends_of,
    last_decided,
    not_retired,
)


@dataclass(frozen=True)
class OldSink:
    """The old sink; ``location`` is its checkpoint, "": the one that its last claim names."""

    connection: Connection
    sink_id: str
    location: str = ""

    def judged(self, log: LogState, has_run: bool, loses_state: str) -> tuple[Decision, dict[str, dict[int, int]]]:
        """Return the last decided batch and the ends of its input, after every check but that for open transactions;
        raise Refused.
        """
        last = last_decided(self.sink_id, log)
        checkpoint = self._checkpoint(log, last)
        ends = ends_of(self.sink_id, last, checkpoint)
        check_history(self.sink_id, last, self._published(last.query_id), checkpoint)
        check_input(self.sink_id, last, self._ids(last))
        if not has_run:
            check_state(last, checkpoint, loses_state)
        return last, ends

    def ends(self, log: LogState) -> tuple[Decision, dict[str, dict[int, int]]]:
        """Return the last decided batch and the ends of its input, without further checks."""
        last = last_decided(self.sink_id, log)
        return last, ends_of(self.sink_id, last, self._checkpoint(log, last))

    def _checkpoint(self, log: LogState, last: Decision) -> OldCheckpoint:
        location = self.location or (log.owner.checkpoint if log.owner else "")
        if not location:
            return OldCheckpoint("", fault="no claim names it")
        try:
            found = read_checkpoint(location)
            if found.query_id is None:
                return OldCheckpoint(location, fault="; ".join(f"{f}: {why}" for f, why in found.torn.items()))
            text = ""
            if not last.offsets:
                with suppress(CheckpointUnusable):
                    text = read_text(location, f"offsets/{last.batch_id}")
            operators = sum(1 for entry in listed(location, "state") if entry.base_name.isdigit())
            began = first_offsets(location)
            return OldCheckpoint(location, found.query_id, found.last_commit, text, began, operators)
        except (CheckpointUnusable, CheckpointAway) as e:
            return OldCheckpoint(location, fault=e.what)

    def _published(self, query_id: str) -> int | None:
        with suppress(ExactlyOnceError), Admin(self.connection, BUDGET_S) as admin:
            return published_offsets(admin, offsets_group(self.sink_id), settled=True).batches.get(query_id)
        return None

    def _ids(self, last: Decision) -> dict[str, str]:
        with suppress(ExactlyOnceError), Admin(self.connection, BUDGET_S) as admin:
            return admin.topic_ids(sorted(last.input_ids))
        return {}


def starting_offsets(options: Mapping[str, str], predecessor: str, *topics: str, beside: bool = False) -> str:
    """Return Spark's ``startingOffsets`` for the query that continues the sink ``predecessor``; see
    :func:`exactly_once.starting_offsets`.
    """
    connection, sink_id = Connection.from_options(options), check_sink_id(options.get("sink.id", ""))
    old = OldSink(connection, check_sink_id(predecessor))
    location = options.get("checkpointLocation", "")
    if location and (begun := first_offsets(location)):
        if not beside:
            _check_taken_over(connection, predecessor, sink_id)
        return takeover.option(begun, {}, topics)  # which Spark will not read any more
    log = read_log(connection, predecessor, BUDGET_S, whole=True)
    check_names(predecessor, sink_id, log)
    if log.retired is not None:
        ends = takeover.ends_of(log.retired)
    elif beside:
        _, ends = old.ends(log)
    else:
        raise not_retired(predecessor, sink_id)
    return takeover.option(ends, sizes(connection, {*ends, *topics}), topics)


def _check_taken_over(connection: Connection, predecessor: str, sink_id: str) -> None:
    """Refuse a ``predecessor`` that is not retired for this sink, whose query has read along with it so far: both would
    write the same records. Passes where nothing can be told: that sink's log is gone, or may not be read any more.
    """
    with suppress(NotAuthorized):
        log = read_log(connection, predecessor, BUDGET_S, whole=True)
        if log.owner is not None:
            check_names(predecessor, sink_id, log)
            if log.retired is None:
                raise not_retired(predecessor, sink_id)


def sizes(connection: Connection, topics: Iterable[str]) -> dict[str, int]:
    """Return the partitions of the topics that this cluster has; the input may be on another one."""
    with suppress(ExactlyOnceError), Admin(connection, BUDGET_S) as admin:
        return admin.sizes(sorted(topics))
    return {}

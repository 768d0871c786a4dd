"""Verdicts on a successor: may the old sink be retired, and where does the new one begin? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exactly_once.errors import InvalidOption
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.words import are, never_claimed, plural
from exactly_once.protocol.checkpoint_text import digest_of, kafka_offsets, names_sources, source_lines
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.planning import forgotten_by
from exactly_once.protocol.records import WRITE, Decision
from exactly_once.protocol.topics import recreated
from exactly_once.tools.operation.rules import Refused

#: The offset of a source that had no input yet, in an ``offsets/N`` that counts the sources.
_NOTHING_YET = "-"


@dataclass(frozen=True)
class OldCheckpoint:
    """The checkpoint of the old stream, as far as it can be read.

    Attributes
    ----------
    query_id : str or None
        None when there is no checkpoint, or when it cannot be read: ``fault`` says why.
    last_commit : int or None
        The last batch that Spark counts as done.
    offsets : str
        The text of the ``offsets/N`` of the last decided batch; "" without it.
    began : mapping
        Where the sources began.
    operators : int
        How many operators keep state.
    """

    location: str
    query_id: str | None = None
    last_commit: int | None = None
    offsets: str = ""
    began: Ends = field(default_factory=dict)
    operators: int = 0
    fault: str = ""


def check_names(sink_id: str, successor: str, log: LogState) -> None:
    """Raise InvalidOption or Refused where ``successor`` cannot be the successor of this sink, whatever its state."""
    if successor == sink_id:
        raise InvalidOption(
            f"a sink cannot be its own successor: both names are {sink_id!r}",
            "Name the old sink first, then the sink.id of the new query",
        )
    if log.owner is None:
        raise never_claimed(sink_id)
    if log.owner.query_id == WRITE:
        raise Refused(
            f"sink {sink_id!r} belongs to batch writes, which have no successor",
            "Give the next write another sink.id",
        )
    if log.retired is not None and log.retired.successor != successor:
        raise Refused(
            f"sink {sink_id!r} is retired already: sink {log.retired.successor!r} continues after its batch "
            f"{log.retired.batch_id}",
            f"Name {log.retired.successor} as the successor, or retire {log.retired.successor} for {successor}",
        )


def last_decided(sink_id: str, log: LogState) -> Decision:
    """Return the last decided batch of the query that owns the sink; raise Refused without one."""
    query_id = (log.owner.query_id if log.owner else None) or ""
    last = log.last_decision(query_id)
    if last is None:
        raise Refused(
            f"sink {sink_id!r} has decided no batch of its query {query_id or '(none)'}, so there is nothing to "
            "continue after",
            "Start the new query where the old one was to begin",
        )
    return last


def not_retired(predecessor: str, sink_id: str) -> Refused:
    """Make the refusal of a query that is to take the place of a sink that may write on."""
    return Refused(
        f"sink {predecessor!r} is not retired, so it may write again what this query is about to read",
        f"Stop its stream, and run exactly-once successor {predecessor} {sink_id}, or launch the job "
        f"exactly_once_successor. To read along beside it, into another topic: beside=True in starting_offsets, or "
        f"beside={predecessor!r} in the declaration of a stream",
    )


def check_at_rest(inspection: Inspection) -> None:
    """Refuse a sink with a batch that is open, or that a driver may still write to."""
    sink_id, owner = inspection.sink_id, inspection.owner
    then = "then repeat this command"
    if owner is not None and owner.works is not False:
        knows = "is alive" if owner.works else "may be alive: this host cannot tell"
        raise Refused(
            f"the {owner.claim.process} owns sink {sink_id!r} and {knows}",
            "Stop the stream. If it has ended and its application lives on, or its host is gone for good, take the "
            f"sink from that driver with exactly-once recover {sink_id}, which says what to type; {then}",
        )
    if inspection.decided:
        names = ", ".join(d.name for d in inspection.decided)
        raise Refused(
            f"{names} of sink {sink_id!r} is decided and not proven committed",
            f"Run exactly-once recover {sink_id}. If it finds lost parts, start the old stream once more, which writes "
            f"them again; {then}",
        )
    if still_open := inspection.open:
        raise Refused(
            f"{plural(len(still_open), 'transaction')} of sink {sink_id!r} {are(len(still_open))} open, such as "
            f"{still_open[0].transactional_id}",
            f"Run exactly-once recover {sink_id}, which ends them; {then}",
        )


def check_history(sink_id: str, last: Decision, published: int | None, checkpoint: OldCheckpoint) -> None:
    """Refuse a log whose last decision is not the last batch in the output.

    ``published`` is the last batch of the query that the sink's consumer group names.
    """
    if forgotten_by(published, last):
        raise Refused(
            f"the consumer group {offsets_group(sink_id)} says that batch {published} was decided, but the commit log "
            f"of sink {sink_id!r} ends with batch {last.batch_id}: its newest records are lost",
            f"Find out whether the output holds batch {published}, and start the new query by hand, at the offsets of "
            "the group if it does",
        )
    if checkpoint.query_id == last.query_id and (checkpoint.last_commit or 0) > last.batch_id:
        raise Refused(
            f"the checkpoint {checkpoint.location} counts batch {checkpoint.last_commit} as done, but the last decided "
            f"batch of sink {sink_id!r} is {last.batch_id}: the later batches ran under a weaker guarantee or "
            "with another sink",
            "Start the new query by hand, at the offsets that exactly-once checkpoint inspect "
            f"{checkpoint.location} prints",
        )


def check_input(sink_id: str, last: Decision, ids: Mapping[str, str]) -> None:
    """Refuse a sink of which an input topic was recreated since its last decision; ``ids`` says the topics' ids now."""
    if others := ", ".join(recreated(last.input_ids, ids)):
        raise Refused(
            f"input of sink {sink_id!r} was deleted and recreated after its batch {last.batch_id} ({others}): the "
            "successor would begin at the offsets of the deleted topic",
            "Start the new query by hand, at the earliest offset of that topic; or decide by a start of the old stream "
            "(EO-INPUT-RECREATED) that it goes on at the old ones, then repeat this command after its next batch",
        )


def check_state(last: Decision, checkpoint: OldCheckpoint, loses_state: str) -> None:
    """Refuse a query with state, or of which nobody can tell, unless ``loses_state`` names that query."""
    if loses_state == last.query_id:
        return
    typed = f"set loses_state (at a terminal: --loses-state) to {last.query_id} to give up its state"
    if checkpoint.query_id != last.query_id:
        fault = checkpoint.fault or (
            f"it is of query {checkpoint.query_id}" if checkpoint.query_id else "there is none at this location"
        )
        raise Refused(
            f"the checkpoint {checkpoint.location or '(no claim names it)'} of query {last.query_id} cannot be read "
            f"({fault}), so nobody can tell whether the query keeps state",
            f"Name the checkpoint (--checkpoint LOCATION). If it is gone, {typed}",
        )
    if checkpoint.operators:
        operators = plural(checkpoint.operators, "operator")
        raise Refused(
            f"query {last.query_id} keeps state in {checkpoint.location}/state ({operators}): a new query begins "
            "without its windows, its keys and its joins in progress",
            f"Keep the checkpoint and change the query as Spark allows it. Otherwise {typed}",
        )


def ends_of(sink_id: str, last: Decision, checkpoint: OldCheckpoint) -> dict[str, dict[int, int]]:
    """Return where the input of ``last`` ends; raise Refused where that is not known, or is no offset of Kafka."""
    text = last.offsets
    if not text and checkpoint.query_id == last.query_id and digest_of(checkpoint.offsets) == last.offsets_digest:
        text = checkpoint.offsets
    if not text:
        raise Refused(
            f"the decision of batch {last.batch_id} of sink {sink_id!r} does not hold its input offsets, which are too "
            f"long for it, and offsets/{last.batch_id} of {checkpoint.location} is not there as it was decided",
            "Name the checkpoint (--checkpoint LOCATION)",
        )
    ends_by_topic: dict[str, dict[int, int]] = {}
    for number, line in enumerate(source_lines(text)):
        name, _, _ = line.partition(":") if names_sources(text) else (str(number), "", "")
        ends = kafka_offsets([line])
        if line == _NOTHING_YET and checkpoint.query_id == last.query_id:
            ends = {topic: dict(began) for topic, began in checkpoint.began.items() if f'"{topic}"' not in text}
        if not ends:
            raise Refused(
                f"source {name} of query {last.query_id} is not Kafka, or has no input yet: nothing tells a new query "
                f"where to begin ({line[:80]})",
                "Start the new query by hand, after what the old one has read",
            )
        for topic, partitions in ends.items():
            if any(ends_by_topic.get(topic, {}).get(p, offset) != offset for p, offset in partitions.items()):
                raise Refused(
                    f"two sources of query {last.query_id} have read the topic {topic} up to different offsets",
                    "Let the old stream read all of its input, then stop it; then repeat this command",
                )
            ends_by_topic.setdefault(topic, {}).update(partitions)
    return ends_by_topic


def check_takes_over(ends: Ends, successor: Inspection) -> None:
    """Refuse a successor that has begun already, unless it is at rest and its last decided batch ends at ``ends``: then
    it continues with its own checkpoint.
    """
    log = successor.log
    if log.retired is not None:
        raise Refused(
            f"sink {successor.sink_id!r} is retired itself: {log.retired.successor!r} continues it",
            "Choose a sink.id that is new",
        )
    if log.owner is None:
        return
    if not log.decisions:
        raise Refused(
            f"sink {successor.sink_id!r} was claimed by a query that has decided nothing, and whose checkpoint may "
            "begin elsewhere",
            "Choose a sink.id, and a checkpoint, that are new",
        )
    check_at_rest(successor)
    last = last_decided(successor.sink_id, log)
    its = ends_of(successor.sink_id, last, OldCheckpoint(""))
    places = sorted({(topic, p) for read in (ends, its) for topic, partitions in read.items() for p in partitions})
    read_to = [(f"{t}-{p}", ends.get(t, {}).get(p, "-"), its.get(t, {}).get(p, "-")) for t, p in places]
    apart = [f"{place}: {one} and {other}" for place, one, other in read_to if one != other]
    if apart:
        raise Refused(
            f"sink {successor.sink_id!r} has already run, and has not read the same input as the old sink "
            f"({', '.join(apart[:3])}{', ...' if len(apart) > 3 else ''})",
            "Choose a sink.id that is new. Or let both streams read to the end of their input, with nobody writing to "
            "it, and stop both; then repeat this command",
        )

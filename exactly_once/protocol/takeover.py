"""A sink that is retired, or that another query owns: who may take it, and from where the new query must read. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from exactly_once.errors import CheckpointRewound, SinkOwned, SinkRetired
from exactly_once.protocol.checkpoint_text import kafka_offsets, source_lines
from exactly_once.protocol.input_topics import shown
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.planning import Batch, history_consent, of_checkpoint, owned_sink
from exactly_once.protocol.records import WRITE, Claim, Decision, Retired
from exactly_once.protocol.topics import recreated

#: The first offset that a partition still has, in Spark's ``startingOffsets``.
BEGINNING = -2


def check_not_retired(sink_id: str, state: LogState) -> None:
    """Raise SinkRetired, which names the successor, for a sink that has one."""
    if (retired := state.retired) is not None:
        raise SinkRetired(
            f"sink {sink_id!r} is retired: sink {retired.successor!r} continues after its batch {retired.batch_id}",
            f"Start the stream with sink.id={retired.successor} in place of this one. If the retirement was a mistake, "
            f"and {retired.successor} has written nothing, exactly-once log {sink_id} shows its record and how to undo "
            "it",
        )


def ends_of(retired: Retired) -> dict[str, dict[int, int]]:
    """Return where the input of the last decided batch ended."""
    return {topic: {int(p): offset for p, offset in ends.items()} for topic, ends in retired.offsets.items()}


def option(ends: Ends, sizes: Mapping[str, int], topics: Iterable[str] = ()) -> str:
    """Return Spark's ``startingOffsets`` for a query that continues at ``ends``.

    Spark wants every partition of every topic there, and no other one. A partition that was added after the last one
    of ``ends`` begins at its beginning, as in a query that goes on.

    Parameters
    ----------
    sizes : mapping
        Topic -> its number of partitions now; without a topic whose cluster cannot be asked.
    topics : iterable of str, optional
        The topics that the new query reads. One that the old query did not read begins at its beginning. Default: those
        of the old query.
    """
    found: dict[str, dict[str, int]] = {}
    for topic in sorted(set(topics) or ends):
        known = ends.get(topic, {})
        added = range(max(known, default=-1) + 1, sizes.get(topic, 0))
        found[topic] = {str(p): offset for p, offset in [*sorted(known.items()), *((p, BEGINNING) for p in added)]}
    return json.dumps(found, separators=(",", ":"))


def check_binding(
    sink_id: str,
    owner: Claim | None,
    query_id: str,
    checkpoint: str,
    takeover: str | None,
    decisions: Sequence[Decision] = (),
) -> None:
    """Refuse a sink that belongs to another query, unless the user names that query in ``takeover``.

    ``owner`` is the sink's last claim, ``decisions`` are those of its log, in order; ``query_id`` is empty where there
    is no ``checkpoint`` yet.

    Raises
    ------
    SinkOwned
        When the sink is bound to a query other than ``query_id``.
    """
    bound_query = owner.query_id if owner is not None else None
    if owner is None or bound_query in (None, query_id) or takeover == bound_query:
        return
    sink = owned_sink(sink_id, owner.operator)
    if bound_query == WRITE:
        raise SinkOwned(f"{sink} belongs to batch writes", "Use a separate sink.id for the stream")
    has = f"the checkpoint {checkpoint} is of query {query_id}" if query_id else f"there is no checkpoint {checkpoint}"
    begin = (
        ""
        if not decisions
        else f", with a new checkpoint that begins where the sink's decisions end{_of(sink_id, decisions)}"
    )
    raise SinkOwned(
        f"{sink} belongs to query {bound_query}{of_checkpoint(owner.checkpoint)}, but {has}: "
        "either two queries use one sink id, or the checkpoint of the first query was moved or deleted",
        f"Give each query its own sink.id; or start the query with its old checkpoint, wherever that is now (a folder "
        "that was moved whole is as good); or, if it is gone forever, set the option "
        f"sink.takeover={bound_query} for one start{begin}. Whatever the new query reads from before that is written "
        f"again. If nobody knows that query, run exactly-once log {sink_id} to see who wrote the claim, and how to "
        "undo it",
    )


def _of(sink_id: str, decisions: Sequence[Decision]) -> str:
    """Return the source's option that begins there, in words that follow "end"; "" for an input that is not Kafka."""
    ends, known = read_up_to(decisions), bool(decisions[-1].offsets)
    if known and not ends:
        return ""
    at = shown(ends) if known else ""
    return f" (startingOffsets: {at or f'the offsets of the consumer group {offsets_group(sink_id)}'})"


def read_up_to(decisions: Sequence[Decision]) -> dict[str, Mapping[int, int]]:
    """Return where the input of a sink's decisions, in the order of the log, ends: topic -> partition -> offset."""
    return {topic: ends for topic, ends in _read_by(decisions, {}).items() if ends}


def _read_by(decisions: Sequence[Decision], ids: Mapping[str, str]) -> dict[str, Mapping[int, int]]:
    """Return the same, with the topics of which nothing counts: they have been recreated. ``ids`` are those of now."""
    found: dict[str, Mapping[int, int]] = {}
    for d in decisions:
        for topic, ends in {**(d.ended or {}), **kafka_offsets(source_lines(d.offsets))}.items():
            found[topic] = {} if topic in recreated(d.input_ids, ids) else ends
    return found


def below(one: Ends, other: Ends) -> dict[str, dict[int, int]]:
    """Return the offsets of ``one`` that are lower than those of ``other``, by topic and partition."""
    found = {
        topic: {p: at for p, at in its.items() if at < other.get(topic, {}).get(p, 0)} for topic, its in one.items()
    }
    return {topic: its for topic, its in found.items() if its}


def _furthest(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {**one, **{p: at for p, at in other.items() if at > one.get(p, -1)}}


def check_takeover(
    sink_id: str,
    bound: str,
    batch: Batch,
    begins: Ends,
    decisions: Sequence[Decision],
    ids: Mapping[str, str],
    adopts: Callable[[], bool],
    committed: Callable[[], Ends] = dict,
) -> None:
    """Make sure that a query which takes a sink goes on where the sink's decisions end: it reads nothing of that again,
    and leaves out nothing behind it.

    Parameters
    ----------
    bound : str
        The query that loses the sink.
    batch : Batch
        The first batch of the other one for the sink, which reads Kafka from ``begins`` on.
    decisions
        Those of the sink, in the order of the log.
    ids
        Topic -> its id now.
    adopts
        Whether the user consents to ``batch`` itself; asked only when that is needed.
    committed
        The offsets of the sink's consumer group, if it names a batch of ``bound`` that the log does not know: the log
        has lost decisions. A group allows nothing, since others may write there; it only refuses more.

    Raises
    ------
    CheckpointRewound
        Names where the query begins, where the decisions end, and the way out.
    """
    if not begins:
        return
    logged = _read_by(decisions, ids)
    of_group = {topic: its for topic, its in committed().items() if logged.get(topic) != {}}
    ends = {topic: _furthest(logged.get(topic, {}), of_group.get(topic, {})) for topic in (*logged, *of_group)}
    again, gap = below(begins, ends), below(logged, begins)
    is_unknown = bool(decisions) and not decisions[-1].offsets
    if not (again or gap or is_unknown) or adopts():
        return
    group, adopt = offsets_group(sink_id), f"set the option sink.adopt={history_consent(batch)} for one start as well"
    anew = (
        f"Start with one more new checkpoint, whose startingOffsets are the offsets of the consumer group {group}, and "
        "the same sink.takeover"
    )
    before = f"begins{_at(begins, again)} before what the sink has decided{_up_to({t: ends[t] for t in again})}"
    behind = f"begins{_at(begins, gap)} behind what the sink has decided{_up_to(gap)}"
    if again:
        where = f"{before}: the records in between would be written again"
        way_out = f"{anew}. To write these records again on purpose, {adopt}"
    elif gap and all(of_group.get(topic, {}).get(p) == begins[topic][p] for topic, its in gap.items() for p in its):
        lost = f"There ends a batch that the consumer group {group} names, and the commit log does not know"
        where = f"{behind}. {lost}: it has lost decisions"
        way_out = f"If nothing but the sink has written to that group, {adopt}"
    elif gap:
        where = f"{behind}: the records in between would never be read"
        way_out = f"{anew}. To leave these records out on purpose, {adopt}"
    else:
        where = "may begin before what the sink has decided: the last decision lacks its offsets, which are too long"
        way_out = f"If it begins at the offsets of the consumer group {group}, {adopt}. Otherwise: {anew}"
    taking = f"query {batch.query_id} would take sink {sink_id!r} from query {bound}"
    raise CheckpointRewound(f"{taking}, but its batch {batch.batch_id} {where}", way_out)


def _at(begins: Ends, of: Ends) -> str:
    """Return where the partitions of ``of`` begin, in words that follow "begins"."""
    text = shown({topic: {p: begins[topic][p] for p in its} for topic, its in of.items()})
    return f" at {text}" if text else ""


def _up_to(ends: Ends) -> str:
    text = shown(ends)
    return f", up to {text}" if text else ""

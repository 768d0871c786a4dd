"""Checks of a start before anything runs, on plain values: options, the names and types of columns, a checkpoint.

The first batch would refuse the same, but it may come late, or never; and by then Spark has wrapped the error. Nothing
here writes, fences or creates anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from exactly_once.checkpoint import batch_in_flight, check_state, check_whole, read_checkpoint
from exactly_once.commitlog.commit_log import read_log
from exactly_once.commitlog.log_reader import Holder, holder_of
from exactly_once.commitlog.log_topic import RIGHTS, left_out
from exactly_once.commitlog.progress import check_start as check_progress
from exactly_once.coordinator.claim import check_stream, check_write, lost_ends
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.tracing import check_traces
from exactly_once.deadline import Deadline
from exactly_once.errors import (
    CheckpointAway,
    CheckpointRewound,
    CheckpointUnusable,
    NotAuthorized,
    UnknownTopic,
    UnsupportedMode,
)
from exactly_once.kafka.admin import START_S, Admin
from exactly_once.kafka.listeners import check_listeners
from exactly_once.kafka.new_topic import warn_left_out
from exactly_once.kafka.sharing import CLIENTS
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participants.kafka.checks import check_cluster, input_topics
from exactly_once.participants.kafka.deletion import warn_before
from exactly_once.protocol.input_topics import check_inputs
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import commit_log_topic, namespace
from exactly_once.protocol.planning import Batch, history_consent
from exactly_once.protocol.row_schema import Column
from exactly_once.protocol.spelling import did_you_mean
from exactly_once.protocol.takeover import check_not_retired
from exactly_once.txn.coordinators import (
    FENCING_VERSION,
    begin_check_seen,
    begin_features,
    check_seen,
    refuse_lowered,
)

#: Budget of each question to a cluster that listens. A healthy one answers all of them within 0.1 s.
READ_BUDGET_S = 10.0

APPEND, UPDATE, COMPLETE = "append", "update", "complete"


def check(
    given: Mapping[str, str | None],
    columns: Iterable[Column] | None = None,
    batch: bool = False,
    pem: Mapping[str, str] | None = None,
) -> SinkOptions:
    """Refuse a stream, or a ``batch`` write, that cannot work.

    Parameters
    ----------
    given : mapping
        The options of ``format("kafka_exactly_once")``.
    columns : iterable of (str, str), optional
        Names and types of the rows' columns; None when they are not known yet, or not for Kafka.
    pem : mapping, optional
        What Spark's JVM said of Java's key stores.

    Raises
    ------
    ExactlyOnceError
        As the first batch would. A name in it helps where another sink holds the checkpoint's query.
    """
    options = SinkOptions.parse(given, batch, pem)
    check_traces(options)
    names = options.check_columns(columns) if columns is not None else frozenset[str]()
    if options.checkpoint:
        check_whole(options.checkpoint, options.sink_id)
    deadline = Deadline(READ_BUDGET_S)
    if not CLIENTS.has_heard(options.connection):
        check_listeners(options.connection)
    with CLIENTS.borrow(options.connection, round(deadline.left, 1)) as admin:
        decides = options.guarantee is Guarantee.EXACTLY_ONCE
        seen = begin_check_seen(admin, namespace(options.sink_id)) if decides else None
        features = begin_features(admin)  # anew: a cluster that was set back is refused before an id is touched
        admin.sizes([t for t in (options.topic, commit_log_topic(options.sink_id)) if t])  # both at once
        version, *_ = check_cluster(options, admin, features)
        if options.topic is not None and "timestamp" in names:
            warn_before(options.sink_id, options.topic, admin.topic_config(options.topic))
        admin.renew(READ_BUDGET_S)
        if options.progress_topic:
            check_progress(admin, options.progress_topic)
        is_new = seen is not None and not _check_rights(options, admin, seen)
        log = LogState() if is_new else read_log(options.connection, options.sink_id, READ_BUDGET_S, admin=admin)
        if version < FENCING_VERSION:
            refuse_lowered(admin, [d.end_txn_version for d in log.decisions])
        if batch:
            check_write(options, log)
        else:
            if decides and log.owner is not None:
                check_state(options.checkpoint, options.sink_id, log.owner.query_id)
            holder, lost = partial(holder_of, admin, but=options.sink_id), partial(lost_ends, options, admin.within)
            check_start(options, log, holder, admin.topic_ids, lost)
    return options


def check_mode(output_mode: str, batch: bool = False) -> None:
    """Raise UnsupportedMode for a mode of a stream, or of a ``batch`` write, that ``format("kafka_exactly_once")`` does
    not have.
    """
    if batch and output_mode.lower() != APPEND:
        raise UnsupportedMode(
            "mode Overwrite would have to replace earlier records, but a log cannot", "Use mode('append')"
        )
    if output_mode.lower() == UPDATE:
        raise UnsupportedMode(
            "format('kafka_exactly_once') does not support output mode Update: Spark offers that mode only to its "
            "own sinks",
            "Use outputMode('update') with writeStream.foreachBatch(exactly_once.foreach_batch(options))",
        )
    if output_mode.lower() == COMPLETE:
        raise complete_refused()
    if output_mode.lower() != APPEND:
        raise UnsupportedMode(
            f"output_mode={output_mode!r} is not an output mode of Spark",
            did_you_mean(output_mode.lower(), (APPEND, UPDATE, COMPLETE)) or f"Use {APPEND}",
        )


def complete_refused() -> UnsupportedMode:
    """Make the error for output mode Complete."""
    return UnsupportedMode(
        "output mode Complete rewrites the whole result with each batch, but a log cannot replace earlier records",
        "Use outputMode('append') (with a watermark, for aggregations); or outputMode('update') with "
        "writeStream.foreachBatch(exactly_once.foreach_batch(options)), which writes each result that has changed",
    )


def check_start(
    options: SinkOptions,
    state: LogState,
    holder: Callable[[str], Holder | None] | None = None,
    ids: Callable[[list[str]], Mapping[str, str]] | None = None,
    lost: Callable[[str, int], Ends] = lambda query_id, known: {},
) -> None:
    """Refuse before a query starts what its first batch would refuse of its checkpoint: without new input there is no
    batch, and a query that ends by itself would end well. Leaves a checkpoint that this process cannot read to the
    first batch.

    Parameters
    ----------
    state : LogState
        Read before this call, so that a driver which is still alive is at most ahead of it.
    holder : callable, optional
        Query id -> the sink that holds its batches. With it, a checkpoint that another sink wrote is refused before
        that sink's log would be missed: its batch in flight may be decided there.
    ids : callable, optional
        Topics -> their ids, as the brokers say. With it, a batch in flight is refused whose input topic was recreated.
    lost : callable, optional
        As :func:`~exactly_once.coordinator.claim.lost_ends`, for a query that takes the sink.

    Raises SinkOwned, SinkRetired, CheckpointRewound or InputRecreated.
    """
    check_not_retired(options.sink_id, state)
    try:
        checkpoint = read_checkpoint(options.checkpoint)
        if checkpoint.query_id is not None and checkpoint.in_flight is not None:
            batch = batch_in_flight(options.checkpoint, options.sink_id)
        else:
            done = checkpoint.last_commit
            batch = Batch(checkpoint.query_id or "", 0 if done is None else done + 1, "")
    except (CheckpointUnusable, CheckpointAway):
        return
    last = state.last_decision(batch.query_id)
    if last is None and state.owner is not None and state.owner.query_id == batch.query_id:
        return  # a driver that is still alive may have decided its first batch since the log was read
    if last is not None and not batch.offsets_digest and last.batch_id == batch.batch_id:
        return  # Spark is about to plan a batch that is decided: only its offsets tell whether it is the same
    consent = Consent.of(options, adopts_all=options.guarantee is not Guarantee.EXACTLY_ONCE)
    check_stream(options, batch, state, consent, holder=holder, ids=ids, lost=lost)
    if ids and last is not None and last.batch_id < batch.batch_id:  # a decided batch is committed by the claim before
        check_inputs(options.sink_id, last, ids(input_topics(options, batch)), consent.adopts_topic)
    bound = state.owner.query_id if state.owner else None
    if last is not None or not batch.query_id or holder is None or consent.adopts_history(batch, bound):
        return
    if (held := holder(batch.query_id)) is not None:
        raise CheckpointRewound(
            f"the checkpoint {options.checkpoint} is of query {batch.query_id}, and {held.title}",
            f"Set sink.id back to {held.sink_id}. To continue under the id {options.sink_id}, first make sure that "
            f"the output does not hold batch {batch.batch_id}; then set the option sink.adopt={history_consent(batch)} "
            "for one start",
        )


def _check_rights(options: SinkOptions, admin: Admin, seen: Awaitable[object]) -> bool:
    """Make sure of the rights on the commit log, or that the brokers would create it, and of those on the transactional
    ids, which ``seen`` asks for; return whether the log is there.
    """
    log, is_there = commit_log_topic(options.sink_id), True
    try:
        admin.topic_partitions([log], RIGHTS, START_S, absent=True)  # it was asked for a moment ago
    except UnknownTopic:
        warn_left_out(log, left_out(admin, log))
        is_there = False
    try:
        check_seen(admin, namespace(options.sink_id), seen)
    except NotAuthorized as e:
        way_out = f"Grant WRITE on the transactional ids with the prefix {namespace(options.sink_id)}"
        raise NotAuthorized(e.what, way_out) from e
    return is_there

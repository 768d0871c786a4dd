"""The asset checks of a stream: each reads brokers, checkpoint and commit log within bounds."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import dagster as dg

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.checks.evaluate import CheckContext, NeverBegun, check_begun, check_on, earlier_notes, result
from dagster_exactly_once.checks.rejected import side_topic_check
from dagster_exactly_once.checks.schedule import AGREES
from dagster_exactly_once.checks.verified import question_of, same_as_blue_check
from dagster_exactly_once.declare.config import FreshnessConfig, PolicyConfig, ReconcileConfig
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.recovery.windows import windows_of
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.operator import alive_of, stream_facts
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.observation import HEALTH, health_as_check
from dagster_exactly_once.sensors.sink_state import SinkState, facts_of, sink_states
from dagster_exactly_once.sensors.tick import BUDGET_S
from exactly_once.commitlog.commit_log import read_log
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, UnknownTopic
from exactly_once.inspection.findings import BlockedPartition
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.tools.diagnosis import SinkFacts, Thresholds, health
from exactly_once.tools.diagnosis.facts import Standing
from exactly_once.tools.verify.by_origin.comparison import compare_origins
from exactly_once.tools.verify.expected import Expected, expected_input
from exactly_once.txn.scan import batches

FRESHNESS = "freshness"
WINDOWS_CLOSED = "windows_closed"
_POLICY = f"{Thresholds().stale_after_s:g} s unless configured"


def checks_of(stream: Stream, blue: Stream | None = None) -> list[dg.AssetChecksDefinition]:
    """Make the checks of a stream that declares some, on the assets of its outputs; ``blue`` is the stream that it
    reads along with.
    """
    if stream.checks is None:
        return []
    made = [
        check_on(
            stream,
            "no_old_open_transaction",
            "No transaction of the stream, of its backfill or of records that it sends again is open that nobody works "
            f"on, or for longer than the policy ({_POLICY}) and the sink's own limit for a batch (70 % of the "
            "timeout). Covers all of them.",
            _no_old_open_transaction,
            PolicyConfig,
            ["transactions"],
        ),
        check_on(
            stream,
            "last_stable_offset_is_high_watermark",
            "read_committed readers reach the end of every partition of the outputs; a batch in flight may hold them "
            f"back for as long as the policy allows ({_POLICY}), and one that nobody works on not at all. Covers all "
            "partitions.",
            _last_stable_offset,
            PolicyConfig,
            ["kafka"],
        ),
        check_on(
            stream,
            AGREES,
            "The checkpoint and the commit log agree: the checkpoint knows every decided batch, and no batch stays "
            f"between the two for longer than the policy ({_POLICY}).",
            _checkpoint_equals_commit_log,
            PolicyConfig,
        ),
        check_on(
            stream,
            FRESHNESS,
            f"Input does not wait for longer than the limit ({stream.checks.freshness_s:g} s unless configured) "
            "without a commit. A stream without input is fresh. The wait counts from the first evaluation that saw the "
            "input waiting.",
            _freshness,
            FreshnessConfig,
        ),
        *(side_topic_check(stream, topic, declared) for topic, declared in stream.side_topics.items()),
        *([same_as_blue_check(stream, blue)] if blue is not None else []),
    ]
    if stream.complete is not None:
        every = stream.complete.every
        closed = check_on(
            stream,
            WINDOWS_CLOSED,
            f"Each {every} of {stream.completed} is closed, from the first one with events to the newest closed one. "
            f"Fails for {every}s that are certainly missing; warns where only the time stamps of the input's oldest "
            f"records say so. The job {stream.closes} closes them.",
            _windows_closed,
            asset=dg.AssetKey(stream.completed),
        )
        made.append(closed)
    if stream.checks.origin is None:
        return made
    compared = check_on(
        stream,
        "no_duplicates_and_no_loss",
        f"Each record of {', '.join(stream.source_topics)} appears exactly once across {', '.join(stream.topics)}, "
        "by source partition and offset. Compares the newest committed part of the input (100,000 offsets unless "
        "configured) with the outputs, and reports what it sampled.",
        _no_duplicates_and_no_loss,
        ReconcileConfig,
    )
    return [compared, *made]


def health_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Make the check ``health``: the sensor evaluates it every few seconds; a person may, from the asset's page."""
    return check_on(
        stream,
        HEALTH,
        f"The state of the stream {stream.name}; the sensor exactly_once_checkpoint_progress evaluates it, so it is "
        "up to date without a run. Passed while the stream is healthy, idle, catching up or starting; a warning while "
        "it lags, starts slowly, is operated by another driver, has no run in progress, or its last run failed and is "
        "started again; failed when it is stalled, frozen, in doubt or has lost its sink, when its checkpoint is torn "
        "or does not fit, or when its last run failed in a way that needs a person.",
        _health,
        resources=["kafka", "checkpoints", "watch_policy"],
    )


def _health(at: CheckContext) -> dg.AssetCheckResult:
    found, history = _read_stream(at, BUDGET_S)
    facts = facts_of(at.context.instance, at.stream.spec, found, history)
    state = health(facts, at.context.resources.watch_policy.limits)
    if state.code == "HEALTH-NEVER-USED":
        raise NeverBegun(state)
    return dg.AssetCheckResult(**health_as_check(at.stream.spec, state, found, history.stream))


def _no_duplicates_and_no_loss(at: CheckContext) -> dg.AssetCheckResult:
    stream, connection, location = at.stream, at.connection, at.location()
    if at.checkpoints.read(location).last_commit is None:
        log = read_log(connection, stream.sink_id, READ_BUDGET_S)
        check_begun(at.context.instance, stream.spec, log, at.code_location)
        return result(judgements.no_duplicates_and_no_loss(None))

    def expected() -> Expected:
        topics, last = stream.source_topics, at.config.offsets
        return expected_input(connection, stream.sink_id, location, topics, READ_BUDGET_S, last=last)

    question = question_of(stream, refuse_foreign=True, backfilled=True)
    found = compare_origins(connection, stream.topics, question, expected, budget_s=READ_BUDGET_S)
    return result(judgements.no_duplicates_and_no_loss(found))


def _no_old_open_transaction(at: CheckContext) -> dg.AssetCheckResult:
    transactions = at.context.resources.transactions
    connection, budget_s = transactions.connection(), transactions.budget_s
    specs = (at.stream.spec, *at.stream.side_specs)
    found = [_read_sink(at, spec, connection, budget_s) for spec in specs]
    return result(judgements.no_old_open_transaction(found, Thresholds(stale_after_s=at.config.policy_s)))


def _last_stable_offset(at: CheckContext) -> dg.AssetCheckResult:
    facts = _read_sink(at, at.stream.spec, at.connection, READ_BUDGET_S)
    standing, partitions = _held_back(at.connection, at.stream.topics, facts.sink.blocked)
    limits = Thresholds(stale_after_s=at.config.policy_s)
    return result(judgements.last_stable_is_high_watermark(replace(facts, standing=standing), partitions, limits))


def _checkpoint_equals_commit_log(at: CheckContext) -> dg.AssetCheckResult:
    policy_s = at.config.policy_s
    limits = Thresholds(stale_after_s=policy_s, stall_after_s=policy_s)
    found, history = _read_stream(at)
    began_ms, checked_ms = found.progress.batch_started_ms, found.inspection.checked_ms
    age_s = 0.0 if began_ms is None else (checked_ms - began_ms) / 1000
    facts = facts_of(at.context.instance, at.stream.spec, found, history, waited_s=age_s)
    if found.inspection.owner is None:
        raise NeverBegun(health(facts))
    newest = history.stream
    unwanted = newest is None or newest.status == "FAILURE" or (newest.in_progress and not newest.waits)
    unfinished = age_s > policy_s or (facts.at_work is False and unwanted)
    verdict = judgements.checkpoint_equals_commit_log(facts, found.progress, unfinished, limits)
    return result(verdict, {"checkpoint": found.checkpoint.location})


def _freshness(at: CheckContext) -> dg.AssetCheckResult:
    stream, (found, history) = at.stream, _read_stream(at)
    facts = facts_of(at.context.instance, stream.spec, found, history)
    if found.inspection.owner is None:
        raise NeverBegun(health(facts))
    if found.checkpoint.torn:
        return result(health(facts))
    assert stream.checks is not None
    last, committed = found.checkpoint.last_commit, found.committed
    marked = at.checkpoints.marked_ms(found.checkpoint.location, after=last - 1) if last is not None else {}
    verdict = judgements.freshness(
        facts,
        sum(sum(committed.get(topic, {}).values()) for topic in stream.source_topics) if committed else None,
        max(marked.values(), default=None),
        earlier_notes(at, stream.outputs[0].key, FRESHNESS),
        at.config.limit_s or stream.checks.freshness_s,
    )
    return result(verdict)


def _windows_closed(at: CheckContext) -> dg.AssetCheckResult:
    windows = windows_of(at.context.instance, at.stream, at.context.resources.kafka, at.checkpoints)
    return result(judgements.closed_up_to_now(windows, at.stream.closes))


def _read_stream(at: CheckContext, budget_s: float = READ_BUDGET_S) -> tuple[SinkState, StreamHistory]:
    """Read a stream, and then its runs; raises what :func:`sink_states` returns, or BrokerUnreachable."""
    spec, instance, kafka = at.stream.spec, at.context.instance, at.context.resources.kafka
    found = sink_states(kafka, at.checkpoints, [spec], Deadline(budget_s), alive_of(instance)).get(spec.sink_id)
    if found is None:
        raise BrokerUnreachable(
            f"the brokers did not answer for sink {spec.sink_id} within {round(budget_s, 1):g} s",
            "Run exactly-once doctor to see which broker does not answer; then evaluate the check again",
        )
    if isinstance(found, ExactlyOnceError):
        raise found
    return found, at.history(spec)


def _read_sink(at: CheckContext, stream: StreamSpec, connection: Connection, budget_s: float) -> SinkFacts:
    """Read the facts of a sink without a checkpoint: its transactions, and the runs that work on it."""
    instance = at.context.instance
    sink = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of(instance))
    return SinkFacts(sink, stream=stream_facts(instance, stream, at.history(stream), sink.owner))


def _held_back(
    connection: Connection, topics: Sequence[str], known: Iterable[BlockedPartition]
) -> tuple[tuple[Standing, ...], int]:
    """Return the partitions that hold readers back now (by whom, if ``known``), and the number of all."""
    whose = {(b.topic, b.partition): b for b in known}
    with Admin(connection, READ_BUDGET_S) as admin:
        before = _watermarks(admin, topics)
        held = {where: w for where, w in before.items() if w.last_stable < w.high}
        # a marker that was just being written must not look like a waiting reader
        after = _watermarks(admin, list(dict.fromkeys(topic for topic, _ in held)))
        standing = {p: w for p, w in after.items() if p in held and w.last_stable == held[p].last_stable}
        return tuple(
            Standing(
                replace(whose.get(p, BlockedPartition(*p, 0, 0, False)), last_stable=w.last_stable, high=w.high),
                _since_ms(admin, p, w),
            )
            for p, w in standing.items()
        ), len(before)


def _watermarks(admin: Admin, topics: Sequence[str]) -> dict[Partition, Watermarks]:
    found: dict[Partition, Watermarks] = {}
    for topic in topics:
        with suppress(UnknownTopic):  # the first start makes it
            found |= {(topic, p): w for p, w in admin.watermarks(topic).items()}
    return found


def _since_ms(admin: Admin, where: Partition, marks: Watermarks) -> int | None:
    """Return the time stamp of the first records that readers do not reach; None if nobody can read it."""
    with suppress(ExactlyOnceError):
        blocked = batches(admin, where, marks.last_stable, marks.last_stable, marks.high)
        return next((batch.timestamp_ms for batch in blocked), None)
    return None

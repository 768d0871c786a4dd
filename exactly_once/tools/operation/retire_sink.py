"""The end of a sink for good, so that the stream of a newer version takes its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.recover import claim_sink
from exactly_once.coordinator.resolve import resolve
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import Fenced, InvalidOption
from exactly_once.failpoints import reach
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.loss import lost_parts
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import check_sink_id
from exactly_once.protocol.records import Decision, Retired
from exactly_once.protocol.takeover import ends_of, option
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    dry_run_parameter,
    parameter,
    reason_parameter,
    sink_parameter,
)
from exactly_once.tools.operation.rules import Refused
from exactly_once.tools.operation.successor.old_sink import OldSink, sizes
from exactly_once.tools.operation.successor.verdicts import check_at_rest, check_names, check_takes_over

#: The safety of a refusal after the claim, which a driver that is alive has noticed.
_NOT_RETIRED = "The sink is not retired, and nothing is lost or doubled"


@dataclass(frozen=True, kw_only=True)
class SuccessorParameters:
    """The parameters of ``exactly_once_successor``: which stream takes the place of which sink."""

    predecessor: str = parameter(
        "",
        "The id of the old sink; empty: the one that the declaration continues.",
        "predecessor",
        metavar="SINK",
        flag_text="a sink id",
        form="predecessor",
        rarely=True,
    )
    sink_id: str = sink_parameter(
        "The new stream, which begins after the last decided batch of an old sink.",
        "successor",
        metavar="NEW",
        flag_text="the sink.id of the new query",
    )
    dry_run: bool = dry_run_parameter(
        "Only show whether the old sink can be retired, and where the new stream would begin.",
        "--dry-run",
        flag_text="only show whether, and where, the new query would continue",
    )
    loses_state: str = parameter(
        "",
        "The id of the old query, as the dry run prints it: its state is not continued.",
        "--loses-state",
        metavar="QUERY",
        form="loses_state",
        rarely=True,
    )
    checkpoint: str = parameter(
        "",
        "Checkpoint of the old stream; empty: the location for which its sink was last claimed.",
        "--checkpoint",
        flag_text="of the old query; default: what its last claim names",
        metavar="LOCATION",
        form="checkpoint",
        rarely=True,
    )
    reason: str = reason_parameter()
    write: str = parameter("", "Also write the startingOffsets to this file.", "--write", metavar="FILE")


def _examine(context: OperationContext, p: SuccessorParameters) -> OperationOutcome:
    if not p.predecessor:
        raise InvalidOption(
            f"the run does not say which old sink {p.sink_id} continues", "Set predecessor to the id of the old sink"
        )
    found = _compare(context, p)
    does = f"This run retires sink {p.predecessor} for good: no stream can start with it any more."
    if p.dry_run:
        does = "This is a dry run, which changes nothing."
        _write(p.write, found)
    more = goes_on(p.sink_id, found.document["has_run"], found.value, context.topics)
    return replace(found, sentence=" ".join([does, found.sentence, *more]))


def _compare(context: OperationContext, p: SuccessorParameters) -> OperationOutcome:
    """Say where the successor would begin now, and why the old sink may not be retired for it.

    Raises Refused when there is nothing to continue after, or the sink has another successor.
    """
    old_id, new_id = check_sink_id(p.predecessor), check_sink_id(p.sink_id)
    inspection = context.inspect(old_id)
    check_names(old_id, new_id, inspection.log)
    topics = tuple(sorted({topic for d in inspection.log.decisions for topic in d.topics}))
    if (retired := inspection.log.retired) is not None:
        return _outcome(context, p, retired, ends_of(retired), retired=retired, wrote=topics)
    old = OldSink(context.connection, old_id, p.checkpoint)
    last, ends = old.ends(inspection.log)
    new = context.inspect(new_id)
    has_run, refusal = bool(new.log.decisions), None
    try:
        check_at_rest(inspection)
        check_takes_over(ends, new)
        old.judged(inspection.log, has_run, p.loses_state)
    except Refused as e:
        refusal = e
    return _outcome(context, p, last, ends, has_run=has_run, refusal=refusal, wrote=topics)


def _retire(context: OperationContext, p: SuccessorParameters, before: OperationOutcome) -> OperationOutcome:
    done = retire(context, p)
    _write(p.write, done)
    has_run = done.document["has_run"]
    then = "it continues from its own checkpoint" if has_run else "it begins there"
    first = f"sink.id={p.sink_id}{'' if has_run else ', a new checkpoint and these startingOffsets'}"
    return replace(
        done,
        sentence=f"{done.sentence} Launch the new stream: {then}.",
        document={"dry_run": False, **done.document},
        remedy=f"Start the new stream with {first}.",
    )


def retire(context: OperationContext, p: SuccessorParameters) -> OperationOutcome:
    """Retire the old sink for good, unless it is retired for this successor.

    1. Claim the sink: a driver that starts at this moment is fenced. Complete what it has decided, and abort the rest.
       Claim a successor that has run as well: it must not read on meanwhile.
    2. Judge again, by the log after the claim: that driver may have decided one more batch.
    3. Write the retirement, as the owner, after a state of the log in which no decision is open. From here on every
       start of the old sink is refused.

    Raises Refused also when a driver takes the sink meanwhile; Lost, Expired, Unfinished or ParticipantMissing when a
    batch that such a driver decided cannot be completed: the sink is not retired.
    """
    found = _compare(context, p)
    if found.document["retired"]:
        return found
    if found.refusal is not None:
        raise found.refusal
    has_run = found.document["has_run"]
    connection, sink_id, deadline = context.connection, p.predecessor, Deadline(context.work_budget_s)
    claim = claim_sink(connection, sink_id, deadline.left, context.operator)
    assert claim is not None  # a sink with a decision has an owner
    reach("retiring")
    with Session.without_driver(connection, sink_id, context.others, deadline) as session:
        try:
            did = resolve(session, claim.token, Consent(), deadline)
            for _, failure in did.failures:
                raise failure
            for loss in did.losses:
                raise lost_parts(sink_id, loss.decision, loss.handles)
            log = session.log.own(claim.token, deadline)
            check_names(sink_id, p.sink_id, log)
            if log.retired is not None:
                return _outcome(context, p, log.retired, ends_of(log.retired), retired=log.retired)
            last, ends = OldSink(connection, sink_id, p.checkpoint).judged(log, has_run, p.loses_state)
            if has_run:
                claim_sink(connection, p.sink_id, max(1.0, deadline.left), context.operator)
                check_takes_over(ends, context.inspect(p.sink_id))
            text = {topic: {str(number): offset for number, offset in its.items()} for topic, its in ends.items()}
            retired = Retired(claim.token, p.sink_id, last.query_id, last.batch_id, text, now_ms())
            session.log.append(retired, deadline, check=partial(_check_closed, sink_id))
        except Fenced as e:
            raise Refused(
                f"another driver claimed sink {sink_id!r} while this command was retiring it: {e.what}",
                "Stop the driver that has claimed it, then repeat this command",
                safe=_NOT_RETIRED,
            ) from e
    reach("retired")
    return _outcome(context, p, last, ends, has_run=has_run, retired=retired)


SUCCESSOR = Operation(
    SuccessorParameters,
    _examine,
    (
        OperationStep(
            "retire",
            "Claims the old sink, which fences a driver that starts at this moment, and writes its retirement into its "
            "commit log. From then on every start of the old sink fails with EO-RETIRED. Safe to run twice.",
            _retire,
        ),
    ),
    verb="successor",
    does="retire a sink for good, and print where its successor begins: after its last decided batch",
    job=OperationJob(
        "exactly_once_successor",
        "Retires the sink of an older version for good, so that a new stream (new sink_id, new checkpoint, changed "
        "query) continues after its last decided batch: each record is in the output of one of the two. Stop the "
        "old stream first. A dry run unless dry_run is switched off. No sensor launches this job. Safe to run "
        "twice.",
        first="compare",
        first_text="Finds the last decided batch of the old sink, and where the new stream begins after it. Refuses "
        "while a batch of the old sink is open or its driver may be alive, and refuses to drop the old query's state "
        "unless loses_state names that query; a dry run ends here.",
        examined="compared",
        passed="successor",
    ),
)


def _outcome(
    context: OperationContext,
    p: SuccessorParameters,
    last: Decision | Retired,
    ends: Ends,
    has_run: bool = False,
    retired: Retired | None = None,
    refusal: Refused | None = None,
    wrote: tuple[str, ...] = (),
) -> OperationOutcome:
    """Return the end of the old sink, and the beginning of its successor.

    Parameters
    ----------
    has_run : bool
        The successor has written elsewhere so far, and continues with its own checkpoint.
    retired : Retired or None
        The record in the old sink's commit log; None before it is written.
    wrote : tuple of str
        The output topics that the old sink's decisions name: the outcome's value.
    """
    offsets = option(ends, sizes(context.connection, ends))
    after = f"{p.sink_id} continues after batch {last.batch_id}"
    sentence = f"Sink {p.predecessor} can be retired for good; then {after}."
    if retired is not None:
        sentence = f"Sink {p.predecessor} is retired for good: {after}."
    elif refusal is not None:
        sentence = f"Sink {p.predecessor} cannot be retired now: {refusal.what}."
    facts = {
        "sentence": sentence,
        "old_sink": p.predecessor,
        "new_sink": p.sink_id,
        "last_batch": last.batch_id,
        "starting_offsets": json.loads(offsets),
        **({"refused": refusal.what, "way_out": refusal.way_out} if refusal else {}),
    }
    document = {
        "sink_id": p.predecessor,
        "successor": p.sink_id,
        "query_id": last.query_id,
        "batch_id": last.batch_id,
        "starting_offsets": offsets,
        "has_run": has_run,
        "retired": retired is not None,
        "claim": retired.token if retired else None,
        "retired_ms": retired.retired_ms if retired else None,
        "refused": refusal.what if refusal else None,
    }
    return OperationOutcome(p.predecessor, sentence, facts, document, refusal=refusal, value=wrote)


def _check_closed(sink_id: str, state: LogState) -> None:
    if state.open_decisions or state.retired is not None:
        raise Refused(
            f"sink {sink_id!r} changed while this command was retiring it",
            "Stop its driver, then repeat this command",
            safe=_NOT_RETIRED,
        )


def goes_on(successor: str, has_run: bool, wrote: Sequence[str], declared: Sequence[str]) -> Iterator[str]:
    """Yield what to know of the new stream: its checkpoint, and old outputs that get nothing more."""
    if has_run:
        yield f"{successor} has read the same input, and continues from its own checkpoint."
    if wrote and declared and not {*wrote} & {*declared}:
        yield (
            f"{successor} is declared to write to {', '.join(declared)}: readers of {', '.join(wrote)} "
            "will get nothing more. To change that, correct outputs= before you go on."
        )


def _write(file: str, found: OperationOutcome) -> None:
    """Write the offsets to a file in one step; raise InvalidOption where that is not possible."""
    if not file:
        return
    draft = Path(file).with_name(f".{Path(file).name}.tmp")
    try:
        draft.write_text(f"{found.document['starting_offsets']}\n")
        draft.replace(file)
    except OSError as e:
        raise InvalidOption(
            f"--write {file}: {e.strerror or e}", "Name a file that can be written, and repeat the command"
        ) from e

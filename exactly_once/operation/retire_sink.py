"""The end of a sink for good, so that the stream of a newer version takes its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactly_once.errors import InvalidOption
from exactly_once.operation import successor as engine
from exactly_once.operation.model import (
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    parameter,
    reason_parameter,
    sink_parameter,
)
from exactly_once.operation.successor import Succession


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
    dry_run: bool = parameter(
        False,
        "Only show whether the old sink can be retired, and where the new stream would begin.",
        "--dry-run",
        flag_text="only show whether, and where, the new query would continue",
        form="dry_run",
        form_default=True,
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
    found = engine.examine(
        context.connection, p.predecessor, p.sink_id, p.checkpoint, p.loses_state, context.alive_of, context.budget_s
    )
    does = f"This run retires sink {p.predecessor} for good: no stream can start with it any more."
    if p.dry_run:
        does = "This is a dry run, which changes nothing."
        _write(p.write, found)
    sentence = " ".join([does, found.sentence, *goes_on(found, context.topics)])
    return OperationOutcome(p.predecessor, sentence, _facts(found), found.as_json(), refusal=found.refusal, value=found)


def _retire(context: OperationContext, p: SuccessorParameters, before: OperationOutcome) -> OperationOutcome:
    done = engine.retire(
        context.connection,
        p.predecessor,
        p.sink_id,
        p.checkpoint,
        p.loses_state,
        alive_of=context.alive_of,
        operator=context.operator,
        others=context.others,
        budget_s=context.work_budget_s,
    )
    _write(p.write, done)
    then = "it continues from its own checkpoint" if done.has_run else "it begins there"
    first = f"sink.id={p.sink_id}{'' if done.has_run else ', a new checkpoint and these startingOffsets'}"
    return OperationOutcome(
        p.predecessor,
        f"{done.sentence} Launch the new stream: {then}.",
        _facts(done),
        {"dry_run": False, **done.as_json()},
        remedy=f"Start the new stream with {first}.",
        value=done,
    )


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
        stage="successor",
        prefix="successor",
    ),
)


def goes_on(found: Succession, declared: Sequence[str]) -> Iterator[str]:
    """Say with what the new stream goes on, and where it writes."""
    if found.has_run:
        yield f"{found.successor} has read the same input, and continues from its own checkpoint."
    if found.topics and declared and not {*found.topics} & {*declared}:
        yield (
            f"{found.successor} is declared to write to {', '.join(declared)}: readers of {', '.join(found.topics)} "
            "will get nothing more. To change that, correct outputs= before you go on."
        )


def _facts(found: Succession) -> dict[str, Any]:
    return {
        "sentence": found.sentence,
        "old_sink": found.sink_id,
        "new_sink": found.successor,
        "last_batch": found.batch_id,
        "starting_offsets": json.loads(found.starting_offsets),
        **({"refused": found.refusal.what, "way_out": found.refusal.way_out} if found.refusal else {}),
    }


def _write(file: str, found: Succession) -> None:
    """Write the offsets to a file in one step; raise InvalidOption where that is not possible."""
    if not file:
        return
    draft = Path(file).with_name(f".{Path(file).name}.tmp")
    try:
        draft.write_text(f"{found.starting_offsets}\n")
        draft.replace(file)
    except OSError as e:
        raise InvalidOption(
            f"--write {file}: {e.strerror or e}", "Name a file that can be written, and repeat the command"
        ) from e

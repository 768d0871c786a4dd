"""The outputs beside Kafka: every decided part against what the participant finds that its readers see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exactly_once.errors import CommitLogDamaged, ExactlyOnceError
from exactly_once.inspection.findings import title
from exactly_once.inspection.words import plural
from exactly_once.participant import Found, Participant
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartName
from exactly_once.protocol.records import KAFKA, Decision, PreparedPart
from exactly_once.tools.verify.anomalies import Anomaly, Finding
from exactly_once.tools.verify.by_log.judge import NO_DIGEST, OTHER_OUTPUT, UNDER_WAY, Verdict


@dataclass(frozen=True)
class Seen:
    """The records that one output shows: what was found of each decided part, by name; what no decision named when the
    output was read (``foreign``); and why it could not be read (``failed``).
    """

    parts: Mapping[str, Found] = field(default_factory=dict)
    foreign: tuple[Found, ...] = ()
    failed: str = ""


def read_outputs(sink_id: str, decisions: Sequence[Decision], outputs: Iterable[Participant[Any]]) -> dict[str, Seen]:
    """Ask every output, by name, for the parts of ``decisions``, oldest first."""
    return {output.name: _ask(sink_id, decisions, output) for output in outputs}


def read_again(
    sink_id: str, decisions: Sequence[Decision], outputs: Iterable[Participant[Any]], seen: Mapping[str, Seen]
) -> dict[str, Seen]:
    """Drop the finds without a name that newer decisions explain. A row tells nothing but its transaction, so only the
    decision that names the transaction proves it right.
    """
    kept = dict(seen)
    for output in outputs:
        if any(not f.name for f in seen[output.name].foreign):
            known = {f.places for f in _ask(sink_id, decisions, output).foreign}
            foreign = tuple(f for f in seen[output.name].foreign if f.name or f.places in known)
            kept[output.name] = Seen(seen[output.name].parts, foreign)
    return kept


def _ask(sink_id: str, decisions: Sequence[Decision], output: Participant[Any]) -> Seen:
    handles = {h.name: h for d in decisions for h in d.parts_of(output.name)}
    try:
        found = list(output.found(sink_id, list(handles.values())))
    except CommitLogDamaged:  # not the output's fault: nothing that the log says proves anything
        raise
    except ExactlyOnceError as e:
        return Seen(failed=f"{output.name} cannot be checked: {e}")
    finally:
        output.close()
    return Seen({f.name: f for f in found if f.name in handles}, tuple(f for f in found if f.name not in handles))


def judge_outputs(decisions: Sequence[Decision], log: LogState, seen: Mapping[str, Seen], verdict: Verdict) -> None:
    """Judge the parts of ``decisions`` in all outputs but Kafka, and what is there without a decision.

    ``log`` was read after the outputs: whatever was visible there was decided before. ``verdict``, that of Kafka, takes
    the findings, and loses batches that another output does not prove.
    """
    for decision in decisions:
        _judge_batch(decision, log, seen, verdict)
    for output, its in seen.items():
        verdict.findings += judge_foreign(output, its.foreign, decisions, log)


def _judge_batch(decision: Decision, log: LogState, seen: Mapping[str, Seen], verdict: Verdict) -> None:
    key = decision.query_id, decision.batch_id
    others = {name: handles for name, handles in decision.by_participant.items() if name != KAFKA}
    shown = {name: [h for h in handles if _visible(seen, h)] for name, handles in others.items()}
    for name, handles in others.items():
        its = seen.get(name)
        if its is None or its.failed:
            verdict.unproven[its.failed if its else OTHER_OUTPUT] += len(handles)
            verdict.whole.discard(key)
            continue
        marked = key in log.marks
        results = [_judge_part(h, its.parts.get(h.name), name, decision, marked, verdict) for h in handles]
        if not all(results):
            verdict.whole.discard(key)
        elsewhere = [other for other, parts in shown.items() if parts and other != name]
        elsewhere += [KAFKA] if key in verdict.shown else []
        missing = [h for h, result in zip(handles, results, strict=True) if result is None]
        if not missing:
            continue
        there, lost = len(shown[name]), sum(h.records for h in missing)
        torn = f"{name} shows {there} of its {there + len(missing)} parts" if there else ""
        if elsewhere and not torn:
            _split(name, elsewhere, decision, verdict)
        verdict.lacks(decision, missing[0].name, f"{name} does not show {missing[0].name}", marked, torn, lost)
    has = [name for name, parts in shown.items() if parts]
    if key in verdict.absent and has:
        _split(KAFKA, has, decision, verdict)


def _visible(seen: Mapping[str, Seen], handle: Any) -> bool:
    its = seen.get(handle.participant)
    view = its.parts.get(handle.name) if its else None
    return view is not None and view.visible and not view.unproven


def _judge_part(
    h: Any, view: Found | None, output: str, decision: Decision, marked: bool, verdict: Verdict
) -> bool | None:
    """Return True when the part is proven, None when it is missing."""
    of = f"part {h.part} of {title(decision)} in {output}"
    if view is None or view.unproven:
        why = view.unproven if view else "this participant cannot report what its readers see"
        verdict.unproven[f"{output}: {why}"] += 1
        return False
    at = decision, h.name, view.places
    why = f": {view.wrong}" if view.wrong else ""
    if not view.visible and view.prepared and not marked:
        verdict.unproven[UNDER_WAY] += 1
        return False
    if not view.visible and view.prepared:
        what = f"{of} is decided and marked completed, and still waits for its commit"
        verdict.find(Anomaly.UNSEEN, what, *at, h.records)
        return None
    if not view.visible:
        verdict.find(Anomaly.LOST, f"{of} is decided, and readers do not find it{why}", *at, h.records)
        return None
    if len(view.places) > 1:
        more = h.records * (len(view.places) - 1)
        verdict.find(Anomaly.DUPLICATE, f"{of} is visible {len(view.places)} times", *at, more)
        return False
    if view.records < h.records:
        fewer = f"{of} is decided, and readers find {view.records} of its {h.records} rows{why}"
        verdict.find(Anomaly.LOST, fewer, *at, h.records - view.records)
        return False
    if view.records > h.records:
        other = f"{of}: readers find {plural(view.records, 'row')}, but its task wrote {h.records}{why}"
        verdict.find(Anomaly.PHANTOM, other, *at, view.records - h.records)
        return False
    if view.wrong or (view.digest and h.digest and view.digest != h.digest):
        other = why or f": its visible rows have the digest {view.digest}, but its task wrote {h.digest}"
        verdict.find(Anomaly.CORRUPT, f"{of} differs{other}", *at, h.records)
        return False
    if not view.digest or not h.digest:
        verdict.unproven[NO_DIGEST] += 1
        return False
    verdict.parts += 1
    verdict.records += h.records
    return True


def _split(output: str, elsewhere: Sequence[str], decision: Decision, verdict: Verdict) -> None:
    what = f"{title(decision)} is visible in {', '.join(elsewhere)}, and {output} shows nothing of it"
    verdict.find(Anomaly.SPLIT_SINK, what, decision, records=decision.records)


def judge_foreign(
    output: str, foreign: Iterable[Found], decisions: Sequence[Decision], log: LogState
) -> Iterator[Finding]:
    """Yield a finding for each part that an output holds without a decision."""
    named = {h.name for d in (*decisions, *log.decisions) for h in d.handles}
    for view in foreign:
        if view.name in named:
            continue
        part = PartName.parse(view.name)
        anomaly, why = _classify(part, view, output, decisions, log)
        if anomaly is not None:
            which = view.name or ", ".join(view.places)
            batch = f"batch {part.batch_id}" if part is not None else ""
            yield Finding(anomaly, f"{output}: {which} {why}", batch, view.name, view.places, view.records)


def _classify(
    part: PartName | None, view: Found, output: str, decisions: Sequence[Decision], log: LogState
) -> tuple[Anomaly | None, str]:
    """Return the anomaly that a part without a decision is, and why; None where the log no longer tells."""
    if part is None:
        return (
            Anomaly.PHANTOM,
            f"holds {plural(view.records, 'row')} among those of the sink, and no decision names it",
        )
    if not decisions or part.incarnation not in ("", _incarnation(decisions)):
        return None, ""  # perhaps of another commit log, which alone can tell
    its = [d for d in decisions if d.query_id == decisions[-1].query_id]
    last = log.last_decision(its[-1].query_id) or its[-1]
    if view.prepared and not view.visible:
        owner = log.owner.token if log.owner else last.token
        if part.token < owner or (part.token == owner and part.batch_id <= last.batch_id):
            return Anomaly.LINGERING, "is prepared, is not decided, and no driver will decide it any more"
        return None, ""  # a batch on its way
    if part.token < min(d.token for d in its):
        return None, ""  # perhaps of a query whose decisions the log has dropped
    gone = log.aborted
    if part.batch_id > last.batch_id and gone and (gone.token, gone.batch_id) == (part.token, part.batch_id):
        return Anomaly.ABORTED_READ, f"is visible, and the driver gave up this execution of batch {part.batch_id}"
    if part.batch_id > last.batch_id:
        ahead = f"is visible, and the last decision is of {title(last)}"
        return Anomaly.OUTPUT_AHEAD, f"{ahead}: its batch will be written again"
    decided = next((d for d in its if d.batch_id == part.batch_id), None)
    if decided is None:
        return None, ""
    other = next((h.name for h in decided.handles if (h.participant, h.part) == (output, part.part)), "")
    if other:
        return Anomaly.DUPLICATE, f"is visible, and the decided attempt of the same part is {other}"
    return Anomaly.PHANTOM, "is visible, and the decision of its batch does not name it"


def _incarnation(decisions: Sequence[Decision]) -> str:
    """Return the incarnation of the commit log, by the newest part that names it."""
    names = (h.name for d in reversed(decisions) for h in d.handles if isinstance(h, PreparedPart))
    return next((p.incarnation for p in map(PartName.parse, names) if p is not None), "")

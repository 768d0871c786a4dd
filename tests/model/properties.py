"""What must never be, and what must be possible."""

from __future__ import annotations

from collections.abc import Callable

from exactly_once.protocol.names import older_slots
from exactly_once.protocol.part_state import PartState
from tests.model.state import (
    DRIVER,
    ENDED,
    IN_FLIGHT,
    Handle,
    Record,
    Scenario,
    Task,
    Transaction,
    World,
    decided_handles,
    decisions,
    is_open,
    is_retired,
    open_decisions,
    owner_of,
)

DUPLICATE = "a part is visible twice"
EARLY = "visible before its decision"
LOST = "commits/N is written, and a part is not visible"
OPEN = "left open at rest"
TWICE = "a batch is decided twice"
SUPERSEDED = "a superseded driver decides"
HARM = "aborts a decided transaction"
AFTER = "a batch of a retired sink is decided"
UNFINISHED = "the sink is retired, and a decided part is not visible"
HELD = "readers are held back behind a claim"
OTHER_OUTPUT = "another output is written to, and nobody has adopted it"
OTHER_INPUT = "offsets of one input are read on in another, and nobody has adopted it"
MIXED = "a part is written again from another input"
TAKES = "takes committed records along"
STEP = "a part takes a step that its state does not allow"


def violation(w: World, before: World, scenario: Scenario) -> str | None:
    """Which property the step from ``before`` to ``w`` violates."""
    if w.harm and w.harm != scenario.tolerates:
        return w.harm
    if w.visible != before.visible:
        seen = [(batch, h[0][1], topic) for batch, h, topic in w.visible]
        if len(seen) != len(set(seen)):
            return DUPLICATE
        decided = decided_handles(w.log)
        if any(h not in decided for _, h, topic in w.visible if topic == w.topic):
            return EARLY
    if w.spark != before.spark:
        seen_parts = {(batch, h[0][1]) for batch, h, _ in w.visible} | _excused(w)
        if any((b, p) not in seen_parts for b in w.spark for p in range(scenario.parts)):
            return LOST
    if w.log != before.log and is_retired(w.log) and not decided_handles(w.log) <= _seen(w):
        return UNFINISHED
    if w.hanging and held_back(w, before, scenario):
        return HELD
    return at_rest(w, scenario)


def _seen(w: World) -> set[Handle]:
    return {h for _, h, _ in w.visible}


def _excused(w: World) -> set[tuple[int, int]]:
    """Parts that no reader got, and that the sink has not lost: retention took them behind the last look, or a commit
    marker is missing at a leader, and a person has to write it.
    """
    found = {*w.taken, *(t.handle for t in w.hanging if t.state == "committed")}
    return {(r[1], h[0][1]) for r in w.log if r[0] == "decision" for h in r[3] if h in found}


def held_back(w: World, before: World, scenario: Scenario) -> bool:
    """Whether a claim has ended its recovery, and its sink's own undecided records still hold readers back."""
    decided = decided_handles(w.log)
    for a, was in zip(w.actors, before.actors, strict=True):
        if was.pc == "sweep" and a.pc in ("run", "spark", "done", "retire"):
            slots = older_slots(was.token, scenario.slots)
            if any(t.id[0] in slots and (t.handle not in decided or t.handle in was.lost) for t in w.hanging):
                return True
    return False


#: What may follow each state at once.
STEPS: dict[PartState, frozenset[PartState]] = {
    PartState.BEGUN: frozenset({PartState.PREPARED, PartState.ABORTED}),
    PartState.PREPARED: frozenset({PartState.DECIDED, PartState.ABORTED}),
    PartState.DECIDED: frozenset({PartState.COMMITTED, PartState.LOST}),
    PartState.COMMITTED: frozenset(),
    PartState.LOST: frozenset(),
    PartState.ABORTED: frozenset({PartState.LOST}),
}


def illegal_step(w: World, before: World) -> str | None:
    """A step from ``before`` to ``w`` that a part may not take (:class:`PartState`)."""
    if (w.transactions, w.log) != (before.transactions, before.log):
        earlier = {t.handle: part_state(before, t) for t in before.transactions}
        for t in w.transactions:
            was, is_now = earlier.get(t.handle), part_state(w, t)
            if was is not None and is_now is not None and was is not is_now and is_now not in STEPS[was]:
                return f"{STEP}: {was} -> {is_now}"
    return None


def part_state(w: World, t: Transaction) -> PartState | None:
    """The state of the part whose transaction this is; None for an id that is initialised and has not begun.

    The brokers cannot tell a prepared part from one that is still written.
    """
    decided = any(t.handle in r[3] for r in w.log if r[0] == "decision")
    if t.state == "open":
        return PartState.DECIDED if decided else PartState.PREPARED
    if t.state == "aborted":
        return PartState.LOST if decided else PartState.ABORTED
    return PartState.COMMITTED if t.state == "committed" else None


def at_rest(w: World, scenario: Scenario) -> str | None:
    """Whether something is open that nobody is going to end.

    Whoever has not ended by itself counts as killed here, so every state is looked at as the last one. The latest
    claimant, when it has ended, answers for everything; any driver that has ended answers for its own claim. A task
    that is alive is excepted, for as long as its own driver has not aborted it: if it is killed there, the brokers'
    time-out ends what it has begun.
    """
    pcs = [a.pc for a in w.actors]
    if not any(pc in ENDED for pc in pcs):
        return None
    if any(t.pc in IN_FLIGHT and not _aborted(w, t) for t in w.tasks):
        return None
    left = [t for t in w.transactions if t.state == "open"]
    if not left:
        return None
    decided = decided_handles(w.log)
    left = [t for t in left if t.handle not in decided]
    if not left:
        return None
    due = {d[2] for d in open_decisions(w.log, None)}  # that driver's error asks for a start, which sweeps
    latest = next(r for r in reversed(w.log) if r[0] == "claim")
    if pcs[latest[2]] in ENDED and not (due and scenario.kinds[latest[2]] == DRIVER):
        return OPEN
    ended = {a.token for a in w.actors if a.pc in ENDED} - due
    return OPEN if any(t.token in ended for t in left) else None


def _aborted(w: World, t: Task) -> bool:
    """Whether the driver of this task has aborted its run, and nobody has claimed since."""
    return w.actors[t.execution[0]].pc == "stopped" and owner_of(w.log) == t.token


def _loses(w: World, decision: Record) -> bool:
    seen = _seen(w)
    return any(h not in seen and not is_open(w, h) for h in decision[3])


def _all_done(w: World, scenario: Scenario) -> bool:
    return set(w.spark) == {b for batches in scenario.inputs for b in batches}


#: What an exploration must have seen, for its silence to mean something.
ENDS: dict[str, Callable[[World, Scenario], bool]] = {
    "everything written": _all_done,
    "a recovery at rest": lambda w, s: any(
        a.pc == "done" for a, k in zip(w.actors, s.kinds, strict=True) if k != DRIVER
    ),
    "written into an adopted output": lambda w, s: (
        bool(w.adopted) and any(r[0] == "decision" and r[4] > 1 and ("output", r[4]) in w.adopted for r in w.log)
    ),
    "written from an adopted input": lambda w, s: any(
        r[0] == "decision" and r[5] > 1 and ("input", r[5]) in w.adopted for r in w.log
    ),
    "a lost part in another output": lambda w, s: any(
        r[0] == "decision" and any(d[1] == r[1] and d[4] != r[4] for d in w.log[:n] if d[0] == "decision")
        for n, r in enumerate(w.log)
    ),
    "a sink retired": lambda w, s: is_retired(w.log),
    "a driver stopped": lambda w, s: any(a.pc == "stopped" for a in w.actors),
    "a part written again": lambda w, s: any(
        r[0] == "decision" and decisions(w.log[:n]).get(r[1], r)[3] != r[3] for n, r in enumerate(w.log)
    ),
    "a batch through beside a loss": lambda w, s: any(
        r[1] in w.spark and any(d[1] != r[1] and _loses(w, d) for d in open_decisions(w.log[:n], None))
        for n, r in enumerate(w.log)
        if r[0] == "decision"
    ),
    "two claims alive": lambda w, s: sum(a.token > 0 and a.pc not in ENDED for a in w.actors) > 1,
}

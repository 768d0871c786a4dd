"""The symptoms and the states of a stream, which only its operator knows: its runs, and the input that waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exactly_once.inspection.words import duration, plural, upper
from exactly_once.tools.diagnosis.facts import UNCLAIMED, UNCLAIMED_REMEDY, SinkFacts, StreamFacts, Worker
from exactly_once.tools.diagnosis.model import Severity
from exactly_once.tools.diagnosis.registry import Sign, symptom
from exactly_once.tools.diagnosis.thresholds import Thresholds


@symptom("HEALTH-STALLED", Severity.ERROR, needs="stream", threshold="stall_after_s")
def _stalled(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """Input waits, somebody is at work, and no batch is decided."""
    s, w = f.stream, f.worker
    if s is None or s.lag == 0 or s.waited_s <= limits.stall_after_s:
        return
    if w is None or w.waits:
        if owner := _elsewhere(f) or _orphan(f):
            yield Sign(f"{_waits(s)}, and {owner} commits nothing", "Check that driver on its host", _figures(s))
            return
        if w is None:
            return
    if not w.begun:
        stands_s = min(w.age_s, w.age_s if w.quiet_s is None else w.quiet_s)
        if stands_s > limits.stall_after_s:
            yield Sign(f"{_waits(s)}, and {_starts(w)}", f"{_SEE_RUN}. End the run if it hangs", _figures(s))
    elif w.works is not False and w.owns is not False and w.age_s > limits.stall_after_s:
        batch = f"; batch {s.in_flight} is in flight" if s.in_flight is not None else ""
        yield Sign(
            f"{_waits(s)}, and {w.name} is alive but commits nothing{batch}",
            "See the run's log and Spark's UI. Ending the run loses nothing: the next start continues",
            _figures(s),
        )


@symptom("HEALTH-OWNER-LOST", Severity.ERROR, needs="stream", threshold="stall_after_s", recovers=True)
def _owner_lost(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The run's process is gone, or its sink has another owner."""
    w, owner = f.worker, f.sink.owner
    if w is None or w.waits or (w.works is not False and w.owns is not False):
        return
    gone = w.works is False
    taken = f"the {owner.claim.process} has taken its sink" if owner else "its sink has another owner"
    yield Sign(
        f"{upper(w.name)} is shown as in progress, but {'its process is gone' if gone else taken}",
        "The sensor exactly_once_liveness, if it is on, reports that within seconds; else end the run by hand"
        if gone
        else "The run fails at its next batch (EO-FENCED). End the driver that should not run",
        {"run": w.name, "gone": gone},
        f.sink.checked_ms / 1000 - f.stream.waited_s if gone and f.stream is not None and f.stream.lag else None,
    )


@symptom("HEALTH-FAILED", Severity.ERROR, needs="stream", at_once=True)
def _failed(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The newest run failed; an error where starting again, unchanged, would fail again."""
    if f.stream is None or f.stream.failed is None or f.worker is not None:
        return
    why, ends = f.stream.failed, _ending(f)
    code = "" if why.sentence.startswith(why.code) else f"{why.code}: "
    cause, remedy = why.sentence.rstrip(". "), why.remedy.rstrip(". ")
    if remedy in cause:  # a message of the sink has its way out
        remedy = "" if remedy else "Start the stream again, if no sensor of Dagster does"
    yield Sign(
        f"{upper(why.subject)} failed{'; its process has not ended yet' if ends else ''}. {code}{cause}",
        remedy,
        {"failure": why.code, "run": why.subject, **_figures(f.stream)},
        severity=why.severity,
    )


@symptom("HEALTH-OPERATED-BY-ANOTHER", Severity.WARN, needs="stream")
def _operated_by_another(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """Another driver holds the sink of a stream that has run here."""
    owner = _elsewhere(f)
    if f.stream is not None and owner and f.stream.managed and f.stream.has_run:
        yield Sign(
            f"{held_by_another(owner)}; {_progress(f.stream)}",
            "If it should not run, stop it on its host, then launch the stream here",
            _figures(f.stream),
        )


@symptom("HEALTH-ORPHANED", Severity.WARN, needs="stream")
def _orphaned(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The driver of a run that was deleted, or ended by force, goes on."""
    if f.stream is not None and (owner := _orphan(f)):
        yield Sign(
            f"{upper(owner)} goes on, although {f.stream.orphaned}; {_progress(f.stream)}",
            "Kill that process on its host, then start the stream; Dagster can neither end it nor restart it",
            _figures(f.stream),
        )


@symptom("HEALTH-SLOW-START", Severity.WARN, needs="stream", threshold="starting_s")
def _slow_start(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A run was launched, and its first batch does not begin."""
    if f.stream is not None and (w := _starting_worker(f, limits)) and w.age_s > limits.starting_s:
        yield Sign(f"{upper(_starts(w))}; {_progress(f.stream)}", _SEE_RUN, _figures(f.stream))


@symptom("HEALTH-STARTING", Severity.OK, needs="stream", threshold="starting_s")
def _starting(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A run was launched, and its first batch has not begun."""
    if f.stream is not None and (w := _starting_worker(f, limits)) and w.age_s <= limits.starting_s:
        yield Sign(f"{upper(_starts(w))}; {_progress(f.stream)}", "", _figures(f.stream))


@symptom("HEALTH-NEVER-USED", Severity.WARN, needs="stream")
def _never_used(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """No stream has ever claimed the sink."""
    if f.stream is None or f.sink.owner is not None:
        return
    done = f.checkpoint.last_commit if f.checkpoint is not None else None
    if done is None:
        yield Sign(f"The sink {f.sink.sink_id} was never used: no batch of the stream has begun", "Start the stream")
    else:
        claimed = f"No stream has claimed the sink {f.sink.sink_id}, and Spark has committed batch {done}"
        yield Sign(f"{claimed}: {UNCLAIMED}", UNCLAIMED_REMEDY)


@symptom("HEALTH-STOPPED", Severity.WARN, needs="stream")
def _stopped(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """No run is in progress; if input waits, an error of a stream that runs elsewhere, or whose run was deleted."""
    s = f.stream
    if s is None or s.worker is not None or s.failed is not None or f.sink.owner is None or _elsewhere(f) or _orphan(f):
        return
    waits = f", and {plural(s.lag, 'offset')} of input {'waits' if s.lag == 1 else 'wait'}" if s.lag else ""
    ends = "; the process of the last one has not ended yet" if _ending(f) else ""
    gone = f"; {s.orphaned}, and nobody asked its driver to end" if s.orphaned else ""
    yield Sign(
        f"No run of the stream is in progress{waits}{ends}{gone}",
        "Start the stream" if s.managed else "Start the stream where it runs",
        _figures(s),
        severity=Severity.ERROR if s.lag and (s.orphaned or not s.managed) else None,
    )


@symptom("HEALTH-LAGGING", Severity.WARN, needs="stream", threshold="lag_limit", level="lag")
def _lagging(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The stream is behind its input, and does not come closer."""
    s = f.stream
    if s is not None and _mover(f) and s.lag > limits.lag_limit and not _shrinks(s):
        yield Sign(
            f"{upper(_progress(s))}: more than the limit of {limits.lag_limit:,}, and not fewer than before",
            "See Spark's UI for what is slow; give the stream more cores, or larger batches",
            _figures(s),
        )


@symptom("HEALTH-CATCHING-UP", Severity.OK, needs="stream", threshold="lag_limit")
def _catching_up(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The stream is behind its input, and comes closer."""
    s = f.stream
    if s is not None and _mover(f) and s.lag > limits.lag_limit and _shrinks(s):
        fewer = (s.last_lag or 0) - s.lag
        yield Sign(f"{upper(_progress(s))}, {fewer:,} fewer than at the look before", "", _figures(s))


@symptom("HEALTH-IDLE", Severity.OK, needs="stream")
def _idle(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The stream has read all its input."""
    if f.stream is not None and f.stream.lag == 0 and (who := _mover(f)):
        yield Sign(f"{upper(who)} has read all its input, {_newest(f.stream)}", "", _figures(f.stream))


@symptom("HEALTH-HEALTHY", Severity.OK, needs="stream")
def _healthy(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The stream commits batch after batch."""
    if f.stream is not None and 0 < f.stream.lag <= limits.lag_limit and (who := _mover(f)):
        yield Sign(f"{upper(who)} works: {_progress(f.stream)}", "", _figures(f.stream))


#: The states of a stream: the first one that shows counts.
STATES = (
    "HEALTH-CHECKPOINT-TORN",
    "HEALTH-IN-DOUBT",
    "HEALTH-FROZEN",
    "HEALTH-OWNER-LOST",
    "HEALTH-STALLED",
    "HEALTH-OPERATED-BY-ANOTHER",
    "HEALTH-FAILED",
    "HEALTH-ORPHANED",
    "HEALTH-SLOW-START",
    "HEALTH-STARTING",
    "HEALTH-NEVER-USED",
    "HEALTH-STOPPED",
    "HEALTH-LAGGING",
    "HEALTH-CATCHING-UP",
    "HEALTH-IDLE",
    "HEALTH-HEALTHY",
)

#: The states of a stream that is stopped, and whose next start is refused, or should be.
REFUSED = ("HEALTH-CHECKPOINT-FOREIGN", "HEALTH-CHECKPOINT-LOST", "HEALTH-CHECKPOINT-AHEAD")

_SEE_RUN = "See the run's page: its queue, its log and its compute log"


def held_by_another(driver: str) -> str:
    """Return the sentence of HEALTH-OPERATED-BY-ANOTHER without the stream's figures, for a refusal, too."""
    return f"{upper(driver)} holds the sink, and is no run of this code location"


def _elsewhere(f: SinkFacts) -> str:
    """Return the driver that holds the sink and is no run of the stream's operator; "" when there is none."""
    owner = f.sink.owner
    at_home = f.stream is None or f.stream.claimed_here or (f.worker is not None and f.worker.alive)
    return "" if at_home or owner is None or owner.works is False else f"the {owner.claim.process}"


def _orphan(f: SinkFacts) -> str:
    """Return the driver that works although its run has ended; "" when there is none."""
    s = f.stream
    here = s is not None and s.orphaned and s.worker is None and s.failed is None
    return f"the {f.sink.owner.claim.process}" if here and f.sink.owner is not None and f.sink.owner.works else ""


def _ending(f: SinkFacts) -> bool:
    """Return whether the driver of a run that has ended still lives."""
    owner = f.sink.owner
    return f.stream is not None and f.stream.claimed_here and owner is not None and owner.works is True


def _starting_worker(f: SinkFacts, limits: Thresholds) -> Worker | None:
    """Return the run that has not begun its first batch; without input, no batch begins."""
    w = f.worker
    if f.stream is None or w is None or w.waits:
        return w
    starts = f.stream.lag > 0 or w.age_s <= limits.starting_s or f.sink.owner is None
    return w if starts and not w.begun and w.works is not False and w.owns is not False else None


def _mover(f: SinkFacts) -> str:
    """Return who commits the stream's batches, for a sentence; "" when nobody does."""
    w = f.worker
    if w is not None and w.alive:
        return w.name if w.owns is not False else ""
    return _elsewhere(f)


def _shrinks(s: StreamFacts) -> bool:
    return s.last_lag is not None and s.lag < s.last_lag


def _starts(w: Worker) -> str:
    return f"{w.name} has been {w.waits or 'starting'} for {duration(w.age_s)}"


def _waits(s: StreamFacts) -> str:
    have = "has" if s.lag == 1 else "have"
    return f"{plural(s.lag, 'offset')} of input {have} been waiting for {duration(s.waited_s)}"


def _progress(s: StreamFacts) -> str:
    """Describe how far the stream is; before its first batch nobody knows what waits, and the lag is 0."""
    return f"{plural(s.lag, 'offset')} behind, {_newest(s)}" if s.lag or s.idle_s is not None else _newest(s)


def _newest(s: StreamFacts) -> str:
    return "no batch is decided yet" if s.idle_s is None else f"last batch decided {duration(s.idle_s)} ago"


def _figures(s: StreamFacts) -> dict[str, Any]:
    return {"lag": s.lag, "waited_s": round(s.waited_s, 1), "idle_s": s.idle_s, "in_flight": s.in_flight}

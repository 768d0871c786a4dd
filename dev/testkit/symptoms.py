"""Facts that show each symptom of a sink once, without a broker; and the golden file of what a person then reads."""

from __future__ import annotations

from dataclasses import replace

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import (
    BlockedPartition,
    Inspection,
    OpenTransaction,
    Owner,
    PendingDecision,
    PendingPart,
)
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim, Decision
from exactly_once.tools.diagnosis.facts import (
    ForeignAbort,
    HangingName,
    OffsetSkew,
    SinkFacts,
    Standing,
    StreamFacts,
    Undecided,
    Worker,
)
from exactly_once.tools.diagnosis.model import Diagnosis, Severity
from exactly_once.tools.diagnosis.registry import SYMPTOMS
from exactly_once.tools.diagnosis.thresholds import Thresholds

NOW = 1_800_000_000_000
CLAIM = Claim(3, "q", NOW - 3_600_000, "stream", "vm", 4711, "/cp")
STOPPED = Frozen(Process("vm", "m", 4711, 1.0), State.STOPPED)
ALIVE, GONE, UNSEEN = Owner(CLAIM, True), Owner(CLAIM, False), Owner(CLAIM, None)
FROZEN = Owner(CLAIM, True, (STOPPED,))
RUN = Worker("run 6369f6fc", age_s=1_000)
BROKE = Diagnosis("EO-TRANSFORM", Severity.ERROR, "run 6369f6fc", "KeyError in f", "Correct f")


def opened(
    age_s: float = 31.0, verdict: str = "undecided", timeout_s: float = 900.0, number: int = 0
) -> OpenTransaction:
    """Return an open transaction of the sink ``s``."""
    name, where = f"eo:s:3:{number}:8.0", (("out", number),)
    return OpenTransaction(name, number, "8.0", "Ongoing", 70 + number, 0, age_s, timeout_s, where, verdict)


def decided(age_s: float = 60.0, *states: str, batch: int = 7) -> PendingDecision:
    """Return a decided batch, with a part in each of the states."""
    parts = tuple(
        PendingPart(f"eo:s:3:{n}:7.0", n, 10, state, "files" if state == "unasked" else "kafka")
        for n, state in enumerate(states or ("decided",))
    )
    return PendingDecision("q", batch, 3, int(NOW - age_s * 1000), ("out",), parts)


def sink(
    owner: Owner | None = GONE,
    *open_now: OpenTransaction,
    pending: tuple[PendingDecision, ...] = (),
    log: LogState | None = None,
) -> Inspection:
    """Return an inspection of the sink ``s``."""
    log = log if log is not None else LogState(owner=owner.claim if owner else None)
    return Inspection("s", owner, open_now, pending, checked_ms=NOW, log=log)


def stream(lag: int = 0, waited_s: float = 0.0, worker: Worker | None = None, **more: object) -> StreamFacts:
    """Return the facts of a stream."""
    return replace(StreamFacts(worker=worker, lag=lag, waited_s=waited_s, idle_s=3.0), **more)  # type: ignore[arg-type]


_DECISION = Decision("q", 7, 3, (), "d7", 5, NOW - 60_000)
_LOG = LogState(owner=CLAIM, decisions=(_DECISION,))
_AT_REST = sink(GONE, log=_LOG)
_BLOCKED = BlockedPartition("out", 0, 40, 43, False)

#: By code, facts that show it.
PLANTED: dict[str, SinkFacts] = {
    "HEALTH-IN-DOUBT": SinkFacts(sink(pending=(decided(),))),
    "HEALTH-LOST-PARTS": SinkFacts(sink(pending=(decided(60, "lost", "lost"),))),
    "HEALTH-UNKNOWN-PARTS": SinkFacts(sink(pending=(decided(60, "unknown"),))),
    "HEALTH-OUTPUT-WAITS": SinkFacts(sink(pending=(decided(60, "unasked"),))),
    "HEALTH-FROZEN": SinkFacts(sink(FROZEN)),
    "HEALTH-STALE-TRANSACTIONS": SinkFacts(sink(GONE, opened(), opened(number=1))),
    "HEALTH-HANGING": SinkFacts(sink(), hanging=(HangingName("out-0@40"),)),
    "HEALTH-FOREIGN-HANGING": SinkFacts(sink(), hanging=(HangingName("out-0@40", "foreign", "app"),)),
    "HEALTH-UNKNOWN-WRITER": SinkFacts(sink(), hanging=(HangingName("out-0@40", "unknown"),)),
    "HEALTH-FOREIGN-TRANSACTION": SinkFacts(sink(), foreign=("app-1", "app-2")),
    "HEALTH-READERS-WAIT": SinkFacts(sink(), standing=(Standing(_BLOCKED),)),
    "HEALTH-CHECKPOINT-TORN": SinkFacts(_AT_REST, checkpoint=Checkpoint("/cp", "q", 7, torn={"offsets/7": "empty"})),
    "HEALTH-CHECKPOINT-FOREIGN": SinkFacts(_AT_REST, checkpoint=Checkpoint("/cp", "other", 7, 7)),
    "HEALTH-CHECKPOINT-LOST": SinkFacts(_AT_REST, checkpoint=Checkpoint("/cp", "q", 5, 5)),
    "HEALTH-CHECKPOINT-REWOUND": SinkFacts(_AT_REST, checkpoint=Checkpoint("/cp", "q", 7), planned="d8"),
    "HEALTH-CHECKPOINT-AHEAD": SinkFacts(_AT_REST, checkpoint=Checkpoint("/cp", "q", 8, 8), after=_LOG),
    "HEALTH-LOST-DECISION": SinkFacts(sink(), forgotten={"q": 7}, undecided=Undecided(("eo:s:3:0:7.0",), 10, ())),
    "HEALTH-FOREIGN-ABORT": SinkFacts(sink(), foreign_aborts=(ForeignAbort("eo:s2:1:0:0.0", 9, 1, ("out-0@4",), 1),)),
    "HEALTH-OFFSET-SKEW": SinkFacts(sink(), skewed=(OffsetSkew("in", 0, 5, 7, "batch 7"),)),
    "HEALTH-ID-LEAK": SinkFacts(sink(), leaked=("eo:s:mine",)),
    "HEALTH-STALLED": SinkFacts(sink(ALIVE), stream=stream(5, 130, RUN, in_flight=8)),
    "HEALTH-OWNER-LOST": SinkFacts(sink(), stream=stream(5, worker=replace(RUN, works=False))),
    "HEALTH-FAILED": SinkFacts(sink(), stream=stream(5, failed=BROKE)),
    "HEALTH-OPERATED-BY-ANOTHER": SinkFacts(sink(ALIVE), stream=stream(5, has_run=True)),
    "HEALTH-ORPHANED": SinkFacts(sink(ALIVE), stream=stream(5, claimed_here=True, orphaned="run 6369f6fc was deleted")),
    "HEALTH-SLOW-START": SinkFacts(sink(), stream=stream(5, worker=replace(RUN, begun=False, age_s=95))),
    "HEALTH-STARTING": SinkFacts(sink(), stream=stream(5, worker=replace(RUN, begun=False, age_s=20))),
    "HEALTH-NEVER-USED": SinkFacts(sink(None), stream=stream()),
    "HEALTH-STOPPED": SinkFacts(sink(), stream=stream(5)),
    "HEALTH-LAGGING": SinkFacts(sink(ALIVE), stream=stream(300_000, worker=RUN, last_lag=300_000)),
    "HEALTH-CATCHING-UP": SinkFacts(sink(ALIVE), stream=stream(300_000, worker=RUN, last_lag=310_000)),
    "HEALTH-IDLE": SinkFacts(sink(ALIVE), stream=stream(0, worker=RUN)),
    "HEALTH-HEALTHY": SinkFacts(sink(ALIVE), stream=stream(5, worker=RUN)),
}


def planted(code: str) -> list[Diagnosis]:
    """Return the diagnoses that the facts of a symptom show of it."""
    return list(SYMPTOMS[code].find(PLANTED[code], Thresholds()))


def golden_texts() -> dict[str, str]:
    """Return the one file that has every sentence: a paragraph for each."""
    found = [d for code in SYMPTOMS for d in planted(code)]
    lines = [f"{d.code} {d.severity.value} {d.subject}\n{d.sentence}.\n-> {d.remedy or 'nothing'}.\n" for d in found]
    return {"diagnoses.txt": "\n".join(lines)}

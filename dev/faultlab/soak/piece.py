"""One piece of a soak: start what is there, write under faults, drain, judge what is new, stop."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exactly_once.kafka.connection import Connection
from exactly_once.options import Guarantee
from exactly_once_local.cluster.embedded_broker import BrokerFailed
from faultlab.broker import LabBroker
from faultlab.checker import check
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.faults import FAULTS
from faultlab.history import LabHistory
from faultlab.judge import LabVerdict, add_unsettled, compare, settle
from faultlab.lab import POLL_S, Execution, Lab
from faultlab.plan import FaultPlan, make_plan
from faultlab.rounds import ALLOWED
from faultlab.soak.reading import SoakRecord, read_from, rows
from faultlab.soak.results import Offsets, Piece, append, begins_at, read, spread
from faultlab.soak.samples import Sampler, at_rest
from faultlab.soak.streams import INPUT, OUTPUT, PARTITIONS, SINK_ID, soak_system, soak_workload
from faultlab.system import Stopped
from faultlab.workload import place

#: A plan of the lab has a fault each six seconds; a soak wants time between most of them.
LONGER = 4.0


@dataclass(frozen=True)
class SoakSettings:
    """The settings of a soak.

    Seconds of faults in each piece, records a second, the seed, the folder that stays, and the faults to draw from;
    none: all that fit.
    """

    seconds: float
    rate: int
    seed: int
    folder: Path
    faults: Sequence[str] = ()

    @property
    def results(self) -> Path:
        """The file that gets a line for each piece."""
        return self.folder / "soak.jsonl"


def plan_of(settings: SoakSettings, number: int, faults: Sequence[str], points: Sequence[str]) -> FaultPlan:
    """Return the faults of one piece, :data:`LONGER` times as far apart as those of a round of the lab."""
    drawn = settings.seconds / LONGER
    plan = make_plan(settings.seed + number, drawn, faults, points)
    steps = (replace(s, at_s=spread(s.at_s, drawn, settings.seconds)) for s in plan.steps)
    return replace(plan, duration_s=settings.seconds, steps=tuple(steps))


def run_piece(settings: SoakSettings, show: Callable[[str], None]) -> Piece:
    """Run the next piece of the soak in the folder, and add its line to the results."""
    pieces = settings.folder / "pieces"
    number = len(list(pieces.iterdir())) if pieces.is_dir() else 0
    folder = pieces / f"{number:04d}"
    folder.mkdir(parents=True)
    piece = Piece(number, settings.seed + number, settings.rate, 0.0, commit=_commit(), started=_now())
    checkpoint = settings.folder / "checkpoint"
    with ExitStack() as stack:
        broker = LabBroker(settings.folder / "broker")
        stack.callback(broker.stop)
        stack.callback(broker.kill)  # first: an orderly stop is slow, and the next piece begins after a crash
        broker.start()
        past, through = Connection(broker.bootstrap_servers), Connection(broker.system_servers)
        workload = soak_workload(past, folder / "writers", piece.seed, number, settings.rate)
        stack.callback(workload.close)
        system = soak_system(workload, through, folder, checkpoint)
        stack.callback(system.close)
        lab = Lab(broker, workload, system, LabHistory(folder / "history", show), SINK_ID)
        piece = _Run(settings, lab, piece, checkpoint).done(*begins_at(read(settings.results)))
    append(settings.results, piece)
    return piece


class _Run:
    """The work of a piece, with everything in place."""

    def __init__(self, settings: SoakSettings, lab: Lab, piece: Piece, checkpoint: Path):
        self._settings, self._lab, self._piece, self._checkpoint = settings, lab, piece, checkpoint
        self._broker_data = settings.folder / "broker" / "node-1" / "data"

    def done(self, input_begin: Offsets, output_begin: Offsets) -> Piece:
        """Run it, and judge it."""
        lab, before = self._lab, self._last_batch()
        with Sampler(lab, SINK_ID, self._checkpoint, self._broker_data) as sampler:
            failed = self._work()
        piece = replace(
            self._piece,
            seconds=round(lab.history.now_s, 1),
            batches=self._last_batch() - before,
            starts=sum(e.name == "started" for e in lab.history.events),
            faults=dict(lab.history.done),
            ends=dict(lab.history.seen),
            failed=failed,
            samples=tuple(sampler.found),
            history=tuple((round(lab.history.seconds(e.at), 1), e.fault) for e in lab.history.events if e.name == "do"),
        )
        if failed:
            return piece
        verdict, ends = judge_piece(lab.workload.connection, input_begin, output_begin)
        check(verdict, lab.workload.connection, SINK_ID, OUTPUT, str(self._checkpoint), origin=False)
        verdict.forgive(ALLOWED[Guarantee.EXACTLY_ONCE.value])
        return replace(
            piece,
            records=verdict.records,
            anomalies=dict(verdict.anomalies),
            examples=verdict.examples,
            rest=at_rest(lab, SINK_ID),
            **ends,
        )

    def _work(self) -> str:
        """Faults, then a drain; returns why it did not come to its end."""
        lab = self._lab
        names = [name for name in self._settings.faults or FAULTS if FAULTS[name].fits(lab)]
        lab.workload.start()
        lab.operator.start()
        try:
            lab.operator.await_running()
            lab.history.begin()
            try:
                Execution(lab, plan_of(self._settings, self._piece.number, names, lab.system.points)).run()
                while lab.history.now_s < self._settings.seconds:
                    time.sleep(POLL_S)
            finally:
                lab.operator.stop()
            lab.rest()
        except (Stopped, BrokerFailed, AssertionError) as e:
            return f"{type(e).__name__}: {e}"[:500]
        return ""

    def _last_batch(self) -> int:
        return max(CheckpointFiles(self._checkpoint).batches("commits"), default=-1)


def judge_piece(
    connection: Connection, input_begin: Offsets, output_begin: Offsets
) -> tuple[LabVerdict, dict[str, Any]]:
    """Compare what came in and what came out since the last judgement.

    Returns
    -------
    tuple
        The verdict, as that of a run of the lab; and ``input_end`` and ``output_end``.
    """
    settle(connection, OUTPUT, SINK_ID)
    sent, input_end = read_from(connection, INPUT, PARTITIONS, input_begin)
    came, output_end = read_from(connection, OUTPUT, PARTITIONS, output_begin)
    verdict = compare(rows(came, lambda p: p.value), rows(sent, _owed))
    add_unsettled(verdict, connection, OUTPUT, SINK_ID)
    return verdict, {"input_end": input_end, "output_end": output_end}


def _owed(sent: SoakRecord) -> str:
    return place(INPUT, sent.partition, sent.offset, sent.value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=30)
    return asked.stdout.strip()

"""One round: a lab made from settings, a plan, a run, and its folder, which stays when the run is not clean."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from faultlab.building import checkpoint_of, lab_of
from faultlab.checker import BY_CHECKER, check, sentence
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.faults import FAULTS
from faultlab.faults import dagster as faults_of_dagster
from faultlab.history import LabHistory
from faultlab.judge import LabVerdict
from faultlab.lab import Lab
from faultlab.plan import FaultPlan, load_plan, make_plan, save_plan
from faultlab.settings import Settings, draw_settings

#: Drawn three times as often as the others, where they fit: such a round is run for their sake.
OFTEN = [fault.name for fault in faults_of_dagster.DAGSTER] * 2


@dataclass(frozen=True)
class Round:
    """A round and its result.

    Attributes
    ----------
    verdict : LabVerdict, optional
        None when the stream could not be drained, which ``failure`` tells.
    checked : str
        What the product's checker read.
    replay : str
        The command that runs it again.
    """

    plan: FaultPlan
    settings: Settings
    history: LabHistory
    verdict: LabVerdict | None
    failure: str
    batches: int
    replay: str
    checked: str = ""

    @property
    def clean(self) -> bool:
        """Drained, and without an anomaly that its guarantee forbids."""
        return self.verdict is not None and self.verdict.clean

    def __str__(self) -> str:
        faults = ", ".join(f"{n} {fault}" for fault, n in sorted(self.history.done.items())) or "no fault"
        ends = ", ".join(f"{n} {code}" for code, n in sorted(self.history.seen.items())) or "none"
        how = str(self.verdict) if self.verdict else f"NOT CLEAN: {self.failure}"
        lines = [f"seed {self.plan.seed}: {how}", f"  {self.settings}", f"  faults: {faults}"]
        lines += [f"  ends of the stream: {ends}", f"  {self.batches} batches{self.checked and f'; {self.checked}'}"]
        return "\n".join(lines if self.clean else [*lines, f"  replay: {self.replay}"])


def run_round(
    folder: Path,
    seed: int,
    faults_s: float,
    faults: Sequence[str] = (),
    *,
    settings: Settings | None = None,
    plan: FaultPlan | None = None,
    show: Callable[[str], None] = print,
    keep: bool = False,
) -> Round:
    """Run one round in a fresh folder. The folder of a clean round is removed in the end.

    Parameters
    ----------
    folder : Path
        Whatever is in it is removed.
    faults_s : float
        Faults begin in so many seconds.
    faults : sequence of str
        Names to draw from; empty: all.
    settings : Settings, optional
        Instead of those drawn for the seed.
    plan : FaultPlan, optional
        Instead of the one drawn for the seed.
    keep : bool
        Keep the folder of a clean round too.
    """
    settings = settings or draw_settings(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    show(f"seed {seed}: {settings}")
    with lab_of(settings, seed, folder, show) as lab:
        names = [name for name in faults or (*FAULTS, *OFTEN) if FAULTS[name].fits(lab)]
        plan = plan or make_plan(seed, faults_s, names, lab.system.points)
        save_plan(plan, asdict(settings), folder / "plan.json")
        verdict, failure, checked = None, "", ""
        try:
            verdict = lab.run(plan)
            checked = check_too(verdict, lab, settings)
        except Exception as e:  # the next seed is run all the same
            failure = f"{type(e).__name__}: {e}"
        done = replace(plan, steps=tuple(lab.done))
        save_plan(done, asdict(settings), folder / "history.json")
        done_batches = len(CheckpointFiles(checkpoint_of(lab)).batches("commits"))
        command = f"python -m faultlab --replay {folder / 'history.json'}"
        ended = Round(done, settings, lab.history, verdict, failure, done_batches, command, checked)
    if ended.clean and not keep:
        shutil.rmtree(folder)
    return ended


def replay(path: Path, folder: Path, show: Callable[[str], None] = print) -> Round:
    """Run a round again, by the history that it left: the same faults at the moments when they were done."""
    plan, settings = load_plan(path)
    return run_round(folder, plan.seed, plan.duration_s, settings=Settings(**settings), plan=plan, show=show)


def check_too(verdict: LabVerdict, lab: Lab, settings: Settings) -> str:
    """Let the product's checker look at a lab at rest, too, and add what it finds to the verdict of the lab's reader;
    then allow what the settings do not rule out. Returns what the checker read.
    """
    assert lab.sink_id is not None
    past, topic = lab.workload.connection, lab.system.topic
    others = lab.outputs.participants() if lab.outputs is not None else []
    one_query = not lab.workload.was_recreated  # the way out is a new checkpoint
    report = check(verdict, past, lab.sink_id, topic, checkpoint_of(lab), settings.origin, others, one_query)
    verdict.forgive(ALLOWED[settings.guarantee] | _by_clocks(lab) | _by_state(settings))
    beside = f"; {lab.outputs.tables}" if lab.outputs is not None and lab.outputs.tables is not None else ""
    return f"{sentence(report)}{beside}"


def _by_clocks(lab: Lab) -> frozenset[str]:
    """Return what the checker tells by the brokers' clocks, once one of them has jumped."""
    return frozenset({f"{BY_CHECKER}precommitted read"} if lab.history.done["clock-broker"] else ())


def _by_state(settings: Settings) -> frozenset[str]:
    """Return what Spark gives up: it sends the records of one key to several tasks, by their ids."""
    return frozenset({"key reorder"} if settings.state else ())


def _by_both(*anomalies: str) -> frozenset[str]:
    return frozenset(anomalies) | {BY_CHECKER + anomaly for anomaly in anomalies}


#: Anomalies that a guarantee does not rule out.
ALLOWED = {
    # after a refusal the input's offsets are left out for a minute, as EO-WARN-GROUP says: the group stands behind
    "exactly_once": frozenset({f"{BY_CHECKER}offset skew"}),
    "at_least_once": _by_both("duplicate", "key reorder"),
    "none": _by_both("duplicate", "key reorder", "lost", "torn batch"),
}

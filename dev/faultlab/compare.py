"""``make faults-compare``: our sink, Spark's own and Flink's exactly-once sink under the same faults, side by side."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.txn.coordinators import list_transactions
from faultlab.broker import LabBroker
from faultlab.faults import FAULTS
from faultlab.flink import FlinkSystem
from faultlab.history import LabHistory
from faultlab.judge import judge_output
from faultlab.lab import Lab
from faultlab.plan import make_plan
from faultlab.side_by_side import (
    ComparedLine,
    WatchSample,
    append,
    failed_starts,
    first_visible,
    longest_hold,
    longest_silence,
    read,
    table,
)
from faultlab.system import SparkSystem, Stopped, System
from faultlab.workload import Workload
from testkit import oracle, spark_archive
from testkit.oracle import UNFINISHED
from testkit.stream import Job

OURS, SPARKS, FLINK = "ours", "spark", "flink"
TITLES = {OURS: "this sink", SPARKS: "Spark's own sink", FLINK: "Flink exactly once"}

#: Faults that mean the same to each of the three.
COMMON = (
    "kill-driver",
    "pause-driver",
    "kill-broker",
    "pause-broker",
    "stop-broker",
    "net-hold",
    "net-cut",
    "net-reset",
    "kill-writer",
)

#: What the brokers allow by default is 15 minutes: long enough that no fault here outlasts a transaction.
TIMEOUT_MS = 600_000

#: Records a second: small beside what any of them can do, so that restarts count and not speed.
RATE = 500.0

#: Between two reads of the output, and for what the broker is asked in one: it may be away.
POLL_S, ASK_S = 0.2, 2.0


@dataclass
class SparksOwn(SparkSystem):
    """Spark's own Kafka sink, in the same driver, with the same source and checkpoint."""

    name: str = TITLES[SPARKS]
    points: tuple[str, ...] = ()

    def job(self) -> Job:
        job = super().job().having(sink_id=None)
        return replace(job, format="kafka", register=False)


@dataclass(frozen=True)
class CompareSettings:
    """The settings of a comparison.

    The seed, seconds of faults, the time-out of transactions, and the faults to draw from.
    """

    seed: int
    seconds: float
    timeout_ms: int = TIMEOUT_MS
    faults: Sequence[str] = field(default=COMMON)


def run_one(name: str, settings: CompareSettings, folder: Path, show: Callable[[str], None]) -> ComparedLine:
    """Run one of the three on a fresh broker, with the same plan and the same workload for the same seed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with _lab(name, settings, folder, show) as lab:
        plan = make_plan(settings.seed, settings.seconds, settings.faults)
        failed = ""
        with _Watch(lab) as watch:
            try:
                verdict = lab.run(plan)
            except Stopped as e:
                failed = str(e)[:300]
                lab.system.kill()
                verdict = judge_output(lab.workload.connection, lab.system.topic, lab.workload.expected())
        started = [e.at for e in lab.history.events if e.name == "started"]
        past = lab.workload.connection
        with Admin(past, 30) as admin:
            writers = {writer.name for writer in lab.workload.writers}
            left = [t for t in list_transactions(admin, "", UNFINISHED) if t.transactional_id not in writers]
        everything, visible = (len(oracle.read(past, [lab.system.topic], seen, 120)) for seen in (False, True))
        return ComparedLine(
            system=TITLES[name],
            seed=settings.seed,
            seconds=settings.seconds,
            timeout_ms=None if name == SPARKS else settings.timeout_ms,
            faults=dict(lab.history.done),
            records=verdict.records,
            anomalies=dict(verdict.anomalies),
            open_transactions=len(left),
            aborted_records=everything - visible,
            starts=len(started),
            failed_starts=failed_starts([e.name for e in lab.history.events]),
            submissions=max(0, getattr(lab.system, "submissions", 1) - 1),
            held_s=longest_hold(watch.samples),
            first_s=first_visible(watch.samples, started[0] - watch.began_s if started else 0.0),
            silent_s=longest_silence(watch.samples),
            ends=dict(lab.history.seen),
            examples=verdict.examples,
            failed=failed,
        )


@contextmanager
def _lab(name: str, settings: CompareSettings, folder: Path, show: Callable[[str], None]) -> Iterator[Lab]:
    with ExitStack() as stack:
        broker = LabBroker(folder / "broker")
        stack.callback(broker.stop)
        stack.callback(broker.kill)  # first: an orderly stop is slow
        broker.start()
        past, through = Connection(broker.bootstrap_servers), Connection(broker.system_servers)
        workload = Workload(past, folder / "writers", settings.seed, rate=RATE)
        stack.callback(workload.close)
        system = _system(name, settings, workload, through, folder)
        stack.callback(system.close)
        yield Lab(broker, workload, system, LabHistory(folder / "history", show))


def _system(name: str, settings: CompareSettings, workload: Workload, through: Connection, folder: Path) -> System:
    if name == FLINK:
        return FlinkSystem(workload, through, folder, settings.timeout_ms)
    if name == SPARKS:
        return SparksOwn(workload, through, folder, per_batch=5_000)
    options = {"kafka.transaction.timeout.ms": str(settings.timeout_ms)}
    return SparkSystem(workload, through, folder, options, name=TITLES[OURS], per_batch=5_000)


class _Watch:
    """Looks at the ends of the output past the proxies, until the block ends; a broker that is away is not seen."""

    def __init__(self, lab: Lab):
        self.samples: list[WatchSample] = []
        self.began_s = time.monotonic()
        self._lab = lab
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _work(self) -> None:
        while not self._over.wait(POLL_S):
            with suppress(ExactlyOnceError), Admin(self._lab.workload.connection, ASK_S) as admin:
                marks = admin.watermarks(self._lab.system.topic)
                ends = {p: (m.last_stable, max(m.high, m.last_stable)) for p, m in marks.items()}
                self.samples.append(WatchSample(round(time.monotonic() - self.began_s, 2), ends))


def main() -> int:
    """Run the systems one after the other and print the table; 1 when ours is not clean, whatever the others are."""
    args = _arguments()
    spark_archive.use()
    folder = args.folder.absolute()
    settings = CompareSettings(args.seed, args.duration, args.timeout_ms, args.faults)
    results, clean = folder / "compare.jsonl", True
    for name in args.systems:
        print(f"{TITLES[name]}, seed {args.seed}:", flush=True)
        line = run_one(name, settings, folder / f"{name}-{args.seed}", lambda said: print(f"  {said}", flush=True))
        append(results, line)
        print(f"  {line.failed or line.anomalies or 'clean'}: {line.examples}", flush=True)
        clean = clean and (name != OURS or not (line.failed or line.anomalies or line.open_transactions))
    chosen = read(results) if args.all else [li for li in read(results) if li.seed == args.seed]
    print(table(chosen))
    return 0 if clean else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=60, help="seconds of faults for each system")
    parser.add_argument("--systems", nargs="*", choices=TITLES, default=list(TITLES))
    parser.add_argument("--timeout-ms", type=int, default=TIMEOUT_MS, help="of the transactions of ours and of Flink's")
    parser.add_argument("--faults", nargs="+", choices=sorted(FAULTS), default=list(COMMON), help="to draw from")
    parser.add_argument("--all", action="store_true", help="a table of every run in the folder, not of this seed alone")
    parser.add_argument("--folder", type=Path, default=Path(".run/faults-compare"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""``make faults``: rounds of faults, each with a seed of its own, until the time is over."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from exactly_once.errors import ExactlyOnceError
from faultlab.faults import FAULTS
from faultlab.file_stores import DISK, PLACES, check
from faultlab.rounds import Round, replay, run_round
from faultlab.settings import DAGSTER, draw_settings, under_dagster
from testkit import spark_archive
from testkit.s3 import S3Missing

#: Of a round's faults, by default: some ten of them, and time for what follows from each.
ROUND_S = 45.0

#: By default: two rounds, one after the other.
DURATION_S = 120.0

#: The settings of a round are drawn from this many seeds.
SEEDS = 100_000


def main() -> int:
    """Run rounds until the time is over, print what they found; 1 when one of them is not clean."""
    arguments = _arguments()
    if arguments.operator == DAGSTER and arguments.checkpoint != DISK:
        sys.exit("A round under Dagster has its checkpoint on a local disk: leave --checkpoint out")
    try:
        check(arguments.checkpoint)
    except (S3Missing, ExactlyOnceError) as e:
        sys.exit(str(e))
    spark_archive.use()
    folder = arguments.folder.absolute()
    if arguments.replay:
        found = [replay(arguments.replay.absolute(), folder / "replay")]
        print(found[0], flush=True)
    else:
        found = list(_rounds(arguments, folder))
    print(_summary(found))
    return 0 if all(r.clean for r in found) else 1


def _rounds(arguments: argparse.Namespace, folder: Path) -> list[Round]:
    end, found, seed = time.monotonic() + arguments.duration, list[Round](), arguments.seed
    while not found or time.monotonic() < end:
        settings = replace(draw_settings(seed), checkpoint=arguments.checkpoint)
        if arguments.operator == DAGSTER:
            settings = under_dagster(settings)
        one = run_round(
            folder / str(seed), seed, arguments.round, arguments.faults, settings=settings, keep=arguments.keep
        )
        print(f"{one}\n", flush=True)
        found.append(one)
        seed += 1
    return found


def _summary(found: list[Round]) -> str:
    faults, anomalies = Counter[str](), Counter[str]()
    for one in found:
        faults += one.history.done
        anomalies += one.verdict.anomalies if one.verdict else Counter({"not drained": 1})
    records = sum(one.verdict.records for one in found if one.verdict)
    struck = ", ".join(f"{n} {fault}" for fault, n in faults.most_common()) or "none"
    wrong = ", ".join(f"{n} {anomaly}" for anomaly, n in anomalies.most_common()) or "none"
    seeds = f"{found[0].plan.seed} to {found[-1].plan.seed}"
    return (
        f"{len(found)} rounds, seeds {seeds}: {sum(faults.values())} faults, {sum(one.batches for one in found)} "
        f"batches, {records} records; anomalies: {wrong}\nfaults: {struck}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faultlab", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % SEEDS, help="of the first round; by default new")
    parser.add_argument("--duration", type=float, default=DURATION_S, help="seconds: no round begins later")
    parser.add_argument("--round", type=float, default=ROUND_S, help="seconds of faults in a round")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=[], help="to draw from; by default all")
    parser.add_argument("--operator", choices=["lab", DAGSTER], default="lab", help="who starts the stream again")
    parser.add_argument("--checkpoint", choices=PLACES, default=DISK, help="what the checkpoint is on")
    parser.add_argument("--replay", type=Path, metavar="HISTORY", help="the history.json of an earlier round")
    parser.add_argument("--keep", action="store_true", help="the folders of clean rounds too")
    parser.add_argument("--folder", type=Path, default=Path(".run/faults"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

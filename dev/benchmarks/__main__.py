"""``make benchmark``: the exactly-once sink beside other systems, in one run; and the older, single measurements."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import limits, report, single, suite
from benchmarks.common import bench
from benchmarks.results import Lines, read
from benchmarks.workloads import WORKLOADS

#: Measured without --only: the parts of the suite, and small commits.
DEFAULT = (*suite.PARTS, "commit")


def main() -> None:
    """Measure what the flags select; print it as it comes, keep it as JSON lines, and make the table and the plot."""
    args = _arguments()
    if args.only and not set(args.only) <= {*suite.PARTS, "commit"}:
        single.main(args)
        return
    chosen = args.only or DEFAULT
    plan = suite.BenchmarkPlan(
        systems=[suite.NAMES[name] for name in args.systems],
        workloads=args.workloads,
        records=args.records or 3_000_000,
        rounds=args.rounds,
        seconds=args.seconds,
        warm_up_s=args.warm_up,
    )
    lines = Lines(args.folder.parent / "benchmark.jsonl", plan.conditions())
    if "commit" in chosen:
        single.commits(args.folder.absolute(), large=bool(args.only), keep=lines.add)
    if parts := [name for name in suite.PARTS if name in chosen]:
        with bench(args.folder.absolute(), "local[2]") as b:
            for name in parts:
                print(f"{name}:", flush=True)
                suite.PARTS[name](b, plan, lines)
    report.write(read(lines.path), lines.path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(*DEFAULT, *single.PARTS),
        help=f"by default {', '.join(DEFAULT)}; the others are asked for one at a time",
    )
    parser.add_argument("--systems", nargs="+", choices=suite.NAMES, default=list(suite.NAMES))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument(
        "--records",
        type=int,
        help="of one pass-through: 3 million, of --only throughput 4 million; slower workloads get a share",
    )
    parser.add_argument("--rounds", "--repeats", type=int, default=3)
    parser.add_argument("--rate", type=int, default=20_000, help="records a second of --only latency")
    parser.add_argument("--seconds", type=float, default=20, help="measured time of one run under load")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds of one run under load before that")
    parser.add_argument(
        "--at-most",
        type=float,
        metavar="RATIO",
        help="fail if a record takes more than so many times the processor time that it takes with Spark's own sink",
    )
    parser.add_argument("--all-sinks", action="store_true", help="throughput also at least once")
    parser.add_argument("--batches", type=int, help="of the endurance run: 10,000; of each run of --only distance: 60")
    parser.add_argument(
        "--endurance-rate", type=int, help="records a second, in batches of a second; by default ten at full speed"
    )
    parser.add_argument("--what", choices=limits.SIZES, default="ids", help="what --only limits raises")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=(), help="how far; by default until something broke here"
    )
    parser.add_argument("--folder", type=Path, default=Path(".run/benchmark"))
    args = parser.parse_args()
    if args.only and len(args.only) > 1 and (single_ones := set(args.only) & set(single.PARTS)):
        parser.error(f"--only {sorted(single_ones)[0]} stands alone")
    return args


if __name__ == "__main__":
    main()

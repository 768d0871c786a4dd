"""``make soak``: pieces of a soak, one after the other, until the time is over."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from faultlab.faults import FAULTS
from faultlab.soak import picture
from faultlab.soak.piece import SoakSettings, run_piece
from faultlab.soak.results import read, total
from testkit import spark_archive

#: Seconds of faults in a piece: with start, drain and judgement it takes under five minutes.
PIECE_S = 210.0


def main() -> None:
    """Run pieces; draw the picture after each; exit 1 when one was not clean."""
    args = _arguments()
    folder = args.folder.absolute()
    if args.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    settings = SoakSettings(min(args.piece, args.duration), args.rate, args.seed, folder, args.faults)
    spark_archive.use()
    end, clean = time.monotonic() + args.duration, True
    while not args.draw:
        piece = run_piece(settings, print)
        found = str(piece.anomalies) if piece.anomalies else piece.failed or "clean"
        print(f"piece {piece.number}: {piece.records:,} records, {piece.batches:,} batches: {found}", flush=True)
        for anomaly, some in piece.examples.items():
            print(f"  {anomaly}: {some}", flush=True)
        clean = clean and piece.clean
        if time.monotonic() > end:
            break
    pieces = read(settings.results)
    if pieces:
        (folder / "soak.svg").write_text(picture.draw(pieces), encoding="utf-8")
        print(f"{total(pieces)}\n{settings.results}, {folder / 'soak.svg'}")
    sys.exit(0 if clean else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--duration", type=float, default=PIECE_S, help="seconds; no piece begins later")
    parser.add_argument("--piece", type=float, default=PIECE_S, help="seconds of faults in a piece")
    parser.add_argument("--rate", type=int, default=3_000, help="records a second")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=(), help="to draw from; by default all")
    parser.add_argument(
        "--folder", type=Path, default=Path(".run/soak"), help="broker, checkpoint and results, which stay"
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on")
    parser.add_argument("--draw", action="store_true", help="only draw the picture of the results again")
    return parser.parse_args()


if __name__ == "__main__":
    main()

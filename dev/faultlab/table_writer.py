"""Another writer of the lab's tables: ``python -m faultlab.table_writer``, a process of its own, until its stdin ends.

It appends rows of its own to both tables, and maintains them now and then, while the stream commits to them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
from pathlib import Path
from random import Random
from typing import TextIO

from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException, ValidationException

from faultlab.tables import JOURNAL, Ice, LabTable, Lake, others_rows

#: Between two rounds, in seconds, on average.
PAUSE_S = 1.0

#: A table is maintained once in so many rounds.
ROUNDS = 6

#: What the libraries raise when somebody else commits first, and nothing of one's own is in the table.
OVERTAKEN = (CommitFailedError, CommitFailedException, ValidationException)


def main() -> None:
    """Write and maintain until stdin ends; keep each step in the journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=watch, daemon=True).start()
    random, tables = Random(f"tables/{arguments.seed}"), (Lake(arguments.folder), Ice(arguments.folder))
    with (arguments.folder / JOURNAL).open("a") as journal:
        for number in itertools.count():
            for table in tables:
                values = [f"{number}.{n}" for n in range(random.randint(1, 4))]
                _write(table, values, random.randrange(ROUNDS) == 0, journal)
            if over.wait(random.uniform(0.0, 2 * PAUSE_S)):
                return


def _write(table: LabTable, values: list[str], maintains: bool, journal: TextIO) -> None:
    def say(step: str) -> None:
        print(json.dumps([table.name, step, values]), file=journal, flush=True)

    say("begins")
    try:
        table.append(others_rows(values))
        say("appended")
        if maintains:
            table.maintain()
            say("maintained")
    except OVERTAKEN:
        say("overtaken")


if __name__ == "__main__":
    main()

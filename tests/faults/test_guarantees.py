"""The table of duplicates and losses under each guarantee in docs/reference.md, measured.

The same stream under the same kills, once for each guarantee and once with Spark's own sink. A kill is a kill -9 of the
whole driver: (1) while one part of a batch hangs and the others are written, (2) right after Spark wrote commits/N,
(3) as (1), in another part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pytest

from testkit import oracle
from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

#: So that what a part sends without waiting is not out at once; a flush sends it all the same.
LINGER_MS = "1500"

KINDS = ("exactly_once", "at_least_once", "none", "Spark's own sink")


class Seen(NamedTuple):
    """What a reader found of the rows."""

    duplicated: int
    lost: int


def job_of(kind: str, bench: Bench, hang: Path) -> Job:
    """The stream under ``kind``; the part whose row ``hang`` names stands still there."""
    options = {**bench.job.options, "kafka.linger.ms": LINGER_MS}
    if kind == KINDS[-1]:
        del options["sink.id"]
    else:
        options["sink.guarantee"] = kind
    return Job(
        **{
            **asdict(bench.job),
            "options": options,
            "format": "kafka" if kind == KINDS[-1] else "kafka_exactly_once",
            "transform": "testkit.transforms:hang_at",
            "arguments": {"name": str(hang)},
        }
    )


def run_through(kind: str, bench: Bench, driver: StartDriver, folder: Path) -> None:
    """Five batches of 200 rows, three kills, and a start that is left in peace."""
    hang = folder / "hang"
    job = job_of(kind, bench, hang)

    def killed_in(batch: int, part: int) -> None:
        row = bench.input.batches[batch][part][-1][1]
        hang.write_text(row)
        one = driver()
        run = one.start(job.until_stopped())
        hung = hang.with_name(f"hang.{row}")
        run.await_true("the part that hangs", hung.exists)
        run.await_true("the other parts", lambda: sent(bench, batch, part, kind))
        one.kill9()
        hang.unlink()

    bench.input.add(2)
    killed_in(1, 3)
    bench.input.add()
    two = driver()
    two.start(job.until_stopped()).await_commit(2)
    two.kill9()
    bench.input.add(2)
    killed_in(3, 0)
    last = driver()
    last.complete(job)
    if kind == "none":
        until("the last rows to be sent", lambda: settled(bench), 30)
    last.kill9()


def sent(bench: Bench, batch: int, part: int, kind: str) -> bool:
    """Whether the other parts of the batch are with the brokers; under ``none`` there is nothing to wait for."""
    if kind == "none":
        return True
    values = {m.value for m in oracle.read(bench.connection, [bench.topic], committed=False)}
    rows = bench.input.batches[batch]
    return all(row[1] in values for p, some in enumerate(rows) if p != part for row in some)


def settled(bench: Bench) -> bool:
    values = {m.value for m in oracle.read(bench.connection, [bench.topic], committed=False)}
    return all(row[1] in values for part in bench.input.batches[-1] for row in part)


def seen(bench: Bench, committed: bool) -> Seen:
    found = Counter(m.value for m in oracle.read(bench.connection, [bench.topic], committed=committed))
    wanted = {value for _, value in bench.input.expected()}
    assert set(found) <= wanted
    return Seen(sum(n - 1 for n in found.values()), len(wanted - set(found)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_guarantee_keeps_what_the_reference_says_of_it(
    kind: str, bench: Bench, driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against a guarantee that is weaker than its row in the table, and against a table without measurement."""
    run_through(kind, bench, driver, tmp_path)

    committed, uncommitted = seen(bench, committed=True), seen(bench, committed=False)
    print(f"| `{kind}` | {committed.duplicated} | {committed.lost} | {uncommitted.duplicated} | {uncommitted.lost} |")
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    row = next(x for x in lines if x.startswith((f"| `{kind}` |", f"| {kind} |")))
    shown = [cell.strip() for cell in row.strip("|").split("|")[1:5]]
    if kind == "none":
        assert committed.lost > 0, "the kill right after commits/N loses what was not sent yet"
        assert shown[1] != "0"
    else:
        figures = [*committed, *uncommitted]
        assert shown == [str(n) for n in figures], f"the page shows {shown}, measured {figures}"
    if kind == "exactly_once":
        assert committed == Seen(0, 0)
        bench.assert_settled()

"""``exactly-once verify``: the report of a verification, and a bar while it reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from rich.console import Console
from rich.progress import Progress as Bar
from rich.text import Text

from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import InvalidOption
from exactly_once.inspection.words import are, never_claimed, plural
from exactly_once.kafka.connection import Connection
from exactly_once.tools.cli import outputs
from exactly_once.tools.cli.operations import add_parameters, given
from exactly_once.tools.cli.tables import show_text
from exactly_once.tools.operation.model import parameters_of
from exactly_once.tools.verify import Progress, Report, VerifyParameters, verify
from exactly_once.tools.verify.by_origin.comparison import ReadsElsewhere
from exactly_once.tools.verify.report import NOT_JUDGED, NOT_PROVEN, RIGHT, WRONG, TopicBalance

#: Flags that say something about origins.
_OF_ORIGIN = ("against", "outputs_per_input", "inputs", "order", "refuse_foreign", "backfilled", "last")


def add_arguments(verb: argparse.ArgumentParser) -> None:
    outputs.add_arguments(verb)
    add_parameters(verb, VerifyParameters)
    verb.add_argument(
        "--spark",
        metavar="MASTER",
        help="with --origin: Spark reads both topics and compares them, in a session on this master, such as "
        "spark://host:7077, k8s://..., sc://... or local[*]",
    )


def verify_sink(connection: Connection, args: argparse.Namespace) -> Report:
    """Verify, with a bar on a terminal. Raise InvalidOption also for a sink that has never run on this cluster: it must
    not be called clean.
    """
    p = given(VerifyParameters, args, {})
    known = {one.name: how for one, how in parameters_of(VerifyParameters) if how.flags}
    if p.origin is None and (alone := next((known[n].flags[0] for n in _OF_ORIGIN if getattr(p, n)), None)):
        raise InvalidOption(f"{alone} is only allowed with --origin", f"Add --origin, or leave {alone} out")
    if p.origin is None and args.spark is not None:
        raise InvalidOption("--spark is only allowed with --origin", "Add --origin, or leave --spark out")
    beside = outputs.outputs_of(args)
    if beside:
        outputs.check_named(beside, read_log(connection, p.sink_id, p.budget_s))
    with Bar(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("reads", total=None)

        def tell(progress: Progress) -> None:
            bar.update(task, description=progress.step, completed=progress.done, total=progress.of)

        with _elsewhere(args.spark, p.sink_id) as elsewhere:
            report = verify(connection, p, beside, tell, elsewhere)
    if report.nothing_yet and not report.claimed:
        raise never_claimed(p.sink_id)
    return report


@contextmanager
def _elsewhere(master: str | None, sink_id: str) -> Iterator[ReadsElsewhere | None]:
    """Yield what compares by origin in a Spark session on this master, which ends with the context."""
    if master is None:
        yield None
        return
    origins = import_module("exactly_once.tools.verify.on_spark.origins")  # by name: the commands run without Spark
    with origins.session(master, sink_id) as spark:
        yield origins.on_spark(spark)


def show(report: Report, console: Console) -> None:
    """Print the findings, and what was proven and was not."""
    for f in report.findings:
        title = Text(f.anomaly.value, style="bold red")
        console.print(title.append(f", {f.batch}" if f.batch else "", "default"), soft_wrap=True)
        remedy = f"What to do ({f.code}): {f.remedy}." if f.remedy else ""
        for text in (f.what, f.transaction, *(f.examples or (" ".join(f.places[:4]),)), remedy):
            if text:
                show_text(text, console, "  ")
    for d in report.diagnoses:
        if d.code not in {f.code for f in report.findings}:
            show_text(f"! {d}", console)
    if report.last_batch:
        counts = {"batch": report.batches, "part": report.parts, "record": report.records}
        proven = ", ".join(plural(count, noun) for noun, count in counts.items())
        show_text(f"Proven by the commit log, {report.first_batch} to {report.last_batch}: {proven}.", console)
    if report.by_origin:
        part = f" ({report.window})" if report.window else ""
        show_text(f"By origin{part}: " + _counted(report.by_origin), console)
    if report.against:
        show_text(f"Against {report.against_sink}: " + _counted(report.against), console)
    elif report.against_sink:
        show_text(f"Against {report.against_sink}: the two have no output of the same input yet.", console)
    for reason, count in report.unproven.items():
        show_text(f"Unproven: {count:,} ({reason}).", console)
    for reason, count in report.removed.items():
        what = f"{plural(count, 'record')} that decisions count"
        show_text(f"Not in the output any more: {what} ({reason}).", console)
    total = report.balance.total
    for answer, reasons in (("Not judged", total.not_judged), ("Not proven", total.not_proven)):
        for reason, count in reasons.items():
            show_text(f"{answer}: {plural(count, 'record')} ({reason}).", console)
    if report.not_searched:
        limit = f"{plural(report.not_searched, 'other topic')}, which this principal may not read"
        show_text(f"Not searched for transactions of the sink: {limit}.", console)
    if report.nothing_yet and report.clean:
        nothing = (
            f"Nothing to prove yet: sink {report.sink_id} has decided no batch. Run the command again after "
            "its first batch."
        )
        show_text(nothing, console)
        return
    for topic, balance in report.balance.topics.items():
        show_text(f"{topic}: {_balance(balance)}", console)
    show_text(f"{_outcome(report)} in {plural(report.read, 'record')}, {report.took_s:.1f} s.", console)


def _outcome(report: Report) -> str:
    """Return the beginning of the last line: what was found. It calls nothing good that was not seen."""
    if not report.clean:
        return ", ".join(f"{count:,} {name}" for name, count in report.counts.items())
    return "Nothing is proven, and no anomalies" if report.proves_nothing else "No anomalies"


def _balance(one: TopicBalance) -> str:
    """Return how many offsets of a topic have each name: the four answers always, the others where there are any."""
    counts = {name: n for name, n in one.counts.items() if n or name in (RIGHT, WRONG, NOT_JUDGED, NOT_PROVEN)}
    gap = one.offsets - one.explained
    missing = "" if one.adds_up else f" {plural(gap, 'offset')} {are(gap)} not explained."
    return f"{plural(one.offsets, 'offset')}: {_counted(counts)}{missing}"


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in numbers.items()) + "."

"""``exactly-once verify``: the report of a verification, and a bar while it reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.progress import Progress as Bar
from rich.text import Text

from exactly_once.errors import InvalidOption
from exactly_once.inspection.words import never_claimed, plural
from exactly_once.kafka.connection import Connection
from exactly_once.ops.cli import outputs
from exactly_once.ops.cli.tables import show_text
from exactly_once.protocol.names import check_sink_id
from exactly_once.verify import Progress, Report, verify
from exactly_once.verify.answers import NOT_JUDGED, NOT_PROVEN, RIGHT, WRONG, TopicBalance
from exactly_once.verify.by_origin.comparison import ORDERS, Question
from exactly_once.verify.by_origin.origin import Origin, PerInput
from exactly_once.verify.run import BATCHES, SETTLE_S

#: Flags that say something about origins.
_OF_ORIGIN = ("against", "outputs_per_input", "input", "order", "refuse_foreign", "backfilled", "last")


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, beside the sink."""
    verb.add_argument(
        "--checkpoint",
        metavar="LOCATION",
        help="also check the stream's checkpoint: a path, or a URI (file, hdfs, s3, ...)",
    )
    outputs.add_arguments(verb)
    verb.add_argument(
        "--batches",
        metavar="N",
        type=int,
        default=BATCHES,
        help="how many of the newest batches to check; the commit log keeps 64 of a stream (default: %(default)s)",
    )
    verb.add_argument(
        "--settle",
        metavar="SECONDS",
        type=float,
        default=SETTLE_S,
        help="how many seconds to wait before a finding is reported that a healthy stream also has for a moment, "
        "such as a batch that is being committed; 0: report it at once (default: %(default)g)",
    )
    verb.add_argument(
        "--origin",
        metavar="WHERE",
        help="also compare the output with the input; says where each output record holds the "
        "topic-partition-offset of its input record: header:NAME, key, value or json:FIELD",
    )
    verb.add_argument(
        "--against",
        metavar="SINK",
        help="with --origin: also compare the output with that of this sink, an older version of the stream",
    )
    verb.add_argument(
        "--outputs-per-input",
        metavar="N",
        help="with --origin: how many output records each input record has: N, at-most-N or any (default: 1)",
    )
    verb.add_argument(
        "--input",
        metavar="TOPIC",
        action="append",
        help="with --origin: only this input topic; repeatable; without --checkpoint, from its beginning",
    )
    verb.add_argument(
        "--topic",
        metavar="TOPIC",
        action="append",
        help="also search this topic for transactions of this sink that no decision names; repeatable; with "
        "--origin: an output topic; default: the topics that the sink's decisions name",
    )
    verb.add_argument(
        "--order",
        choices=ORDERS,
        help="with --origin: which output records must keep the order of the input: those of a key (default), those of "
        "an input partition, or none, for a stream that shuffles",
    )
    verb.add_argument(
        "--refuse-foreign",
        action="store_true",
        default=None,
        help="with --origin: report each record without an origin as a phantom, because only this sink writes to "
        "these topics",
    )
    verb.add_argument(
        "--backfilled",
        action="store_true",
        default=None,
        help="with --origin: accept output of input from before the stream's first offset, which a backfill wrote",
    )
    verb.add_argument(
        "--last",
        metavar="N",
        type=int,
        help="with --origin: compare only the newest batches with at most N offsets of input; default: all input",
    )


def verify_sink(connection: Connection, args: argparse.Namespace) -> Report:
    """Verify, with a bar on a terminal. Raise InvalidOption also for a sink that has never run on this cluster: it must
    not be called clean.
    """
    question = _question(args)
    given = outputs.outputs_of(args)
    for said, low in (("batches", 1), ("last", 1), ("settle", 0)):
        number = getattr(args, said)
        if number is not None and not number >= low:
            raise InvalidOption(f"--{said} {number:g} is out of range", f"Give --{said} {low} or more")
    with Bar(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("reads", total=None)

        def tell(progress: Progress) -> None:
            bar.update(task, description=progress.step, completed=progress.done, total=progress.of)

        report = verify(
            connection,
            check_sink_id(args.sink),
            checkpoint=args.checkpoint,
            batches=args.batches,
            outputs=given,
            settle_s=args.settle,
            origin=question,
            against=check_sink_id(args.against) if args.against else "",
            inputs=args.input or (),
            topics=args.topic or (),
            last=args.last,
            on_progress=tell,
        )
    if report.nothing_yet and report.clean and not report.claimed:
        raise never_claimed(args.sink)
    return report


def _question(args: argparse.Namespace) -> Question | None:
    if args.origin is None:
        if given := next((name for name in _OF_ORIGIN if getattr(args, name)), None):
            raise InvalidOption(
                f"--{given.replace('_', '-')} is only allowed with --origin",
                f"Add --origin, or leave --{given.replace('_', '-')} out",
            )
        return None
    return Question(
        Origin.parse(args.origin),
        PerInput.parse(args.outputs_per_input or "1"),
        args.order or "key",
        bool(args.refuse_foreign),
        bool(args.backfilled),
    )


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
        proven = f"{report.batches:,} batches, {report.parts:,} parts, {report.records:,} records"
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
        limit = f"{report.not_searched:,} other topics, which this principal may not read"
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
    show_text(f"{_outcome(report)} in {report.read:,} records, {report.took_s:.1f} s.", console)


def _outcome(report: Report) -> str:
    """Return the last line's first words: what was found, and never that all is well of what was not seen."""
    if not report.clean:
        return ", ".join(f"{count:,} {name}" for name, count in report.counts.items())
    return "Nothing is proven, and no anomalies" if report.proves_nothing else "No anomalies"


def _balance(one: TopicBalance) -> str:
    """Return what each offset of a topic is: the four answers, and those among the others that there are."""
    counts = {name: n for name, n in one.counts.items() if n or name in (RIGHT, WRONG, NOT_JUDGED, NOT_PROVEN)}
    missing = "" if one.adds_up else f" {one.offsets - one.explained:,} offsets are not explained."
    return f"{plural(one.offsets, 'offset')}: {_counted(counts)}{missing}"


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in numbers.items()) + "."

"""The output for people: tables and sentences."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from exactly_once.checkpoint import OR_ELSEWHERE, Checkpoint, shown
from exactly_once.deadline import now_ms
from exactly_once.inspection.findings import BlockedPartition, Inspection, OpenTransaction
from exactly_once.inspection.hanging import Attributed
from exactly_once.inspection.progress import Offsets, StreamProgress
from exactly_once.inspection.words import duration, owner_sentence, plural, some, when
from exactly_once.location import is_on
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import is_own_key
from exactly_once.tools.cli.explain import Explanation
from exactly_once.tools.diagnosis import Diagnosis
from exactly_once.tools.operation.log_records import Logged
from exactly_once.txn.coordinators import Description

#: Partitions or groups that a cell names; it counts the rest.
NAMED = 4

#: Extra indentation of the lines after the first, where a line is wrapped.
_HANG = "    "

#: A command in a sentence, up to a sign of punctuation: a shell runs the first half of one that is cut in two.
_COMMAND = re.compile(r"(?:exactly-once|kill -9|pip install|kafka-[a-z-]+\.sh)(?: (?:'[^']*'|[^\s']*[^\s';,.:)]))+")

#: A blank at which ``textwrap`` does not break lines.
_NO_BREAK = "\N{NO-BREAK SPACE}"

#: States of a decided batch's parts, and their names here.
_STATES = {PartState.COMMITTED: "committed", PartState.DECIDED: "waiting", PartState.LOST: "lost", "unknown": "unknown"}


def show_line(text: str, console: Console) -> None:
    """Print a line, wrapped; its further lines are indented deeper than any line that belongs to it."""
    bare = text.lstrip()
    show_text(bare, console, indent := text[: len(text) - len(bare)], indent + _HANG)


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap a sentence at its blanks alone, and not within a command: what a person copies stays in one piece, and has a
    line of its own where it is longer than one. ``first`` and ``rest`` begin the lines.
    """
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(
        whole, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def show_text(text: str, console: Console, first: str = "", rest: str | None = None) -> None:
    """Print a sentence, wrapped; ``rest`` (default: ``first``) begins its further lines."""
    for line in wrapped(text, console.width, first, first if rest is None else rest):
        show_whole(line, console)


def show_whole(text: str, console: Console) -> None:
    """Print what a person copies, a command or an id, on one line, however wide."""
    console.print(Text(text), soft_wrap=True)


def show_list(
    found: Sequence[Inspection],
    idle: Sequence[Description],
    hanging: Sequence[Attributed] | None,
    wrong: Sequence[Diagnosis],
    console: Console,
) -> None:
    """Print sinks with their open transactions, idle ids, hanging transactions, and problems."""
    if not found:
        show_line("There is no sink on this cluster (or this principal may not see any).", console)
    for inspection in found:
        show_line(f"Sink {inspection.sink_id}: {_headline(inspection)}", console)
        for t in inspection.open:
            _show_open(t, console)
        for pending in inspection.decided:
            states = [f"{count} {label}" for s, label in _STATES.items() if (count := pending.count(s))]
            states += [f"{count} in {output} (not checked)" for output, count in pending.unasked.items()]
            age = when(pending.decided_ms, inspection.checked_ms)
            show_line(f"  {pending.name} decided {age}, not proven: {', '.join(states) or 'no parts'}", console)
        if inspection.blocked:
            show_text(f"readers wait on {_partitions(inspection.blocked)}", console, "  ", "    ")
    if idle:
        show_line("Nothing under way:", console)
    for d in idle:
        show_line(f"  {d.transactional_id}", console)
        of = f"producer id {d.producer_id}, epoch {d.producer_epoch}, timeout {duration(d.timeout_ms / 1000)}"
        show_line(f"    {d.state}, {of}", console)
    if hanging is not None:
        _show_hanging(hanging, console)
    show_wrong(wrong, console)


def show_wrong(found: Iterable[Diagnosis], console: Console) -> None:
    for d in found:
        show_line(f"! {d}", console)


def _headline(found: Inspection) -> str:
    if (retired := found.log.retired) is not None and found.quiet:
        return f"retired, {retired.successor} continues after batch {retired.batch_id}."
    under_way = "nothing under way" if found.quiet else "none open"
    if found.open:
        under_way = f"{plural(len(found.open), 'transaction')} open, the oldest for {duration(found.oldest_s)}"
    return f"{under_way}. Owner: {owner_sentence(found)}"


def _show_open(t: OpenTransaction, console: Console) -> None:
    """Print the id on a line of its own, to be copied; then what is known of it."""
    show_line(f"  {t.transactional_id}", console)
    age = Text(f"    {t.state} for ").append(duration(t.age_s), "bold red" if t.age_s > t.timeout_s > 0 else "")
    of = "" if t.batch_id is None else f" in batch {t.batch_id} with {plural(t.records or 0, 'record')}"
    console.print(age.append(f" of {duration(t.timeout_s)}, {t.verdict}{of}"))
    where = some([f"{topic}-{p}" for topic, p in t.partitions], NAMED) or "no partition"
    show_text(f"writes to {where}", console, "    ", "      ")


def _show_hanging(hanging: Sequence[Attributed], console: Console) -> None:
    if not hanging:
        show_line("No hanging transactions on the sinks' topics.", console)
        return
    show_line("Hanging:", console)
    for found in hanging:
        h = found.hanging
        show_line(f"  {h.name}", console)
        whose = f"{found.owner}{f', sink {found.sink_id}' if found.sink_id else ''}"
        show_line(f"    {whose}{f', {h.transactional_id}' if h.transactional_id else ''}", console)
        last = when(h.last_timestamp_ms, now_ms())
        show_line(f"    producer id {h.producer_id}, epoch {h.producer_epoch}, last record {last}", console)


def show_explanation(explanation: Explanation, wrong: Sequence[Diagnosis], console: Console) -> None:
    """Print the explanation of one transaction, and what is wrong with its sink."""
    show_line(explanation.transactional_id, console)
    for title, text in (
        ("What", explanation.what),
        ("Owner", explanation.owner),
        ("State", explanation.state),
        ("Blocks", _blocks(explanation)),
        ("Next", explanation.by_itself),
    ):
        show_line(f"  {title + ':':<11}{text}", console)
    show_wrong(wrong, console)
    if explanation.options:
        show_line("  You may:", console)
    for option in explanation.options:
        show_whole(f"    {option.command}", console)
        show_text(option.effect, console, "        ")


def _blocks(explanation: Explanation) -> str:
    if not explanation.blocks:
        return "No readers."
    groups = sorted({g for b in explanation.blocks for g in b.groups})
    who = f"consumer groups {some(groups, NAMED)}" if groups else "no consumer group with committed offsets"
    more = "" if explanation.readers_complete else " (could not check every group)"
    return f"{_partitions(explanation.blocks)}; {who}{more}."


def show_checkpoint(
    checkpoint: Checkpoint,
    offsets: Offsets,
    progress: StreamProgress | None,
    sink_id: str | None,
    wrong: Sequence[Diagnosis],
    console: Console,
) -> None:
    """Print the state of a checkpoint, and its comparison with a commit log."""
    if checkpoint.query_id is None and not checkpoint.torn:
        elsewhere = OR_ELSEWHERE if is_on(checkpoint.location, "") else ""
        show_line(f"There is no checkpoint at {shown(checkpoint.location)}{elsewhere}.", console)
    else:
        show_line(f"Checkpoint {checkpoint.location}", console)
        since = when(checkpoint.batch_started_ms or 0, now_ms())
        facts = {
            "query": checkpoint.query_id or "-",
            "last planned batch": _or_dash(checkpoint.last_offsets),
            "last committed batch": _or_dash(checkpoint.last_commit),
            "in flight": "-" if checkpoint.in_flight is None else f"batch {checkpoint.in_flight}, planned {since}",
        }
        for title, text in facts.items():
            show_line(f"  {title + ':':<22}{text}", console)
        for topic, partitions in offsets.items():
            show_line(f"  input {topic}, up to:", console)
            show_text(", ".join(f"{p}@{o}" for p, o in sorted(partitions.items())), console, "    ")
        if not offsets:
            show_line("  source offsets:" + ("" if checkpoint.source_offsets else "       -"), console)
            for line in checkpoint.source_offsets:
                show_line(f"    {line}", console)
    show_wrong(wrong, console)
    if progress is not None:
        decided = _or_dash(progress.last_decided)
        unproven = f"; not proven: {list(progress.open_decisions)}" if progress.open_decisions else ""
        show_line(
            f"Compared with the commit log of {sink_id}: {progress.state}. Last decided batch: {decided}{unproven}.",
            console,
        )
        if progress.state in ("in doubt", "in flight") and not wrong:  # else the log does not tell what is written
            what, way_out = progress.without_input(checkpoint.location, sink_id or "")
            show_line(f"If the input of the batch in flight is gone: {what}. {way_out}.", console)


def show_log(sink_id: str, found: Sequence[Logged], console: Console) -> None:
    """Print the records in force of a commit log, oldest first, and who wrote those that are not the sink's own."""
    now = now_ms()
    for r in found:
        dead = f" with {plural(r.dead_letters, 'dead letter')}" if r.dead_letters else ""
        show_line(f"{r.offset:>8}  {r.title}{dead}, {when(r.timestamp_ms, now)}", console)
        if not r.is_of(sink_id):
            writer = r.writer or f"producer id {r.producer_id}, which no coordinator knows"
            show_line(
                f"{'!':>8}  not written by this sink, but by {writer}; to undo it, run exactly-once log {sink_id} "
                f"{f'--undo {r.offset}' if is_own_key(r.key_text) else '--drop-foreign'}",
                console,
            )


def _partitions(blocked: Iterable[BlockedPartition]) -> str:
    return some(
        [
            f"{b.topic}-{b.partition} ({plural(b.waiting, 'offset')}{'' if b.ours else f', held by {b.held_by}'})"
            for b in blocked
        ],
        NAMED,
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"

"""The commands: each calls the engine, and returns a document for scripts and a function that prints it for people."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from exactly_once.checkpoint import read_checkpoint, repair_command
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.recover import RecoveryReport
from exactly_once.deadline import now_ms
from exactly_once.diagnosis import Diagnosis, Severity, SinkFacts, diagnose
from exactly_once.diagnosis.facts import HangingName, Standing
from exactly_once.diagnosis.model import worst
from exactly_once.errors import InvalidOption, UnknownTopic
from exactly_once.inspection.findings import Inspection, naming, sink_of
from exactly_once.inspection.hanging import Attributed
from exactly_once.inspection.progress import compare
from exactly_once.inspection.sink import inspect_sink, owner_of, sinks
from exactly_once.inspection.words import never_claimed, plural
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.operation import transactions as operations
from exactly_once.operation.log_records import Logged, drop_foreign, in_force, log_records, undo
from exactly_once.operation.repair import examine, repair
from exactly_once.operation.rules import Refused, check_owner, name_of
from exactly_once.operation.successor import examine as examine_successor
from exactly_once.operation.successor import retire
from exactly_once.ops.cli import doctor, metrics, tables, verify
from exactly_once.ops.cli.cluster import connection_of, program
from exactly_once.ops.cli.explain import explain
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import check_sink_id, namespace
from exactly_once.protocol.part_state import PartState
from exactly_once.txn.coordinators import Description, describe, list_transactions

#: For each look at a sink.
BUDGET_S = 10.0


@dataclass(frozen=True)
class Result:
    """The result of a command: for scripts, for people, and as an exit code."""

    document: dict[str, Any]
    show: Callable[[Console], None]
    code: int = 0


def run(args: argparse.Namespace) -> Result:
    """Run the command that ``args`` (of :func:`~exactly_once.ops.cli.arguments.parse`) names."""
    result: Result = _COMMANDS[args.command](args)
    return result


def _list(args: argparse.Namespace) -> Result:
    connection = connection_of(args)
    names = [check_sink_id(args.sink)] if args.sink else sinks(connection, BUDGET_S)
    found = [inspect_sink(connection, name, BUDGET_S) for name in names]
    if args.sink and found[0].owner is None and found[0].quiet:
        raise never_claimed(args.sink)
    idle = _idle(connection, found) if args.all else []
    hanging = operations.list_hanging(connection, args.sink, (), args.older_than, BUDGET_S) if args.hanging else []
    wrong = [d for inspection in found for d in diagnose(_with_hanging(inspection, hanging))]
    document = {
        "sinks": [inspection.as_json() for inspection in found],
        "idle": [{**d._asdict(), "partitions": []} for d in idle] if args.all else None,
        "hanging": [_hanging_json(h) for h in hanging] if args.hanging else None,
        "trouble": [str(d) for d in wrong],
        "diagnoses": [d.as_json() for d in wrong],
    }
    shown = hanging if args.hanging else None
    return Result(document, partial(tables.show_list, found, idle, shown, wrong), 1 if wrong else 0)


def _with_hanging(found: Inspection, hanging: Sequence[Attributed]) -> SinkFacts:
    """Return the facts of a sink with what hangs of its own, and what hangs of others on its topics."""
    topics = {topic for r in found.recent for topic in r.decision.topics}
    topics |= {topic for t in found.open for topic, _ in t.partitions}
    mine = [h for h in hanging if h.sink_id == found.sink_id or (h.owner != "ours" and h.hanging.topic in topics)]
    return SinkFacts(found, hanging=tuple(HangingName.of(h, found.sink_id) for h in mine))


def _idle(connection: Connection, found: list[Inspection]) -> list[Description]:
    """Return the transactional ids of these sinks without a transaction under way."""
    with Admin(connection, BUDGET_S) as admin:
        ids = [t.transactional_id for i in found for t in list_transactions(admin, namespace(i.sink_id), ())]
        open_ids = {t.transactional_id for i in found for t in i.open}
        return [d for d in describe(admin.renew(BUDGET_S), ids).values() if d.transactional_id not in open_ids]


def _hanging_json(found: Attributed) -> dict[str, Any]:
    return {
        "name": found.hanging.name,
        **found.hanging._asdict(),
        "owner": found.owner,
        "sink_id": found.sink_id,
        "decided": name_of(found.decided.decision) if found.decided else None,
    }


def _explain(args: argparse.Namespace) -> Result:
    connection = connection_of(args)
    sink_id = sink_of(args.id)
    found = (
        inspect_sink(connection, sink_id, BUDGET_S, readers=True) if sink_id else Inspection("", checked_ms=now_ms())
    )
    with Admin(connection, BUDGET_S) as admin:
        described = describe(admin, [args.id])[args.id]
    known = {part.transactional_id for d in found.decided for part in d.parts}
    if not described.state and args.id not in known and naming(described, found.log) is None:
        raise InvalidOption(
            f"no coordinator of this cluster knows the transactional id {args.id!r}, and no decision names it",
            "Copy an id from 'exactly-once transactions list --all'; an id that was not used for a week has expired",
        )
    wrong = diagnose(SinkFacts(found))
    explanation = explain(described, found, program(args))
    document = {**explanation.as_json(), "diagnoses": [d.as_json() for d in wrong]}
    return Result(document, partial(tables.show_explanation, explanation, wrong), 0 if described.state else 1)


def _commit(args: argparse.Namespace) -> Result:
    if args.hanging:
        return _end_hanging(args, True)
    done = operations.commit(connection_of(args), args.id, args.force)
    decided = done.decided
    document = {
        "committed": args.id,
        "producer_id": done.transaction.producer_id,
        "producer_epoch": done.transaction.producer_epoch,
        "decided": name_of(decided.decision) if decided else None,
        "records": decided.handle.records if decided else None,
        "forced": done.forced,
    }
    of = (
        f", {name_of(decided.decision)}, {plural(decided.handle.records, 'record')}"
        if decided
        else f", forced: {done.forced}"
    )
    return Result(document, partial(tables.show_line, f"Committed {args.id}{of}."))


def _abort(args: argparse.Namespace) -> Result:
    if args.hanging:
        return _end_hanging(args, False)
    connection = connection_of(args)
    done = operations.abort(connection, args.id, args.force)
    document = {
        "aborted": args.id,
        "producer_id": done.transaction.producer_id,
        "producer_epoch": done.transaction.producer_epoch,
        "recovery": done.report.as_metadata() if done.report else None,
        "forced": done.forced,
    }
    if done.report is None:
        return Result(document, partial(tables.show_line, f"Aborted {args.id}, forced: {done.forced}."))
    wrong = _left(connection, done.report)
    return Result(document, partial(tables.show_report, done.report, wrong), 0 if done.report.clean else 1)


def _end_hanging(args: argparse.Namespace, commit: bool) -> Result:
    found, _ = operations.end_hanging(connection_of(args), args.hanging, args.force, args.older_than, commit=commit)
    done = "committed" if commit else "aborted"
    return Result(
        {done: args.hanging, **_hanging_json(found), "forced": args.force},
        partial(tables.show_line, f"{done.capitalize()} the hanging transaction {args.hanging}; its readers continue."),
    )


def _inspect_checkpoint(args: argparse.Namespace) -> Result:
    log = read_log(connection_of(args), check_sink_id(args.sink), BUDGET_S) if args.sink else None  # before the rest
    found = read_checkpoint(args.location)
    progress = compare(found, log) if log is not None else None
    wrong = diagnose(SinkFacts(Inspection(args.sink or "", log=log or LogState()), checkpoint=found))
    offsets = kafka_offsets(found.source_offsets)
    document = {
        "location": found.location,
        "query_id": found.query_id,
        "last_planned": found.last_offsets,
        "last_committed": found.last_commit,
        "in_flight": found.in_flight,
        "batch_started_ms": found.batch_started_ms,
        "source_offsets": list(found.source_offsets),
        "kafka_offsets": {t: {str(p): o for p, o in partitions.items()} for t, partitions in offsets.items()},
        "torn": dict(found.torn),
        "sink_id": args.sink,
        "progress": asdict(progress) if progress else None,
        "diagnoses": [d.as_json() for d in wrong],
    }
    bad = found.query_id is None if progress is None else progress.state in ("checkpoint lost", "foreign")
    bad = bad or bool(wrong)
    show = partial(tables.show_checkpoint, found, offsets, progress, args.sink, wrong)
    return Result(document, show, 1 if bad else 0)


def _repair_checkpoint(args: argparse.Namespace) -> Result:
    connection, sink_id = connection_of(args), check_sink_id(args.sink)
    if args.apply:
        done = repair(connection, sink_id, args.location, args.plan_anew, args.force, write_commit=args.write_commit)
        document = {"dry_run": False, **done.as_json(), "refused": None, "force": None}
        return Result(document, partial(tables.show_repair, done, None, ""), 0 if done.whole else 1)
    found = examine(connection, sink_id, args.location, args.plan_anew, BUDGET_S, args.write_commit)
    refusal: Refused | None = None
    try:
        if found.to_do:
            check_owner(sink_id, owner_of(read_log(connection, sink_id, BUDGET_S)), args.force)
    except Refused as e:
        refusal = e
    document = {
        "dry_run": True,
        **found.as_json(),
        "refused": refusal.what if refusal else None,
        "force": refusal.phrase if refusal else None,
    }
    command = program(args) + repair_command(args.location, sink_id).removeprefix("exactly-once")
    command += f"{' --plan-anew' if args.plan_anew else ''}{' --write-commit' if args.write_commit else ''} --apply"
    return Result(document, partial(tables.show_repair, found, refusal, command), 0 if found.whole else 1)


def _log(args: argparse.Namespace) -> Result:
    connection, sink_id = connection_of(args), check_sink_id(args.sink)
    if args.undo is not None:
        done = undo(connection, sink_id, args.undo, args.force)
        again = f"{done.restored.title} at offset {done.restored.offset} is" if done.restored else "No record is"
        key = done.record.key_text
        text = f"Undid {done.record.title} at offset {done.record.offset}. {again} in force under {key!r}."
        restored = _logged_json(done.restored, sink_id) if done.restored else None
        return Result(
            {"undone": _logged_json(done.record, sink_id), "restored": restored}, partial(tables.show_line, text)
        )
    try:
        if args.drop_foreign:
            gone = drop_foreign(connection, sink_id)
            text = f"Dropped {plural(len(gone), 'record')} under keys that no sink uses. The sink's own are in force."
            return Result({"dropped": [_logged_json(r, sink_id) for r in gone]}, partial(tables.show_line, text))
        found = in_force(log_records(connection, sink_id))
    except UnknownTopic:
        raise never_claimed(sink_id) from None
    strange = any(not r.is_of(sink_id) for r in found)
    document = {"sink_id": sink_id, "records": [_logged_json(r, sink_id) for r in found]}
    return Result(document, partial(tables.show_log, sink_id, found), 1 if strange else 0)


def _logged_json(r: Logged, sink_id: str) -> dict[str, Any]:
    return {
        "offset": r.offset,
        "timestamp_ms": r.timestamp_ms,
        "key": r.key_text,
        "record": r.title,
        "dead_letters": r.dead_letters,
        "producer_id": r.producer_id,
        "writer": r.writer,
        "own": r.is_of(sink_id),
    }


def _recover(args: argparse.Namespace) -> Result:
    connection, sink_id = connection_of(args), check_sink_id(args.sink)
    if not args.dry_run:
        report = operations.recover_sink(connection, sink_id, args.force)
        if report.claim is None:
            raise never_claimed(sink_id)
        wrong = _left(connection, report)
        return Result(
            {
                **report.as_metadata(),
                "clean": report.clean,
                "forced": args.force,
                "diagnoses": [d.as_json() for d in wrong],
            },
            partial(tables.show_report, report, wrong),
            0 if report.clean and not report.to_rewrite else 1,
        )
    found = inspect_sink(connection, sink_id, BUDGET_S, readers=True)
    if found.owner is None and found.quiet:
        raise never_claimed(sink_id)
    refusal: Refused | None = None
    try:
        check_owner(sink_id, found.owner, args.force)
    except Refused as e:
        refusal = e
    undecided = [t for t in found.open if t.verdict == "undecided"]
    diagnoses = diagnose(SinkFacts(found))
    document = {
        "dry_run": True,
        "would_complete": [d.name for d in found.decided if not (d.count(PartState.LOST) or d.count("unknown"))],
        "lost_parts": {d.name: n for d in found.decided if (n := d.count(PartState.LOST))},
        "would_abort": [t.transactional_id for t in undecided],
        "refused": refusal.what if refusal else None,
        "force": refusal.phrase if refusal else None,
        **found.as_json(),
        "diagnoses": [d.as_json() for d in diagnoses],
    }
    command = f"{program(args)} recover {sink_id}"
    show = partial(tables.show_plan, found, undecided, refusal, command, diagnoses)
    return Result(document, show, 1 if refusal else 0)


def _left(connection: Connection, report: RecoveryReport) -> tuple[Diagnosis, ...]:
    """Return what is wrong with a sink after its recovery, which works on it no more."""
    if report.clean and not report.to_rewrite:
        return ()
    found = replace(inspect_sink(connection, report.sink_id, BUDGET_S), owner=None)
    where = {(b.topic, b.partition) for b in found.blocked} & set(report.blocked)
    standing = tuple(Standing(b) for b in found.blocked if (b.topic, b.partition) in where)
    return diagnose(SinkFacts(found, standing=standing))


def _successor(args: argparse.Namespace) -> Result:
    act = examine_successor if args.dry_run else retire
    found = act(connection_of(args), args.sink, args.successor, args.checkpoint, args.loses_state)
    if args.write:
        _write(Path(args.write), f"{found.starting_offsets}\n")
    document = {"dry_run": args.dry_run, **found.as_json()}
    return Result(document, partial(tables.show_successor, found), 1 if found.refusal else 0)


def _write(file: Path, text: str) -> None:
    """Write a file in one step; raise InvalidOption where that is not possible."""
    draft = file.with_name(f".{file.name}.tmp")
    try:
        draft.write_text(text)
        draft.replace(file)
    except OSError as e:
        raise InvalidOption(
            f"--write {file}: {e.strerror or e}", "Name a file that can be written, and repeat the command"
        ) from e


def _verify(args: argparse.Namespace) -> Result:
    report = verify.verify_sink(connection_of(args), args)
    return Result(report.as_json(), partial(verify.show, report), 0 if report.clean else 1)


def _doctor(args: argparse.Namespace) -> Result:
    sink_id = check_sink_id(args.sink) if args.sink else None
    connect = partial(connection_of, args)
    lines = doctor.examine(connect, sink_id, args.topic, args.checkpoint, BUDGET_S, args.transaction_timeout)
    return Result(doctor.as_json(lines), partial(doctor.show, lines), 1 if worst(lines) is Severity.ERROR else 0)


def _metrics(args: argparse.Namespace) -> Result:
    metrics.run(args, connection_of(args))
    return Result({}, lambda console: None)


_COMMANDS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "transactions list": _list,
    "transactions explain": _explain,
    "transactions commit": _commit,
    "transactions abort": _abort,
    "checkpoint inspect": _inspect_checkpoint,
    "checkpoint repair": _repair_checkpoint,
    "log": _log,
    "recover": _recover,
    "successor": _successor,
    "verify": _verify,
    "doctor": _doctor,
    "metrics": _metrics,
}

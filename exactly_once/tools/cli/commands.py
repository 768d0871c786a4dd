"""The commands that are no operations: each returns a document for scripts, and what prints it for people."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import InvalidOption
from exactly_once.inspection.findings import Inspection, naming, sink_of
from exactly_once.inspection.hanging import Attributed
from exactly_once.inspection.progress import compare
from exactly_once.inspection.sink import inspect_foreign, inspect_sink, sinks
from exactly_once.inspection.words import never_claimed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.protocol.names import check_sink_id, namespace
from exactly_once.tools.cli import doctor, metrics, tables, verify
from exactly_once.tools.cli.cluster import connection_of, program
from exactly_once.tools.cli.explain import explain
from exactly_once.tools.cli.operations import Result
from exactly_once.tools.diagnosis import Severity, SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import HangingName
from exactly_once.tools.diagnosis.model import worst
from exactly_once.tools.doctor.probes import checkpoint_facts, examine
from exactly_once.tools.operation.end_hanging import hanging_json, list_hanging
from exactly_once.tools.operation.log_records import in_force, log_records
from exactly_once.tools.operation.model import BUDGET_S
from exactly_once.txn.coordinators import Description, describe, list_transactions


def list_open(args: argparse.Namespace) -> Result:
    connection = connection_of(args)
    names = [check_sink_id(args.sink)] if args.sink else sinks(connection, BUDGET_S)
    inspections = [inspect_sink(connection, name, BUDGET_S) for name in names]
    if args.sink and inspections[0].owner is None and inspections[0].quiet:
        raise never_claimed(args.sink)
    idle = _idle(connection, inspections) if args.all else []
    hanging = list_hanging(connection, args.sink, (), args.older_than, BUDGET_S) if args.hanging else []
    wrong = [d for inspection in inspections for d in diagnose(_with_hanging(inspection, hanging))]
    document = {
        "sinks": [inspection.as_json() for inspection in inspections],
        "idle": [{**d._asdict(), "partitions": []} for d in idle] if args.all else None,
        "hanging": [hanging_json(h) for h in hanging] if args.hanging else None,
        "trouble": [str(d) for d in wrong],
        "diagnoses": [d.as_json() for d in wrong],
    }
    shown = hanging if args.hanging else None
    return Result(document, partial(tables.show_list, inspections, idle, shown, wrong), 1 if wrong else 0)


def _with_hanging(inspection: Inspection, hanging: Sequence[Attributed]) -> SinkFacts:
    """Return the facts of a sink with what hangs of its own, and what hangs of others on its topics."""
    topics = {topic for r in inspection.recent for topic in r.decision.topics}
    topics |= {topic for t in inspection.open for topic, _ in t.partitions}
    mine = [h for h in hanging if h.sink_id == inspection.sink_id or (h.owner != "ours" and h.hanging.topic in topics)]
    return SinkFacts(inspection, hanging=tuple(HangingName.of(h, inspection.sink_id) for h in mine))


def _idle(connection: Connection, inspections: list[Inspection]) -> list[Description]:
    """Return the transactional ids of these sinks without a transaction under way."""
    with Admin(connection, BUDGET_S) as admin:
        ids = [t.transactional_id for i in inspections for t in list_transactions(admin, namespace(i.sink_id), ())]
        open_ids = {t.transactional_id for i in inspections for t in i.open}
        return [d for d in describe(admin.renew(BUDGET_S), ids).values() if d.transactional_id not in open_ids]


def explain_one(args: argparse.Namespace) -> Result:
    connection = connection_of(args)
    sink_id = sink_of(args.id)
    mine = inspect_sink(connection, sink_id, BUDGET_S, readers=True) if sink_id else None
    with Admin(connection, BUDGET_S) as admin:
        described = describe(admin, [args.id])[args.id]
        inspection = mine or inspect_foreign(admin, described, BUDGET_S)
    known = {part.transactional_id for d in inspection.decided for part in d.parts}
    if not described.state and args.id not in known and naming(described, inspection.log) is None:
        raise InvalidOption(
            f"no coordinator of this cluster knows the transactional id {args.id!r}, and no decision names it",
            "Copy an id from 'exactly-once transactions list --all'; an id that was not used for a week has expired",
        )
    wrong = diagnose(SinkFacts(inspection))
    explanation = explain(described, inspection, program(args))
    document = {**explanation.as_json(), "diagnoses": [d.as_json() for d in wrong]}
    return Result(document, partial(tables.show_explanation, explanation, wrong), 0 if described.state else 1)


def inspect_checkpoint(args: argparse.Namespace) -> Result:
    read = partial(read_log, connection_of(args), check_sink_id(args.sink), BUDGET_S) if args.sink else None
    checkpoint, facts = checkpoint_facts(args.location, args.sink or "", read)
    progress = compare(checkpoint, facts.sink.log) if read is not None else None
    wrong = diagnose(facts)
    offsets = kafka_offsets(checkpoint.source_offsets)
    document = {
        "location": checkpoint.location,
        "query_id": checkpoint.query_id,
        "last_planned": checkpoint.last_offsets,
        "last_committed": checkpoint.last_commit,
        "in_flight": checkpoint.in_flight,
        "batch_started_ms": checkpoint.batch_started_ms,
        "source_offsets": list(checkpoint.source_offsets),
        "kafka_offsets": {t: {str(p): o for p, o in partitions.items()} for t, partitions in offsets.items()},
        "torn": dict(checkpoint.torn),
        "sink_id": args.sink,
        "progress": asdict(progress) if progress else None,
        "diagnoses": [d.as_json() for d in wrong],
    }
    bad = checkpoint.query_id is None if progress is None else progress.state in ("checkpoint lost", "foreign")
    bad = bad or bool(wrong)
    show = partial(tables.show_checkpoint, checkpoint, offsets, progress, args.sink, wrong)
    return Result(document, show, 1 if bad else 0)


def list_log(args: argparse.Namespace) -> Result:
    records = in_force(log_records(connection_of(args), args.sink_id))
    foreign = any(not r.is_of(args.sink_id) for r in records)
    document = {"sink_id": args.sink_id, "records": [r.as_json(args.sink_id) for r in records]}
    return Result(document, partial(tables.show_log, args.sink_id, records), 1 if foreign else 0)


def verify_output(args: argparse.Namespace) -> Result:
    report = verify.verify_sink(connection_of(args), args)
    return Result(report.as_json(), partial(verify.show, report), 0 if report.clean else 1)


def examine_all(args: argparse.Namespace) -> Result:
    sink_id = check_sink_id(args.sink) if args.sink else None
    connect = partial(connection_of, args)
    lines = examine(connect, sink_id, args.topic, args.checkpoint, BUDGET_S, args.transaction_timeout)
    return Result(doctor.as_json(lines), partial(doctor.show, lines), 1 if worst(lines) is Severity.ERROR else 0)


def observe_sinks(args: argparse.Namespace) -> Result:
    metrics.run(args, connection_of(args))
    return Result({}, lambda console: None)

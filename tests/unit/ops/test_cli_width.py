"""What a person copies from the output of ``exactly-once`` is in one piece on 80 columns: ids, paths, topics."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from exactly_once.checkpoint import Checkpoint, repair_command
from exactly_once.inspection.findings import (
    BlockedPartition,
    Inspection,
    OpenTransaction,
    Owner,
    PendingDecision,
    PendingPart,
)
from exactly_once.inspection.hanging import Attributed
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.inspection.progress import StreamProgress
from exactly_once.protocol.records import Claim
from exactly_once.tools.cli import doctor, operations, tables, verify
from exactly_once.tools.cli.explain import explain
from exactly_once.tools.diagnosis import SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import Standing
from exactly_once.tools.doctor.host import DoctorCheck
from exactly_once.tools.operation.log_records import Logged
from exactly_once.tools.operation.model import OperationOutcome
from exactly_once.tools.operation.repair.applying import Repair
from exactly_once.tools.operation.repair.verdicts import Action, FileFinding
from exactly_once.tools.operation.repair_checkpoint import _outcome
from exactly_once.tools.operation.rules import Refused
from exactly_once.tools.operation.tables import inspected
from exactly_once.tools.verify import Report
from exactly_once.tools.verify.anomalies import Anomaly, Finding
from exactly_once.txn.coordinators import Description
from exactly_once.txn.leaders import Hanging

QUERY = str(uuid.UUID(int=0x5CE7_0000_1111_2222_3333_4444_5555_6666))
SINK = f"warehouse-europe-central-1.orders-enriched-{QUERY}"
TOPIC = "prod.retail.europe-central-1.orders.enriched-and-joined.public-events.with-customer-master-data.v3"
ID = f"eo:{SINK}:1234:117:0.0"
HOST = "worker-117.streaming.europe-central-1.compute.internal"
PATH = f"/srv/data/lakehouse/prod/streaming/checkpoints/europe-central-1/retail/{SINK}/job-of-the-orders/checkpoint"

OPEN = OpenTransaction(ID, 117, "0.0", "Ongoing", 1, 1, 1.0, 900.0, ((TOPIC, 117),), "undecided")
BLOCKED = BlockedPartition(TOPIC, 117, 1, 2, False, (f"reader-of-{TOPIC}",), SINK)


def printed(show: Callable[[Console], None]) -> list[str]:
    """The lines on a terminal of 80 columns."""
    console = Console(width=80, file=io.StringIO(), highlight=False)
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


CHECKPOINT = Checkpoint(PATH, query_id=QUERY, last_offsets=1_234, last_commit=1_233, source_offsets=())
OFFSETS = {TOPIC: dict.fromkeys(range(40), 123_456_789_012)}
FAULT = FileFinding(
    f"state/0/117/{QUERY}.delta", Action.REMOVE, f"it is a part of batch 4 of query {QUERY}, which is gone"
)
IDLE = Description(ID, "CompleteCommit", 123_456, 7, 900_000, -1, (), 1)
TORN = Checkpoint(PATH, query_id=QUERY, source_offsets=("{}",), torn={"offsets/7": f"{ID} is not what it names"})
PROGRESS = StreamProgress("checkpoint lost", QUERY, 1_234, 1_233, 1_236, tuple(range(1_200, 1_236)), None)
REPAIR = _outcome(Repair(SINK, PATH, [FAULT]))
PLACE = f"{TOPIC}-117@123456789012..123456789999"
REPORT = Report(
    SINK, (Finding(Anomaly.LOST, f"{ID} is not there", transaction=ID, places=(PLACE,)),), last_batch=f"write {SINK}"
)


FROZEN = Frozen(Process(HOST, "m", 4_711, 1.0), State.STOPPED)
OWNER = Owner(Claim(1_234, QUERY, 1, "stream", HOST, 4_711, PATH, 1.0, f"dagster/prod/{QUERY}"), True, (FROZEN,))
PENDING = PendingDecision(
    QUERY, 7, 1, 1, (TOPIC,), tuple(PendingPart(ID, n, 1, state) for n, state in enumerate(("lost", "unknown")))
)
FOUND = Inspection(SINK, OWNER, (OPEN,), (PENDING,), (BLOCKED,), checked_ms=1_700_000_000_000)
REFUSED = Refused("it is frozen and the process owns it, as far as this host can tell", "End it", phrase="fence it")
RECOVER = f"exactly-once recover {SINK}"
HANGING = Attributed(Hanging(TOPIC, 117, 123_456, 7, 1, 5, 1, ID), "ours", SINK)
LOGGED = Logged(123_456, 1, b"x", None, 7, ID, b"y")
EXPLAINED = explain(Description(ID, "Ongoing", 1, 1, 900_000, 1, ((TOPIC, 117),), 1), FOUND)
WRONG = diagnose(SinkFacts(FOUND))
TORN_FILES = diagnose(SinkFacts(Inspection(SINK), checkpoint=TORN))
READERS_WAIT = diagnose(SinkFacts(Inspection(SINK), standing=(Standing(replace(BLOCKED, ours=False)),)))
OUTCOME = OperationOutcome(
    SINK,
    f"Sink {SINK}: completed batch 7.",
    {"checkpoint": PATH, **inspected(FOUND)},
    diagnoses=READERS_WAIT,
    refusal=REFUSED,
)
DOCTOR = DoctorCheck("connector", f"It is in {PATH}").warn(
    "", f"Look at what is there, then run {RECOVER}, or do nothing at all"
)


@pytest.mark.parametrize(
    ("show", "pieces"),
    [
        (
            lambda c: tables.show_checkpoint(CHECKPOINT, OFFSETS, None, SINK, (), c),
            (PATH, QUERY, TOPIC, "39@123456789012"),
        ),
        (
            lambda c: tables.show_checkpoint(TORN, {}, PROGRESS, SINK, TORN_FILES, c),
            (repair_command(PATH, SINK), QUERY),
        ),
        (lambda c: operations.show_outcome(REPAIR, c), (PATH, f"state/0/117/{QUERY}.delta", QUERY)),
        (lambda c: tables.show_list([Inspection(SINK)], [], None, [], c), (SINK,)),
        (
            lambda c: tables.show_list([FOUND], [IDLE], [HANGING], WRONG, c),
            (SINK, ID, f"{TOPIC}-117", "kill -9 4711", RECOVER),
        ),
        (
            lambda c: tables.show_explanation(EXPLAINED, WRONG, c),
            (ID, f"{TOPIC}-117", RECOVER, *(option.command for option in EXPLAINED.options)),
        ),
        (lambda c: operations.show_plan(OUTCOME, RECOVER, c), (SINK, ID, f"{RECOVER} --force 'fence it'")),
        (lambda c: operations.show_plan(replace(OUTCOME, refusal=None), RECOVER, c), (RECOVER, f"{TOPIC}-117")),
        (lambda c: operations.show_outcome(OUTCOME, c), ("exactly-once transactions list --hanging", TOPIC, PATH)),
        (lambda c: tables.show_log(SINK, [LOGGED], c), (ID, f"exactly-once log {SINK} --drop-foreign")),
        (lambda c: verify.show(REPORT, c), (ID, PLACE, SINK)),
        (lambda c: doctor.show([DOCTOR], c), (PATH, RECOVER)),
    ],
)
def test_lists_fit_80_columns_with_ids_and_commands_in_one_piece(
    show: Callable[[Console], None], pieces: tuple[str, ...]
) -> None:
    """Mishap: a table folds an id at the width of its column, and what is copied names nothing; or a terminal cuts a
    sentence in the middle of a word.
    """
    lines = printed(show)
    for piece in pieces:
        assert any(piece in line for line in lines), (piece, lines)
    wide = [line for line in lines if len(line) > 80 and not is_one_piece(line, pieces)]
    assert not wide, wide


def is_one_piece(line: str, pieces: tuple[str, ...]) -> bool:
    """Whether a line holds one id or command and nothing beside it."""
    whole = line.strip().rstrip(".,:;")
    return " " not in whole or whole in pieces


def test_a_command_ends_with_its_last_word() -> None:
    """Mishap: what a person copies has the comma of the sentence at its end, or the sentence as its arguments."""
    servers = f"exactly-once --bootstrap-servers a:1,b:2 recover {SINK} --force 'fence it, now'"
    assert tables.wrapped(f"Run kill -9 4711, then {servers}; look (pip install --no-deps x).", 32) == [
        "Run kill -9 4711, then",
        f"{servers};",
        "look (pip install --no-deps x).",
    ]

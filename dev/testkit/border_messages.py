"""Each message between Spark's JVM and the coordinators; tests/java/exactlyonce/border/Golden.java has them, too."""

from __future__ import annotations

import json

from exactly_once.framing import Encoding
from exactly_once.options import Guarantee
from exactly_once.protocol.planning import Plan
from exactly_once.spark.border import (
    AbortRequest,
    CallAnswer,
    CheckRequest,
    CloseRequest,
    CommitRequest,
    DeadLetterTarget,
    EngineError,
    LostPart,
    Message,
    PartitionRange,
    PlanRequest,
    PreparedReport,
    TaskReport,
    TaskTicket,
)

_OPTIONS = {"sink.id": "orders", "topic": "orders"}
_SCHEMA = '{"type":"struct","fields":[]}'
_PEM = {"trust": "a certificate"}

_EMPTY = TaskReport(part=1, again=False, execution="e1", plan=Plan.DRAIN)
_LEAST = PreparedReport(2, False, "e1", Plan.WRITE, "eo:orders:1:2:0.1", 41, 0, 0, 0, "", "plain", ())
_PREPARED = PreparedReport(
    part=3,
    again=True,
    execution="e1",
    plan=Plan.REPLAY,
    others=("80049561", "80049562"),
    id="eo:orders:1:3:1.2",
    producer=2**40,
    epoch=7,
    records=5,
    bytes=600,
    digest="00ff",
    form="row+timestamp",
    written=(
        PartitionRange("orders", 0, first_offset=10, records=3, oldest_ms=1_700_000_000_000),
        PartitionRange("orders", 1, first_offset=-1, records=2),
    ),
    dead=1,
    refused=("a row is too large", "Make it smaller"),
)
_LEAST_TICKET = TaskTicket(
    plan=Plan.DRAIN,
    execution="e1",
    batch=0,
    query="",
    guarantee=Guarantee.NONE,
    sink="orders",
    ids="eo:orders:0:",
    log="eo.orders.commit-log",
    log_end=0,
    timeout_ms=900_000,
    limit_ms=0,
    too_long="",
    topic=None,
    columns={"value": 0},
    key_prefix="",
    value_prefix="",
    encodings={},
    allowed=(),
    dead_letters=None,
    batch_headers=False,
    lost=(),
    client={},
)
_TICKET = TaskTicket(
    plan=Plan.REPLAY,
    execution="e2",
    batch=2**33,
    query="q1",
    guarantee=Guarantee.EXACTLY_ONCE,
    sink="orders",
    ids="eo:orders:3:",
    log="eo.orders.commit-log",
    log_end=2**34,
    timeout_ms=900_000,
    limit_ms=630_000,
    too_long="EO-EXPIRING: part {part} after {took_s} s",
    topic="orders",
    columns={"key": 1, "value": 4},
    key_prefix="0000000001",
    value_prefix="0000000002",
    encodings={"value": Encoding("AVRO", {"read": "long"}, {"read": "string"})},
    allowed=("orders", "orders-*"),
    dead_letters=DeadLetterTarget("dead", most=10, largest=1_048_588, origin="header:origin"),
    batch_headers=True,
    lost=(LostPart(5, "00ff"), LostPart(6, "ff00")),
    client={"bootstrap.servers": "broker:9092", "linger.ms": "5"},
)

#: By the name of its file in tests/golden/border.
MESSAGES: dict[str, Message] = {
    "check-request": CheckRequest(_OPTIONS, True, _SCHEMA, _PEM, "append", False),
    "check-request-least": CheckRequest(_OPTIONS),
    "plan-request": PlanRequest(
        run="r1",
        options=_OPTIONS,
        schema=_SCHEMA,
        overwrite=True,
        write=False,
        query="q1",
        batch=2**33,
        settings={"spark.speculation": "false"},
        sources=("orders", "returns"),
        pem=_PEM,
    ),
    "plan-request-of-a-write": PlanRequest("w1", _OPTIONS, _SCHEMA, write=True),
    "commit-request": CommitRequest("r1", (_EMPTY, None, _PREPARED), 2**33),
    "abort-request": AbortRequest("r1", (None,), 4),
    "close-request": CloseRequest("r1"),
    "task-report": _EMPTY,
    "prepared-report": _PREPARED,
    "prepared-report-least": _LEAST,
    "answer-with-a-ticket": CallAnswer(_TICKET),
    "answer-with-the-least-ticket": CallAnswer(_LEAST_TICKET),
    "answer": CallAnswer(),
    "answer-with-an-error": CallAnswer(error=EngineError("EO-FENCED", "EO-FENCED: claim 1 is superseded")),
}


def golden_texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {f"{name}.json": json.dumps(json.loads(m.as_json()), indent=2) + "\n" for name, m in MESSAGES.items()}

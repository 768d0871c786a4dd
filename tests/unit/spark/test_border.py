"""Python's side of the border to Spark's JVM, against the golden files; test_java_border.py has Java's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exactly_once.errors import ProtocolViolation
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import OffsetRange, Place, PreparedTransaction
from exactly_once.spark.border import CommitRequest, PlanRequest, PreparedReport, Request, TaskReport, request_of
from testkit.border_messages import MESSAGES
from tools.golden import GOLDEN, differing

REPORT = json.loads(MESSAGES["prepared-report"].as_json())


def test_the_golden_files_are_what_python_writes() -> None:
    """Guards against a key that Python changes alone; run `make golden`, and look at what Java's side says."""
    assert differing("border") == []


@pytest.mark.parametrize("name", MESSAGES)
def test_python_reads_what_it_or_java_has_written(name: str) -> None:
    """Guards against a field that is read under another name than it is written."""
    text, message = (GOLDEN / "border" / f"{name}.json").read_text(), MESSAGES[name]
    kind = TaskReport if isinstance(message, TaskReport) else type(message)
    read = request_of(text) if isinstance(message, Request) else kind.of(json.loads(text))
    assert read == message and type(read) is type(message)


def commit(**changes: Any) -> dict[str, Any]:
    return {"call": "commit", "run": "r", "batch": 1, "parts": [REPORT | changes]}


def without(field: str) -> dict[str, Any]:
    return {"call": "commit", "run": "r", "parts": [{k: v for k, v in REPORT.items() if k != field}]}


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ([], "None"),
        ({"run": "r"}, "None"),
        ({"call": "nonsense"}, "'nonsense'"),
        ({"call": "close"}, ": run is missing)"),
        ({"call": "close", "run": 1}, ": run is not a string)"),
        ({"call": "plan", "run": "r", "options": {"a": 1}, "schema": ""}, ": options.a is not a string)"),
        ({"call": "plan", "run": "r", "options": {}, "schema": "", "batch": "1"}, ": batch is not a whole number)"),
        ({"call": "plan", "run": "r", "options": {}, "schema": "", "write": 1}, ": write is not true or false)"),
        ({"call": "commit", "run": "r", "parts": {}}, ": parts is not a list)"),
        (commit(plan="burn"), ": parts.0.plan is not one of write, drain, replay)"),
        (commit(epoch=True), ": parts.0.epoch is not a whole number)"),
        (commit(written=[["t", 0, 1]]), ": parts.0.written.0 has too few values)"),
        (without("digest"), ": parts.0.digest is missing)"),
    ],
    ids=str,
)
def test_a_request_of_a_jar_of_another_version_is_refused_with_the_name_of_the_field(
    request_: object, named: str
) -> None:
    """Guards against a KeyError of which nobody learns that two versions met."""
    with pytest.raises(ProtocolViolation) as refused:
        request_of(json.dumps(request_))
    assert named in refused.value.what


def test_a_request_of_an_older_jar_is_read_as_before() -> None:
    """Guards against an upgrade of the package that stops a session which has the jar of before."""
    asked: dict[str, Any] = {
        "call": "plan",
        "run": "r",
        "options": {},
        "schema": "s",
        "settings": {},
        "query": "q",
        "batch": None,
    }
    assert request_of(json.dumps(asked)) == PlanRequest("r", {}, "s", query="q")
    older = {k: v for k, v in REPORT.items() if k not in ("dead", "refused")} | {"written": [["t", 0, 1, 2]]}
    read = request_of(json.dumps(commit() | {"parts": [older], "more": "of a newer one"}))
    assert isinstance(read, CommitRequest) and isinstance(read.parts[0], PreparedReport)
    assert (read.parts[0].dead, read.parts[0].refused, read.parts[0].written) == (0, (), (("t", 0, 1, 2, None),))


def test_a_report_becomes_a_part_whose_handle_names_its_transaction() -> None:
    """Guards against a decision about another transaction than the task left open, or a place that no broker named."""
    report = MESSAGES["prepared-report"]
    assert isinstance(report, PreparedReport)
    part = report.part_of("r1")
    assert (part.run_id, part.part, part.again, part.plan) == ("r1", 3, True, Plan.REPLAY)
    assert part.refused == report.refused and part.dead_letters == 1
    assert part.handles == (
        PreparedTransaction(
            transactional_id="eo:orders:1:3:1.2",
            producer_id=2**40,
            epoch=7,
            part=3,
            records=5,
            bytes=600,
            digest="00ff",
            place=Place("orders", 0, 10),
            written={("orders", 0): OffsetRange(10, 3, 1_700_000_000_000), ("orders", 1): OffsetRange(-1, 2)},
            form="row+timestamp",
            dead=1,
        ),
    )
    assert TaskReport(0, False, "e", Plan.DRAIN).part_of("r").handles == ()

"""The product's own checker beside the lab's reader: what it finds is an anomaly; the two must agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import batch_name
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Participant
from exactly_once.tools.verify import Report, VerifyParameters, verify
from exactly_once.tools.verify.by_origin.comparison import Question
from exactly_once.tools.verify.by_origin.origin import Origin
from faultlab.judge import LabVerdict
from faultlab.workload import ORIGIN

#: Before the name of an anomaly that the checker found.
BY_CHECKER = "verify: "

#: The checker and the reader tell different things of one output, or the checker came to no end.
DISAGREES, NO_END = "verify disagrees", "verify did not end"

#: No transaction is open any more when the checker looks, so one that is open on a partition for a second hangs.
HANGING_AGE_S = 1.0

#: What the reader calls it, and what the checker may.
SAME = {
    "lost": {"lost", "unseen"},
    "duplicate": {"duplicate"},
    "phantom": {"phantom"},
    "key reorder": {"key reorder"},
}


def check(
    verdict: LabVerdict,
    connection: Connection,
    sink_id: str,
    topic: str,
    checkpoint: str,
    origin: bool,
    others: Sequence[Participant[Any]] = (),
    one_query: bool = True,
) -> Report | None:
    """Run :func:`exactly_once.verify` on a drained sink, and add what it says to the verdict.

    Parameters
    ----------
    verdict : LabVerdict
        Of the lab's own reader, on the same output.
    topic : str
        The output.
    origin : bool
        Whether the records have the header :data:`faultlab.workload.ORIGIN`.
    others : sequence of Participant
        The outputs beside the topic, which have the same records.
    one_query : bool
        Whether one query wrote the whole output: the batches of a later one take the places of the same numbers in the
        commit log.

    Returns
    -------
    Report or None
        None when the checker raised an error, which is an anomaly.
    """
    question = Question(Origin.parse(ORIGIN), refuse_foreign=True) if origin else None
    try:
        report = verify(
            connection,
            VerifyParameters(
                sink_id,
                checkpoint=checkpoint,
                origin=question,
                topics=[topic] if origin else [],
                hanging_age_s=HANGING_AGE_S,
            ),
            outputs=others,
        )
    except ExactlyOnceError as e:
        verdict.add(NO_END, [e])
        return None
    differences = disagreements(verdict, report, 1 + len(others), one_query)
    for finding in report.findings:
        verdict.add(f"{BY_CHECKER}{finding.anomaly.value}", [f"{finding.batch} {finding.what}".strip()])
    verdict.add(DISAGREES, differences)
    return report


def disagreements(verdict: LabVerdict, report: Report, outputs: int = 1, one_query: bool = True) -> list[str]:
    """Return what the two should have found alike and did not, where each of so many ``outputs`` has all records.

    Findings of the checker alone are none: it looks at more.
    """
    found = {name for name in SAME if verdict.anomalies[name]}
    if report.by_origin:
        told = [f"{name}, which only the reader found" for name in sorted(found) if not SAME[name] & set(report.counts)]
        pairs = (("input", verdict.records), ("output", verdict.read))
        return told + [
            f"{report.by_origin[what]} records of {what} instead of {count}"
            for what, count in pairs
            if report.by_origin[what] != count
        ]
    if not report.clean or not proves_all(report) or not one_query:
        return []
    if found:
        return [f"{name}, which only the reader found" for name in sorted(found - {"key reorder"})]
    read = verdict.read * outputs
    return [] if report.records == read else [f"{report.records} records of all batches instead of {read}"]


def proves_all(report: Report) -> bool:
    """Return whether the commit log proved every batch of the stream, from the first one."""
    return bool(report.first_batch) and report.first_batch == batch_name("", 0) and not report.unproven


def sentence(report: Report | None) -> str:
    """Return what the checker read, for a round's summary."""
    if report is None:
        return "verify did not end"
    log = f"{report.batches} batches with {report.records} records by the commit log"
    unproven = "".join(f", unproven {n} ({reason})" for reason, n in report.unproven.items())
    if not report.by_origin:
        return f"verify: {log}{unproven}"
    return f"verify: {log}, {report.by_origin['output']} records by origin{unproven}"

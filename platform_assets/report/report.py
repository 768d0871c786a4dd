"""The report at the end of `make run`: what ``exactly-once verify`` says, and whether the contents are right."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from dagster_exactly_once.checks.verified import question_of
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify import Report as Verification
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once_local.duel.departures import events
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.expected import expected_delays
from platform_assets.flights.streams import flight_delays
from platform_assets.report.contents import Contents, Findings
from platform_assets.report.reader import read_committed

TOPICS = (FLIGHTS, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED)


@dataclass(frozen=True)
class FlightReport:
    """The report on the main job.

    Attributes
    ----------
    contents : Findings
        The records, compared with the package.
    verification : Verification
        The output, compared with the commit log and, record by record, with the input.
    rates : dict
        Records per second of each step.
    """

    contents: Findings
    verification: Verification
    rates: dict[str, float]

    @property
    def problems(self) -> list[str]:
        """All problems, in words; empty without any."""
        found = {**self.contents.faults, **self.verification.counts}
        return [f"{name}: {count:,}" for name, count in found.items()]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            **asdict(self.contents),
            "verify": self.verification.as_json(),
            "records_per_second": self.rates,
            "problems": self.problems,
        }


def expected_contents() -> Contents:
    """Return what compares the topics with the package. This reads the package: some ten seconds."""
    return Contents((event.value for event in events()), expected_delays())


def make_report(
    connection: Connection,
    checkpoint: str,
    rates: dict[str, float],
    contents: Contents,
    on_read: Callable[[str, int], None] = lambda topic, count: None,
) -> FlightReport:
    """Make the report from the three topics, the commit log and the checkpoint of the stream.

    Parameters
    ----------
    contents : Contents
        A new one of :func:`expected_contents`.

    Raises
    ------
    BrokerUnreachable, UnknownTopic
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:  # both are Python at work, on a core each
        verification = process.submit(_verify, connection, checkpoint)
        for topic, add in zip(TOPICS, (contents.add_input, contents.add_output, contents.add_rejected), strict=True):
            for record in read_committed(connection, topic, lambda count, topic=topic: on_read(topic, count)):  # type: ignore[misc]
                add(record)
        return FlightReport(contents.findings(), verification.result(), rates)


def _verify(connection: Connection, checkpoint: str) -> Verification:
    return verify(
        connection,
        VerifyParameters(
            flight_delays.sink_id,
            checkpoint=checkpoint,
            origin=question_of(flight_delays, order="key", refuse_foreign=True, backfilled=True),
            inputs=flight_delays.source_topics,
            topics=flight_delays.topics,
        ),
    )

"""The shape of a symptom, and the register of all of them by code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from exactly_once.tools.diagnosis.facts import SinkFacts
from exactly_once.tools.diagnosis.model import Diagnosis, Severity
from exactly_once.tools.diagnosis.thresholds import Thresholds


class Sign(NamedTuple):
    """One sight of a symptom; the symptom itself adds its code and its severity. ``subject``: the sink without one."""

    sentence: str
    remedy: str = ""
    evidence: dict[str, Any] = {}  # noqa: RUF012
    since: float | None = None
    subject: str = ""
    severity: Severity | None = None


Judge = Callable[[SinkFacts, Thresholds], Iterator[Sign]]


@dataclass(frozen=True)
class Symptom:
    """One symptom.

    Attributes
    ----------
    code : str
    severity : Severity
        Unless the finding has one of its own.
    judge : callable
        Its docstring is what the documentation says of it.
    needs : str
        The facts that it needs beside the inspection: ``""``, ``hanging``, ``standing``, ``checkpoint``, ``verify``
        (what only verify reads) or ``stream`` (what only the stream's operator knows).
    threshold : str
        The field of :class:`Thresholds` at which it begins; "" without one.
    recovers : bool
        Whether a recovery of the sink ends it.
    at_once : bool
        It never mends by itself, so nobody need wait to see whether it stays.
    level : str
        The name of the figure in its evidence that falls while it mends by itself; "" without one.
    """

    code: str
    severity: Severity
    judge: Judge
    needs: str = ""
    threshold: str = ""
    recovers: bool = False
    at_once: bool = False
    level: str = ""

    @property
    def meaning(self) -> str:
        """One sentence that says what is wrong, for the documentation."""
        return self.judge.__doc__ or ""

    def find(self, facts: SinkFacts, limits: Thresholds) -> Iterator[Diagnosis]:
        for seen in self.judge(facts, limits):
            yield Diagnosis(
                self.code,
                seen.severity or self.severity,
                seen.subject or facts.sink.sink_id,
                seen.sentence,
                seen.remedy,
                seen.since,
                seen.evidence,
            )


#: All symptoms by code.
SYMPTOMS: dict[str, Symptom] = {}


def symptom(code: str, severity: Severity, **more: Any) -> Callable[[Judge], Judge]:
    """Register a function as the symptom ``code``; ``more`` are the other fields of :class:`Symptom`."""

    def register(judge: Judge) -> Judge:
        SYMPTOMS[code] = Symptom(code, severity, judge, **more)
        return judge

    return register


def state_of(code: str) -> str:
    """Return the state that a code names: ``in doubt`` for ``HEALTH-IN-DOUBT``."""
    return code.removeprefix("HEALTH-").lower().replace("-", " ")

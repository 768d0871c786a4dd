"""The one shape of a finding that a person reads: a code, a severity, a sentence, a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Severity(Enum):
    """The urgency of a diagnosis, from nothing to do to acting now."""

    OK = "ok"
    WARN = "warn"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for OK, 2 for ERROR."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Diagnosis:
    """One finding, as every screen shows it.

    Attributes
    ----------
    code : str
        Stable, and an entry of docs/errors.md: ``HEALTH-HANGING``.
    severity : Severity
    subject : str
        What it is about: a sink id, a transactional id, ``topic-partition``, a host's setting.
    sentence : str
        The cause with its values, without a full stop at its end.
    remedy : str
        What ends it, for the command line and for Dagster alike, without a full stop at its end; "" when nothing is to
        do.
    since : float or None
        When it began, in seconds since the epoch; None when nobody knows.
    evidence : mapping
        The facts behind it as plain values (what ``json.dumps`` takes), by name.
    """

    code: str
    severity: Severity
    subject: str
    sentence: str
    remedy: str = ""
    since: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """All of it on one line, for a list."""
        return f"{self.code} {self.subject}: {self.text}"

    @property
    def text(self) -> str:
        """The sentence and the remedy, for a screen with one line."""
        return f"{self.sentence}. {self.remedy}." if self.remedy else f"{self.sentence}."

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.severity.value, "evidence": dict(self.evidence)}


def worst(found: Iterable[Diagnosis]) -> Severity:
    """Return the gravest severity; OK without a diagnosis."""
    return max((d.severity for d in found), key=lambda s: s.rank, default=Severity.OK)

"""The diagnosis of a sink, in one sentence for every screen: facts in, what is wrong out. Pure."""

from __future__ import annotations

from exactly_once.tools.diagnosis import stream_symptoms, symptoms  # noqa: F401  (they register themselves)
from exactly_once.tools.diagnosis.facts import SinkFacts
from exactly_once.tools.diagnosis.model import Diagnosis, Severity
from exactly_once.tools.diagnosis.registry import SYMPTOMS, state_of
from exactly_once.tools.diagnosis.stream_symptoms import REFUSED, STATES
from exactly_once.tools.diagnosis.thresholds import Thresholds

__all__ = ["Diagnosis", "Severity", "SinkFacts", "Thresholds", "diagnose", "health", "state_of"]


def diagnose(facts: SinkFacts, limits: Thresholds | None = None) -> tuple[Diagnosis, ...]:
    """Return everything that is wrong, gravest first; nothing for a sink that works or is at rest."""
    found = [d for s in SYMPTOMS.values() for d in s.find(facts, limits or Thresholds())]
    return tuple(sorted((d for d in found if d.severity is not Severity.OK), key=lambda d: -d.severity.rank))


def health(facts: SinkFacts, limits: Thresholds | None = None) -> Diagnosis:
    """Return the one state of a stream (:func:`state_of`): needs ``facts.stream``, and says nothing of the sink's other
    symptoms. For a stream that is stopped, it is the reason why its next start would be refused.
    """
    shown = (found for code in STATES for found in SYMPTOMS[code].find(facts, limits or Thresholds()))
    state = next(shown, None)
    if state is None:
        raise ValueError("the state of a stream needs the facts of its operator")
    if state.code != "HEALTH-STOPPED" or facts.stream is None or not facts.stream.managed:
        return state  # the checkpoint of a stream that runs elsewhere may be on a disk there
    refused = (found for code in REFUSED for found in SYMPTOMS[code].find(facts, limits or Thresholds()))
    return next(refused, state)

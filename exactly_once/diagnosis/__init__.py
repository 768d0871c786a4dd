"""The diagnosis of a sink, in one sentence for every screen: facts in, what is wrong out. Pure."""

from exactly_once.diagnosis.facts import SinkFacts
from exactly_once.diagnosis.judge import diagnose, health
from exactly_once.diagnosis.model import Diagnosis, Severity
from exactly_once.diagnosis.registry import state_of
from exactly_once.diagnosis.thresholds import Thresholds

__all__ = ["Diagnosis", "Severity", "SinkFacts", "Thresholds", "diagnose", "health", "state_of"]

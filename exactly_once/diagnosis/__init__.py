"""What is wrong with a sink, in one sentence for every screen: facts in, diagnoses out. Pure."""

from exactly_once.diagnosis.model import Diagnosis, Severity
from exactly_once.diagnosis.thresholds import Thresholds

__all__ = ["Diagnosis", "Severity", "Thresholds"]

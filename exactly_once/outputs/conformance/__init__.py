"""Tests, for your own test suite, of whether a participant keeps the contract of :mod:`exactly_once.participant`.

Subclass :class:`ParticipantConformance` in a test module, say how to make the participant and how to look at its output
from outside, and run pytest::

    class TestMyParticipant(ParticipantConformance):
        @pytest.fixture(autouse=True)
        def output(self, tmp_path):          # every test begins with an empty output
            self.root = tmp_path

        def participant(self): return MyParticipant("mine", str(self.root))
        def visible(self): return [json.loads(line) for f in self.root.glob("*.jsonl") for line in f.open()]
        def leftovers(self): return {f.name for f in (self.root / "staged").iterdir()}

``pytest -v`` prints a line for each anomaly. ``docs/participant.md`` has a whole participant and its tests.

Every crash here is real: each step runs in a process of its own (:mod:`exactly_once.outputs.conformance.processes`),
and SIGKILL ends it right after the step or at a line within it, so no code of the participant can clean up. Other
processes must be able to import the participant's class: put it in a module of its own. Needs a POSIX system and a few
hundred milliseconds for each process.
"""

from exactly_once.outputs.conformance.suite import ParticipantConformance

__all__ = ["ParticipantConformance"]

"""What a task does with its writers when one of them fails: each is ended by the participant that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from exactly_once.participant import Participant, PartName, PartWriter, Scope
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import PreparedPart
from exactly_once.protocol.ticket import Ticket
from exactly_once.spark.tasks import _prepare

PART = PartName("job", 1, 0, 0, "0.0")
TICKET = Ticket(Batch("q", 0, ""), Plan.WRITE, 1, "e", 900_000)


class Output(Participant[PreparedPart]):
    """Says what is asked of it; ``outcome`` is what pre_commit does."""

    def __init__(self, name: str, outcome: str, said: list[str]):
        self.name, self.outcome, self.said = name, outcome, said

    def begin(self, part: PartName) -> PartWriter[PreparedPart]:
        return Writer(self)

    def commit(self, handles: Sequence[PreparedPart]) -> Iterable[PreparedPart]:
        return ()

    def abort(self, handles: Sequence[PreparedPart]) -> None:
        self.said += [f"{self.name} rolls back {h.participant}" for h in handles]

    def recover_and_abort(self, scope: Scope) -> list[str]:
        return []


class Writer(PartWriter[PreparedPart]):
    def __init__(self, output: Output):
        self.output = output

    def write(self, rows: pa.RecordBatch) -> None:
        pass

    def pre_commit(self) -> Any:
        if self.output.outcome == "fails":
            raise RuntimeError("no")
        return PreparedPart(self.output.name, str(PART), 0, 1) if self.output.outcome == "prepares" else None

    def abort(self) -> None:
        self.output.said.append(f"{self.output.name} gives up")


def test_an_output_without_a_handle_does_not_shift_the_handles_of_the_others() -> None:
    """Guards against a prepared part that is rolled back by the wrong output, and left where it is: its locks stay."""
    said: list[str] = []
    outputs = [Output("a", "has nothing", said), Output("b", "prepares", said), Output("c", "fails", said)]
    outputs.append(Output("d", "prepares", said))
    with pytest.raises(RuntimeError):
        list(_prepare(PART, outputs, TICKET, iter([pa.RecordBatch.from_pydict({"value": ["x"]})])))
    assert said == ["b rolls back b", "c gives up", "d gives up"]

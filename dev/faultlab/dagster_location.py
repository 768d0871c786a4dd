"""The code location of a round under Dagster: the lab's stream, declared as a user declares one.

Dagster's code server loads it; :data:`VARIABLE` says which stream.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_exactly_once import Stream, exactly_once_definitions, exactly_once_resources, exactly_once_stream
from exactly_once.participant import Participant
from faultlab.state import STORES, first_of_each_id
from faultlab.workload import ORIGIN_COLUMN, SELECT
from testkit.driver import made

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The environment variable with a :class:`LabStream` as JSON.
VARIABLE = "FAULTLAB_STREAM"

#: The name of the stream; the topic of its output is another one in each round.
NAME = "lab"

#: Of a stream with state in RocksDB: one for each task that runs at once.
STATE_PARTITIONS = 2


@dataclass(frozen=True)
class LabStream:
    """A round's description of its stream.

    Attributes
    ----------
    source, output : str
        Topics.
    folder : str
        For checkpoints and Spark's files.
    options : mapping
        Of the sink, beside connection, id, topic and checkpoint.
    origin : bool
        Whether records have the header :data:`faultlab.workload.ORIGIN`.
    state : str
        One of :data:`faultlab.state.STORES`; empty: the stream has no state.
    participants : sequence of mapping
        Further outputs, as :attr:`testkit.stream.Job.participants`.
    """

    source: str
    output: str
    sink_id: str
    folder: str
    options: Mapping[str, str] = field(default_factory=dict)
    origin: bool = False
    state: str = ""
    participants: Sequence[Mapping[str, Any]] = ()

    def as_variable(self) -> dict[str, str]:
        """Return the variable for the environment of the code server."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def checkpoints(self) -> str:
        """The folder of all checkpoints."""
        return str(Path(self.folder) / "checkpoints")

    def declared(self) -> Stream:
        """Return the declaration."""

        @exactly_once_stream(
            name=NAME,
            source=self.source,
            outputs=[dg.AssetSpec(f"{NAME}_output", metadata={"exactly_once/topic": self.output})],
            sink_id=self.sink_id,
            options=self.options,
            participants=self.others if self.participants else None,
            state_partitions=STATE_PARTITIONS if self.state == STORES[1] else None,
        )
        def lab(events: DataFrame) -> DataFrame:
            """Each record of the input with its place, or the first one of each id."""
            records = events.selectExpr(*SELECT, *([ORIGIN_COLUMN] if self.origin else []))
            return first_of_each_id(records) if self.state else records

        return lab

    def others(self) -> list[Participant[Any]]:
        """Make the further outputs."""
        return [made(dict(description)) for description in self.participants]


@dg.definitions
def defs() -> dg.Definitions:
    """Return the stream of the round, with everything that operates it."""
    stream = LabStream(**json.loads(os.environ[VARIABLE]))
    resources = exactly_once_resources(work_dir=str(Path(stream.folder) / "spark"), checkpoints=stream.checkpoints)
    return exactly_once_definitions(stream.declared(), resources=resources)

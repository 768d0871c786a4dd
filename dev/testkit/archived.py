"""A code location with one stream that writes to Kafka and to files: ``python -m testkit.archived`` runs it
until it has caught up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import exactly_once_stream
from exactly_once.outputs.files import FileParticipant
from exactly_once.participant import Participant
from testkit.location import config_of, folder, located, run_of

SOURCE, OUTPUT = "archive.in", "archived"


def files() -> list[Participant[Any]]:
    """Return the archive, below the folder of the run."""
    return [FileParticipant("archive", str(folder() / "archive"))]


@exactly_once_stream(source=SOURCE, outputs=[OUTPUT], output_partitions=2, participants=files)
def archived(events: DataFrame) -> DataFrame:
    """Return the input, as it is."""
    return events.selectExpr("string(value) AS value")


def definitions(below: Path) -> dg.Definitions:
    """Return the code location, with its state below this folder."""
    return located(archived, at=below)


if __name__ == "__main__":
    config = config_of(archived, mode="caught_up")
    sys.exit(run_of(located(archived), archived.spec.job, config, instance=dg.DagsterInstance.ephemeral()))

"""A code location with one stream that writes to Kafka and to files: ``python -m testkit.archived JSON`` runs it
until it has caught up.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import exactly_once_definitions, exactly_once_resources, exactly_once_stream
from exactly_once.outputs.files import FileParticipant
from exactly_once.participant import Participant

SOURCE, OUTPUT = "archive.in", "archived"


def files() -> list[Participant[Any]]:
    """Return the archive, below the folder of the run."""
    return [FileParticipant("archive", str(Path(os.environ["EXACTLY_ONCE_RUN_DIR"]) / "archive"))]


@exactly_once_stream(source=SOURCE, outputs=[OUTPUT], output_partitions=2, participants=files)
def archived(events: DataFrame) -> DataFrame:
    """Return the input, as it is."""
    return events.selectExpr("string(value) AS value")


def definitions(folder: Path) -> dg.Definitions:
    """Return the code location, with its state below ``folder``; ``KAFKA_BOOTSTRAP_SERVERS`` names the brokers."""
    found = exactly_once_resources(work_dir=str(folder / "spark"), checkpoints=str(folder / "checkpoints"))
    return exactly_once_definitions(archived, resources=found)


def main() -> int:
    """Exit code 0 when the run succeeded; the failure's text is on standard error."""
    job = definitions(Path(os.environ["EXACTLY_ONCE_RUN_DIR"])).resolve_job_def(archived.spec.job)
    config = {"mode": "caught_up", **json.loads(sys.argv[1])}
    done = job.execute_in_process(
        run_config={"ops": {archived.spec.op: {"config": config}}},
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )
    return 0 if done.success else 1


if __name__ == "__main__":
    sys.exit(main())

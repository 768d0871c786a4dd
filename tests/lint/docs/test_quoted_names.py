"""Names of jobs, sensors, schedules and assets in sentences and documents are those that Dagster's pages list."""

import re

import pytest

from dagster_exactly_once.names import SUCCESSOR_JOB
from testkit.syntax import ROOT
from tests.unit.dagster.declare.test_launchpads import DEFS

#: "the job exactly_once_recovery", "sensor `exactly_once_liveness`"; not what the command line or Python calls so.
QUOTED = re.compile(r"\b(?:job|sensor|schedule|asset)\s+`{0,2}([a-z]+(?:_[a-z]+)*)\b")
#: A string that Python continues on the next line.
CONTINUED = re.compile(r'"\s*\n\s*f?"')

OWN = "exactly_once_"
SOURCES = [
    *(path for folder in ("dagster_exactly_once", "exactly_once") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "docs").glob("*.md"),
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
]


@pytest.fixture(scope="module")
def existing():
    repository = DEFS.get_repository_def()
    assets = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    sensors = {sensor.name for sensor in repository.sensor_defs}
    schedules = {schedule.name for schedule in repository.schedule_defs}
    jobs = {job.name for job in repository.get_all_jobs()} | {SUCCESSOR_JOB}  # there where a stream continues one
    return assets | sensors | schedules | jobs


def wrong_names(text, existing):
    """Names that begin with this project's prefix and do not exist, or that exist only with it."""
    quoted = set(QUOTED.findall(CONTINUED.sub("", text)))
    return {name for name in quoted - existing if name.startswith(OWN) or f"{OWN}{name}" in existing}


def test_a_name_in_a_way_out_is_the_name_of_a_thing_that_exists(existing):
    """Mishap: at 3 a.m. a person searched for the job checkpoint_repair, which is exactly_once_checkpoint_repair."""
    assert wrong_names('Launch the job "\n    "checkpoint_repair', existing) == {"checkpoint_repair"}
    assert wrong_names("the sensor `exactly_once_alive`", existing) == {"exactly_once_alive"}
    found = {str(path.relative_to(ROOT)): wrong_names(path.read_text(), existing) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}

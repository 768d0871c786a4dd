"""What users may build on: a change here is a change of the version's first number."""

from __future__ import annotations

import inspect
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import exactly_once
from exactly_once import participant
from exactly_once.errors import InvalidOption

ROOT = Path(__file__).parents[3]


def test_the_public_names_of_the_package_are_these() -> None:
    """Guards against a name that users import and a later version does not have."""
    names = ["ExactlyOnceError", "__version__", "attempt", "check", "configure", "foreach_batch", "inspect", "jar"]
    more = ["recover", "register", "split", "starting_offsets", "trace_headers", "verify", "written"]
    assert sorted(exactly_once.__all__) == names + more
    assert list(inspect.signature(exactly_once.inspect).parameters) == ["cluster", "sink_id", "readers", "budget_s"]
    recover = ["cluster", "sink_id", "participants", "force", "operator", "budget_s"]
    assert list(inspect.signature(exactly_once.recover).parameters) == recover
    assert list(inspect.signature(exactly_once.attempt).parameters) == ["df", "how", "columns", "catch"]
    assert list(inspect.signature(exactly_once.split).parameters) == ["rows", "topic", "rejected"]
    assert list(inspect.signature(exactly_once.configure).parameters) == ["builder"]
    assert list(inspect.signature(exactly_once.jar).parameters) == []
    assert list(inspect.signature(exactly_once.check).parameters) == ["df", "options", "participants", "output_mode"]
    assert list(inspect.signature(exactly_once.register).parameters) == ["spark"]
    assert list(inspect.signature(exactly_once.foreach_batch).parameters) == ["options", "participants"]
    begin = ["options", "predecessor", "topics", "beside"]
    assert list(inspect.signature(exactly_once.starting_offsets).parameters) == begin
    assert list(inspect.signature(exactly_once.trace_headers).parameters) == ["column"]
    assert list(inspect.signature(exactly_once.written).parameters) == ["options", "write_id"]


def test_an_output_of_ones_own_needs_one_import() -> None:
    """Guards against examples that reach into rooms which may be rebuilt."""
    for name in ("Participant", "PartName", "PartWriter", "PreparedPart", "RowDigest", "Scope"):
        assert name in participant.__all__ and hasattr(participant, name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("participants.files.FileParticipant", "outputs.files"),
        ("participants.postgres.PostgresParticipant", "outputs.postgres"),
        ("participants.delta.DeltaParticipant", "outputs.delta"),
        ("participants.iceberg.IcebergParticipant", "outputs.iceberg"),
        ("conformance.ParticipantConformance", "outputs.conformance"),
    ],
)
def test_an_old_name_of_an_output_works_and_says_the_new_one(old: str, new: str) -> None:
    """Guards against a job that stops at an import behind an upgrade."""
    module, name = f"exactly_once.{old}".rsplit(".", 1)
    with pytest.warns(DeprecationWarning, match=f"Use exactly_once.{new} instead"):
        found = getattr(import_module(module), name)
    assert found is getattr(import_module(f"exactly_once.{new}"), name)


def test_the_version_is_said_once() -> None:
    """Guards against a wheel whose version is another one than the code's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    for distribution in ("pyspark-kafka-exactly-once", "dagster-exactly-once"):
        assert exactly_once.__version__ == version(distribution)


def test_type_checkers_of_users_see_the_types() -> None:
    """Without the marker of PEP 561 they take everything for Any."""
    assert (Path(exactly_once.__file__).parent / "py.typed").exists()


def test_a_write_is_asked_for_by_a_sink_that_can_be_one() -> None:
    """Guards against a look at the log of no sink, whose answer "not written" would be true of any write."""
    with pytest.raises(InvalidOption, match=r"sink\.id"):
        exactly_once.written({"kafka.bootstrap.servers": "localhost:1"}, "2013-01-01")

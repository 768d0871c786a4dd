"""The wheel, as users install it: its packages, its data files, its extras. Built here without a network."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import exactly_once

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"completions", "dagster", "demo", "dev", "files", "hdfs", "metrics", "postgres", "schema-registry"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    [path] = folder.iterdir()
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def installed(wheel: zipfile.ZipFile) -> list[str]:
    """What lands in site-packages, without the description of the distribution."""
    return [name for name in wheel.namelist() if ".dist-info/" not in name]


def test_the_wheel_installs_its_two_packages_and_what_spark_looks_for(wheel: zipfile.ZipFile) -> None:
    """Guards against a wheel that takes a name as common as ``resources`` in the site-packages of its users."""
    tops = {name.partition("/")[0] for name in installed(wheel)}
    assert tops == {"exactly_once", "dagster_exactly_once"}


def test_beside_code_the_wheel_has_the_jar_the_pinned_jars_and_the_markers_of_its_types(wheel: zipfile.ZipFile) -> None:
    """Without the jar there is no sink; without ivy.xml it cannot resolve the connector; without the markers every type
    is Any."""
    assert sorted(name for name in installed(wheel) if not name.endswith(".py")) == [
        "dagster_exactly_once/dagster.yaml",
        "dagster_exactly_once/py.typed",
        "exactly_once/local/connectors.sha256",
        "exactly_once/local/connectors.xml",
        "exactly_once/local/ivy.sha256",
        "exactly_once/local/ivy.xml",
        "exactly_once/py.typed",
        "exactly_once/spark/exactly-once-spark.jar",
        "exactly_once/spark/exactly-once-spark.jar.sha256",
    ]
    for name in ("ivy.xml", "ivy.sha256"):
        assert wheel.read(f"exactly_once/local/{name}") == (ROOT / name).read_bytes()
    assert wheel.read("exactly_once/spark/exactly-once-spark.jar") == Path(exactly_once.jar()).read_bytes()
    assert wheel.read("dagster_exactly_once/dagster.yaml") == (ROOT / "dagster.yaml").read_bytes()


def test_the_source_distribution_has_the_sources_of_the_jar(tmp_path: Path) -> None:
    """Guards against a binary that nobody can rebuild from what an index serves."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    with tarfile.open(next(tmp_path.iterdir())) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "java").rglob("*") if path.is_file()}
    assert sources and sources <= found


def test_every_module_of_both_packages_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Guards against a package that only a checkout can run."""
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("exactly_once", "dagster_exactly_once")
        for path in (ROOT / package).rglob("*.py")
    }
    assert {name for name in installed(wheel) if name.endswith(".py") and "/" in name} == sources


def test_the_metadata_says_what_an_index_and_pip_read(metadata: Message) -> None:
    """Guards against a page without a text, and a wheel that pip takes for another version."""
    assert (metadata["Name"], metadata["Version"]) == ("pyspark-kafka-exactly-once", exactly_once.__version__)
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# ")
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS == set(PROJECT["optional-dependencies"])


def test_a_dependency_that_is_still_a_beta_has_an_upper_bound() -> None:
    """A beta may break between two of its releases, and pip takes the newest one that the bounds allow."""
    every = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
    betas = [r for r in every if re.search(r"\d(a|b|rc)\d", r)]
    assert betas, "the exporter for Prometheus is one"
    assert [r for r in betas if "<" not in r] == []


def test_the_set_up_of_a_checkout_has_every_extra() -> None:
    """The tests use all of them, and the set-up installs ``dev`` alone."""
    [own] = [r for r in PROJECT["optional-dependencies"]["dev"] if r.startswith(PROJECT["name"])]
    assert set(own.partition("[")[2].rstrip("]").split(",")) == EXTRAS - {"dev"}
    for file in ("tools/setup.py", "Makefile"):
        assert "platform]" not in (ROOT / file).read_text(encoding="utf-8")

"""The distributions, as users install them: packages, data files, dependencies. Built here without a network."""

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
from typing import Any

import pytest

import dagster_exactly_once
import exactly_once

ROOT = Path(__file__).parents[3]
ENGINE, DAGSTER, LOCAL = "pyspark-kafka-exactly-once", "dagster-exactly-once", "exactly-once-local"
#: Of each distribution: the folder of its pyproject.toml.
FOLDERS = {ENGINE: ROOT, **{name: ROOT / "distributions" / name for name in (DAGSTER, LOCAL)}}
#: Its one package.
PACKAGES = {
    ENGINE: ROOT / "exactly_once",
    DAGSTER: ROOT / "dagster_exactly_once",
    LOCAL: ROOT / "dev/exactly_once_local",
}
EXTRAS = {
    ENGINE: {
        *("delta", "demo", "dev", "files", "formats", "hdfs", "iceberg", "kerberos", "metrics", "postgres"),
        *("schema-registry", "tools", "traces"),
    },
    DAGSTER: {"lineage", "pipelines"},
    LOCAL: set(),
}


def pyproject(distribution: str) -> dict[str, Any]:
    return tomllib.loads((FOLDERS[distribution] / "pyproject.toml").read_text(encoding="utf-8"))


PROJECT = pyproject(ENGINE)["project"]
PINS = ROOT / "distributions" / "constraints.txt"
DAGSTERS_OWN = pyproject(DAGSTER)["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]


def build(source: Path, target: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", *(o for kind in kinds for o in ("-t", kind)), "-d", target]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


def wheel_in(folder: Path) -> zipfile.ZipFile:
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each distribution the folder with its wheel and its sdist."""
    folders = {distribution: tmp_path_factory.mktemp(distribution) for distribution in FOLDERS}
    for distribution, folder in folders.items():
        build(FOLDERS[distribution], folder, "sdist", "wheel")
    return folders


@pytest.fixture(scope="module")
def wheels(built: dict[str, Path]) -> dict[str, zipfile.ZipFile]:
    return {distribution: wheel_in(folder) for distribution, folder in built.items()}


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def installed(wheel: zipfile.ZipFile) -> list[str]:
    """What lands in site-packages, without the description of the distribution."""
    return [name for name in wheel.namelist() if ".dist-info/" not in name]


@pytest.mark.parametrize("distribution", FOLDERS)
def test_each_wheel_installs_its_own_package_with_all_its_modules(
    wheels: dict[str, zipfile.ZipFile], distribution: str
) -> None:
    """Guards against a package that only a checkout can run, one that two distributions install over each other, and a
    name as common as ``resources`` in the site-packages of users."""
    package = PACKAGES[distribution]
    names = installed(wheels[distribution])
    assert {name.partition("/")[0] for name in names} == {package.name}
    sources = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_beside_code_the_wheels_have_the_jar_the_pinned_jars_and_the_markers_of_their_types(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    """Without the jar there is no sink; without ivy.xml it cannot resolve the connector; without the markers every type
    is Any."""
    data = {d: sorted(name for name in installed(wheel) if not name.endswith(".py")) for d, wheel in wheels.items()}
    assert data == {
        ENGINE: [
            "exactly_once/py.typed",
            "exactly_once/spark/exactly-once-spark.jar",
            "exactly_once/spark/exactly-once-spark.jar.sha256",
            "exactly_once/sparkenv/connectors.sha256",
            "exactly_once/sparkenv/connectors.xml",
            "exactly_once/sparkenv/ivy.sha256",
            "exactly_once/sparkenv/ivy.xml",
        ],
        DAGSTER: ["dagster_exactly_once/dagster.yaml", "dagster_exactly_once/py.typed"],
        LOCAL: ["exactly_once_local/py.typed"],
    }
    assert wheels[ENGINE].read("exactly_once/spark/exactly-once-spark.jar") == Path(exactly_once.jar()).read_bytes()


@pytest.mark.parametrize("distribution", FOLDERS)
def test_a_source_distribution_gives_the_wheel_that_a_checkout_gives(
    built: dict[str, Path], wheels: dict[str, zipfile.ZipFile], tmp_path: Path, distribution: str
) -> None:
    """Guards against an sdist that finds its package, or its version, in a checkout alone: pip builds from sdists."""
    [archive] = built[distribution].glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    build(unpacked, tmp_path / "wheel", "wheel")
    again, first = wheel_in(tmp_path / "wheel"), wheels[distribution]
    record = next(name for name in first.namelist() if name.endswith("/RECORD"))  # its lines come in another order
    assert sorted(again.namelist()) == sorted(first.namelist())
    assert [name for name in first.namelist() if name != record and again.read(name) != first.read(name)] == []


def test_the_source_distribution_has_the_sources_of_the_jar(built: dict[str, Path]) -> None:
    """Guards against a binary that nobody can rebuild from what an index serves."""
    with tarfile.open(next(built[ENGINE].glob("*.tar.gz"))) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "java").rglob("*") if path.is_file()}
    assert sources and sources <= found


@pytest.mark.parametrize("distribution", FOLDERS)
def test_the_metadata_says_what_an_index_and_pip_read(wheels: dict[str, zipfile.ZipFile], distribution: str) -> None:
    """Guards against a page without a text, and a wheel that pip takes for another version."""
    metadata = metadata_of(wheels[distribution])
    assert (metadata["Name"], metadata["Version"]) == (distribution, exactly_once.__version__)
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# ")
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS[distribution]
    assert set(pyproject(distribution)["project"].get("optional-dependencies", {})) == EXTRAS[distribution]


@pytest.mark.parametrize(("distribution", "takes"), [(DAGSTER, f"{ENGINE}[tools]"), (LOCAL, ENGINE)])
def test_all_distributions_have_one_version_and_each_takes_the_engine_of_that_version_alone(
    wheels: dict[str, zipfile.ZipFile], distribution: str, takes: str
) -> None:
    """Guards against a pair that nobody has tested: the others import modules of the engine that are not public.
    docs/production.md says so under *Versions*."""
    needed = metadata_of(wheels[distribution]).get_all("Requires-Dist", [])
    assert [r for r in needed if r.startswith(ENGINE)] == [f"{takes}=={exactly_once.__version__}"]
    assert dagster_exactly_once.__version__ == exactly_once.__version__
    assert (FOLDERS[distribution] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_engine_knows_nothing_of_dagster(wheels: dict[str, zipfile.ZipFile]) -> None:
    """Guards against a sink that brings Dagster's packages into a job without it. The extra dev is a checkout's."""
    needed = metadata_of(wheels[ENGINE]).get_all("Requires-Dist", [])
    assert [r for r in needed if "dagster" in r and "extra == 'dev'" not in r] == []


@pytest.mark.parametrize(
    ("distribution", "entry"),
    [
        (DAGSTER, "[dagster_dg_cli.registry_modules]\ndagster_exactly_once = dagster_exactly_once\n"),
        (LOCAL, "[exactly_once.commands]\ndemo = exactly_once_local.duel.arguments:add_arguments\n"),
    ],
)
def test_a_command_line_finds_what_a_wheel_adds_to_it(
    wheels: dict[str, zipfile.ZipFile], distribution: str, entry: str
) -> None:
    """Guards against ``dg`` that lists no ExactlyOnceStreams, and an ``exactly-once`` without its demo."""
    [name] = [n for n in wheels[distribution].namelist() if n.endswith("/entry_points.txt")]
    assert wheels[distribution].read(name).decode() == entry


def test_a_dependency_that_is_still_a_beta_has_an_upper_bound() -> None:
    """A beta may break between two of its releases, and pip takes the newest one that the bounds allow."""
    projects = [pyproject(distribution)["project"] for distribution in FOLDERS]
    extras = [r for project in projects for extra in project.get("optional-dependencies", {}).values() for r in extra]
    betas = [r for r in (*PROJECT["dependencies"], *extras, *DAGSTERS_OWN) if re.search(r"\d(a|b|rc)\d", r)]
    assert betas, "the exporter for Prometheus is one"
    assert [r for r in betas if "<" not in r] == []


def test_what_an_extra_brings_is_pinned(wheels: dict[str, zipfile.ZipFile]) -> None:
    """Guards against an extra whose packages no test has seen in the release that a user gets."""
    pinned = {line.partition("==")[0] for line in PINS.read_text(encoding="utf-8").splitlines()}
    for wheel in wheels.values():
        needed = {re.split(r"[^\w.-]", r)[0] for r in metadata_of(wheel).get_all("Requires-Dist", [])}
        assert needed and needed - {ENGINE, LOCAL} <= pinned


def test_the_set_up_of_a_checkout_has_every_extra_and_every_distribution() -> None:
    """The tests use all of them, and command lines the metadata of those that are not the engine's. Kerberos asks for a
    compiler: make test-kerberos."""
    [own] = [r for r in PROJECT["optional-dependencies"]["dev"] if r.startswith(PROJECT["name"])]
    assert set(own.partition("[")[2].rstrip("]").split(",")) == EXTRAS[ENGINE] - {"dev", "kerberos"}
    for distribution in (DAGSTER, LOCAL):
        for file in ("dev/tools/setup.py", "Makefile"):
            assert f"distributions/{distribution}" in (ROOT / file).read_text(encoding="utf-8")

"""Resolving the jars: once, checked, safe at once and when killed. With the real Ivy, on a repository in a folder."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from exactly_once.sparkenv import jars
from exactly_once.sparkenv.jars import JarsUnusable

PROJECT = Path(__file__).resolve().parents[3]

IVY_XML = """<ivy-module version="2.0">
  <info organisation="t" module="t" revision="1"/>
  <configurations><conf name="connector"/><conf name="broker"/></configurations>
  <dependencies>
    <dependency org="o" name="source" rev="1" conf="connector->default"/>
    <dependency org="o" name="server" rev="2" conf="broker->default"/>
  </dependencies>
</ivy-module>"""

SETTINGS = """<ivysettings>
  <settings defaultResolver="folder"/>
  <resolvers><filesystem name="folder" m2compatible="true" checkmodified="true">
    <artifact pattern="{0}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>
    <ivy pattern="{0}/[organisation]/[module]/[revision]/[artifact]-[revision].pom"/>
  </filesystem></resolvers>
</ivysettings>"""

POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>o</groupId><artifactId>{}</artifactId>"
    "<version>{}</version></project>"
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository of two jars, a project that pins them, and an empty cache folder."""
    for name, revision in (("source", "1"), ("server", "2")):
        folder = tmp_path / "repository" / "o" / name / revision
        folder.mkdir(parents=True)
        (folder / f"{name}-{revision}.pom").write_text(POM.format(name, revision))
        with zipfile.ZipFile(folder / f"{name}-{revision}.jar", "w") as jar:
            jar.writestr("name", name)
    (tmp_path / "ivysettings.xml").write_text(SETTINGS.format(tmp_path / "repository"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "ivy.xml").write_text(IVY_XML)
    pin(tmp_path)
    monkeypatch.setenv("EXACTLY_ONCE_IVY_SETTINGS", str(tmp_path / "ivysettings.xml"))
    monkeypatch.setenv("EXACTLY_ONCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "_IVY", tmp_path / "project" / "ivy.xml")
    return tmp_path


def pin(base: Path) -> None:
    sums = {
        f"{conf}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for conf, path in (
            ("connector", base / "repository/o/source/1/source-1.jar"),
            ("broker", base / "repository/o/server/2/server-2.jar"),
        )
    }
    (base / "project" / "ivy.sha256").write_text("".join(f"{d}  {n}\n" for n, d in sums.items()))


def test_the_jars_are_resolved_once_into_the_cache_folder_and_nowhere_else(repository, monkeypatch) -> None:
    home = repository / "home"
    home.mkdir()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={home}")
    said: list[str] = []
    folder = jars.resolve(said.append)
    assert [Path(p).name for p in jars.connector_jars()] == ["source-1.jar"]
    assert Path(jars.broker_classpath()).name == "server-2.jar"
    assert folder.is_relative_to(repository / "cache") and list(home.iterdir()) == []
    assert "downloaded 2 of 2: server" in said
    monkeypatch.setenv("PATH", "")  # no Java, no Ivy: nothing is resolved again
    began = time.perf_counter()
    assert jars.resolve(said.append) == folder
    assert time.perf_counter() - began < 0.05


def test_a_jar_that_is_not_the_pinned_one_is_an_error_that_names_it(repository) -> None:
    """A repository, a proxy or a cache that hands out another jar must not get it into a broker or a Spark."""
    with zipfile.ZipFile(repository / "repository/o/server/2/server-2.jar", "a") as jar:
        jar.writestr("more", "code")
    with pytest.raises(JarsUnusable, match=r"broker/server-2\.jar has the sha256") as refused:
        jars.resolve()
    assert refused.value.code == "EO-JARS"
    assert not jars.is_resolved() and not list((repository / "cache").glob("retrieving-*"))


@pytest.mark.long
def test_a_dependency_without_a_pinned_sum_is_an_error(repository) -> None:
    sums = repository / "project" / "ivy.sha256"
    sums.write_text(sums.read_text().splitlines()[0] + "\n")
    with pytest.raises(JarsUnusable, match=r"disagree about broker/server-2\.jar"):
        jars.resolve()


@pytest.mark.long
def test_a_jar_that_cannot_be_had_is_named_with_the_log(repository) -> None:
    (repository / "project" / "ivy.xml").write_text(IVY_XML.replace('rev="2"', 'rev="3"'))
    with pytest.raises(JarsUnusable, match=r"could not resolve .*o#server;3") as refused:
        jars.resolve()
    assert str(repository / "cache" / "ivy.log") in str(refused.value)


@pytest.mark.long
def test_a_jar_that_somebody_removed_from_the_cache_comes_back(repository) -> None:
    (jars.resolve() / "broker" / "server-2.jar").unlink()
    assert not jars.is_resolved()
    assert (jars.resolve() / "broker" / "server-2.jar").is_file()


@pytest.mark.long
def test_what_a_killed_process_left_is_cleared_away(repository) -> None:
    left = repository / "cache" / "retrieving-x1"
    left.mkdir(parents=True)
    jars.resolve()
    assert not left.exists()


@pytest.mark.long
def test_two_processes_at_once_resolve_once(repository) -> None:
    code = (
        "import pathlib; from exactly_once.sparkenv import jars\n"
        f"jars._IVY = pathlib.Path({str(repository / 'project' / 'ivy.xml')!r})\n"
        "said = []; jars.resolve(said.append); print(len([s for s in said if s.startswith('looking up')]))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, env=os.environ, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(process.communicate(timeout=60)[0].strip() for process in started) == ["0", "2"]


@pytest.mark.long
def test_after_a_change_of_ivy_xml_the_sums_are_pinned_anew(repository) -> None:
    (repository / "project" / "ivy.sha256").write_text("")
    jars.lock()
    assert [line.split()[1] for line in (repository / "project" / "ivy.sha256").read_text().splitlines()] == [
        "broker/server-2.jar",
        "connector/source-1.jar",
    ]
    assert jars.resolve()


@pytest.mark.long
def test_one_configuration_of_another_ivy_file_is_resolved_by_the_sums_beside_it(repository) -> None:
    """Guards against tests on a broker whose jars nobody has checked, and against fetching those of every other one."""
    other = repository / "project" / "other.xml"
    other.write_text(IVY_XML)
    assert jars.lock(other) == other.with_suffix(".sha256")
    (jar,) = jars.resolve_configuration(other, "broker")
    assert jar.name == "server-2.jar" and jar.is_file()
    assert not list((repository / "cache" / "jars").rglob("source-1.jar"))

    other.with_suffix(".sha256").write_text(f"{'0' * 64}  broker/server-2.jar\n")
    with pytest.raises(JarsUnusable, match=r"broker/server-2\.jar has the sha256"):
        jars.resolve_configuration(other, "broker")
    with pytest.raises(JarsUnusable, match=r"no configuration 'connector'. .*Name one of broker"):
        jars.resolve_configuration(other, "connector")


def test_the_jars_of_every_kafka_that_is_tested_are_pinned_and_ci_tries_each() -> None:
    """Guards against a release that the Makefile names and CI never runs."""
    line = re.search(r"^KAFKAS := (.+)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    sums = (PROJECT / "dev" / "testkit" / "ivy-kafkas.sha256").read_text()
    assert set(re.findall(r"  (.+)/kafka_2\.13-\1\.jar$", sums, re.MULTILINE)) == set(line[1].split())
    pairs = re.findall(r"kafkas=\"(.+)\"", (PROJECT / ".ci" / "run").read_text())
    assert sorted(" ".join(pairs).split()) == line[1].split()


def test_every_pinned_jar_has_a_full_sum_and_a_version() -> None:
    assert len(jars.pinned()) > 40
    for name, digest in jars.pinned().items():
        assert name.startswith(("connector/", "broker/")) and name.endswith(".jar") and len(digest) == 64


@pytest.mark.parametrize(
    ("spark", "connector"),
    [
        ("3.5.9", "spark-sql-kafka-0-10_2.12-3.5.7.jar"),
        ("4.0.5", "spark-sql-kafka-0-10_2.13-4.0.4.jar"),
        ("4.1.4", "spark-sql-kafka-0-10_2.13-4.1.3.jar"),
        ("4.2.0", "spark-sql-kafka-0-10_2.13-4.2.0.jar"),
        ("4.3.0", "spark-sql-kafka-0-10_2.13-4.2.0.jar"),
    ],
)
def test_each_pyspark_gets_the_connector_of_its_own_minor(spark: str, connector: str, monkeypatch) -> None:
    """A connector of another Scala, or of an older Spark, fails in the middle of a query with a NoSuchMethodError."""
    monkeypatch.setattr(jars, "resolve_other", lambda module, sums, target: None)  # says which, fetches none
    monkeypatch.setattr(jars, "resolve", lambda progress=None: Path("/jars"))
    names = [Path(jar).name for jar in jars.connector_jars(spark)]
    assert connector in names and any(name.startswith("kafka-clients-") for name in names)
    assert len(names) == 4  # what PySpark has itself is not among them
    monkeypatch.setattr(jars, "installed_pyspark", lambda: spark)
    assert [Path(jar).name for jar in jars.connector_jars()] == names

"""The sink's jar is what ``java/`` gives, and nothing else. Compiled here by the pinned compiler, which a JRE runs."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import exactly_once
from testkit.syntax import loaded

PROJECT = Path(__file__).resolve().parents[3]
JAR = Path(exactly_once.jar())


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return loaded(PROJECT / "dev" / "tools" / "jar.py")


@pytest.mark.long
def test_the_jar_is_what_the_sources_give_byte_for_byte(tool: ModuleType) -> None:
    """Guards against a change of java/ that no user gets, and against a jar of which nobody knows what is in it."""
    assert tool.build(PROJECT / "java") == JAR.read_bytes(), "Run: make jar"


@pytest.mark.long
def test_the_same_sources_elsewhere_give_the_same_bytes(tool: ModuleType, tmp_path: Path) -> None:
    """Guards against times, folders and an order of files in the jar."""
    shutil.copytree(PROJECT / "java", tmp_path / "other", copy_function=shutil.copy)
    assert tool.build(tmp_path / "other") == JAR.read_bytes()


def test_its_sum_is_kept_for_sha256sum(tool: ModuleType) -> None:
    """Who copies the jar to a cluster can check it there."""
    line = JAR.with_name(f"{JAR.name}.sha256").read_text()
    assert line == f"{hashlib.sha256(JAR.read_bytes()).hexdigest()}  {JAR.name}\n"


def test_spark_finds_the_sink_in_it_by_its_service_file() -> None:
    """A service file that names no class of the jar would break every format of every session."""
    with zipfile.ZipFile(JAR) as jar:
        service = jar.read("META-INF/services/org.apache.spark.sql.sources.DataSourceRegister").decode()
        assert f"{service.strip().replace('.', '/')}.class" in jar.namelist()


def test_nothing_in_it_says_when_or_where_it_was_made(tool: ModuleType, tmp_path: Path) -> None:
    """The entries are sorted, and not packed: a release of zlib would show in the bytes."""
    packed = tool.packed({"b/B.class": b"2", "a/A.class": b"1"}, tmp_path / "jar")
    with zipfile.ZipFile(io.BytesIO(packed)) as jar:
        assert jar.namelist() == ["a/A.class", "b/B.class"]
        assert {entry.date_time for entry in jar.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in jar.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.long
def test_sources_that_do_not_compile_say_why(tool: ModuleType, tmp_path: Path) -> None:
    """Guards against an empty jar."""
    shutil.copytree(PROJECT / "java", tmp_path / "java")
    (tmp_path / "java" / "exactlyonce" / "Sink.java").write_text("package exactlyonce; class Sink { int a = b; }")
    with pytest.raises(SystemExit, match="b cannot be resolved"):
        tool.build(tmp_path / "java")

"""Finding Java: Spark's own choice, checked, with one sentence when it cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.sparkenv.java import JavaUnusable, find_java


def a_java(home: Path, *, release: str | None = None, says: str | None = None) -> Path:
    """A folder like an installed Java: with a release file, or a ``java`` that says something on ``-version``."""
    (home / "bin").mkdir(parents=True)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says or 'must not be asked'}' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(("release", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_home_wins_and_its_release_file_tells_the_version(tmp_path, monkeypatch, release: str, major: int) -> None:
    home = a_java(tmp_path / "jdk", release=release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "")
    assert (find_java().executable, find_java().major) == (str(home / "bin" / "java"), major)


def test_a_java_without_release_file_is_asked(tmp_path, monkeypatch) -> None:
    home = a_java(tmp_path / "jdk", says='openjdk version "17.0.1" 2021-10-19')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/bin:/usr/bin")
    assert find_java().major == 17


@pytest.mark.parametrize("release", ["1.8.0_402", "11.0.22", "16.0.2"])
def test_an_old_java_is_refused_by_its_number(tmp_path, monkeypatch, release: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "jdk", release=release)))
    with pytest.raises(JavaUnusable, match=r"is Java (8|11|16), which is too old.*Install Java 17") as refused:
        find_java()
    assert refused.value.code == "EO-JAVA"


def test_a_java_home_that_is_none_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaUnusable, match=r"JAVA_HOME is .*nowhere"):
        find_java()


def test_without_any_java_the_error_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("exactly_once.sparkenv.java._macos_java_home", lambda: None)
    with pytest.raises(JavaUnusable, match=r"No Java was found.*apt-get install openjdk-17-jre-headless.*brew"):
        find_java()

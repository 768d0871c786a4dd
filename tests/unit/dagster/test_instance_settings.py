"""``python -m dagster_exactly_once.instance``: the settings of a Dagster instance with streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance

from dagster_exactly_once.instance import main, settings


def test_the_settings_are_those_of_the_repository_and_dagster_loads_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert main([str(home)]) == 0
    assert (home / "dagster.yaml").read_text() == settings() != ""
    with DagsterInstance.from_config(str(home)) as instance:
        assert instance.run_monitoring_enabled


def test_the_settings_of_another_instance_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a team's storage section that is gone."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert main([str(tmp_path)]) == 1
    assert (tmp_path / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"
    assert "already has settings" in capsys.readouterr().err
    assert main(["--print"]) == 0
    assert capsys.readouterr().out == settings()


def test_the_folder_is_dagster_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    assert main([]) == 0 and main([]) == 0, "the second time, they are there"
    assert (tmp_path / "home" / "dagster.yaml").is_file()
    monkeypatch.delenv("DAGSTER_HOME")
    with pytest.raises(SystemExit):
        main([])
    assert "DAGSTER_HOME" in capsys.readouterr().err

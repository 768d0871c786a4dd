"""The folder that a command works in."""

import pytest

from platform_assets.local.environment import Busy, local_environment


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACTLY_ONCE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    for name in ("DAGSTER_HOME", "TMPDIR", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(name, "restored after the test")


def test_a_command_that_starts_from_the_beginning_empties_its_own_folder_and_no_other(tmp_path):
    """`make cluster` would find nothing to do the second time; or it would take the data of `make run` with it."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "cluster/broker").mkdir(parents=True)
    (tmp_path / "cluster/report.json").touch()
    with local_environment("cluster") as environment:
        assert environment.folder == tmp_path / "cluster"
        assert sorted(p.name for p in environment.folder.iterdir()) == ["command.lock", "dagster_home", "logs", "tmp"]
    assert (tmp_path / "broker").exists()


def test_a_folder_that_another_command_works_in_is_not_emptied(tmp_path, monkeypatch):
    """A second `make cluster` would pull the broker's data from under the first."""
    with local_environment("cluster") as first:
        (first.folder / "broker").mkdir()
        monkeypatch.setenv("EXACTLY_ONCE_RUN_DIR", str(tmp_path))  # of the second command, in another process
        with pytest.raises(Busy, match="make cluster"), local_environment("cluster"):
            pass
        assert (first.folder / "broker").exists()

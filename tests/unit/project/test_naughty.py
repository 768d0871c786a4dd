"""``dev/tools/naughty.py`` unpacks what its sums say, and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

import pytest

from testkit.syntax import loaded

ROOT = Path(__file__).parents[3]


@pytest.fixture
def naughty() -> ModuleType:
    return loaded(ROOT / "dev" / "tools" / "naughty.py")


def test_an_archive_with_another_sum_is_refused_and_removed(naughty: ModuleType, tmp_path: Path) -> None:
    """Guards against a package that was replaced, and against a download cut short that every later run would find."""
    archive = tmp_path / "some-1.0.0.tgz"
    archive.write_bytes(b"another")
    with pytest.raises(SystemExit, match="nothing was unpacked"):
        naughty.fetched(["0" * 64, archive.name], tmp_path)
    assert not archive.exists()


def test_an_archive_that_is_there_is_not_fetched_again(
    naughty: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a test that needs a registry each time."""
    monkeypatch.setenv("PATH", "")
    archive = tmp_path / "some-1.0.0.tgz"
    archive.write_bytes(b"the same")
    assert naughty.fetched([hashlib.sha256(b"the same").hexdigest(), archive.name], tmp_path) == archive

"""Failpoints: nothing without the variable, once and only once with it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import exactly_once
from exactly_once import failpoints
from exactly_once.failpoints import POINTS, armed, reach
from testkit.processes import until

ENGINE = Path(exactly_once.__file__).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXACTLY_ONCE_FAILPOINTS", str(tmp_path))
    return tmp_path


def test_without_the_variable_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that lies about in production must not stop a stream."""
    monkeypatch.delenv("EXACTLY_ONCE_FAILPOINTS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decided").write_text("raise")
    reach("decided")
    assert not armed("decided")
    assert (tmp_path / "decided").exists()


def test_a_point_without_a_file_is_passed(folder: Path) -> None:
    """Each crash test stops at one point, and must come through the others."""
    reach("decided")
    assert list(folder.iterdir()) == []


def test_a_point_fires_once_over_all_processes(folder: Path) -> None:
    """The restart after the crash passes the same point; if it fired again no test could end."""
    (folder / "decided").write_text("raise\n")
    assert armed("decided") and not armed("completed")
    with pytest.raises(RuntimeError, match="failpoint decided"):
        reach("decided")
    assert not armed("decided")
    assert (folder / "decided.reached").exists(), "the test waits for this name"
    reach("decided")


def test_a_point_fires_once_over_all_threads(folder: Path) -> None:
    """Two parts of one process may reach it at one moment: one of them stops, and the others go on."""
    for _ in range(50):
        (folder / "decided").write_text("sleep 0")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(reach, ["decided"] * 4))
        assert {p.name for p in folder.iterdir()} == {"decided.reached"}


def test_a_point_can_be_passed_late(folder: Path) -> None:
    """For the races: a driver that is slow between two steps."""
    (folder / "decided").write_text("sleep 0.05")
    before = time.monotonic()
    reach("decided")
    assert 0.05 <= time.monotonic() - before < 1


def test_wait_goes_on_when_the_test_removes_the_file(folder: Path) -> None:
    """For harm that is done from outside, however long it takes, while a batch stands still."""
    (folder / "decided").write_text("wait")
    waiting = threading.Thread(target=reach, args=("decided",))
    waiting.start()
    reached = folder / "decided.reached"
    until("the point", reached.exists)
    assert waiting.is_alive()
    reached.unlink()
    waiting.join(10)
    assert not waiting.is_alive()


def test_hang_waits_for_the_tests_kill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 needs a process that is still there, at the point, with everything open."""
    slept: list[float] = []
    monkeypatch.setattr(failpoints.time, "sleep", slept.append)
    (folder / "decided").write_text("hang")
    reach("decided")
    assert slept and slept[0] > 600


def test_exit_ends_this_process_without_any_cleanup(folder: Path) -> None:
    """A crash runs no handlers: a finally that tidied up would make the test prove nothing."""
    (folder / "decided").write_text("exit")
    script = "from exactly_once.failpoints import reach\ntry: reach('decided')\nfinally: print('tidied up')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ENGINE.parent, timeout=30)
    assert (ended.returncode, ended.stdout) == (17, b"")


def test_every_point_stands_in_the_engine_and_none_is_undeclared() -> None:
    """A crash test that waits at a point which the code no longer passes is green without a crash."""
    here = [p for p in ENGINE.rglob("*.py") if p.name != "failpoints.py"]
    java = (ENGINE.parent / "java").rglob("*.java")
    source = "\n".join(p.read_text(encoding="utf-8") for p in (*here, *java))
    assert set(re.findall(r"\breach\(\"([a-z-]+)\"\)", source)) >= set(POINTS)

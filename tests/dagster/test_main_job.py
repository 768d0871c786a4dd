"""`make run` as a user meets it: on a fresh folder, again, interrupted, and killed. Nothing is left behind, ever."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.processes import Timeout, until
from testkit.stream import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left-over processes in /proc"),
]


def start(folder, *arguments):
    """The command in a session of its own; its output goes to ``<folder>.out``."""
    env = {k: v for k, v in os.environ.items() if k != "KAFKA_BOOTSTRAP_SERVERS"} | {
        "EXACTLY_ONCE_RUN_DIR": str(folder)
    }
    with Path(f"{folder}.out").open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "platform_assets.cli", *arguments],
            cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def output(folder):
    return Path(f"{folder}.out").read_text()


def left_over(folder):
    """Every process that has the run folder in its environment."""
    mark, found = f"EXACTLY_ONCE_RUN_DIR={folder}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " ")[:200])
        except OSError:
            continue
    return found


def await_end(folder, timeout_s=5):
    """No process is left. Python's own resource tracker, for one, ends a moment after the command."""
    with contextlib.suppress(Timeout):
        until("the end of everything", lambda: not left_over(folder), timeout_s, every_s=0.1)
    assert left_over(folder) == []


def test_all_departures_come_out_once_and_a_second_run_finds_nothing_to_do(tmp_path):
    folder = tmp_path / "run"
    assert start(folder, "run").wait(400) == 0, output(folder)
    assert "Exactly once: all 336,776 records came out once, " in output(folder)
    report = json.loads((folder / "report.json").read_text())
    assert report["problems"] == [] and report["out"] == report["expected"] == 336_776
    assert report["verify"]["by_origin"]["input"] == 336_776 and report["verify"]["unproven"] == {}
    assert "exactly-once verify flight-delays" in output(folder)
    await_end(folder)

    assert start(folder, "run").wait(400) == 0, output(folder)
    assert "Nothing to do: all 336,776 events are in flights, " in output(folder)
    again = json.loads((folder / "report.json").read_text())
    assert again["out"] == 336_776 and again["verify"]["last_batch"] == report["verify"]["last_batch"]
    await_end(folder)


@pytest.fixture
def streaming(tmp_path):
    """A command that is in the middle of the stream's first batch, and its folder."""
    folder = tmp_path / "run"
    process = start(folder, "run")
    try:
        until(
            "the first batch",
            lambda: process.poll() is None and list(folder.glob("checkpoints/*/*/offsets/0")),
            240,
            0.5,
        )
        yield process, folder
    finally:
        process.kill()
        process.wait()
        await_end(folder, 60)


def test_ctrl_c_leaves_no_process_and_the_next_run_completes(streaming):
    process, folder = streaming
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, output(folder)
    await_end(folder)

    assert start(folder, "run").wait(400) == 0, output(folder)
    assert json.loads((folder / "report.json").read_text())["problems"] == []


def test_a_command_that_is_killed_leaves_no_process_either(streaming):
    process, folder = streaming
    process.kill()
    process.wait()
    await_end(folder, 60)


def test_a_second_command_in_the_same_folder_is_refused(streaming):
    _, folder = streaming
    second = subprocess.run(
        [sys.executable, "-m", "platform_assets.cli", "run"],
        cwd=ROOT, env={**os.environ, "EXACTLY_ONCE_RUN_DIR": str(folder)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert second.returncode == 1
    assert "EO-BUSY" in second.stdout and "Ctrl-C" in second.stdout


def test_the_ui_answers_streams_and_stops_all_on_ctrl_c(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "ui")
    try:
        until("the address and both runs", lambda: "flights_feed: http://" in output(folder), 180, 0.5)
        until("a batch", lambda: list(folder.glob("checkpoints/*/*/commits/0")), 180, 0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, output(folder)
    finally:
        process.kill()
    await_end(folder)

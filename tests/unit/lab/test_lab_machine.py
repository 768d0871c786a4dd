"""The machines of the fault lab: what a process on one sees of its clock and its disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.machine import JAVA, OTHER, Machine

#: Prints its wall clock; how long an event's and a sleep's waits took; how long a write took.
PROGRAM = """
import sys, threading, time
print(time.time())
begin = time.monotonic()
threading.Event().wait(0.05)
time.sleep(0.05)
print(time.monotonic() - begin)
begin = time.monotonic()
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"x")
print(time.monotonic() - begin)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "machine", disk_mb=1) as made:
        yield made


def seen(machine: Machine, folder: Path) -> tuple[float, float, float]:
    """How far the clock of a process on the machine is ahead; how long it waited for 0.1 s; and for a write."""
    if not machine.environment:
        pytest.skip("there is no C compiler, or this is not Linux")
    command = [sys.executable, "-c", PROGRAM, str(folder / "written")]
    begin = time.time()
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **machine.environment}
    ).stdout.split()
    return float(said[0]) - begin, float(said[1]), float(said[2])


@pytest.mark.parametrize("seconds", [-7200.25, 0.0, 3600.5])
def test_a_clock_jumps_by_as_much_as_it_is_told_and_waits_do_not(
    seconds: float, machine: Machine, tmp_path: Path
) -> None:
    """Guards against rounds that pass as no clock ever jumped, and against processes that hang by the lab's doing."""
    machine.jump(seconds)
    ahead, waited, _ = seen(machine, tmp_path)
    assert seconds <= ahead < seconds + 30
    assert 0.1 <= waited < 30


def test_the_clock_of_one_program_jumps_alone(machine: Machine, tmp_path: Path) -> None:
    """Guards against a jump of the JVM's clock that is one of all clocks: no two of them differ."""
    machine.jump(3600, JAVA)
    assert seen(machine, tmp_path)[0] < 30
    machine.jump(-3600, OTHER)
    assert seen(machine, tmp_path)[0] < -3500


def test_each_write_to_a_slow_disk_takes_longer_until_it_is_fast_again(machine: Machine, tmp_path: Path) -> None:
    """Guards against a slow disk that is none, and against one that stays slow in the next fault."""
    machine.jump(60)
    machine.slow(0.5)
    ahead, _, wrote = seen(machine, tmp_path)
    assert wrote >= 0.5 and ahead >= 60
    machine.slow(0)
    assert seen(machine, tmp_path)[2] < 0.5


def test_a_full_disk_takes_no_byte_until_it_is_free_again(machine: Machine) -> None:
    """Guards against a disk with room for one more small file, which is all that a checkpoint needs."""
    if machine.disk is None:
        pytest.skip("nothing can be mounted here: that takes root")
    (machine.disk / "kept").write_text("x")
    assert machine.fill() > 500_000
    with pytest.raises(OSError, match="No space left"):
        (machine.disk / "one").write_text("x")
    machine.free()
    (machine.disk / "one").write_text("x")
    assert (machine.disk / "kept").read_text() == "x"


def test_a_machine_leaves_no_mount_and_takes_over_what_a_killed_run_left(tmp_path: Path) -> None:
    """Guards against mounts that pile up on the computer of whoever runs the lab."""
    with Machine(tmp_path / "machine", disk_mb=1) as left:
        if left.disk is None:
            pytest.skip("nothing can be mounted here: that takes root")
        (left.disk / "old").write_text("x")
        with Machine(tmp_path / "machine", disk_mb=1) as again:
            assert again.disk is not None and not list(again.disk.iterdir())
    assert not left.disk.is_mount()


#: Waits until a time of the wall clock, as librdkafka does, and prints how long that took by a monotonic clock.
WAITS = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
condition, mutex = (ctypes.c_byte * 64)(), (ctypes.c_byte * 64)()
lock, wait = sys.argv[2:]
getattr(libc, lock)(mutex)
begin, end = time.monotonic(), time.time() + float(sys.argv[1])
until = (ctypes.c_long * 2)(int(end), int(end % 1 * 1e9))
print("waits", flush=True)
while getattr(libc, wait)(condition, mutex, until) == 0:
    pass
print(time.monotonic() - begin)
"""


@pytest.mark.parametrize(
    ("lock", "wait"), [("pthread_mutex_lock", "pthread_cond_timedwait"), ("mtx_lock", "cnd_timedwait")]
)
@pytest.mark.parametrize(("before", "after", "waits_s"), [(-3600, 0, 1e9), (0, 0, 0.3), (3600, 3600, 0.3)])
def test_whoever_waits_for_a_time_of_the_wall_clock_waits_by_the_clock_that_jumps(
    before: float, after: float, waits_s: float, lock: str, wait: str, machine: Machine
) -> None:
    """Guards against a client that hangs for as long as its clock was once behind: the kernel would wake it up."""
    if not machine.environment:
        pytest.skip("there is no C compiler, or this is not Linux")
    machine.jump(before)
    command = [sys.executable, "-c", WAITS, str(min(waits_s, 1800)), lock, wait]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **machine.environment})
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    machine.jump(after)
    said, _ = process.communicate(timeout=60)
    assert float(said) < 30 and (waits_s > 1800 or float(said) >= waits_s)

"""Runs steps of a test, each in a process of its own that SIGKILL ends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa

from exactly_once.participant import Participant, PartName

#: Time for a step of a test, which takes milliseconds; an output that does not answer for this long fails the test.
_PATIENCE_S = 60

_START = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from exactly_once.outputs.conformance.processes import _end; _end()"
)


class StepOutcome(NamedTuple):
    """The outcome of a step in another process, and how many lines of the participant it ran. After a kill before its
    end, ``finished`` is False and ``result`` None.
    """

    finished: bool
    result: Any
    lines: int


def elsewhere(step: Callable[..., Any], *args: Any, kill_at: int | None = None, count: bool = False) -> StepOutcome:
    """Run ``step(*args)`` in a new process that SIGKILL ends: right before the line ``kill_at`` of the participant (the
    first is 1), or after the step; raise here what the step raised.

    The step is from an importable module, and travels by pickle, as do ``args``. With ``count`` or ``kill_at``, it
    counts the lines of the participant among them: those of the modules in the folders of its class and of its base
    classes.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        limit = kill_at if kill_at is not None else 0 if count else None
        job = pickle.dumps(sys.path) + pickle.dumps((step, args, limit, str(answer)))
        ended = subprocess.run([sys.executable, "-c", _START], input=job, timeout=_PATIENCE_S)
        assert ended.returncode == -signal.SIGKILL, (
            f"the process of the step ended before SIGKILL, with {ended.returncode}"
        )
        if not answer.exists():
            assert kill_at is not None, "another process killed the process of the step"
            return StepOutcome(False, None, kill_at)
        error, result, lines = pickle.loads(answer.read_bytes())
    if error is not None:
        raise error
    return StepOutcome(True, result, lines)


def _end() -> None:
    """Run the step in the other process, send its result, and end."""
    step, args, limit, answer = pickle.load(sys.stdin.buffer)
    counted = _Lines(args, limit)
    error = result = None
    try:
        with counted:
            result = step(*args)
    except Exception as e:
        error = e
    part = Path(f"{answer}.part")
    part.write_bytes(pickle.dumps((error, result, counted.lines)))
    part.rename(answer)
    _kill()


def _kill() -> None:
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


class _Lines:
    """Counts the executed lines in the folder of a participant, and kills the process before one of them."""

    def __init__(self, args: Iterable[Any], limit: int | None):
        self.limit, self.lines = limit, 0
        classes = [c for a in args if isinstance(a, Participant) for c in type(a).__mro__ if issubclass(c, Participant)]
        files = [sys.modules[c.__module__].__file__ for c in classes if c is not Participant]
        self.folders = {os.path.dirname(file) for file in files if file}

    def __enter__(self) -> None:
        if self.limit is not None:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if os.path.dirname(frame.f_code.co_filename) in self.folders else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.limit:
                _kill()
        return self._line


def prepare(participant: Participant[Any], name: PartName, rows: Sequence[pa.RecordBatch]) -> Any:
    """Run one part as a task does: a step. Returns the handle."""
    writer = participant.begin(name)
    for batch in rows:
        writer.write(batch)
    return writer.pre_commit()


def write_only(participant: Participant[Any], name: PartName, rows: Sequence[pa.RecordBatch]) -> None:
    """Run a task that aborts before ``pre_commit``: a step."""
    writer = participant.begin(name)
    for batch in rows:
        writer.write(batch)


def call(participant: Participant[Any], method: str, argument: Any) -> Any:
    """Call the participant as the driver or a recovery does: a step."""
    result = getattr(participant, method)(argument)
    return list(result) if result is not None else None

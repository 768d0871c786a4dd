"""A page of the documentation, run as a person runs it: files are written, commands are typed into terminals, and what
they print is compared with what the page promises.

``bash`` blocks go to terminal 1, or to the one that ``terminal=N`` names. A command of terminal 1 is waited for; one of
another terminal runs until the page ends, as a server does. ``file=NAME`` writes a block to a file instead. Behind
``# ->`` is what the output contains, in this order; ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testkit.processes import kill_session, of_session

_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<more>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
_PROMISE = re.compile(r"# -> (.*)$", re.M)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

#: The end of a terminal's processes after Ctrl-C: Dagster waits for its code server, and that for its runs.
END_S = 90.0


class PageFailed(AssertionError):
    """A command failed, or did not print what the page promises."""


@dataclass(frozen=True)
class Block:
    """A fenced block; ``file`` is empty for commands."""

    language: str
    text: str
    file: str = ""
    terminal: int = 1

    @property
    def promises(self) -> list[str]:
        """The lines that the output contains."""
        return [p.strip() for p in _PROMISE.findall(self.text)]


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks that are files or commands."""
    for found in _BLOCK.finditer(page):
        said = dict(word.split("=", 1) for word in found["more"].split())
        if found["language"] == "bash" or "file" in said:
            yield Block(found["language"], found["text"], said.get("file", ""), int(said.get("terminal", "1")))


def unkept(promises: list[str], output: str) -> str | None:
    """Return the first promise that the output does not keep, None when it keeps all, in their order."""
    at = 0
    for promise in promises:
        pattern = ".*".join(map(re.escape, promise.split("...")))
        found = re.compile(pattern).search(output, at)
        if found is None:
            return promise
        at = found.end()
    return None


@dataclass
class Terminal:
    """A shell that keeps its folder and variables from block to block, and stops at the first command that fails."""

    number: int
    folder: Path
    logs: Path
    environment: Mapping[str, str]
    _blocks: int = 0
    _shell: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """The file with the output that it has shown."""
        return self.logs / f"terminal-{self.number}.log"

    def type(self, block: Block, limit_s: float) -> None:
        """Run a block: until it ends in terminal 1, until it has kept its promises in another."""
        shell = self._started()
        self._blocks += 1
        script = self.logs / f"terminal-{self.number}-{self._blocks}.sh"
        done = script.with_suffix(".done")
        script.write_text(block.text)
        began = len(self._shown())
        assert shell.stdin is not None
        shell.stdin.write(f". '{script}' </dev/null\ntouch '{done}'\n".encode())
        shell.stdin.flush()
        end = time.monotonic() + limit_s
        while not (done.exists() if self.number == 1 else unkept(block.promises, self._shown()[began:]) is None):
            if shell.poll() is not None:
                raise PageFailed(f"this ended with {shell.returncode}:\n{block.text}\n{self._shown()[began:]}")
            if time.monotonic() > end:
                raise PageFailed(f"this took more than {limit_s:.0f} s:\n{block.text}\n{self._shown()[began:]}")
            time.sleep(0.1)
        if broken := unkept(block.promises, self._shown()[began:]):
            raise PageFailed(f"{broken!r} was promised by\n{block.text}\nshown was\n{self._shown()[began:]}")

    def end(self) -> None:
        """Press Ctrl-C, and close the terminal. What does not end is killed."""
        if self._shell is None:
            return
        session = self._shell.pid
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGINT)
        end = time.monotonic() + END_S
        while of_session(session) and time.monotonic() < end:
            time.sleep(0.2)
        kill_session(session)
        self._shell.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._shell is None:
            with self.log.open("wb") as log:
                self._shell = subprocess.Popen(
                    ["bash", "--norc", "--noprofile", "-e"],
                    cwd=self.folder,
                    env=dict(self.environment),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a process group, to which Ctrl-C goes
                )
        return self._shell

    def _shown(self) -> str:
        return _COLOURS.sub("", self.log.read_text(errors="replace"))


def run_page(page: Path, folder: Path, logs: Path, environment: Mapping[str, str], limit_s: float) -> dict[str, float]:
    """Do all that a page says in ``folder``, and return the seconds that each of its commands took, by first line.

    Raises
    ------
    PageFailed
    """
    terminals: dict[int, Terminal] = {}
    took: dict[str, float] = {}
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.file:
                (folder / block.file).write_text(block.text, encoding="utf-8")
                continue
            terminal = terminals.setdefault(block.terminal, Terminal(block.terminal, folder, logs, environment))
            began = time.monotonic()
            terminal.type(block, limit_s)
            took[block.text.strip().splitlines()[-1]] = time.monotonic() - began
    finally:
        for number in sorted(terminals, reverse=True):
            terminals[number].end()
    return took

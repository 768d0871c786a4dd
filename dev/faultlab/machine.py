"""A machine whose wall clock jumps and whose disk is slow or full: as far as the processes that are started on it see.

Clock and slow disk are a shared library (``shim.c``), compiled once and loaded before all others. libfaketime does the
clock too, but comes with the system and not with pip, and knows nothing of disks. The disk is a small tmpfs, which only
root can mount. What this computer cannot do a machine does without: faults that need it are left.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

from exactly_once.sparkenv.jars import cache_folder

#: A compiler and a mount take less than a second.
COMMAND_S = 60.0

#: The programs whose clocks jump one by one: JVMs, and all others, which are Python.
JAVA, OTHER = "java", "other"

_SOURCE = Path(__file__).with_name("shim.c")
_FORM = struct.Struct("=qq")


class Machine:
    """One machine. A context manager: the disk is unmounted in the end.

    Parameters
    ----------
    folder : Path
        For its files; the disk is mounted below it.
    disk : Path, optional
        Where the disk is mounted instead; made when it does not exist.
    disk_mb : int
        Its size; 0: no disk of its own.

    Attributes
    ----------
    environment : dict
        For the processes on it; empty where clock and slow disk cannot be had.
    disk : Path or None
        None where it has none, or none can be mounted.
    """

    def __init__(self, folder: Path, *, disk: Path | None = None, disk_mb: int = 16):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._maps = folder, dict[str, mmap.mmap]()
        self.environment: dict[str, str] = {}
        if (library := shim()) is not None:
            self.environment = {"LD_PRELOAD": str(library), "FAULTLAB_SHIM": str(folder)}
            self._maps = {name: _mapped(folder / name) for name in (JAVA, OTHER)}
        self.disk = _mounted(disk or folder / "disk", disk_mb) if disk_mb else None

    def jump(self, seconds: float, *programs: str) -> None:
        """Set how far the clocks of these programs (default: all) are ahead of the real one; below 0: behind it."""
        for name in programs or self._maps:
            _FORM.pack_into(self._maps[name], 0, round(seconds * 1e9), self._told(name)[1])

    def slow(self, seconds: float) -> None:
        """Let each write to a file, and each flush, take so much longer; 0: no longer."""
        for name in self._maps:
            _FORM.pack_into(self._maps[name], 0, self._told(name)[0], round(seconds * 1e6))

    def fill(self) -> int:
        """Fill the disk to the last byte, and return how many that took."""
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._ballast.open("ab", buffering=0))
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(bytes(size)) == size:
                        continue
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
        return self._ballast.stat().st_size

    def free(self) -> None:
        """Take away what :meth:`fill` wrote."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount the disk."""
        for told in self._maps.values():
            told.close()
        if self.disk is not None:
            unmount(self.disk)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _ballast(self) -> Path:
        assert self.disk is not None
        return self.disk / "ballast"

    def _told(self, name: str) -> tuple[int, int]:
        added_ns, slow_us = _FORM.unpack_from(self._maps[name], 0)
        return added_ns, slow_us


@cache
def shim() -> Path | None:
    """Return the library, compiled into the cache folder; None without a C compiler, and where it is not Linux."""
    compiler = shutil.which("cc")
    if compiler is None or os.uname().sysname != "Linux":
        return None
    key = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    library = cache_folder() / f"faultlab-{key}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(draft), str(_SOURCE), "-ldl", "-lpthread"]
        made = subprocess.run(command, capture_output=True, timeout=COMMAND_S)
        if made.returncode != 0:
            return None
        draft.rename(library)
    return library


def unmount(disk: Path) -> None:
    """Unmount a disk, whoever still uses it; nothing happens when none is there."""
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", disk], capture_output=True, timeout=COMMAND_S)


def _mounted(disk: Path, size_mb: int) -> Path | None:
    disk.mkdir(parents=True, exist_ok=True)
    unmount(disk)  # of a run that was killed
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return None
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "faultlab", str(disk)]
    return disk if subprocess.run(command, capture_output=True, timeout=COMMAND_S).returncode == 0 else None


def _mapped(path: Path) -> mmap.mmap:
    path.write_bytes(bytes(_FORM.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _FORM.size)

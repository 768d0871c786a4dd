"""File systems for the checkpoint of a round: HDFS and S3, as servers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testkit import hdfs, s3
from testkit.hdfs import Hdfs
from testkit.s3 import S3

#: Where a round has its checkpoint by default.
DISK = "disk"

_SERVERS: dict[str, type[Hdfs] | type[S3]] = {"hdfs": Hdfs, "s3": S3}

#: By the same names: raises an error that says what is not there. HDFS is one jar, which it downloads.
_NEEDS: dict[str, Callable[[], object]] = {"hdfs": hdfs.classpath, "s3": s3.check}

#: What a round may have its checkpoint on.
PLACES = (DISK, *_SERVERS)


@dataclass
class FileStore:
    """The servers that hold a round's checkpoint.

    Attributes
    ----------
    struck : bool
        Whether a fault holds one of them, so that nobody may be asked what is there.
    """

    server: Hdfs | S3
    struck: bool = False

    @property
    def checkpoint(self) -> str:
        """The URI of the checkpoint."""
        return f"{self.server.uri}/streams/lab"


@contextmanager
def file_store(place: str, folder: Path) -> Iterator[FileStore | None]:
    """Run the servers of one of :data:`PLACES`; None for the local disk."""
    if place == DISK:
        yield None
        return
    with _SERVERS[place](folder) as server:
        yield FileStore(server)


def check(place: str) -> None:
    """Make sure that the servers of one of :data:`PLACES` can be had.

    Raises
    ------
    S3Missing, ExactlyOnceError
        With what is not there, and how to get it.
    """
    if place != DISK:
        _NEEDS[place]()

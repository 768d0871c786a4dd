"""HDFS for Python: through hdfs-native where it is installed (the extra ``hdfs``), else through pyarrow and libhdfs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from exactly_once import location as locations
from exactly_once.errors import CheckpointAway, CheckpointUnusable, ExactlyOnceError
from exactly_once.location import HDFS, VIEWFS, Location

if TYPE_CHECKING:
    import pyarrow.fs as pafs

SCHEMES = (HDFS, VIEWFS)

#: Settings of hdfs-native, which by default tries a name node that is away for minutes. With three tries it gives up
#: after 5 s: a sensor that waits for one stream is late for all others.
_SETTINGS = {"dfs.client.failover.max.attempts": "3"}

#: Words in the errors of hdfs-native, and (the last one) of libhdfs, when the name node or a data node is away.
_AWAY = (
    *("Connection refused", "Connection reset", "timed out", "StandbyException", "All DataNodes failed"),
    "Unknown error 255",
)

_CLIENTS = (
    "Install the extra: pip install 'pyspark-kafka-exactly-once[hdfs]'; with a name service or Kerberos, also set "
    "HADOOP_CONF_DIR. Or, for libhdfs, set JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob) in the "
    "environment of this Python process"
)


def hdfs(place: Location) -> pafs.FileSystem:
    """Return the file system of a location whose scheme is one of :data:`SCHEMES`.

    Raises
    ------
    CheckpointUnusable
        When it has no path or a port that is none, or this process has no client for HDFS.
    OSError
        When libhdfs does not reach the name node. hdfs-native connects with the first request.
    """
    host, _, port = place.authority.partition(":")
    if not place.path.strip("/") or (port and not port.isdecimal()):
        raise CheckpointUnusable(f"{place} is not a path on HDFS", "Write the location as hdfs://HOST:PORT/PATH")
    if (native := _native(place.scheme)) is None:
        return _libhdfs(place)
    import pyarrow.fs as pafs  # imported here: a process that commits reads no checkpoint

    client = _client(native, host or None, int(port) if port else None, os.getpid(), threading.get_ident())
    return pafs.PyFileSystem(pafs.FSSpecHandler(client))


def unusable(what: str, location: str, e: Exception) -> ExactlyOnceError | None:
    """Make the error for ``what``, a place below ``location``, that cannot be read because of ``e``; None when the
    location is not on HDFS.
    """
    if not locations.is_on(location, *SCHEMES):
        return None
    if any(name in str(e) for name in _AWAY):
        return CheckpointAway(
            f"HDFS does not answer, so this Python process cannot read {what} ({type(e).__name__}: {e})",
            "Wait until hdfs dfs -ls lists the checkpoint's folder, and start the stream again, unchanged",
        )
    return CheckpointUnusable(
        f"this Python process cannot read {what} ({type(e).__name__}: {e})",
        "Make sure that hdfs dfs -ls, as the user of this process and on its host, lists the checkpoint's folder",
    )


@cache
def _client(native: Callable[..., Any], host: str | None, port: int | None, pid: int, thread: int) -> Any:
    # one for each process and thread, as fsspec keeps its instances
    return native(host, port, **_SETTINGS)


@cache
def _native(scheme: str) -> Callable[..., Any] | None:
    """Return the class of hdfs-native's file system, or None where it is not installed."""
    try:
        from hdfs_native import fsspec
    except ModuleNotFoundError:
        return None

    class Dated(fsspec.HdfsFileSystem if scheme == HDFS else fsspec.ViewfsFileSystem):  # type: ignore[misc]
        """A file, with its time where pyarrow reads it."""

        # fsspec forgets its instances in a child that was forked, and the end of hdfs-native's client hangs there
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path  # a path has no protocol; hdfs-native's method ends one at # and ?

        def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
            return _dated(super().info(path, **kwargs))

        def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
            found = super().ls(path, detail, **kwargs)
            return [_dated(one) for one in found] if detail else found

    return Dated


def _dated(found: Any) -> dict[str, Any]:
    return {**found, "mtime": found["modification_time"] / 1000}


def _libhdfs(place: Location) -> pafs.FileSystem:
    import pyarrow.fs as pafs

    try:
        return pafs.FileSystem.from_uri(f"{place.scheme}://{place.authority}/")[0]
    except OSError as e:
        lacks = str(e).splitlines()[0]  # the further lines list every place where the library is not
        if not lacks.startswith(("Unable to load", "Prior attempt to load", "HDFS connection failed")):
            raise
        raise CheckpointUnusable(
            f"this Python process has no client for HDFS, so it cannot read {place}: hdfs-native is not installed, and "
            f"libhdfs says: {lacks}",
            _CLIENTS,
        ) from e

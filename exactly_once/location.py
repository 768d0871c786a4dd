"""The text of a location (of a checkpoint, of files, of a table), read as Hadoop's ``Path`` reads it, and so Spark.

Nothing in it is escaped: behind scheme and authority, every character is one of the path's, ``%``, ``#`` and ``?`` too.
A location without a scheme is on Spark's ``fs.defaultFS``, which only a session knows
(:mod:`exactly_once.spark.location`); to a process without a session, it is on the local disk.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Hadoop's names for S3.
S3 = ("s3", "s3a", "s3n")

#: HDFS itself, and a table of mounts in front of it.
HDFS, VIEWFS = "hdfs", "viewfs"

#: Hadoop's names for Azure, and the two services of an account, by which one of them may be addressed.
ABFS, SERVICES = ("abfs", "abfss"), ("dfs", "blob")

#: The file system of Databricks, and the folders of it that its hosts have under the same name; others are below /dbfs.
DBFS, VOLUMES = "dbfs", "/Volumes/"


class Location(NamedTuple):
    """The parts of a location, "" where the text has none. ``str`` writes it as Hadoop does."""

    scheme: str
    authority: str
    path: str

    @property
    def is_local(self) -> bool:
        """True where a process without a session finds it on the local disk."""
        return self.scheme in ("", "file")

    @property
    def on_disk(self) -> str | None:
        """The path on the local disk where such a process finds it, None on another file system."""
        if self.scheme == DBFS:
            return self.path if self.path.startswith(VOLUMES) else f"/dbfs{self.path}"
        return self.path if self.is_local else None

    def __str__(self) -> str:
        scheme = f"{self.scheme}:" if self.scheme else ""
        return f"{scheme}//{self.authority}{self.path}" if self.authority else f"{scheme}{self.path}"


def read(text: str) -> Location:
    """Return the location that ``text`` names.

    Raises
    ------
    ValueError
        ``Path`` cannot read it, or it is a local one with a host, which Hadoop's local file system does not have.
    """
    if not text:
        raise ValueError("it is empty")
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        scheme, rest = "", text
    elif not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.\-]*", scheme):
        raise ValueError(f"{scheme!r}, before its colon, is no file system: write ./ or / in front")
    authority = ""
    if rest.startswith("//") and len(rest) > 2:
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
    if scheme and not authority and not rest.startswith("/"):
        raise ValueError(f"behind {scheme}: it does not go on with a slash")
    if scheme == "file" and authority:
        raise ValueError(f"it names the host {authority!r}: write file:///{authority}{rest}, with three slashes")
    return Location(scheme, authority, _normal(rest))


class Azure(NamedTuple):
    """A container of Azure, and by service what stands behind the account in the name of its host."""

    container: str
    account: str
    suffixes: dict[str, str]


def azure(place: Location) -> Azure | None:
    """Return what a location on Azure names, of whichever cloud: ``container@account.dfs.core.windows.net``,
    ``.dfs.core.chinacloudapi.cn``, ``.dfs.fabric.microsoft.com``; None for another one.
    """
    found = re.fullmatch(r"([^@]+)@([^.:@]+)((?:\.[^.:@]+)*)\.(dfs|blob)(\.[^:@]+)", place.authority)
    if place.scheme not in ABFS or found is None:
        return None
    container, account, zone, _, cloud = found.groups()
    return Azure(container, account, {service: f"{zone}.{service}{cloud}" for service in SERVICES})


def is_on(text: str, *schemes: str) -> bool:
    """Return whether a location is on one of these file systems."""
    try:
        return read(text).scheme in schemes
    except ValueError:
        return False


def _normal(path: str) -> str:
    """Return a path as ``java.net.URI`` normalizes it: ``..`` above the root stays, in contrast to Python's."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == ".." and segments and segments[-1] != "..":
            segments.pop()
        elif segment not in ("", "."):
            segments.append(segment)
    return ("/" if path.startswith("/") else "") + "/".join(segments)

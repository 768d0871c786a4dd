"""The text of the files of a Spark checkpoint: whether a file is torn, and which input an ``offsets/N`` names.

A full disk or a power failure leaves a file that is empty, cut off or full of zeros. Such a file is *torn*: Spark fails
on it at each start, except on a ``commits/N`` with nothing but its version: there it would continue with a watermark
of 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

_VERSION = re.compile(r"v\d+")

#: Version of Spark's offset log in which the line of a source begins with its name or number, and the pattern of that.
_NAMED, _NAME = "v2", re.compile(r"[A-Za-z0-9_]+:")
_NUMBER = re.compile(r"(\d+:(?=[{\[]))?")


def source_lines(offsets: str) -> list[str]:
    """Return the lines of an ``offsets/N`` that name the input: one for each source, after version and settings."""
    return offsets.rstrip("\n").split("\n")[2:]


def kafka_offsets(sources: Iterable[str]) -> dict[str, dict[int, int]]:
    """Return topic -> partition -> next offset to read, from the source lines of an ``offsets/N``, with or without the
    name or the number of the source before them. Skips sources whose offsets do not look like Kafka's, and topics
    without a partition.

    If two sources read one partition, the lower offset counts.
    """
    ends: dict[str, dict[int, int]] = {}
    for line in sources:
        try:
            topics = json.loads(line if line.startswith("{") else line.partition(":")[2])
            read = {t: {int(p): int(o) for p, o in partitions.items()} for t, partitions in topics.items()}
        except (ValueError, TypeError, AttributeError):
            continue
        for topic, offsets in read.items():
            if not offsets:
                continue
            known = ends.setdefault(topic, {})
            known |= {p: min(o, known.get(p, o)) for p, o in offsets.items()}
    return ends


def watermark_ms(offsets: str) -> int:
    """Return the watermark under which a batch ran, from its ``offsets/N``, in ms since the epoch; 0 without one."""
    return int(json.loads(offsets.split("\n")[1]).get("batchWatermarkMs", 0))


def names_sources(offsets: str) -> bool:
    """Return whether an ``offsets/N`` says of which source each line is. Without that Spark counts the sources, and a
    query cannot get one more.
    """
    return offsets.partition("\n")[0] == _NAMED


def digest_of(offsets: str) -> str:
    """Return the digest of the input that the text of an ``offsets/N`` names; it ignores settings and clock."""
    return hashlib.sha256("\n".join(source_lines(offsets)).encode()).hexdigest()


def fault_of(name: str, content: bytes) -> str | None:
    """Return what is wrong with ``content`` as the file ``name`` (``metadata``, ``offsets/7``, ``commits/7``); None
    when it is whole.
    """
    if not content.strip(b"\0"):
        return "it contains only zero bytes" if content else "it is empty"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "it is not text"
    if name == "metadata":
        return None if query_id_of(text) else "it names no query"
    version, _, rest = text.rstrip("\n").partition("\n")
    if not _VERSION.fullmatch(version):
        return "it does not begin with a version"
    head, *sources = rest.split("\n")
    if not isinstance(_json(head), dict):
        return "it is cut off after its version" if not head else "its second line is cut off"
    named = version == _NAMED
    if name.startswith("offsets/") and (not sources or not all(_is_whole(source, named) for source in sources)):
        return "the input that it names is cut off"
    return None


def query_id_of(metadata: str) -> str | None:
    """Return the query id in the text of ``metadata``; None without one."""
    body = _json(metadata)
    found = body.get("id") if isinstance(body, dict) else None
    return found if isinstance(found, str) and found else None


def state_ids_of(commit: str) -> bool:
    """Return whether a whole ``commits/N`` names the files of the state stores (checkpoint format 2). No other file can
    replace such a one, since the next batch reads exactly these state files.
    """
    body = _json(commit.partition("\n")[2].partition("\n")[0])
    return bool(isinstance(body, dict) and body.get("stateUniqueIds"))


def _is_whole(source: str, named: bool) -> bool:
    """Return whether the line of a source looks complete; one that is ``named`` must begin with its name."""
    begin = (_NAME if named else _NUMBER).match(source)
    body = source[begin.end() :] if begin else ""
    return bool(body) and (body[0] not in "{[" or _json(body) is not None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None

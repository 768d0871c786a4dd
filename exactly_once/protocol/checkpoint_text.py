"""The text of the files of a Spark checkpoint: what is whole, what is torn, and which input an ``offsets/N`` names.

A full disk or a loss of power leaves a file that is empty, cut off or full of zeros. Such a file is *torn*: Spark fails
on it at each start, save on a ``commits/N`` of a bare version, where it would go on with a watermark of 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_VERSION = re.compile(r"v\d+")


def source_lines(offsets: str) -> list[str]:
    """The lines of an ``offsets/N`` file that name the input: one for each source, behind version and settings."""
    return offsets.rstrip("\n").split("\n")[2:]


def digest_of(offsets: str) -> str:
    """The digest of the input that the text of an ``offsets/N`` names; settings and clock are not in it."""
    return hashlib.sha256("\n".join(source_lines(offsets)).encode()).hexdigest()


def fault_of(name: str, content: bytes) -> str | None:
    """Why ``content`` is not what Spark writes to the file ``name`` (``metadata``, ``offsets/7``, ``commits/7``); None
    when it is whole.
    """
    if not content.strip(b"\0"):
        return "it holds nothing but zeros" if content else "it is empty"
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
        return "it is cut off behind its version" if not head else "its second line is cut off"
    if name.startswith("offsets/") and (not sources or not all(map(_is_whole, sources))):
        return "the input that it names is cut off"
    return None


def query_id_of(metadata: str) -> str | None:
    """The query id in the text of ``metadata``; None when it names none."""
    body = _json(metadata)
    found = body.get("id") if isinstance(body, dict) else None
    return found if isinstance(found, str) and found else None


def state_ids_of(commit: str) -> bool:
    """Whether a whole ``commits/N`` names the files of the state stores (checkpoint format 2): no other can replace it,
    since the next batch reads exactly those.
    """
    body = _json(commit.partition("\n")[2].partition("\n")[0])
    return bool(isinstance(body, dict) and body.get("stateUniqueIds"))


def _is_whole(source: str) -> bool:
    """Whether the line of a source, with or without its number before it, is not cut off, as far as one can tell."""
    body = re.sub(r"^\d+:(?=[{\[])", "", source)
    return bool(body) and (body[0] not in "{[" or _json(body) is not None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None

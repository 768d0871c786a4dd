"""Finds the user's own exception in what Spark says of a failed query: its last line, and the place that raised it.

Pure: a function of the text. The texts are those of PySpark 4.2; the names in brackets are Spark's error conditions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from traceback import extract_tb

#: A Python function of the user's ran in a worker, or is a foreachBatch function.
_OF_PYTHON = ("[PYTHON_EXCEPTION]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")

#: An expression of the user's met a value that it cannot take (SQL's class 22), or raised an error (P0001).
_OF_EXPRESSION = re.compile(
    r"terminated with exception: (?P<what>\[(?P<name>[A-Z_.]+)\].*?) +SQLSTATE: (?:22[0-9A-Z]{3}|P0001)", re.DOTALL
)
_SQL = re.compile(r"^== (?:SQL|DataFrame) .*==\n(?P<text>.+)$", re.MULTILINE)

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)

#: Where the packages of other people lie.
_LIBRARIES = {"site-packages", "dist-packages", "pyspark", "pyspark.zip"}

#: Where this project's packages lie: here, and on an executor.
_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    f"{folder}{package}/"
    for package in ("exactly_once", "dagster_exactly_once")
    for folder in (f"{_ROOT}/", "site-packages/", "dist-packages/")
)

#: Of the sink, where a function of the user's calls it.
_OF_THE_SINK = re.compile(r"(?:dagster_)?exactly_once(?:\.\w+)+: EO-")

#: Behind it stands what Spark adds to a traceback.
_END = re.compile(r"^ ?SQLSTATE: |^=== Streaming Query ===", re.MULTILINE)


@dataclass(frozen=True)
class Raised:
    """An exception of the user's.

    Attributes
    ----------
    what : str
        Its type and text in one line, as Python prints it, or Spark's sentence.
    where : str
        ``price (shop.py, line 14)``; the text of the expression; "" when unknown.
    """

    what: str
    where: str = ""

    @property
    def sentence(self) -> str:
        """Both, for an error."""
        return f"{self.what}, in {self.where}" if self.where else self.what


def raised_in(text: str) -> Raised | None:
    """Return the user's exception that ended the query with this text; None when something else did."""
    for name in _OF_PYTHON:
        start = text.find(name)
        if start >= 0:
            return _of_traceback(text[start:])
    found = _OF_EXPRESSION.search(text)
    if found is None or found["name"].startswith("KAFKA_"):
        return None
    sql = _SQL.search(text)
    return Raised(_line(found["what"].split("\n==")[0]).rstrip("."), _line(sql["text"]) if sql else "")


def raised_by(error: Exception) -> Raised:
    """Return ``error``, which a function of the user's raised here, with its place."""
    frames = [(f.filename, str(f.lineno), f.name) for f in extract_tb(error.__traceback__)]
    text = f"{type(error).__name__}: {error}"
    return Raised(_line(text.splitlines()[0] if text.splitlines() else text), _place(frames) or "")


def _of_traceback(text: str) -> Raised | None:
    end = _END.search(text)
    text = text[: end.start()] if end else text
    frames = [(m["file"], m["line"], m["function"]) for m in _FRAME.finditer(text)]
    place = _place(frames)
    if place is None and any(_is_ours(file) for file, _, _ in frames):
        return None  # a bug of ours, or an error of the sink
    after = text[list(_FRAME.finditer(text))[-1].end() :] if frames else text
    # what is raised stands behind the last frame's line of code, which is indented
    said = next((line for line in after.splitlines() if line.strip() and not line.startswith((" ", "\t"))), "")
    return Raised(_line(said), place or "") if said and not _OF_THE_SINK.match(said) else None


def _place(frames: list[tuple[str, str, str]]) -> str | None:
    """Name the last frame that is the user's own: neither Python's, nor a package's."""
    for file, line, function in reversed(frames):
        if not (_is_ours(file) or _is_of_a_package(file)):
            return f"{function} ({PurePath(file).name}, line {line})"
    return None


def _is_ours(file: str) -> bool:
    return any(folder in file for folder in _OURS)


def _is_of_a_package(file: str) -> bool:
    parts = PurePath(file).parts
    return (
        bool(_LIBRARIES & set(parts))
        or file.startswith("<")
        or file.endswith(".pyx")
        or any(one == "lib" and two.startswith("python3") for one, two in pairwise(parts))
    )


def _line(text: str) -> str:
    return " ".join(text.split())

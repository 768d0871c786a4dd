"""Finds the user's own exception in what Spark says of a failed query: its last line, and the place that raised it.

Pure: a function of the text. The texts are those of PySpark 4.2; the names in brackets are Spark's error conditions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise, takewhile
from pathlib import Path, PurePath
from traceback import extract_tb

#: Spark's names for an exception of the user's Python function, in a worker or a foreachBatch function.
_OF_PYTHON = ("[PYTHON_EXCEPTION]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")

#: Spark's text for an expression of the user's that met a value which it cannot take (SQL's class 22) or raised an
#: error (P0001), and for a function in Java or Scala that raised an exception (39000).
_OF_EXPRESSION = re.compile(
    r"terminated with exception: (?P<what>\[(?P<name>[A-Z_.]+)\].*?) +SQLSTATE: (?:22[0-9A-Z]{3}|P0001|39000)",
    re.DOTALL,
)
_SQL = re.compile(r"^== (?:SQL|DataFrame) .*==\n(?P<text>.+)$", re.MULTILINE)

#: File, line and function, as a traceback names them.
_Frame = tuple[str, str, str]

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)

#: Folders of installed packages: those of other people, and in an image the user's own.
_PACKAGES = {"site-packages", "dist-packages"}

#: Folders of the packages of other people.
_LIBRARIES = {*_PACKAGES, "pyspark", "pyspark.zip", "py4j"}

#: Packages that only call the user's function, or that it only calls.
_CALLED_THROUGH = {"cloudpickle", "dagster", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}

#: The folder of this project's packages: here, and on an executor.
_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    f"{folder}{package}/"
    for package in ("exactly_once", "dagster_exactly_once")
    for folder in (f"{_ROOT}/", "site-packages/", "dist-packages/")
)

#: The sink's own error, where a function of the user's calls it.
_OF_THE_SINK = re.compile(r"(?:dagster_)?exactly_once(?:\.\w+)+: EO-")

#: The beginning of what Spark adds to a traceback.
_END = re.compile(r"^ ?SQLSTATE: |^=== Streaming Query ===", re.MULTILINE)


@dataclass(frozen=True)
class Raised:
    """An exception of the user's: its type and text in one line, as Python prints it, or Spark's sentence.

    It was raised ``where``: ``price (shop.py, line 14)``, or the text of the expression; "" when unknown.
    """

    what: str
    where: str = ""

    @property
    def sentence(self) -> str:
        """The message, and where it was raised."""
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
    frames = ((f.filename, str(f.lineno), f.name) for f in extract_tb(error.__traceback__))
    place = _place(list(dropwhile(lambda frame: _is_ours(frame[0]), frames)))
    return Raised(_said(f"{type(error).__name__}: {error}".splitlines()), place or "")


def _of_traceback(text: str) -> Raised | None:
    end = _END.search(text)
    text = text[: end.start()] if end else text
    frames = [(m["file"], m["line"], m["function"]) for m in _FRAME.finditer(text)]
    place = _place(frames)
    if place is None and any(_is_ours(file) for file, _, _ in frames):
        return None  # a bug of ours, or an error of the sink
    after = text[list(_FRAME.finditer(text))[-1].end() :] if frames else text
    # what is raised stands behind the last frame's line of code, which is indented
    said = _said(dropwhile(lambda line: not line.strip() or line.startswith((" ", "\t")), after.splitlines()))
    return Raised(said, place or "") if said and not _OF_THE_SINK.match(said) else None


def _said(lines: Iterable[str]) -> str:
    """Return the first line of what was raised, with the next one where it ends with a colon."""
    first, *rest = [_line(line) for line in lines if line.strip()] or [""]
    return f"{first} {rest[0]}" if first.endswith(":") and rest else first.removesuffix(":")


def _place(frames: Sequence[_Frame]) -> str | None:
    """Name the last frame that is the user's own, else the last of a package that may be the user's."""
    own = [frame for frame in frames if not (_is_ours(frame[0]) or _is_of_a_package(frame[0]))]
    for file, line, function in reversed(own or _in_first_package(frames)):
        return f"{function} ({PurePath(file).name}, line {line})"
    return None


def _in_first_package(frames: Sequence[_Frame]) -> list[_Frame]:
    """Return the frames within the package that was called first: further packages are what it calls in its turn, as is
    everything below this project's code.
    """
    above = list(takewhile(lambda frame: not _is_ours(frame[0]), frames))
    first = next((name for file, _, _ in above if (name := _package(file)) not in {"", *_CALLED_THROUGH}), None)
    return [frame for frame in above if _package(frame[0]) == first]


def _package(file: str) -> str:
    """Name the installed package of a file; "" for none."""
    found = (name for folder, name in pairwise(PurePath(file).parts) if folder in _PACKAGES)
    return next(found, "").removesuffix(".py")


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

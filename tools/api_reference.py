"""Write the API reference, ``.run/docs``, from the docstrings of what users import.

``python tools/api_reference.py`` fails, and writes nothing, when one of these names has no docstring.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pdoc

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

FOLDER = PROJECT / ".run" / "docs"

#: What users import: a test compares this with the examples of the documentation.
MODULES = (
    "exactly_once",
    "exactly_once.errors",
    "exactly_once.participant",
    "exactly_once.participants.files",
    "exactly_once.participants.postgres",
    "exactly_once.conformance",
    "dagster_exactly_once",
    "dagster_exactly_once.notify",
    "dagster_exactly_once.resources.spark",
)

_OURS = ("exactly_once", "dagster_exactly_once")


def main() -> int:
    """Write the reference; return the exit code."""
    if missing := undocumented():
        print(f"These public names have no docstring: {', '.join(missing)}", file=sys.stderr)
        return 1
    write(FOLDER)
    print(f"The API reference is at {FOLDER / 'index.html'}")
    return 0


def write(folder: Path) -> None:
    """Write a page for each of :data:`MODULES`, and an index, into ``folder``."""
    pdoc.render.configure(docformat="numpy", show_source=False)
    pdoc.pdoc(*MODULES, output_directory=folder)


def undocumented(modules: tuple[str, ...] = MODULES) -> list[str]:
    """Return the modules, classes and functions without a docstring, inherited ones of other packages aside.

    What a class keeps in fields its own docstring explains.
    """
    return [name for module in modules for name in _undocumented(_read(module))]


def _read(module: str) -> pdoc.doc.Module:
    return pdoc.doc.Module(importlib.import_module(module))  # imported here, with no import of it changed by pdoc


def _undocumented(of: pdoc.doc.Module | pdoc.doc.Class) -> Iterator[str]:
    if not of.docstring.strip():
        yield of.fullname
    for member in of.members.values():
        if member.name.startswith("_") or not member.taken_from[0].startswith(_OURS):
            continue
        if isinstance(member, pdoc.doc.Class):
            yield from _undocumented(member)
        elif isinstance(member, pdoc.doc.Function) and not member.docstring.strip():
            yield member.fullname


if __name__ == "__main__":
    sys.exit(main())

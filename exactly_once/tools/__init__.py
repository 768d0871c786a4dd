"""The tools of an operator: they need the extra ``tools``, and the core needs none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from exactly_once.errors import ExtraMissing

#: The packages of the extra that these tools import.
PACKAGES = ("lz4", "numpy", "packaging", "rich")


@contextmanager
def needed() -> Iterator[None]:
    """Raise ExtraMissing for an import, inside the block, of a package that only the extra ``tools`` installs."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise ExtraMissing.of("the command exactly-once (or exactly_once.verify)", str(e.name), "tools") from e

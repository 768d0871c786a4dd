"""The warning about a public name that the next major release removes. docs/reference.md#public-names has the rule."""

import warnings
from collections.abc import Callable
from importlib import import_module


def deprecated(what: str, since: str, instead: str) -> None:
    """Warn the caller of the function that calls this: ``what`` is deprecated since a release; use ``instead``."""
    warnings.warn(_sentence(what, since, instead), DeprecationWarning, stacklevel=3)


def moved(old: str, new: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module ``old`` whose names are in the module ``new`` now."""

    def name_of(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        found: object = getattr(import_module(new), name)
        warnings.warn(_sentence(old, "1.0", new), DeprecationWarning, stacklevel=2)
        return found

    return name_of


def _sentence(what: str, since: str, instead: str) -> str:
    return f"{what} is deprecated since {since}, and the next major release removes it. Use {instead} instead."

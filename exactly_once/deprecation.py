"""The warning about a public name that the next major release removes. docs/reference.md#public-names has the rule."""

import warnings


def deprecated(what: str, since: str, instead: str) -> None:
    """Warn the caller of the function that calls this: ``what`` is deprecated since a release; use ``instead``."""
    message = f"{what} is deprecated since {since}, and the next major release removes it. Use {instead} instead."
    warnings.warn(message, DeprecationWarning, stacklevel=3)

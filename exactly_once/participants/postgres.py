"""The old name of :mod:`exactly_once.outputs.postgres`."""

from exactly_once.deprecation import moved

__getattr__ = moved(__name__, "exactly_once.outputs.postgres")

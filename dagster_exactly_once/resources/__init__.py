"""Dagster's resources for ops: Spark, Kafka, transactions and checkpoints."""

import os
from collections.abc import Iterable


def set_fields(names: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the values of the ``<prefix><FIELD>`` variables that are set, by the field."""
    return {name: value for name in names if (value := os.environ.get(prefix + name.upper()))}

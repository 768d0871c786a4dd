"""The retirement of a sink, as a script does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exactly_once.kafka.connection import Connection
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.retire_sink import SUCCESSOR, SuccessorParameters


def retire(
    connection: Connection, predecessor: str, successor: str, checkpoint: str = "", loses_state: str = ""
) -> Mapping[str, Any]:
    """Retire ``predecessor`` for ``successor``; return what the command prints as JSON."""
    p = SuccessorParameters(predecessor=predecessor, sink_id=successor, checkpoint=checkpoint, loses_state=loses_state)
    return SUCCESSOR.apply(OperationContext(connection), p).document

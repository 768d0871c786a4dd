"""A repair of a checkpoint, as a script makes it."""

from __future__ import annotations

from typing import Any

from exactly_once.inspection.processes import AliveOf
from exactly_once.kafka.connection import Connection
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.repair.applying import Repair
from exactly_once.tools.operation.repair_checkpoint import REPAIR, RepairParameters


def examine(connection: Connection, sink_id: str, location: str) -> Repair:
    """Return what a repair would do."""
    found: Repair = REPAIR.examine(
        OperationContext(connection), RepairParameters(sink_id=sink_id, checkpoint=location)
    ).value
    return found


def repair(
    connection: Connection,
    sink_id: str,
    location: str,
    by: str = "",
    operator: str = "",
    alive_of: AliveOf | None = None,
    **parameters: Any,
) -> Repair:
    """Make the repair; ``parameters`` are further ones of the operation."""
    context = OperationContext(connection, operator, by, alive_of)
    done: Repair = REPAIR.apply(context, RepairParameters(sink_id=sink_id, checkpoint=location, **parameters)).value
    return done

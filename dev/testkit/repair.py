"""A repair of a checkpoint, as a script makes it."""

from __future__ import annotations

from typing import Any

from exactly_once.inspection.processes import AliveOf
from exactly_once.kafka.connection import Connection
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.repair.applying import Repair
from exactly_once.tools.operation.repair_checkpoint import REPAIR, RepairParameters
from testkit.fixtures import Bench


def examine(connection: Connection, sink_id: str, location: str) -> Repair:
    """Return what a repair would do."""
    found: Repair = REPAIR.examine(
        OperationContext(connection), RepairParameters(sink_id=sink_id, checkpoint=location)
    ).value
    return found


def phrase(bench: Bench) -> str:
    """Return what has to be typed out for the repair of a bench's checkpoint, since the driver of tests lives on."""
    owner = bench.log().owner
    assert owner is not None
    return f"fence the driver {owner.pid} on {owner.host}"


def mend(bench: Bench, **parameters: Any) -> Repair:
    """Repair a bench's checkpoint."""
    return repair(bench.connection, bench.sink_id, str(bench.checkpoint), force=phrase(bench), **parameters)


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

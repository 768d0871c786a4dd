"""One run of a query, or one try of a batch write, in the driver: its coordinator, and what goes with it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from exactly_once.coordinator.coordination import Coordination
from exactly_once.errors import ExactlyOnceError
from exactly_once.framing import Framing
from exactly_once.kafka.errors import lacking
from exactly_once.kafka.sharing import CLIENTS
from exactly_once.participants.kafka.participant import CONTACT_BUDGET_S
from exactly_once.protocol.planning import Plan
from exactly_once.spark import encoders
from exactly_once.spark.border import DeadLetterTarget
from exactly_once.spark.columns import types_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class QueryRun:
    """A coordinator, from the first batch of a run to its end, and what the schema registry said for it.

    A batch that the query runs again is framed as before, whatever the subject's latest version is by then, and a
    registry that dies does not stop a query that runs.
    """

    def __init__(self, coordinator: Coordination):
        self.coordinator = coordinator
        self.lock = threading.Lock()  # serialises calls for one run
        self._framing: Framing | None = None
        self._dead_letters: DeadLetterTarget | None = None
        self._closed = False

    def check_formats(self, schema: StructType) -> None:
        """Raise InvalidSchema for columns that do not fit their schemas, as far as no registry is needed to tell, and
        until it was asked: the columns of a run stay as they are.
        """
        if self._framing is None:
            encoders.check(self.coordinator.options.registry, types_of(schema))

    def framing(self, plan: Plan, schema: StructType | None = None) -> Framing:
        """Return what stands before keys and values, and what encodes them. Asks the registry once, after the claim:
        one that is down must not delay the commit of decided batches; and not if nothing will be written.
        """
        registry = self.coordinator.options.registry
        if registry is None or plan is Plan.DRAIN:
            return Framing()
        self._framing = self._framing or encoders.resolve(registry, types_of(schema) if schema is not None else None)
        return self._framing

    def dead_letters(self, plan: Plan) -> DeadLetterTarget | None:
        """Return what tasks must know of the dead letter topic, if there is one. Asks the brokers once: for the largest
        record that it takes.
        """
        options = self.coordinator.options
        dead = options.dead_letters
        if dead is None or plan is Plan.DRAIN:
            return None
        if self._dead_letters is None:
            with CLIENTS.borrow(options.connection, CONTACT_BUDGET_S) as admin:
                largest = admin.topic_config(dead.topic).get("max.message.bytes")
            if largest is None:
                raise lacking(["DESCRIBE_CONFIGS"], dead.topic)
            self._dead_letters = DeadLetterTarget(dead.topic, dead.most, int(largest), dead.origin)
        return self._dead_letters

    def close(self) -> None:
        """Close the coordinator, with what its last execution left open; an error leaves that for the next start."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            try:
                self.coordinator.close()
            except Exception as e:
                self.leave(e)

    def leave(self, error: Exception) -> None:
        """Say in the log that something may be open, and why; with a traceback where that is no error of the engine."""
        log.warning(
            "sink %s: could not abort the last batch's open parts; the next start will: %s",
            self.coordinator.options.sink_id,
            error,
            exc_info=not isinstance(error, ExactlyOnceError),
        )

"""Records without transactions: the producers of ``at_least_once`` and ``none``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message

from exactly_once.kafka.connection import Connection
from exactly_once.kafka.sender import Sender

log = logging.getLogger(__name__)


#: What the guarantees fix of a producer's settings.
ACKNOWLEDGED: Mapping[str, Any] = {"enable.idempotence": True, "acks": "all"}
UNACKNOWLEDGED: Mapping[str, Any] = {"enable.idempotence": False, "acks": "1"}


class AcknowledgedSender(Sender):
    """``at_least_once``: an idempotent producer, flushed before the part is done."""

    def __init__(self, connection: Connection, producer_config: Mapping[str, str], name: str):
        super().__init__(connection, producer_config, ACKNOWLEDGED, name)


class UnacknowledgedSender(Sender):
    """``none``: waits for no acknowledgement. It lives as long as its process, and sends on after a part is done."""

    def __init__(self, connection: Connection, producer_config: Mapping[str, str], name: str):
        super().__init__(connection, producer_config, UNACKNOWLEDGED, name)

    def serve(self) -> None:
        """Take what the brokers have answered so far."""
        assert self._producer is not None
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            log.warning("%s: a record for %s was not delivered: %s", self.name, message.topic(), error)

"""A session whose Kafka is a fake, for pure logic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from exactly_once.coordinator.session import Session
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka.participant import KafkaParticipant

OPTIONS = {"kafka.bootstrap.servers": "h:1", "sink.id": "job", "checkpointLocation": "/c", "topic": "a"}


def session_of(control: Any, log: Any = None, *others: Any) -> Session:
    """Return the session of sink "job" whose Kafka participant asks ``control``."""
    options = SinkOptions.parse(OPTIONS)
    kafka = KafkaParticipant(options.connection, options.sink_id, options)
    kafka._admin = control
    if log is None:
        log = SimpleNamespace(sink_id="job")
    return Session(log, kafka, others, "/c")

"""Find out why no broker accepts a client, as librdkafka sees it.

kafka-python tries again until its time is over and then knows only that: a broker that refuses a password closes the
connection together with its answer, which is lost with it.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection, librdkafka_log
from exactly_once.kafka.errors import Cause, cause_of

#: Longest wait for a refusal: a broker refuses within milliseconds, a password after a tenth of a second.
_KNOCK_S = 2.0

#: Errors that say more than that no broker answers.
_TELLING = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE)


def refusal_of(connection: Connection) -> KafkaException | None:
    """Try once more to connect to a cluster with security: the first error that tells why it fails, or None."""
    if connection.security_protocol == "PLAINTEXT":
        return None
    told: list[KafkaError] = []
    settings: dict[str, Any] = {**connection.librdkafka(), "logger": librdkafka_log, "error_cb": told.append}
    admin = AdminClient(settings)
    for _ in Deadline(_KNOCK_S).tries():
        admin.poll(0.1)
        for error in told:
            # an alert about a certificate comes as a broken connection
            if error.code() in _TELLING or cause_of(error) is Cause.DENIED:
                return KafkaException(error)
    return None

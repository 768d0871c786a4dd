"""A client that cannot connect: the error that a caller, a log or Dagster shows."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import IncompatibleBrokerVersion
from kafka.net.manager import KafkaConnectionManager

from exactly_once.errors import BrokerRefused
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection


def test_the_causes_of_an_error_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: an error that is its own cause; who shows one cause behind the other, as Dagster does, never ends."""

    def refuse(*_: Any) -> None:
        raise IncompatibleBrokerVersion("too old")

    monkeypatch.setattr(KafkaConnectionManager, "bootstrap", refuse)
    with pytest.raises(BrokerRefused) as refused:
        Admin(Connection("127.0.0.1:1"), 1)
    cause = refused.value.__cause__
    assert isinstance(cause, IncompatibleBrokerVersion) and cause.__cause__ is None

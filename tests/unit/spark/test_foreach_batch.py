"""What ``foreach_batch`` refuses without a broker."""

from __future__ import annotations

import pytest

import exactly_once
from exactly_once.errors import InvalidOption

OPTIONS = {"sink.id": "s", "topic": "out", "checkpointLocation": "/c", "kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_a_weaker_guarantee_is_refused_with_the_format_that_has_it(guarantee: str) -> None:
    """Guards against a stream whose owner believes that it saves transactions, and pays for them."""
    with pytest.raises(
        InvalidOption, match=rf"sink\.guarantee=exactly_once only, not {guarantee}.*format\(\"kafka_exactly_once\"\)"
    ):
        exactly_once.foreach_batch({**OPTIONS, "sink.guarantee": guarantee})

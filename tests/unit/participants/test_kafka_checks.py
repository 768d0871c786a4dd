"""The transaction timeout of the parts, by the option and the brokers' maximum."""

from __future__ import annotations

import re

import pytest

from exactly_once.errors import InvalidTransactionTimeout
from exactly_once.participants.kafka.checks import timeout_within


@pytest.mark.parametrize(
    ("wanted", "longest", "timeout_ms"),
    [
        pytest.param(None, 900_000, 900_000, id="the default"),
        pytest.param(None, 60_000, 60_000, id="the brokers' maximum"),
        pytest.param(None, 30_000, 30_000, id="the least that the commit log needs"),
        pytest.param(5_000, 30_000, 5_000, id="a shorter one"),
        pytest.param(60_000, 60_000, 60_000, id="the longest one"),
    ],
)
def test_a_timeout_that_the_brokers_allow_is_taken(wanted: int | None, longest: int, timeout_ms: int) -> None:
    assert timeout_within(wanted, longest) == timeout_ms


@pytest.mark.parametrize("wanted", [None, 20_000, 60_000, 1_000_000])
@pytest.mark.parametrize("longest", [1_000, 20_000, 29_999, 30_000, 500_000])
def test_the_way_out_of_a_timeout_names_a_value_that_the_next_start_takes(wanted: int | None, longest: int) -> None:
    """Mishap: "lower kafka.transaction.timeout.ms to 20000", and the start with it was refused by the commit log's own
    need of 30 s, which "at least one minute" was to satisfy.
    """
    try:
        timeout_within(wanted, longest)
    except InvalidTransactionTimeout as e:
        [value] = re.findall(r"to (\d+)", e.way_out)
        if e.way_out.startswith("Lower"):
            assert timeout_within(int(value), longest) == int(value)
        else:
            assert timeout_within(wanted, int(value)) == wanted or wanted is None
    else:
        assert longest >= 30_000 and (wanted or 0) <= longest

"""Where a stream without a checkpoint begins, as a person says it."""

import pytest

from dagster_exactly_once.declare.inputs import StartNotATime, start_time_ms


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("earliest", None),
        ("latest", None),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_a_start_is_a_word_or_a_time_in_utc(said, ms):
    assert start_time_ms(said) == ms


@pytest.mark.parametrize("said", ["", "yesterday", "2013-13-01", "Latest"])
def test_anything_else_is_refused_by_name(said):
    """A stream that begins at the wrong place by a typing error has claimed that place forever."""
    with pytest.raises(StartNotATime, match=r"EO-START: start_from=.*Nothing was started.*2013-07-01"):
        start_time_ms(said)

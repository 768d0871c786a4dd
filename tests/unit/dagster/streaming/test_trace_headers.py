"""``trace_headers=True``: what the rows of the function must have for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dagster_exactly_once.streaming.query import traced
from exactly_once.errors import InvalidSchema


def test_rows_with_headers_go_out_with_them() -> None:
    """Guards against headers that the function has chosen, and that are not what goes out."""
    rows = SimpleNamespace(columns=["key", "value", "headers"])
    assert traced(rows) is rows


def test_rows_that_have_dropped_the_trace_are_refused_before_the_stream_starts() -> None:
    """Guards against an option without effect: traces that end at the stream, and nobody knows why."""
    with pytest.raises(InvalidSchema, match="no column 'headers' among key, value") as refused:
        traced(SimpleNamespace(columns=["key", "value"]))
    assert "function select headers" in str(refused.value)

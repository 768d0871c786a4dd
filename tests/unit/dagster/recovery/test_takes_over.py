"""What the job exactly_once_successor tells a person of the stream that is to go on."""

from __future__ import annotations

import pytest

from exactly_once.tools.operation.retire_sink import goes_on


@pytest.mark.parametrize(
    ("wrote", "declared", "said"),
    [
        (("orders_out", "dead"), ("orders_out",), ""),
        ((), ("orders_out",), ""),
        (("orders_out",), (), ""),
        (
            ("orders_out",),
            ("orders_shadow",),
            "orders-v2 is declared to write to orders_shadow: readers of orders_out will get nothing more.",
        ),
    ],
)
def test_a_take_over_that_leaves_the_readers_behind_is_said_before_it_is_done(wrote, declared, said):
    """Outage: green takes over and goes on in its shadow topic, because nobody changed its outputs."""
    found = [*goes_on("orders-v2", False, wrote, declared)]
    assert " ".join(found).startswith(said) and bool(found) is bool(said)


def test_a_stream_that_has_read_along_is_said_to_go_on():
    """Mishap: a person deletes its checkpoint, since the job names offsets to begin at."""
    [sentence] = goes_on("orders-v2", True, (), ())
    assert sentence == "orders-v2 has read the same input, and continues from its own checkpoint."

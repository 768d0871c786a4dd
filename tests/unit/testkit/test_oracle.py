"""The judge of the stream tests is judged: each anomaly is planted once, and it must find it."""

from __future__ import annotations

import pytest

from testkit.oracle import Message, assert_exactly

SENT = [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")]


def messages(*rows: tuple[str, str], partitions: dict[str, int] | None = None) -> list[Message]:
    return [Message("t", (partitions or {}).get(v, 0), i, k, v, (), 0) for i, (k, v) in enumerate(rows)]


def test_the_judge_accepts_what_is_right() -> None:
    """Guards against a judge that keys of different interleaving confuse."""
    assert_exactly(messages(("b", "2"), ("a", "1"), ("b", "4"), ("a", "3")), SENT)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (messages(*SENT[:3]), "lost 1: [('b', '4')]"),
        (messages(*SENT, ("a", "1")), "duplicated 1: [('a', '1')]"),
        (messages(*SENT, ("a", "9")), "never sent 1: [('a', '9')]"),
        (messages(*SENT[:3], ("a", "4")), "lost 1: [('b', '4')]"),
        (messages(("a", "3"), ("b", "2"), ("a", "1"), ("b", "4")), "key a is out of order"),
        (messages(*SENT, partitions={"3": 1}), "key a is spread over"),
    ],
)
def test_the_judge_finds_what_is_lost_duplicated_made_up_changed_or_out_of_order(
    found: list[Message], words: str
) -> None:
    """Guards against stream tests that pass because their judge is blind."""
    with pytest.raises(AssertionError) as failure:
        assert_exactly(found, SENT)
    assert words in str(failure.value)

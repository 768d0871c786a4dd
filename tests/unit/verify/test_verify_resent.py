"""Records that were sent again: which of them replace the rejected record or the dead letter that they name."""

from __future__ import annotations

import numpy as np
import pytest

from exactly_once.error_headers import RESENT, replaced_in
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly
from exactly_once.tools.verify.by_origin.content import (
    NO_LETTER,
    OTHER_INPUT,
    REPLACES,
    TWICE,
    Arrivals,
    Replacing,
    by_letters,
)
from exactly_once.tools.verify.by_origin.tally import FindingTally

DEAD, OUT, OTHER = ("dead", 0), ("out", 0), ("out", 1)


def sent(letters: dict[int, int], where=OUT, at: int = 100, of=DEAD) -> Arrivals:
    """Records from the output offset ``at`` on, each for a letter and from an input."""
    count = len(letters)
    return Arrivals(
        where,
        of,
        np.array([*letters], np.int64),
        np.array([*letters.values()], np.int64),
        np.arange(at, at + count),
        np.arange(count).astype(np.uint64),
    )


def all_of(*some: Arrivals) -> Replacing:
    (found,) = by_letters(some)
    return found


def judged(some: Replacing, letters: dict[int, int]) -> list[tuple[int, int]]:
    """Letter and verdict of each."""
    verdicts = some.judged(np.array([*letters], np.int64), np.array([*letters.values()], np.int64))
    return [(int(o), int(v)) for o, v in zip(some.offsets, verdicts, strict=True)]


def test_a_letter_is_replaced_once_whatever_the_order_in_which_partitions_are_read() -> None:
    """Duplicate: a letter that was sent twice, to two partitions; the one in the first partition counts."""
    some = all_of(sent({7: 1, 3: 2}, OTHER, 50), sent({7: 1, 9: 4}, OUT, 200))
    assert judged(some, {3: 2, 7: 1, 9: 4}) == [(3, REPLACES), (7, REPLACES), (7, TWICE), (9, REPLACES)]
    second = some.judged(np.array([3, 7, 9]), np.array([2, 1, 4])) == TWICE
    assert [(where, [*at], [*of]) for where, at, of in some.in_partitions(second)] == [(OTHER, [50], [7])]
    assert some.of(7) == slice(1, 3) and some.of(8) == slice(3, 3)


def test_a_letter_that_is_not_there_is_replaced_by_nobody() -> None:
    """Phantom: a record that no letter and no input record accounts for."""
    assert judged(all_of(sent({3: 1, 4: 1})), {}) == [(3, NO_LETTER), (4, NO_LETTER)]
    twice = all_of(sent({3: 1}), sent({3: 1}, at=300))
    assert judged(twice, {2: 1, 4: 1}) == [(3, NO_LETTER), (3, NO_LETTER)]


def test_a_letter_of_other_input_is_not_replaced_and_one_that_does_not_say_is() -> None:
    """Loss and duplicate: the row of one letter was sent for another one."""
    some = all_of(sent({1: 11, 2: 12, 3: 0, 4: 14, 5: 99}), sent({5: 15}, at=300))
    verdicts = {1: REPLACES, 2: OTHER_INPUT, 3: REPLACES, 4: REPLACES}
    found = judged(some, {1: 11, 2: 11, 3: 13, 4: 0, 5: 15})
    assert dict(found[:4]) == verdicts and found[4:] == [(5, OTHER_INPUT), (5, REPLACES)]


def test_records_are_told_apart_by_the_partition_of_their_letters() -> None:
    """Duplicate that is none: two letters have the same offset in two partitions."""
    resent = [sent({7: 1}, of=("dead", 1)), sent({7: 1}, at=300)]
    assert [(some.letters, [*some.offsets], [*some.at]) for some in by_letters(resent)] == [
        (DEAD, [7], [300]),
        (("dead", 1), [7], [100]),
    ]
    assert [*by_letters([])] == []


def test_the_last_word_counts_of_whom_a_record_replaces() -> None:
    """Duplicate: a dead letter that was sent again, and could not be written again, is a letter of its own."""
    assert replaced_in([("a", b"1"), (RESENT, b"dead-0-1"), ("b", b"2"), (RESENT, b"dead-0-7")]) == b"dead-0-7"
    assert replaced_in([("a", b"1")]) is None and replaced_in([]) is None


@pytest.mark.parametrize(
    ("kind", "anomaly", "says"),
    [
        (TWICE, Anomaly.DUPLICATE, "records of dead-0 that were sent again already"),
        (NO_LETTER, Anomaly.PHANTOM, "what dead-0 does not hold"),
        (OTHER_INPUT, Anomaly.PHANTOM, "came from other input"),
    ],
)
def test_what_replaces_nothing_is_named_with_its_place_and_its_letter(kind: int, anomaly: Anomaly, says: str) -> None:
    """What a person deletes must be the copy; and where the letter is must be said."""
    tally, some = FindingTally([]), all_of(sent({3: 1, 4: 1}), sent({5: 1}, OTHER, 7))
    tally.sent_again(some, np.array([False, True, True]), kind)
    found = tally.findings()
    assert [(f.anomaly, f.records, f.places) for f in found] == [
        (anomaly, 1, ("out-0@101..101", "dead-0@4..4")),
        (anomaly, 1, ("out-1@7..7", "dead-0@5..5")),
    ]
    assert found[0].what.startswith("records of out-0 ") and "sent again for" in found[0].what and says in found[0].what
    assert found[0].what.endswith(": 1")
    tally.sent_again(some, np.zeros(3, np.bool_), kind)
    assert tally.findings() == found
    many = FindingTally([])
    many.sent_again(all_of(sent(dict.fromkeys(range(40), 1))), np.ones(40, np.bool_), kind)
    assert many.findings()[0].records == 40 and len(many.findings()[0].places) == MOST_PLACES

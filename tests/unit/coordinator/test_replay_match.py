"""Which part of a replay stands for which lost part: by its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from exactly_once.coordinator.decide import amend
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.micro_batch import earlier_decision
from exactly_once.digest import RowDigest
from exactly_once.errors import Expired
from exactly_once.participants.kafka.digest_scope import PLAIN, add_read
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Decision, PreparedPart, PreparedTransaction
from exactly_once.protocol.replay import lost_handles, match, rows_of, stands_for_lost
from exactly_once.protocol.ticket import Part


def part(number: int, rows: str, token: int = 1) -> PreparedTransaction:
    """A part with these rows, prepared under a claim."""
    return PreparedTransaction(f"eo:job:{token}:{number}:0.0", 100 * token + number, 0, number, len(rows), 1, rows)


def in_table(number: int, rows: str) -> PreparedPart:
    return PreparedPart("warehouse", f"eo:job:{number}", number, len(rows), rows)


def decided(*handles: PreparedTransaction | PreparedPart) -> Decision:
    return Decision("q", 7, 1, handles, "d", 4, 0, topics=("a",))


def test_parts_that_come_in_another_order_stand_for_the_lost_ones_with_their_rows() -> None:
    """Guards against EO-EXPIRED after a lost transaction of a stream from a topic of up to four partitions: Spark plans
    them in another order than at first, and a person would have to look for rows that are all in the input.
    """
    replay = {"kafka": {"0": rows_of(part(0, "aa")), "2": rows_of(part(2, "cccc"))}}
    again = [part(0, "cccc", 2), part(1, "aa", 2)]
    found = match(replay, again)
    assert set(found.handles) == set(again) and not found.missing and not found.spare


def test_a_part_whose_rows_are_there_is_not_one_that_was_lost() -> None:
    """Guards against a part that is committed beside its own replay: all of its rows twice."""
    replay = {"kafka": {"0": rows_of(part(0, "aa"))}}
    assert stands_for_lost(part(3, "aa", 2), replay)
    assert not stands_for_lost(part(0, "bbb", 2), replay)
    assert not stands_for_lost(in_table(0, "aa"), replay)


def test_of_parts_with_equal_rows_as_many_as_were_lost_are_taken() -> None:
    """Guards against a row that stands in two partitions, one of them lost: both would be written again."""
    replay = {"kafka": {"1": rows_of(part(1, "a"))}}
    found = match(replay, [part(0, "a", 2), part(1, "a", 2)])
    assert found.handles == (part(1, "a", 2),) and found.spare == (part(0, "a", 2),)
    both = {"kafka": {"0": rows_of(part(0, "a")), "1": rows_of(part(1, "a"))}}
    assert len(match(both, [part(5, "a", 2), part(6, "a", 2)]).handles) == 2


def test_a_lost_part_whose_rows_do_not_come_again_is_missing() -> None:
    """Guards against a replay that passes for complete without the rows that it is for."""
    replay = {"kafka": {"0": rows_of(part(0, "aa"))}, "warehouse": {"0": rows_of(in_table(0, "aa"))}}
    found = match(replay, [in_table(3, "aa"), part(1, "ab", 2)])
    assert found.missing == [("kafka", "0")] and found.handles == (in_table(3, "aa"),)


@dataclass
class Read:
    """A record, as a reader gets it."""

    key: bytes = b"k"
    value: bytes = b"v"
    headers: Sequence[tuple[str, bytes]] = field(default_factory=lambda: [("h", b"1")])
    timestamp: int = 1_700_000_000_000


@pytest.mark.parametrize(
    ("old", "partition", "timestamp_ms"),
    [("topic", -1, 0), ("topic+partition", 3, 0), ("topic+timestamp", -1, 1_700_000_000_000)],
)
def test_a_lost_part_whose_rows_chose_more_than_key_and_value_needs_a_person_after_the_upgrade(
    old: str, partition: int, timestamp_ms: int
) -> None:
    """Mishap: the upgrade note promises that each lost part is written again. Digests of such rows have a new form, so
    these rows are not recognised: not written twice, and not left out without a word.
    """
    before, now = RowDigest(), RowDigest()
    add_read(before, old, "t", partition, [Read()])
    add_read(now, f"row{'+partition' if partition >= 0 else ''}+timestamp", "t", partition, [Read()])
    assert before.text != now.text
    lost = replace(part(0, "a"), digest=before.text, form=old)
    replay = {"kafka": {"0": rows_of(lost)}}

    found = match(replay, [replace(part(0, "a", 2), digest=now.text)])

    assert found.missing == [("kafka", "0")] and not found.handles
    state = DriverState(2, Batch("q", 7, "d"), 5, 60_000, 0, replay=replay)
    again = Part("e", "r", 0, False, Plan.REPLAY)
    with pytest.raises(Expired, match=r"part 0 .*sink\.accept\.lost=7@0"):
        earlier_decision("job", decided(lost), [again], state, found)


def test_a_lost_part_of_keys_and_values_is_known_by_the_digest_of_before() -> None:
    """Guards against a person who is asked after the upgrade for rows that Spark has at hand."""
    digest = RowDigest()
    add_read(digest, PLAIN, "t", 0, [Read()])
    assert digest.text == "ad56a59fe3682db7", "what commit 5c8e47f computed for this row"


def test_an_amended_decision_keeps_what_was_not_lost_and_names_what_was_written_again() -> None:
    """Guards against a decision that forgets a committed part, whose number now is that of another one too."""
    earlier = decided(part(0, "aa"), part(1, "bbb"), part(2, "cccc"))
    replay = {"kafka": {"0": rows_of(part(0, "aa"))}}
    amended = amend(earlier, replace(earlier, token=2, handles=(part(2, "aa", 2),)), replay)
    assert amended.handles == (part(1, "bbb"), part(2, "cccc"), part(2, "aa", 2))
    assert amended.rewritten == ("kafka/0",)

    replay = {"kafka": {"2": rows_of(part(2, "aa"))}}  # which is lost again
    once_more = amend(amended, replace(amended, token=3, handles=(part(1, "aa", 3),)), replay)
    assert once_more.handles == (part(1, "bbb"), part(2, "cccc"), part(1, "aa", 3))


def test_of_two_parts_with_one_number_and_equal_rows_the_later_one_was_lost() -> None:
    """Guards against a committed part that leaves the decision in place of the lost one, which then is looked for and
    written again for ever.
    """
    first, later = part(2, "aa"), part(2, "aa", 2)
    assert lost_handles({"kafka": {"2": rows_of(first)}}, (first, part(1, "b"), later)) == (later,)

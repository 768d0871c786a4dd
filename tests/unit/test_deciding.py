"""The decision itself: what it keeps of earlier ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactly_once.deciding import KEPT_TOPIC_IDS, amend, kept_topic_ids
from exactly_once.protocol.records import Decision, PreparedTransaction

PARTS = tuple(PreparedTransaction(f"eo:job:1:{n}:0.0", 100 + n, 0, n, 5) for n in range(3))
EARLIER = Decision("q", 7, 1, PARTS, "d", 4, 0, topics=("a",))
AGAIN = replace(EARLIER, token=2, handles=(replace(PARTS[1], transactional_id="eo:job:2:1:0.0", producer_id=7),))


@pytest.mark.parametrize(("before", "now"), [(4, 5), (5, 4), (5, 5), (4, 4)])
def test_an_amended_decision_is_ended_with_a_version_that_all_its_parts_know(before: int, now: int) -> None:
    """After a feature upgrade in between, a retry of version 5 for what version 4 committed says INVALID_TXN_STATE; and
    version 5 must not be sent to brokers below it. Both are EO-EXPIRED where there is no other evidence."""
    amended = amend(replace(EARLIER, end_txn_version=before), replace(AGAIN, end_txn_version=now))
    assert amended.end_txn_version == min(before, now)
    assert {h.part: h for h in amended.handles} == {0: PARTS[0], 1: AGAIN.handles[0], 2: PARTS[2]}


def test_the_ids_of_topics_that_come_and_go_do_not_grow_for_ever() -> None:
    """With a topic column, each decision would carry every topic ever written, until none fits into the log."""
    known: dict[str, str] = {}
    for n in range(3 * KEPT_TOPIC_IDS):
        known = kept_topic_ids(known, {"always": "id", f"t{n}": f"id{n}"})
    assert len(known) == KEPT_TOPIC_IDS
    assert known["always"] == "id"
    assert f"t{3 * KEPT_TOPIC_IDS - 1}" in known and f"t{2 * KEPT_TOPIC_IDS - 1}" not in known


def test_the_ids_of_the_topics_just_written_are_all_kept() -> None:
    """Whatever their number: they are what the next batch is compared with."""
    written = {f"t{n}": "new" for n in range(KEPT_TOPIC_IDS + 5)}
    assert kept_topic_ids({"t0": "old", "other": "x"}, written) == written

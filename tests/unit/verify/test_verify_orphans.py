"""What stands in the log and no decision names: which anomaly it is, told by its place, its rows and its id."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS
from exactly_once.protocol.records import Aborted, Completed, Count, Decision
from exactly_once.tools.verify.anomalies import MOST_PLACES, Finding
from exactly_once.tools.verify.by_log.judge import Verdict
from exactly_once.tools.verify.by_log.orphans import OLDER, judge_orphans
from testkit.read_back import DECIDED_MS, MARKED_MS, SINK, ReadBack, decided, log_of


@pytest.fixture
def out() -> ReadBack:
    return ReadBack()


def orphans(out: ReadBack, *decisions: Decision, log: LogState | None = None, also=()) -> list[Finding]:
    log = log if log is not None else log_of(*decisions)
    return judged(out, *decisions, log=log, also=also).findings


def judged(out: ReadBack, *decisions: Decision, log: LogState, also=()) -> Verdict:
    verdict = Verdict()
    judge_orphans(out.ledger(*decisions), decisions, log, out.ids, verdict, also)
    return verdict


def names(found: list[Finding]) -> list[str]:
    return [f.anomaly.value for f in found]


def gave_up(batch: int, token: int = 1) -> Aborted:
    return Aborted("q", batch, "", token, "e1", 0)


def test_behind_the_last_batch_it_is_ahead_and_its_finding_says_all(out: ReadBack) -> None:
    """Output ahead: the next start writes that batch again. The finding must lead an operator to the transaction."""
    first = decided(0, out.part(0))
    out.part(1, records=5)
    (found,) = orphans(out, first)
    assert found.anomaly.value == "output ahead" and found.records == 5 and found.batch == ""
    assert found.transaction == f"eo:{SINK}:1:0:0.0 (producer 101, epoch 3)"
    assert found.places == ("out-0@3..5", "out-1@3..4")
    assert "decision is of batch 0" in found.what and found.what.startswith("5 records of the transaction")


def test_before_a_later_batch_it_is_a_phantom(out: ReadBack) -> None:
    """Phantom: an undecided transaction was committed among the decided ones."""
    decisions = [decided(0, out.part(0))]
    out.part(7, 5)
    decisions += [decided(n, out.part(n)) for n in (1, 2)]
    (found,) = orphans(out, *decisions)
    assert found.anomaly.value == "phantom" and found.what.endswith("it comes before batch 1")


def test_what_stands_before_the_first_batch_of_the_window_belongs_to_older_ones(out: ReadBack) -> None:
    """A false phantom over every topic that is older than the 64 batches that the log keeps; or silence over a part
    that the first of them wrote, and that its decision does not name.
    """
    out.part(0, at_ms=DECIDED_MS - 1)
    later = decided(1, out.part(1))
    assert judged(out, later, log=log_of(later)) == Verdict()
    after = ReadBack()
    after.part(0)
    later = decided(1, after.part(1))
    found = judged(after, later, log=log_of(later))
    assert found.findings == [] and found.unproven == {OLDER: 1}


def test_what_stands_in_a_partition_without_a_batch_of_the_window_is_unproven(out: ReadBack) -> None:
    """A false phantom in a partition that the last batches did not touch; or silence over a real one."""
    later = decided(1, out.part(1, partitions=(0,)))
    out.part(0, partitions=(3,))
    found = judged(out, later, log=log_of(later))
    assert found.findings == [] and found.unproven == {OLDER: 1}


def test_what_was_committed_long_after_the_first_batch_of_the_window_is_a_orphan_in_any_partition(
    out: ReadBack,
) -> None:
    """Silence over an undecided batch that was committed where the last batches did not write."""
    later = decided(1, out.part(1, partitions=(0,)))
    out.part(2, partitions=(3,), at_ms=DECIDED_MS + 60_001)
    assert names(orphans(out, later)) == ["output ahead"]


def test_while_the_first_batch_is_in_the_log_a_orphan_is_one_wherever_it_stands(out: ReadBack) -> None:
    """Duplicate: an undecided execution of batch 0 was committed, and the next start wrote batch 0; or its rows stand
    again in a partition to which no decided batch wrote.
    """
    out.part(0, attempt="9.9", at_ms=DECIDED_MS - 5_000)
    out.part(7, attempt="9.9", at_ms=DECIDED_MS - 5_000, partitions=(2,))
    first = decided(0, out.part(0))
    out.part(0, attempt="1.1", partitions=(3,))
    assert names(orphans(out, first)) == ["duplicate", "phantom", "duplicate"]
    other = decided(0, query="another")
    assert "phantom" not in names(orphans(out, first, log=log_of(other, first)))


def test_records_of_a_query_from_which_the_sink_was_taken_are_no_orphans_of_the_new_one(out: ReadBack) -> None:
    """A false alarm: the log has a decision for each batch number, and the new query's have taken the old one's places.
    The sum in its first decision counts records of before it.
    """
    out.part(0, attempt="9.9", at_ms=DECIDED_MS - 5_000)
    before = decided(0, out.part(0))
    first = replace(before, counted=Count({"out": before.records}, DECIDED_MS))
    taken = replace(before, counted=Count({"out": before.records + 10}, DECIDED_MS - 5_000))
    assert names(orphans(out, first)) == ["duplicate"]
    assert orphans(out, taken) == []


@pytest.mark.parametrize("commit", [None, False])
def test_what_no_reader_gets_is_no_orphan(out: ReadBack, commit: bool | None) -> None:
    """A false alarm over each aborted attempt, and over the batch that is being written."""
    first = decided(0, out.part(0))
    out.part(1, commit=commit)
    assert orphans(out, first) == []


def test_committed_records_that_readers_do_not_get_are_no_orphans(out: ReadBack) -> None:
    """A finding of records that nobody sees; of a transaction with others, only these count."""
    first = decided(0, out.part(0))
    orphan = out.part(1, hidden=True)
    assert orphans(out, first) == []
    out.batches[5] = replace(out.batches[5], hidden=False)
    (found,) = orphans(out, first)
    assert found.records == 2 and found.places == ("out-1@3..4",)
    assert orphan.producer_id == 101


def test_a_transaction_that_any_decision_names_is_no_orphan(out: ReadBack) -> None:
    """A false alarm over batches that were decided while the output was read, or dropped from the log meanwhile."""
    first, second, third = (decided(n, out.part(n)) for n in range(3))
    assert names(orphans(out, first)) == ["output ahead"] * 2
    assert orphans(out, first, log=log_of(first, second), also=[third]) == []
    assert orphans(out, second, third) == []


def test_other_writers_transactions_are_not_the_sinks(out: ReadBack) -> None:
    """A false phantom for each record of another application on the topic."""
    first = decided(0, out.part(0))
    out.write((999, 0), ["theirs"])
    out.end((999, 0))
    out.write((-1, -1), ["nobody's"], transactional=False)
    assert orphans(out, first) == []


def test_an_id_that_is_no_parts_is_judged_by_its_place(out: ReadBack) -> None:
    """Silence over a committed transaction in the sink's namespace that its scheme does not make."""
    first = decided(0, out.part(0))
    out.part(1)
    out.ids[101] = f"eo:{SINK}:somebody's"
    for log in (log_of(first), log_of(first, aborted=gave_up(1))):
        assert names(orphans(out, first, log=log)) == ["output ahead"]


# -- duplicates


def test_the_rows_of_a_decided_part_are_a_duplicate_wherever_they_stand(out: ReadBack) -> None:
    """Duplicate: another attempt of a part was committed, too."""
    decisions = [decided(n, out.part(n), out.part(n, 1)) for n in range(2)]
    out.part(0, 1, attempt="1.3")
    (found,) = orphans(out, *decisions)
    assert found.anomaly.value == "duplicate" and found.batch == "batch 0" and found.records == 4
    assert found.what.endswith("the rows of part 1 of batch 0")


def test_other_rows_of_the_same_number_are_no_duplicate(out: ReadBack) -> None:
    """Phantom called a duplicate: its rows are nowhere else, and whoever deletes it as a copy loses them."""
    first = decided(0, out.part(0))
    out.part(1)
    assert names(orphans(out, first)) == ["output ahead"]
    fewer = decided(0, replace(first.transactions[0], records=3))
    out.part(0, attempt="1.1")
    assert names(orphans(out, fewer)) == ["output ahead"] * 2


def test_rows_are_compared_in_each_form_that_a_decided_part_has(out: ReadBack) -> None:
    """A duplicate called a phantom, because its digest was computed in another form than that of the decided part."""
    plain, placed = out.part(0), out.part(0, 1, form="topic+partition")
    first = decided(0, plain, placed)
    out.part(0, 1, attempt="1.1")
    out.part(0, 0, attempt="1.1")
    assert names(orphans(out, first)) == ["duplicate"] * 2


# -- given up


def test_an_execution_that_was_given_up_and_is_visible_is_an_aborted_read(out: ReadBack) -> None:
    """Aborted read: the driver gave the execution up, and somebody committed its transaction all the same."""
    first = decided(0, out.part(0))
    out.part(1)
    (found,) = orphans(out, first, log=log_of(first, aborted=gave_up(1)))
    assert found.anomaly.value == "aborted read" and found.batch == "batch 1"
    assert "gave up" in found.what and found.what.endswith("execution of batch 1")


def test_it_is_one_before_its_batch_was_written_again_too(out: ReadBack) -> None:
    """Aborted read called a phantom: the batch ran again with other rows in its parts, and is decided."""
    first = decided(0, out.part(0))
    out.part(1, rows="given up")
    second = decided(1, out.part(1))
    log = log_of(first, second, aborted=gave_up(1))
    assert names(orphans(out, first, second, log=log)) == ["aborted read"]
    third = decided(2, out.part(2))
    assert names(orphans(out, first, second, third, log=replace(log, aborted=gave_up(2)))) == ["phantom"]


def test_a_batch_that_is_decided_was_not_given_up_for_good(out: ReadBack) -> None:
    """Output ahead called an aborted read: a batch that was given up once has run again, and is the last one."""
    decisions = [decided(n, out.part(n)) for n in range(2)]
    out.part(2)
    assert names(orphans(out, *decisions, log=log_of(*decisions, aborted=gave_up(1)))) == ["output ahead"]


@pytest.mark.parametrize(
    ("given_up", "why"),
    [(gave_up(0), "its batch is decided"), (gave_up(1, token=2), "another claim's"), (None, "nothing was")],
)
def test_what_was_given_up_elsewhere_excuses_no_other_name(out: ReadBack, given_up, why) -> None:
    """Output ahead called an aborted read: nobody would expect the batch to be written again."""
    first = decided(0, out.part(0))
    out.part(1)
    assert names(orphans(out, first, log=log_of(first, aborted=given_up))) == ["output ahead"], why


# -- attempts


@pytest.mark.parametrize("order", [(0,), (0, 1), (1, 0)])
def test_another_attempt_within_its_batch_is_a_mixed_attempt(out: ReadBack, order: tuple[int, ...]) -> None:
    """Mixed attempt: readers get the rows of two attempts of one task. Its batch ends with the last marker of any part:
    it is not output ahead because another part was over.
    """
    parts = [out.part(0, n, attempt="0.1", commit=True if n else None) for n in range(len(order))]
    kept = parts[0]
    out.part(0, 0, attempt="1.2", rows="other")
    out.end_parts(kept)
    (found,) = orphans(out, decided(0, *(parts[n] for n in order)))
    assert found.anomaly.value == "mixed attempt" and found.batch == "batch 0"
    assert found.what.endswith(f"decided attempt of part 0 is {kept.transactional_id}")


@pytest.mark.parametrize(
    ("part", "attempt", "decided_id", "its_id"),
    [
        pytest.param(0, "1.2", "odd", "", id="others may have written to the commit log"),
        pytest.param(0, "0.0", "", "", id="the same id"),
        pytest.param(0, "1.2", "", f"eo:{SINK}:somebody's", id="an id that is no part's"),
        pytest.param(5, "1.2", "", "", id="another part"),
    ],
)
def test_what_stands_within_a_batch_and_is_of_none_of_its_parts_is_no_other_attempt(
    out: ReadBack, part: int, attempt: str, decided_id: str, its_id: str
) -> None:
    """A finding that sends an operator to a part that is right, or names the orphan as the decided attempt."""
    kept = out.part(0, commit=None)
    orphan = out.part(0, part, attempt=attempt, rows="other")
    out.ids[orphan.producer_id] = its_id or orphan.transactional_id
    out.end_parts(kept)
    first = decided(0, replace(kept, transactional_id=decided_id or kept.transactional_id))
    assert names(orphans(out, first)) == ["output ahead"]
    assert names(orphans(out, first, decided(1, out.part(1)))) == ["phantom"]


def test_behind_its_batchs_markers_it_is_of_another_batch(out: ReadBack) -> None:
    """Output ahead called a mixed attempt: the ids of parts are used again by each batch."""
    first = decided(0, out.part(0, 0, attempt="0.1"))
    out.part(1, 0, attempt="0.2")
    assert names(orphans(out, first)) == ["output ahead"]


# -- zombies


def test_a_superseded_drivers_rows_behind_its_successors_are_a_zombies(out: ReadBack) -> None:
    """Zombie visible: a driver that was fenced has written on."""
    decisions = [decided(0, out.part(0, token=4), token=4), decided(1, out.part(1, token=6), token=6)]
    out.part(2, token=4)
    (found,) = orphans(out, *decisions)
    assert found.anomaly.value == "zombie visible"
    assert re.search("claim 6, .*superseded its driver, .*before it$", found.what)


def test_the_claim_right_before_is_known_without_a_decision_of_its_own(out: ReadBack) -> None:
    """A zombie called output ahead: the superseded driver had not decided a batch."""
    first = decided(0, out.part(0, token=6), token=6)
    out.part(1, token=5)
    assert names(orphans(out, first)) == ["zombie visible"]
    out.part(1, token=4)
    assert names(orphans(out, first)) == ["zombie visible", "output ahead"], "of a claim that nothing tells of"


def test_a_driver_before_its_successor_wrote_is_no_zombie(out: ReadBack) -> None:
    """A false zombie: what the former owner wrote while it was the owner."""
    first = decided(0, out.part(0, token=5), token=5)
    out.part(7, 1, token=5)
    second = decided(1, out.part(1, token=6), token=6)
    assert names(orphans(out, first, second)) == ["phantom"]


def test_a_slot_that_a_current_claim_uses_is_no_zombies(out: ReadBack) -> None:
    """A false zombie: sixteen claims later the ids come again."""
    decisions = [decided(n, out.part(n, token=token), token=token) for n, token in ((0, 1), (1, 1 + SLOTS))]
    out.part(2, token=1 + SLOTS)
    assert names(orphans(out, *decisions)) == ["output ahead"]
    decisions.append(decided(3, out.part(3, token=2 + SLOTS), token=2 + SLOTS))
    assert names(orphans(out, *decisions)) == ["phantom"]


# -- where batches stand


def test_its_place_is_that_of_its_first_record_among_all_parts_of_a_batch(out: ReadBack) -> None:
    """A wrong name: the range of a batch is that of all of its parts and markers, in this partition."""
    early, late = out.part(0, 0, commit=None), out.part(0, 1, commit=None)
    out.end_parts(early, late)
    out.part(5, 9)
    second = decided(1, out.part(1))
    for parts in ((early, late), (late, early)):
        (found,) = orphans(out, decided(0, *parts), second)
        assert found.anomaly.value == "phantom" and found.what.endswith("it comes before batch 1")


@pytest.mark.parametrize("partition", [0, 1])
def test_a_batch_behind_it_in_any_partition_makes_it_a_phantom(out: ReadBack, partition: int) -> None:
    """A phantom called output ahead: no start of the stream will write its batch again."""
    first = decided(0, out.part(0))
    out.part(7, 5)
    (found,) = orphans(out, first, decided(1, out.part(1, partitions=(partition,))))
    assert found.anomaly.value == "phantom" and found.what.endswith("it comes before batch 1")


def test_batches_stand_in_the_order_of_the_partition_not_of_the_log(out: ReadBack) -> None:
    """A phantom that goes unnoticed between two batches that changed places."""
    second = out.part(1)
    out.part(9, 9)
    first, third = out.part(0), out.part(2)
    (found,) = orphans(out, decided(0, first), decided(1, second), decided(2, third))
    assert found.what.endswith("it comes before batch 0")


# -- handles that the log has dropped


def dropped(out: ReadBack, from_ms: int = DECIDED_MS, mark_ms: int | None = DECIDED_MS + 200) -> LogState:
    """A log whose second batch has no handles any more."""
    second = decided(1, out.part(1)).without_handles(DECIDED_MS)
    marks = {("q", 1): Completed("q", 1, 1, mark_ms)} if mark_ms is not None else {}
    return LogState(decisions=(second,), marks=marks, decided_ms={("q", 1): from_ms})


@pytest.mark.parametrize(
    ("from_ms", "mark_ms", "anomalies"),
    [
        pytest.param(MARKED_MS, MARKED_MS, [], id="marked at the decision"),
        pytest.param(MARKED_MS + 1, MARKED_MS + 2, ["output ahead"], id="marked before the decision"),
        pytest.param(0, MARKED_MS - 60_000, [], id="a minute after the completed mark"),
        pytest.param(0, MARKED_MS - 60_001, ["output ahead"], id="later"),
        pytest.param(DECIDED_MS, None, ["output ahead"], id="not completed"),
    ],
)
def test_parts_of_a_batch_without_handles_are_excused_by_the_time_of_their_markers(
    out: ReadBack, from_ms, mark_ms, anomalies
) -> None:
    """A false alarm over every part of a batch of more than a thousand; and no excuse for what was marked at any other
    time.
    """
    first = decided(0, out.part(0))
    log = dropped(out, from_ms, mark_ms)
    assert names(orphans(out, first, log=replace(log, decisions=(first, *log.decisions)))) == anomalies


def test_one_marker_out_of_time_is_enough_to_accuse(out: ReadBack) -> None:
    """An orphan that hides behind a large batch because one of its markers is of that time."""
    first, log = decided(0, out.part(0)), dropped(out)
    out.batches[-1] = replace(out.batches[-1], timestamp_ms=MARKED_MS + 90_000)
    assert names(orphans(out, first, log=log)) == ["output ahead"]


def test_a_batch_with_handles_excuses_nothing(out: ReadBack) -> None:
    """Silence over all that was committed within a minute of any batch."""
    first = decided(0, out.part(0))
    out.part(1)
    assert names(orphans(out, first, log=log_of(first))) == ["output ahead"]


def test_a_finding_names_no_more_places_than_a_person_looks_at(out: ReadBack) -> None:
    """A report of megabytes over one orphan in a topic of a thousand partitions."""
    many = range(MOST_PLACES + 5)
    first = decided(0, out.part(0, records=len(many), partitions=many))
    out.part(1, records=len(many), partitions=many)
    (found,) = orphans(out, first)
    assert len(found.places) == MOST_PLACES and found.records == len(many)

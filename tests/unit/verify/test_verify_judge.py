"""The verdicts on decided parts by what stands in the log: each anomaly by its name and numbers, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from exactly_once.participants.kafka.digest_scope import MIXED
from exactly_once.protocol.batch_headers import pair_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import WRITE, Decision, Place, PreparedTransaction
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.tools.verify.by_log import judge
from exactly_once.tools.verify.by_log.judge import OutputState, Verdict, judge_decisions, latest
from exactly_once.tools.verify.by_log.ledger import Ledger
from exactly_once.tools.verify.report import WRONG
from testkit.read_back import DECIDED_MS, MARKED_MS, SINK, TOPIC, ReadBack, decided, log_of

REMOVED, BATCH = {(TOPIC, 0): 1 << 62, (TOPIC, 1): 1 << 62}, "batch 0"


@pytest.fixture
def out() -> ReadBack:
    return ReadBack()


def verdict(
    out: ReadBack, *decisions: Decision, log: LogState | None = None, removed=None, spark=(), **more
) -> Verdict:
    log = log if log is not None else log_of(*decisions)
    output = OutputState(removed or {}, committed_by_spark=frozenset(spark), **more)
    return judge_decisions(decisions, log, out.ledger(*decisions), output)


def names(found: Verdict) -> list[str]:
    return [f.anomaly.value for f in found.findings]


def only(found: Verdict, anomaly: Anomaly) -> Finding:
    (one,) = (f for f in found.findings if f.anomaly is anomaly)
    return one


def proven(found: Verdict) -> tuple[int, int, int]:
    return found.batches, found.parts, found.records


def test_parts_that_stand_as_decided_are_proven_by_number(out: ReadBack) -> None:
    """A false alarm over a healthy sink; or a proof that counts what it has not compared."""
    decisions = [decided(n, out.part(n, 0, records=4), out.part(n, 1, records=6)) for n in range(3)]
    found = verdict(out, *decisions, spark={0, 1, 2})
    assert found.findings == [] and not +found.unproven and proven(found) == (3, 6, 30)
    assert found.whole == found.shown == {("q", n) for n in range(3)} and not found.absent


def test_a_batch_without_rows_is_proven(out: ReadBack) -> None:
    """A false "unproven" over each batch in which the stream's filter kept nothing."""
    found = verdict(out, decided(0))
    assert found.findings == [] and proven(found) == (1, 0, 0)
    assert not found.shown and not found.absent


def test_an_aborted_part_is_lost_where_it_was_aborted_and_its_mark_lies(out: ReadBack) -> None:
    """Loss: the only part of a batch was aborted behind the sink's back."""
    part = out.part(0, commit=False)
    found = verdict(out, decided(0, part), spark={0})
    assert names(found) == ["lost", "outcome lie", "checkpoint ahead"]
    lost = found.findings[0]
    assert lost.records == 4 and lost.batch == BATCH and lost.places == ("out-0@0..1", "out-1@0..1")
    assert "4 of its 4 records were aborted" in lost.what
    assert {f.transaction for f in found.findings} == {f"{part.transactional_id} (producer 100, epoch 3)"}
    assert found.absent == {("q", 0)} and not found.shown and proven(found) == (0, 0, 0)


def test_a_part_of_which_nothing_is_in_the_log_is_lost_before_any_mark(out: ReadBack) -> None:
    """Loss: an unclean election has cut the log."""
    gone = replace(ReadBack().part(0), place=None)
    found = verdict(out, decided(0, gone), log=LogState())
    assert names(found) == ["lost"] and "4 of its 4 records are not in" in found.findings[0].what
    assert found.findings[0].places == ()


def test_a_part_that_was_aborted_in_one_partition_is_torn(out: ReadBack) -> None:
    """A torn transaction: an operator's marker reached one partition before the commit did."""
    part = out.part(0, commit=None)
    writer = part.producer_id, part.epoch
    out.batches[1] = replace(out.batches[1], hidden=True)
    out.end(writer, 0)
    out.end(writer, 1, commit=False)
    found = verdict(out, decided(0, part))
    assert names(found) == ["lost", "torn transaction", "torn batch", "outcome lie"]
    assert only(found, Anomaly.LOST).places == ("out-1@0..1",) and only(found, Anomaly.LOST).records == 2
    torn = only(found, Anomaly.TORN_TRANSACTION)
    assert torn.records == 2 and torn.places == ("out-0@0..1", "out-1@0..1")
    assert re.search("2 records of its transaction .*visible, .*2 were aborted", torn.what)
    assert only(found, Anomaly.TORN_BATCH).records == 2 and found.shown == {("q", 0)} and not found.absent


def test_one_part_of_two_tears_the_batch_and_says_of_how_many(out: ReadBack) -> None:
    """A torn batch: readers have one half of it."""
    whole, lost, short = out.part(0, 0), out.part(0, 1, commit=False), replace(out.part(0, 2), records=5)
    found = verdict(out, decided(0, whole, lost, short), spark={0})
    torn = only(found, Anomaly.TORN_BATCH)
    assert "2 of 3 parts are not" in torn.what and torn.records == 4 + 1
    assert torn.batch == BATCH and torn.transaction.startswith(lost.transactional_id)
    for also in (Anomaly.OUTCOME_LIE, Anomaly.CHECKPOINT_AHEAD):
        assert only(found, also).transaction == torn.transaction
    assert proven(found) == (0, 1, 4) and not found.absent


#: How a transaction ended in a partition (None: not yet), and whether readers are kept from its two records there.
DONE, HIDDEN, OPEN, BEHIND, UNDONE = (True, False), (True, True), (None, False), (None, True), (False, True)


#: Fates in both partitions, records in the handle, whether the batch is marked, anomalies, the first one in detail.
DEFECTS = {
    "its marker commits, the leader's list aborts": ((HIDDEN, HIDDEN), 4, False, ["unseen"], 4, "log .*not visible"),
    "and there is less of it": ((HIDDEN, HIDDEN), 6, False, ["lost"], 6, "6 of its 6 records are hidden"),
    "a retry that was taken twice": ((DONE, DONE), 3, True, ["phantom"], 1, "shows 1 record more than"),
    "under way": ((OPEN, OPEN), 4, False, [], 0, ""),
    "between the two markers of its commit": ((DONE, OPEN), 4, False, [], 0, ""),
    "under way, where readers do not come to yet": ((BEHIND, BEHIND), 4, False, [], 0, ""),
    "called completed, and under way": ((OPEN, OPEN), 4, True, ["unseen", "outcome lie"], 4, "4 of its 4"),
    "under way, and less than was written": ((OPEN, OPEN), 5, False, ["lost"], 5, ""),
    "no commit brings back what is aborted": ((BEHIND, UNDONE), 4, False, ["lost"], 4, ""),
    "read in one partition alone": ((HIDDEN, DONE), 4, True, ["unseen", "torn batch", "outcome lie"], 2, ""),
    "too much, and not over": ((DONE, OPEN), 2, True, ["unseen"], 2, ""),
    "too much, and read in one alone": ((HIDDEN, DONE), 2, True, ["unseen"], 2, "2 more .*: 2 are visible, 2 are not$"),
    "too much, and not visible": ((OPEN, OPEN), 3, True, ["unseen", "outcome lie"], 4, "1 more .*: 0 are .* 4 are not"),
}  # fmt: skip


@pytest.mark.parametrize(("outcomes", "due", "marked", "anomalies", "records", "says"), DEFECTS.values(), ids=DEFECTS)
def test_a_part_that_is_not_just_there_is_under_way_or_has_the_name_and_the_number_of_its_defect(
    out: ReadBack, outcomes, due: int, marked: bool, anomalies: list[str], records: int, says: str
) -> None:
    """A false alarm over the commit of a live batch, or in the moment between two markers; silence over one that the
    sink calls completed; loss called a commit under way, and unseen called lost; a proof of a transaction that is not
    over; a sentence that hides the second defect.
    """
    part = out.part(0, commit=None)
    for partition, (commit, hidden) in enumerate(outcomes):
        out.batches[partition] = replace(out.batches[partition], hidden=hidden)
        if commit is not None:
            out.end((part.producer_id, part.epoch), partition, commit)
    decision = decided(0, replace(part, records=due))
    found = verdict(out, decision, log=log_of(decision, marked=marked))
    assert names(found) == anomalies and proven(found) == (0, 0, 0)
    assert +found.unproven == ({} if anomalies else {judge.UNDER_WAY: 1})
    if anomalies:
        assert found.findings[0].records == records and re.search(says, found.findings[0].what)
    if UNDONE in outcomes:
        assert found.findings[0].places == ("out-1@0..1",)


def test_records_too_many_that_were_aborted_tear_the_transaction_and_do_not_corrupt_it(out: ReadBack) -> None:
    """A sentence about the digest of "its visible records" that is over others."""
    right = out.part(0, records=2, partitions=(0,), commit=None)
    writer = right.producer_id, right.epoch
    out.write(writer, ["more", "still more"], 1, hidden=True)
    out.end(writer, 0)
    out.end(writer, 1, commit=False)
    found = verdict(out, decided(0, right))
    assert names(found) == ["torn transaction"] and proven(found) == (0, 0, 0)
    assert found.findings[0].records == 2 and found.findings[0].places == ("out-1@0..1",)
    assert re.fullmatch("part 0 of batch 0: as many records .*visible.* 2 more were aborted", found.findings[0].what)


@pytest.mark.parametrize(
    ("spark", "query", "ahead"), [((), "q", 0), ((0,), "q", 1), ((1,), "q", 0), ((0,), f"{WRITE}day", 0)]
)
def test_only_a_batch_that_spark_has_committed_is_ahead_of_its_output(out: ReadBack, spark, query, ahead) -> None:
    """A false alarm over a batch that the stream will commit at its next start, or over a batch write, whose number is
    not one of Spark's batches.
    """
    found = verdict(out, decided(0, out.part(0, commit=False), query=query), spark=spark)
    assert names(found) == ["lost", "outcome lie", *["checkpoint ahead"] * ahead]


def test_a_batch_whose_handles_the_log_has_dropped_is_counted_by_its_parts(out: ReadBack) -> None:
    """A false loss of every batch write; and a proof of what nobody compared."""
    found = verdict(out, replace(decided(0, out.part(0), out.part(0, 1)).without_handles(5)))
    assert found.findings == [] and +found.unproven == {judge.NO_HANDLES: 2} and proven(found) == (0, 0, 0)


# -- contents


def test_other_rows_than_the_task_wrote_are_corrupt(out: ReadBack) -> None:
    """Corruption: the number is right, and a row is another one."""
    found = verdict(out, decided(0, replace(out.part(0), digest="0123456789abcdef")), spark={0})
    assert names(found) == ["corrupt"] and found.findings[0].records == 4 and proven(found) == (0, 0, 0)
    assert "but its task wrote 0123456789abcdef; an interceptor" in found.findings[0].what
    assert found.findings[0].batch == BATCH


@pytest.mark.parametrize("form", ["topic", "topic+partition", "topic+timestamp", "topic+partition+timestamp"])
def test_each_form_of_a_digest_is_computed_as_the_task_did(out: ReadBack, form: str) -> None:
    """A false corruption of every part whose rows chose partition or timestamp."""
    assert proven(verdict(out, decided(0, out.part(0, form=form)))) == (1, 1, 4)


def test_a_digest_that_does_not_say_what_it_covers_is_tried_in_every_form(out: ReadBack) -> None:
    """A false corruption of what an earlier version wrote; nothing is known of a digest that fits in no form."""
    right, other = (replace(out.part(n, form="topic+partition"), form="") for n in (0, 1))
    found = verdict(out, decided(0, right), decided(1, replace(other, digest="0123456789abcdef")))
    assert found.findings == [] and proven(found) == (1, 1, 4) and +found.unproven == {judge.NO_DIGEST: 1}


@pytest.mark.parametrize(
    ("more", "dated", "fits"),
    [
        pytest.param({"form": MIXED}, False, False, id="some rows chose their place and others did not"),
        pytest.param({"form": "plain+of a newer version"}, False, False, id="a form that only a newer version knows"),
        pytest.param({"digest": ""}, False, False, id="no digest"),
        pytest.param({"digest": "0", "form": "topic+timestamp"}, True, False, id="the broker dates the records"),
        pytest.param({"digest": "0", "form": "topic+timestamp"}, False, True, id="nobody else dates them"),
        pytest.param({"digest": "0", "form": "topic+timestamp"}, None, False, id="in one partition of two"),
        pytest.param({"digest": "0"}, True, True, id="dates do not count in this form"),
    ],
)
def test_a_digest_that_a_reader_cannot_compute_accuses_nobody(out: ReadBack, more, dated, fits) -> None:
    """A false corruption; or silence over a real one."""
    part = replace(out.part(0, dated=bool(dated)), **more)
    if dated is None:
        out.batches[0] = replace(out.batches[0], dated_by_broker=True)
    found = verdict(out, decided(0, part))
    assert names(found) == (["corrupt"] if fits else [])
    assert +found.unproven == ({} if fits else {judge.NO_DIGEST: 1}) and proven(found) == (0, 0, 0)


def test_records_are_read_again_only_where_their_digest_differs_and_not_in_vain(out: ReadBack) -> None:
    """A verification of headers that takes twice as long for a sink that is right; and one that accuses where retention
    removed the records before they could be read without the headers that an agent added.
    """
    own, agents = ("h", b"1"), ("traceparent", b"00-4bf9")
    right = out.part(0, form="row", headers=[own])
    plain = replace(out.part(1), digest="0123456789abcdef")
    added = replace(
        out.part(2, form="row", headers=[own, agents], rows="2"),
        digest=ReadBack().part(2, form="row", headers=[own], rows="2").digest,
    )
    decisions = [decided(n, part) for n, part in enumerate((right, plain, added))]
    ledger = out.ledger(*decisions)
    again = [[s.again for s in ledger.of((h.producer_id, h.epoch))] for h in (right, plain, added)]
    assert again == [[None, None], [None, None], [2, 2]]
    found = judge_decisions(decisions, log_of(*decisions), ledger, OutputState())
    assert names(found) == ["corrupt"] and found.findings[0].batch == "batch 1" and proven(found) == (2, 2, 8)
    for span in ledger.of((added.producer_id, added.epoch)):
        span.again, span.shorter = 0, {}
    found = judge_decisions(decisions, log_of(*decisions), ledger, OutputState())
    assert names(found) == ["corrupt"] and +found.unproven == {judge.REMOVED: 1} and proven(found) == (1, 1, 4)


RIGHT = pair_of(SINK, 0)


@pytest.mark.parametrize("form", ["plain+batch", "row+batch", "row+timestamp+batch", "row+batch+dead:dead"])
@pytest.mark.parametrize("own", [(), (("h", b"1"),), pair_of("another", 7)], ids=["alone", "behind", "behind a pair"])
def test_records_that_name_their_batch_are_proven_by_what_their_rows_are(out: ReadBack, form: str, own) -> None:
    """A false corruption of every part of a sink with sink.batch.headers."""
    part = out.part(0, form=form, headers=(*own, *RIGHT))
    without = ReadBack().part(0, form=form.replace("+batch", ""), headers=own)
    assert part.digest == without.digest
    found = verdict(out, decided(0, part))
    assert found.findings == [] and not +found.unproven and proven(found) == (1, 1, 4)


@pytest.mark.parametrize("form", ["plain+batch", "row+batch"])
@pytest.mark.parametrize(
    ("headers", "named"),
    [
        (pair_of(SINK, 1), f"1 of {SINK}"),
        (pair_of("another", 0), "0 of another"),
        ((), "none"),
    ],
    ids=["another batch", "another sink", "no headers"],
)
def test_records_that_name_another_batch_or_none_are_corrupt(out: ReadBack, form: str, headers, named: str) -> None:
    """Corruption: a reader that collects a batch by its headers never has it whole, and the digest leaves them out."""
    found = verdict(out, decided(0, out.part(0, form=form, headers=headers)))
    assert names(found) == ["corrupt"] and proven(found) == (0, 0, 0)
    assert found.findings[0].what.endswith(f"batches of a sink: {named}") and found.findings[0].records == 4


def test_a_row_that_forges_the_headers_of_a_batch_is_a_row_like_any_other(out: ReadBack) -> None:
    """A false corruption, or a changed header that passes for the sink's, where the option is off."""
    forged = pair_of(SINK, 99)
    plain, row = out.part(0, 0, headers=forged), out.part(0, 1, form="row", headers=forged)
    found = verdict(out, decided(0, plain, row))
    assert found.findings == [] and proven(found) == (1, 2, 8)
    other = ReadBack()
    changed = replace(other.part(0, 0, form="row", headers=pair_of(SINK, 98)), digest=row.digest)
    assert names(verdict(other, decided(0, changed))) == ["corrupt"]


# -- what retention and compaction took


def test_records_that_retention_removed_are_unproven(out: ReadBack) -> None:
    """A false loss on every topic that is older than its retention."""
    gone, there = out.part(0), out.part(1)
    out.batches = out.batches[4:]
    removed = {(TOPIC, 0): 3, (TOPIC, 1): 3}
    found = verdict(out, decided(0, gone), decided(1, there), removed=removed, spark={0, 1})
    assert found.findings == [] and +found.unproven == {judge.REMOVED: 1} and proven(found) == (1, 1, 4)
    assert not found.absent


def test_retention_in_any_partition_of_a_transaction_is_no_loss_and_says_how_many_records_it_took(
    out: ReadBack,
) -> None:
    """A false loss, by whose runbook a person writes records again that are there: retention has come to one partition
    alone, which need not be the one that the handle names.
    """
    first, second = out.part(0), out.part(1)
    for taken, limit in ((0, 3), (1, 3)):
        left = [b for b in out.batches if b.partition != taken or b.base_offset >= limit]
        cut = ReadBack()
        cut.batches, cut.ids = left, out.ids
        found = verdict(cut, decided(0, first), decided(1, second), removed={(TOPIC, taken): limit}, spark={0, 1})
        assert found.findings == [] and +found.unproven == {judge.REMOVED: 1}, taken
        assert found.removed == {judge.REMOVED: 2} and proven(found) == (1, 1, 4)


@pytest.mark.parametrize("place", [0, 1])
def test_retention_excuses_nothing_behind_a_record_that_it_left(out: ReadBack, place: int) -> None:
    """Loss: a part of a later batch, or of one that names its own beginning, is gone, and retention has come to the
    topic: it cannot have taken what stood behind what is there.
    """
    first, second = out.part(0), out.part(1)
    second = replace(second, place=Place(TOPIC, place, 3))
    lost = ReadBack()
    lost.batches, lost.ids = [b for b in out.batches if b.producer_id != second.producer_id], out.ids
    removed = {(TOPIC, 0): 1, (TOPIC, 1): 1}
    found = verdict(lost, decided(0, first), decided(1, second), removed=removed)
    assert names(found) == ["lost", "outcome lie"] and only(found, Anomaly.LOST).batch == "batch 1"
    alone = ReadBack()
    alone.ids = out.ids
    assert names(verdict(alone, decided(1, second), removed={(TOPIC, place): 3})) == ["lost", "outcome lie"]
    assert names(verdict(alone, decided(1, second), removed={(TOPIC, 1 - place): 3})) == []
    assert names(verdict(alone, decided(1, second), removed={("other", 0): 3})) == ["lost", "outcome lie"]


def test_retention_aborts_nothing(out: ReadBack) -> None:
    """Loss: a part that somebody aborted passes for one that retention removed, since a partition was cut."""
    part = out.part(0, commit=False)
    assert names(verdict(out, decided(0, part), removed=REMOVED)) == ["lost", "outcome lie"]


def test_a_part_that_retention_cut_and_that_readers_wait_for_is_not_lost(out: ReadBack) -> None:
    """A false loss while another application holds the last stable offset back."""
    part = out.part(0, hidden=True)
    out.batches = [b for b in out.batches if b.partition == 1]
    found = verdict(out, decided(0, part), removed={(TOPIC, 0): 3})
    assert found.findings == [] and +found.unproven == {judge.REMOVED: 1}


def test_a_topic_that_was_made_again_is_no_loss_once_the_batch_was_completed(out: ReadBack) -> None:
    """A false loss over each batch of before; or a batch whose records are nowhere, and "no anomalies" over it."""
    handle, more = ReadBack().part(0), {"topic_ids": {TOPIC: "a"}}
    decision = decided(0, handle, **more)
    assert "deleted and recreated" in judge.RECREATED
    for now, why in (("b", judge.RECREATED), ("", judge.TOPIC_GONE)):
        found = verdict(out, decision, topic_ids={TOPIC: now})
        assert found.findings == [] and +found.unproven == {why: 1} and found.removed == {why: 4}
        open_one = verdict(out, decision, log=log_of(decision, marked=False), topic_ids={TOPIC: now})
        assert names(open_one) == ["lost"] and open_one.findings[0].records == 4
        assert "not marked completed" in open_one.findings[0].what
    assert names(verdict(out, decision, topic_ids={TOPIC: "a"})) == ["lost", "outcome lie"]


def test_another_topic_that_was_made_again_excuses_no_loss(out: ReadBack) -> None:
    """A loss that passes in silence: a decision keeps the ids of topics to which earlier batches wrote, too."""
    decision = decided(0, ReadBack().part(0), topic_ids={TOPIC: "a", "earlier": "b"})
    now = {TOPIC: "a", "earlier": "c"}
    assert names(verdict(out, decision, topic_ids=now)) == ["lost", "outcome lie"]


def test_parts_behind_a_hanging_transaction_are_no_finding_each(out: ReadBack) -> None:
    """Dozens of findings whose runbook says to stop the stream, over what one command ends."""
    out.write((99, 1), ["hangs"], 1)
    part = out.part(0, hidden=True)
    found = verdict(out, decided(0, part), spark={0}, held={(TOPIC, 0): 0, (TOPIC, 1): 0})
    assert found.findings == [] and proven(found) == (0, 0, 0)
    assert {a.kind for a in found.answers.values()} == {WRONG}
    elsewhere = verdict(out, decided(0, part), spark={0}, held={(TOPIC, 1): 0})
    assert names(elsewhere) == ["unseen", "outcome lie", "checkpoint ahead"]


def test_a_part_that_is_there_is_proven_wherever_retention_stands(out: ReadBack) -> None:
    """A check that proves nothing on a compacted topic, although all is there."""
    found = verdict(out, decided(0, out.part(0)), removed=REMOVED)
    assert proven(found) == (1, 1, 4) and not +found.unproven


# -- before the decision


@pytest.mark.parametrize(("early_ms", "found"), [(1_000, []), (1_001, ["precommitted read"])])
def test_a_marker_before_the_decision_counts_only_beyond_what_clocks_differ(out: ReadBack, early_ms, found) -> None:
    """A precommitted read; and a false one where two brokers' clocks are a second apart."""
    decision = decided(0, out.part(0, at_ms=DECIDED_MS - early_ms))
    judged = verdict(out, decision)
    assert names(judged) == found
    if found:
        early = judged.findings[0]
        assert f"part 0 of batch 0 was visible {early_ms} ms before its decision" in early.what
        assert early.records == 4 and early.places == ("out-0@0..1", "out-1@0..1") and early.batch == BATCH
    assert proven(judged) == (1, 1, 4)


def test_a_part_that_was_written_again_is_older_than_no_decision(out: ReadBack) -> None:
    """A false alarm: the parts that were not lost keep their markers, from before the second decision."""
    assert names(verdict(out, decided(0, out.part(0, at_ms=1_000), rewritten=("kafka/0",)))) == []


def test_an_abort_before_the_decision_was_read_by_nobody(out: ReadBack) -> None:
    """Loss called by a wrong name."""
    assert names(verdict(out, decided(0, out.part(0, commit=False, at_ms=1_000)))) == ["lost", "outcome lie"]


def test_the_earliest_of_several_early_markers_counts(out: ReadBack) -> None:
    """A tear window that is told shorter than it was."""
    part = out.part(0, commit=None)
    for partition, at_ms in ((0, DECIDED_MS - 3_000), (1, DECIDED_MS - 5_000)):
        out.end((part.producer_id, part.epoch), partition, at_ms=at_ms)
    assert "visible 5000 ms before" in verdict(out, decided(0, part)).findings[0].what


def test_a_decision_of_unknown_time_accuses_nobody(out: ReadBack) -> None:
    """A false alarm, where the broker's time of the decision is not in the log any more; and a marker at time 0."""
    decision = decided(0, out.part(0))
    assert names(verdict(out, decision, log=LogState(decisions=(decision,)))) == []
    zero = decided(0, ReadBack().part(0))
    early = ReadBack()
    early.part(0, at_ms=0)
    assert names(verdict(early, zero)) == ["precommitted read"]


# -- order


def test_a_batch_that_begins_before_an_earlier_one_ends_is_out_of_order(out: ReadBack) -> None:
    """Readers that keep the last value of a key keep the older one."""
    later, earlier = out.part(1, partitions=(0,)), out.part(0, partitions=(0,))
    found = verdict(out, decided(0, earlier), decided(1, later))
    assert names(found) == ["batch reorder"] and found.findings[0].batch == "batch 1"
    assert found.findings[0].places == ("out-0@0", "out-0@8")


def test_parts_of_one_batch_have_no_order_and_batches_one_after_the_other_are_fine(out: ReadBack) -> None:
    """A false alarm over every batch with more than one part."""
    parts = [out.part(0, n) for n in range(3)]
    parts[0], parts[2] = parts[2], parts[0]
    assert names(verdict(out, decided(0, *parts), decided(1, out.part(1)))) == []


@pytest.mark.parametrize("alone", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_a_batch_that_begins_or_ends_between_two_parts_of_another_is_out_of_order(
    out: ReadBack, alone: int, turned: bool
) -> None:
    """A range that forgets the first of its parts, or those before the last one."""
    first, between, last = out.part(1 - alone, 0), out.part(alone), out.part(1 - alone, 1)
    both = decided(1 - alone, *((last, first) if turned else (first, last)))
    found = verdict(out, *sorted((both, decided(alone, between)), key=lambda d: d.batch_id))
    assert names(found) == ["batch reorder"] * 2


def test_another_querys_batches_have_an_order_of_their_own(out: ReadBack) -> None:
    """A false alarm after a stream began anew on the same sink: its numbers begin at 0 again."""
    old, new = out.part(7), out.part(0)
    assert names(verdict(out, decided(7, old, query="before"), decided(0, new))) == []


def test_what_no_reader_sees_is_out_of_no_order(out: ReadBack) -> None:
    """A false alarm over an aborted first attempt, whose loss is told already."""
    later, earlier = out.part(1, partitions=(0,)), out.part(0, partitions=(0,), commit=False)
    assert "batch reorder" not in names(verdict(out, decided(0, earlier), decided(1, later)))
    hidden = ReadBack()
    later, earlier = hidden.part(1, partitions=(0,)), hidden.part(0, partitions=(0,), hidden=True)
    assert "batch reorder" not in names(verdict(hidden, decided(0, earlier), decided(1, later)))


# -- the log as it is later


def test_decisions_are_judged_as_the_log_has_them_later(out: ReadBack) -> None:
    """A false loss of parts that were written again while the output was read; and a proof thrown away because the log
    dropped the handles, or the decision, meanwhile.
    """
    first, again = decided(0, out.part(0)), decided(0, out.part(0), rewritten=("kafka/0",))
    kept = decided(1, out.part(1))
    assert latest([first, kept], log_of(again)) == [again, kept]
    assert latest([first], log_of(first.without_handles(5))) == [first]


def test_a_finding_names_no_more_places_than_a_person_looks_at(out: ReadBack) -> None:
    """A report of megabytes over one part in a topic of a thousand partitions."""
    many = range(MOST_PLACES + 5)
    found = verdict(out, decided(0, out.part(0, records=len(many), partitions=many, commit=False, at_ms=MARKED_MS)))
    assert len(only(found, Anomaly.LOST).places) == MOST_PLACES


def test_a_part_that_is_not_in_the_log_is_named_with_the_place_of_its_first_record() -> None:
    """Guards against a loss by an unclean leader election that names no partition to look at: nothing is left there."""
    handle = PreparedTransaction("eo:s:1:0:0.0", 7, 0, 0, 4, place=Place("out", 2, 120))
    decision = Decision("q", 3, 1, (handle,), "digest", 4, 1_000, topics=("out",))
    found = judge_decisions([decision], LogState(decisions=(decision,)), Ledger(), OutputState())
    [lost] = found.findings
    assert lost.anomaly is Anomaly.LOST and lost.batch == "batch 3" and lost.records == 4
    assert lost.places == ("out-2@120",)

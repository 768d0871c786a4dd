"""The judgements of the asset checks: each must fail for its mishap, and for nothing that a healthy stream does."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.checks.evaluate import evaluated
from dagster_exactly_once.checks.judgements import Block, Waiting, Writer
from dagster_exactly_once.checks.writer import judged
from dagster_exactly_once.declare.origin import Record
from dagster_exactly_once.runs.failures import failure
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.runs import Run
from exactly_once.error_headers import OFFSET, PARTITION, TOPIC
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CheckpointAway,
    CommitLogBlocked,
    CommitLogDamaged,
    InvalidOption,
)
from exactly_once.inspection.findings import Owner
from exactly_once.inspection.progress import StreamProgress
from exactly_once.protocol.records import Claim
from exactly_once.txn.coordinators import Description
from exactly_once.verify import Anomaly, Finding, Report
from exactly_once.verify.answers import Balance, TopicBalance
from exactly_once.verify.by_origin.comparison import NOT_FAR, RETENTION, OriginResult
from exactly_once.verify.by_origin.tally import FOREIGN
from exactly_once.verify.window import Window
from platform_assets.flights.origin import origin

NOW = 1_000_000_000_000


# -- the comparison of the newest input


def output(partition, offset, at=0):
    value = json.dumps({"dest": 'a "src": b', "src": {"partition": partition, "offset": offset}}, separators=(",", ":"))
    return Record(0, at, b"k", value.encode())


def test_the_source_of_an_output_is_found_in_its_value_or_its_headers():
    assert origin("flight_delays", output(3, 17)) == (3, 17)
    assert origin("flight_delays", Record(0, 0, None, b'{"src": {"partition": 1, "offset": 2}, "x": 1}')) == (1, 2)
    headers = ((TOPIC, b"flights"), (PARTITION, b"3"), (OFFSET, b"17"))
    assert origin("flight_delays_rejected", Record(0, 0, None, None, headers)) == (3, 17)
    for broken in (None, b"", b"{}", b'{"src":5}', b'{"src":{"partition":"x","offset":1}}'):
        assert origin("flight_delays", Record(0, 0, None, broken)) is None
    assert origin("flight_delays_rejected", Record(0, 0, None, None)) is None


WINDOW = Window({("in", 0): 10}, {("in", 0): 10}, (1, 1), 4, 4)


def compared(*findings, unproven=None, window=WINDOW, foreign=0):
    sums = {"input": 2, "output": 3, "foreign": foreign, "earlier": 0, "under way": 0}
    return judgements.no_duplicates_and_no_loss(OriginResult(findings, sums, 3, unproven or {}, window))


def a(anomaly, records=1, what="x", places=("in-0@13",)):
    return Finding(anomaly, what, "batch 1", "", places, records)


def test_the_verdict_says_what_was_sampled_and_how_grave_it_is():
    right = compared()
    assert right.passed and "2 input records in 4 offsets (batches 1 to 1) against 3 output records" in right.said
    lost = compared(a(Anomaly.LOST), a(Anomaly.TORN_BATCH))
    assert not lost.passed and lost.grave and "NOT exactly once: 1 lost, for example lost: in-0@13." in lost.said
    assert (lost.metadata["lost"], lost.metadata["duplicated"]) == (1, 0)
    assert lost.metadata["examples"] == ["lost: in-0@13"]
    assert judgements.no_duplicates_and_no_loss(None).passed


def test_a_record_that_names_no_input_and_one_of_input_that_there_is_not_are_two_faults():
    found = compared(a(Anomaly.PHANTOM, 2), a(Anomaly.PHANTOM, 3, f"{FOREIGN}: 3", ("out-0@5",)), foreign=3)
    assert found.grave and (found.metadata["invented"], found.metadata["unplaced"]) == (2, 3)
    assert "2 invented, 3 unplaced" in found.said and "unplaced: out-0@5" in found.metadata["examples"]


def test_what_readers_do_not_get_yet_or_nobody_has_read_is_a_warning_and_no_loss():
    """Guards against an alarm for records that lie further back than was read, or behind an open transaction."""
    for found in (compared(a(Anomaly.UNSEEN)), compared(unproven={NOT_FAR: 1})):
        assert not found.passed and not found.grave and "loss could not be ruled out: 1 " in found.said, found.said
        assert found.metadata["lost"] == 0 and len(found.metadata["unproven"]) == 1
    twice = compared(a(Anomaly.UNSEEN), a(Anomaly.DUPLICATE, places=("in-0@11", "out-0@9..9")))
    assert twice.grave and "1 duplicated, for example duplicated: in-0@11." in twice.said


def test_input_that_retention_took_makes_the_window_smaller_and_is_no_fault():
    found = compared(unproven={RETENTION: 3})
    assert found.passed and found.metadata["window_cut"] == "older input was deleted by retention"
    assert compared(window=replace(WINDOW, cut="short")).said.endswith("; the window was cut: short.")


# -- verify


def test_what_verify_proved_passes_and_says_what_it_could_not_prove():
    report = Report(
        "s", batches=2, parts=7, records=70, unproven={"why": 1}, first_batch="batch 3", last_batch="batch 5"
    )
    verdict = judgements.verified(report)
    assert verdict.passed and verdict.metadata["parts_unproven"] == 1
    assert verdict.said == (
        "No anomaly: 2 batches (batch 3 to batch 5) are proven, 70 records in 7 parts as decided; 1 other parts could "
        "not be proven."
    )
    assert judgements.verified(Report("s")).passed, "before the first batch"
    others = Balance({"out": TopicBalance(80, right=70, not_judged=Counter({"other writers": 10}))})
    shared = judgements.verified(replace(report, unproven={}, balance=others))
    assert shared.passed and shared.said.endswith("10 records of others, or of older batches, were not judged.")
    assert (shared.metadata["records_right"], shared.metadata["records_not_judged"]) == (70, 10)
    compared = replace(report, unproven={}, by_origin={"input": 900, "output": 900, "under way": 3})
    verdict = judgements.verified(compared)
    assert verdict.said.endswith("as decided; 900 input records each have their output.")
    assert verdict.metadata["under_way_by_origin"] == 3


def test_an_anomaly_fails_with_its_name_and_its_sentence():
    finding = Finding(Anomaly.SPLIT_SINK, "batch 5 is visible in kafka, and archive shows nothing of it", "batch 5")
    verdict = judgements.verified(Report("s", (finding,), 2, 7, 70, last_batch="batch 5", counts={"split sink": 1}))
    assert not verdict.passed and verdict.grave
    assert verdict.said.startswith("NOT exactly once: 1 split sink. First: batch 5 is visible in kafka")
    assert verdict.metadata["anomalies_split_sink"] == 1


def test_a_check_that_could_prove_nothing_does_not_pass():
    """Guards against a green check over an output that nobody can read."""
    verdict = judgements.verified(Report("s", unproven={"why": 4}, first_batch="batch 1", last_batch="batch 1"))
    assert (
        not verdict.passed
        and not verdict.grave
        and "not one of the 4 parts of batch 1 to batch 1 could be proven" in verdict.said
    )
    report = Report("s", unproven={"why": 4}, removed={"why": 100}, first_batch="batch 1", last_batch="batch 1")
    verdict = judgements.verified(report)
    assert not verdict.passed and not verdict.grave and verdict.metadata["records_removed"] == 100
    assert verdict.said.endswith("could be proven: 100 of their records are not in the output any more.")


# -- open transactions


def ongoing(age_s, name="eo:s:0:0:0.0"):
    return Description(name, "Ongoing", 1, 0, 900_000, NOW - int(age_s * 1000), (("out", 0),), 1)


@pytest.mark.parametrize(
    ("ages", "passed"), [([], True), ([299], True), ([301], False), ([1, 400], False), ([-5], True)]
)
def test_only_a_transaction_older_than_the_policy_fails(ages, passed):
    verdict = judgements.no_old_open_transaction([ongoing(a, f"eo:s:0:{n}:0.0") for n, a in enumerate(ages)], NOW, 300)
    assert verdict.passed is passed and verdict.metadata["open_transactions"] == len(ages)
    if not passed:
        assert verdict.grave and "out-0" in verdict.said and "launch the job exactly_once_recovery" in verdict.said
        assert verdict.said.startswith("1 transaction is under way for longer than 300 s. The oldest, eo:s:0:")


def test_an_id_that_has_not_begun_its_transaction_has_no_age():
    begun_not = ongoing(0)._replace(started_ms=-1)
    assert judgements.no_old_open_transaction([begun_not], NOW, 300).passed


# -- readers held back


@pytest.mark.parametrize(
    ("since_ms", "passed"), [(NOW - 1_000, True), (NOW - 301_000, False), (None, False), (NOW + 5_000, True)]
)
def test_a_batch_in_flight_may_hold_readers_back_for_as_long_as_the_policy_says(since_ms, passed):
    blocks = [Block("out", 2, 10, 20, since_ms)]
    verdict = judgements.last_stable_is_high_watermark(blocks, 8, NOW, 300)
    assert verdict.passed is passed
    assert passed or (verdict.grave and "out-2: 10 of 20" in verdict.said)


def test_readers_at_the_end_everywhere_are_fine():
    assert judgements.last_stable_is_high_watermark([], 8, NOW, 300).passed


# -- checkpoint and commit log


WORKS = Writer(True, "run r1")
CLAIM = Claim(3, "q", 0, "stream", "h", 5)
OURS, ELSEWHERE, GONE = Owner(CLAIM, True), Owner(CLAIM, None), Owner(CLAIM, False)


def run(status, run_id="r1", alive=True):
    return Run(run_id, "job", status, 1.0, alive=alive)


def progress(state, age_s=0.0, open_decisions=()):
    started = None if age_s is None else NOW - int(age_s * 1000)
    return StreamProgress(state, "q", 7, 6, 7, tuple(open_decisions), started)


@pytest.mark.parametrize(
    ("found", "passed", "grave"),
    [
        (progress("unused", None), True, False),
        (progress("settled", 10_000), True, False),
        (progress("in flight", 5), True, False),
        (progress("in flight", 301), False, False),
        (progress("in doubt", 5), True, False),
        (progress("in doubt", 301), False, False),
        (progress("settled", 301, [7]), False, True),
        (progress("settled", 5, [7]), True, False),
        (progress("checkpoint lost"), False, True),
        (progress("foreign"), False, True),
        (progress("torn"), False, True),
    ],
)
def test_checkpoint_and_commit_log_may_differ_by_a_young_batch_only(found, passed, grave):
    verdict = judgements.checkpoint_equals_commit_log(found, WORKS, NOW, 300)
    assert (verdict.passed, verdict.grave) == (passed, grave), verdict.said
    assert verdict.metadata["state"] == found.state


@pytest.mark.parametrize("state", ["in flight", "in doubt"])
@pytest.mark.parametrize(
    ("history", "owner", "passed", "says"),
    [
        (StreamHistory(0, (run("STARTED"),)), GONE, True, "by run r1."),
        (StreamHistory(0), OURS, True, "by the driver 5 on h."),
        (StreamHistory(0), ELSEWHERE, True, "This instance cannot tell whether the driver 5 on h still works on it."),
        (
            StreamHistory(0, (run("CANCELED"),)),
            GONE,
            True,
            "No run is working on it: run r1 was terminated; the next start",
        ),
        (StreamHistory(0, (run("QUEUED"),)), GONE, True, "run r1 waits in the queue"),
        (
            StreamHistory(0, (run("STARTED", alive=False),)),
            GONE,
            False,
            "the process of run r1 is gone; the sensors recover",
        ),
        (
            StreamHistory(0, (run("FAILURE"),), stream_failure=failure("PROCESS-GONE", "c")),
            GONE,
            False,
            "run r1 failed (PROCESS-GONE); the sensors recover it and start it again",
        ),
        (
            StreamHistory(0, (run("FAILURE"),), (run("STARTED", "r2"),), stream_failure=failure("PROCESS-GONE", "c")),
            GONE,
            False,
            "run r1 failed (PROCESS-GONE); recovery r2 is running",
        ),
        (
            StreamHistory(
                0, (run("FAILURE"),), stream_failure=failure("EO-TRANSFORM", "c", "Fix the function.", False)
            ),
            GONE,
            False,
            "run r1 failed (EO-TRANSFORM), and no sensor starts the stream again: Fix the function. The next start",
        ),
        (StreamHistory(0), GONE, False, "its driver is gone; start the stream where it runs"),
    ],
)
def test_a_batch_is_being_written_only_while_somebody_writes_it(state, history, owner, passed, says):
    """Two minutes after the run had died, the page said that its batch is being written, in green."""
    verdict = judgements.checkpoint_equals_commit_log(progress(state, 5), judged(history, owner), NOW, 300)
    assert verdict.passed is passed and not verdict.grave and says in verdict.said, verdict.said
    assert ("being written" in verdict.said or "about to be" in verdict.said) is (says.startswith("by "))


@pytest.mark.parametrize(
    ("error", "grave"),
    [
        (InvalidOption("w", "o"), False),
        (BrokerUnreachable("w", "o"), False),
        (BrokerRefused("w", "o"), False),
        (CheckpointAway("w", "o"), False),
        (CommitLogBlocked("w", "o"), False),
        (CommitLogDamaged("w", "o"), True),
    ],
)
def test_a_check_that_cannot_look_is_a_warning_and_no_failed_run(error, grave):
    """Brokers that are away turn every check of every stream red, and a fresh installation is red before its start."""

    @evaluated
    def check():
        raise error

    found = check()
    assert not found.passed and found.severity.name == ("ERROR" if grave else "WARN")
    assert found.description.startswith(f"Not evaluated: {error.code}") and found.metadata["way_out"].value


# -- freshness

AT = 50  # the sum of the committed offsets


@pytest.mark.parametrize(
    ("waiting", "last_commit_s", "earlier", "passed"),
    [
        pytest.param(0, 99_999, None, True, id="idle for a day is fresh"),
        pytest.param(5, 99_999, None, True, id="seen waiting for the first time: it may have come just now"),
        pytest.param(5, 99_999, Waiting(50, NOW - 901_000), False, id="the same input waits for too long"),
        pytest.param(5, 99_999, Waiting(50, NOW - 600_000), True, id="it waits, and not for long"),
        pytest.param(5, 10, Waiting(40, NOW - 901_000), True, id="the stream went on meanwhile"),
        pytest.param(5, 10, Waiting(50, NOW - 901_000), True, id="a batch without input was committed just now"),
    ],
)
def test_input_that_waits_is_stale_and_an_idle_stream_is_not(waiting, last_commit_s, earlier, passed):
    verdict = judgements.freshness(AT, waiting, NOW - last_commit_s * 1000, earlier, NOW, 900)
    assert verdict.passed is passed, verdict.said


def test_the_clock_of_waiting_goes_on_over_evaluations():
    """Guards against a check that begins to count anew each time, and so never fails."""
    first = judgements.freshness(AT, 5, None, None, NOW, 900)
    noted = judgements.waiting_of(first.metadata)
    assert noted == Waiting(50, NOW)
    second = judgements.freshness(AT, 9, None, noted, NOW + 600_000, 900)
    assert second.passed and judgements.waiting_of(second.metadata) == noted
    third = judgements.freshness(AT, 9, None, judgements.waiting_of(second.metadata), NOW + 1_200_000, 900)
    assert not third.passed and not third.grave and "1200 s" in third.said


def test_nothing_is_remembered_of_an_idle_stream_and_nothing_is_stale_before_the_first_batch():
    assert judgements.waiting_of(judgements.freshness(AT, 0, None, None, NOW, 900).metadata) is None
    assert judgements.freshness(None, 5, None, None, NOW, 900).passed

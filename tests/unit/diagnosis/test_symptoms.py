"""Which facts show which symptom: on codes and values. The sentences stand in tests/golden/diagnoses.txt."""

import itertools
from dataclasses import replace

import pytest

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import BlockedPartition, Inspection, Owner
from exactly_once.protocol.log_state import LogState
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, Thresholds, diagnose, health, state_of
from exactly_once.tools.diagnosis.facts import HangingName, Standing, StreamFacts, Worker
from exactly_once.tools.diagnosis.registry import SYMPTOMS
from exactly_once.tools.diagnosis.stream_symptoms import STATES
from exactly_once.tools.diagnosis.symptoms import under_way
from testkit.symptoms import (
    ALIVE,
    CLAIM,
    FROZEN,
    GONE,
    NOW,
    PLANTED,
    STOPPED,
    UNSEEN,
    decided,
    opened,
    planted,
    sink,
    stream,
)
from tools.golden import differing


def codes(facts, limits=None):
    return [d.code for d in diagnose(facts, limits)]


def test_a_sink_at_rest_has_no_symptom():
    assert codes(SinkFacts(sink())) == codes(SinkFacts(sink(None))) == codes(SinkFacts(sink(ALIVE, opened()))) == []


@pytest.mark.parametrize(
    ("owner", "age_s", "expected"),
    [
        (GONE, 1, ["HEALTH-STALE-TRANSACTIONS"]),  # nobody ends it
        (ALIVE, 400, []),  # a batch may take 70 % of its timeout
        (ALIVE, 640, ["HEALTH-STALE-TRANSACTIONS"]),
        (UNSEEN, 400, []),
        (UNSEEN, 901, ["HEALTH-STALE-TRANSACTIONS"]),
    ],
)
def test_an_open_transaction_is_stale_at_once_where_nobody_works_and_else_beyond_the_sinks_own_limit(
    owner, age_s, expected
):
    assert codes(SinkFacts(sink(owner, opened(age_s)))) == expected


def test_the_limit_counts_where_it_is_above_the_sinks_own_and_the_timeout_always_does():
    limits = Thresholds(stale_after_s=800)
    assert codes(SinkFacts(sink(ALIVE, opened(700))), limits) == []
    assert codes(SinkFacts(sink(ALIVE, opened(61, timeout_s=60))), limits) == ["HEALTH-STALE-TRANSACTIONS"]


def test_only_an_undecided_transaction_that_a_driver_may_decide_is_under_way():
    inspection = sink(ALIVE, opened(5), opened(5, "decided", number=1), opened(950, number=2))
    assert list(under_way(SinkFacts(inspection), Thresholds())) == [70]
    assert not under_way(SinkFacts(replace(inspection, owner=GONE)), Thresholds())


def test_a_decided_transaction_is_in_doubt_and_not_stale():
    """Two codes for one transaction would be two notices."""
    facts = SinkFacts(sink(GONE, opened(60, "decided"), pending=(decided(),)))
    [found] = diagnose(facts)
    assert (found.code, found.severity, found.subject) == ("HEALTH-IN-DOUBT", Severity.ERROR, "s")
    assert (found.since, found.evidence["batches"]) == (NOW / 1000 - 60, [7])


@pytest.mark.parametrize(
    ("owner", "age_s", "expected"),
    [(GONE, 0, True), (UNSEEN, 5, False), (UNSEEN, 11, True), (ALIVE, 11, False), (ALIVE, 301, True)],
)
def test_a_decision_without_its_mark_is_in_doubt_at_once_where_nobody_works_on_it(owner, age_s, expected):
    assert ("HEALTH-IN-DOUBT" in codes(SinkFacts(sink(owner, pending=(decided(age_s),))))) is expected


def test_a_run_that_its_operator_sees_works_although_the_claim_is_of_a_process_that_is_gone():
    """A restarted run claims at its first batch: until then the sink's owner is the driver before it."""
    inspection = sink(GONE, opened(5), pending=(decided(5),))
    running = StreamFacts(worker=Worker("run r1", begun=False, age_s=5))
    assert codes(SinkFacts(inspection, stream=running)) == []
    queued = StreamFacts(worker=Worker("run r1", begun=False, age_s=5, waits="QUEUED"))
    assert "HEALTH-IN-DOUBT" in codes(SinkFacts(inspection, stream=queued))


def test_parts_that_are_lost_unknown_or_in_another_output_are_symptoms_of_their_own():
    facts = SinkFacts(sink(GONE, pending=(decided(60, "lost", "lost", "unknown", "unasked"),)))
    found = {d.code: d.evidence.get("parts") for d in diagnose(facts)}
    assert found == {
        "HEALTH-IN-DOUBT": None,
        "HEALTH-LOST-PARTS": 2,
        "HEALTH-UNKNOWN-PARTS": 1,
        "HEALTH-OUTPUT-WAITS": {"files": 1},
    }


def test_a_frozen_owner_works_on_nothing_and_has_to_be_ended_first():
    found = diagnose(SinkFacts(sink(FROZEN, opened(31))))
    assert [d.code for d in found] == ["HEALTH-FROZEN", "HEALTH-STALE-TRANSACTIONS"]
    assert all("kill -9 4711" in d.remedy for d in found)


def test_a_recovery_that_was_stopped_by_a_signal_after_its_work_is_no_symptom():
    owner = Owner(replace(CLAIM, purpose="recovery"), True, (STOPPED,))
    assert codes(SinkFacts(sink(owner))) == []
    assert codes(SinkFacts(sink(owner, opened(1)))) == ["HEALTH-FROZEN", "HEALTH-STALE-TRANSACTIONS"]


def test_what_hangs_has_one_code_for_each_kind_of_owner():
    hanging = (HangingName("out-0@17"), HangingName("out-1@3", "foreign"), HangingName("out-2@9", "unknown"))
    found = diagnose(SinkFacts(sink(ALIVE), hanging=hanging, foreign=("other-app",)))
    assert {d.code: d.subject for d in found} == {
        "HEALTH-HANGING": "out-0@17",
        "HEALTH-FOREIGN-HANGING": "out-1@3",
        "HEALTH-UNKNOWN-WRITER": "out-2@9",
        "HEALTH-FOREIGN-TRANSACTION": "other-app",
    }


@pytest.mark.parametrize(
    ("owner", "age_s", "expected"), [(ALIVE, 200, 0), (ALIVE, 301, 1), (GONE, 1, 1), (ALIVE, None, 1)]
)
def test_readers_wait_where_the_last_stable_offset_stands_for_longer_than_the_limit(owner, age_s, expected):
    since_ms = None if age_s is None else NOW - age_s * 1000
    facts = SinkFacts(sink(owner), standing=(Standing(BlockedPartition("out", 0, 5, 9, True), since_ms),))
    assert codes(facts).count("HEALTH-READERS-WAIT") == expected


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (Checkpoint("/cp", "q", 3, 3), ["HEALTH-CHECKPOINT-AHEAD"]),
        (Checkpoint("/cp", "q", 3), []),
        (Checkpoint("/cp"), ["HEALTH-CHECKPOINT-LOST"]),
        (Checkpoint("/cp", "other", 3), ["HEALTH-CHECKPOINT-FOREIGN"]),
        (Checkpoint("/cp", "other", 3, 3), ["HEALTH-CHECKPOINT-FOREIGN"]),
        (Checkpoint("/cp", "q", 3, torn={"offsets/3": "it is empty"}), ["HEALTH-CHECKPOINT-TORN"]),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_commit_log_has_one_symptom(checkpoint, expected):
    inspection = sink(ALIVE)
    assert codes(SinkFacts(inspection, checkpoint=checkpoint, after=inspection.log)) == expected


def test_a_checkpoint_with_committed_batches_beside_a_log_without_any_is_ahead():
    """Duplicates: a deleted commit log, beside which each checkpoint seems settled."""
    facts = SinkFacts(Inspection("s"), checkpoint=Checkpoint("/cp", "q", 3, 3), after=LogState())
    assert codes(facts) == ["HEALTH-CHECKPOINT-AHEAD"]


def test_a_stream_with_committed_batches_and_no_claim_is_not_to_be_started():
    """Mishap: "never used: start the stream", of one whose commit log was deleted, and whose start is refused."""
    found = health(SinkFacts(Inspection("s"), checkpoint=Checkpoint("/cp", "q", 3, 3), stream=StreamFacts()))
    assert found.code == "HEALTH-NEVER-USED" and "batch 3" in found.sentence and "EO-REWOUND" in found.remedy


def test_a_stream_of_which_no_batch_is_decided_is_not_said_to_have_caught_up():
    """Mishap: "0 offsets behind", of a stream whose input nobody has looked at."""
    starting = StreamFacts(worker=Worker("run 1", begun=False, age_s=5))
    found = health(SinkFacts(Inspection("s"), stream=starting))
    assert found.code == "HEALTH-STARTING" and "offsets" not in found.sentence


# -- the state of a stream ---------------------------------------------------------------------------------------------

RUN = Worker("run r1", age_s=1_000)
STARTS = Worker("run r1", begun=False, age_s=20)
BROKE = Diagnosis("EO-X", Severity.ERROR, "run r0", "it broke", "Mend it")


@pytest.mark.parametrize(
    ("state", "owner", "facts"),
    [
        ("healthy", ALIVE, stream(5, worker=RUN)),
        ("idle", ALIVE, stream(worker=RUN)),
        ("catching up", ALIVE, stream(300_000, worker=RUN, last_lag=300_001)),
        ("lagging", ALIVE, stream(300_000, worker=RUN, last_lag=300_000)),
        ("stalled", ALIVE, stream(5, 121, worker=RUN)),
        ("healthy", ALIVE, stream(5, 121, worker=replace(RUN, age_s=60))),
        ("starting", GONE, stream(5, worker=STARTS)),
        ("starting", None, stream(worker=STARTS)),
        ("starting", GONE, stream(worker=replace(STARTS, waits="QUEUED"))),
        ("slow start", GONE, stream(5, worker=replace(STARTS, age_s=91))),
        ("idle", GONE, stream(0, worker=replace(STARTS, age_s=91))),  # without input, no batch begins
        ("stalled", GONE, stream(5, 200, worker=replace(STARTS, age_s=121))),
        ("slow start", GONE, stream(5, 200, worker=replace(STARTS, age_s=121, quiet_s=5))),
        ("owner lost", GONE, stream(5, worker=replace(RUN, works=False))),
        ("owner lost", ALIVE, stream(5, worker=replace(RUN, owns=False))),
        ("frozen", ALIVE, stream(5, worker=replace(RUN, frozen=(STOPPED,)))),
        ("frozen", FROZEN, stream(5)),
        ("stopped", GONE, stream(5)),
        ("stopped", ALIVE, stream(claimed_here=True)),
        ("failed", GONE, stream(5, failed=BROKE)),
        ("failed", ALIVE, stream(5, claimed_here=True, failed=BROKE)),
        ("orphaned", ALIVE, stream(5, claimed_here=True, orphaned="run r1 was deleted")),
        ("stalled", ALIVE, stream(5, 121, claimed_here=True, orphaned="run r1 was deleted")),
        ("frozen", FROZEN, stream(5, claimed_here=True, orphaned="run r1 was deleted")),
        ("stopped", GONE, stream(5, claimed_here=True, orphaned="run r1 was deleted")),
        ("starting", GONE, stream(5, worker=STARTS, failed=BROKE)),
        ("failed", GONE, stream(5, failed=replace(BROKE, severity=Severity.WARN))),  # and is started again
        ("never used", None, stream()),
        ("failed", None, stream(failed=BROKE)),
        ("operated by another", ALIVE, stream(5, has_run=True)),
        ("operated by another", UNSEEN, stream(5, has_run=True)),
        ("stalled", ALIVE, stream(5, 121, has_run=True)),
        ("healthy", ALIVE, stream(5, managed=False, has_run=True)),
        ("idle", UNSEEN, stream()),
    ],
)
def test_a_stream_has_one_state(state, owner, facts):
    assert state_of(health(SinkFacts(sink(owner), stream=facts)).code) == state


def test_a_batch_in_doubt_is_the_state_before_any_other():
    facts = SinkFacts(sink(GONE, pending=(decided(),)), stream=stream(5))
    assert health(facts).code == "HEALTH-IN-DOUBT"
    assert codes(facts) == ["HEALTH-IN-DOUBT", "HEALTH-STOPPED"]


def test_a_stream_that_stopped_elsewhere_needs_somebody_at_once_if_its_input_waits():
    """Here a person has ended the run, or its failure has a notice of its own; elsewhere nobody knows."""
    assert health(SinkFacts(sink(GONE), stream=stream(5))).severity is Severity.WARN
    assert health(SinkFacts(sink(GONE), stream=stream(5, managed=False))).severity is Severity.ERROR
    assert health(SinkFacts(sink(GONE), stream=stream(0, managed=False))).severity is Severity.WARN


def test_a_failed_run_is_an_error_unless_a_restart_heals_it():
    for severity in (Severity.WARN, Severity.ERROR):
        state = health(SinkFacts(sink(GONE), stream=stream(5, failed=replace(BROKE, severity=severity))))
        assert (state.severity, state.evidence["failure"], state.remedy) == (severity, "EO-X", "Mend it")


@pytest.mark.parametrize(
    ("checkpoint", "facts", "state"),
    [
        (Checkpoint("/cp"), stream(5), "checkpoint lost"),
        (Checkpoint("/cp", "other", 3), stream(5), "checkpoint foreign"),
        (Checkpoint("/cp", "q", 3, 3), stream(5), "checkpoint ahead"),
        (Checkpoint("/cp", "q", 3, 3), stream(5, worker=RUN), "healthy"),
        (Checkpoint("/cp"), stream(5, failed=BROKE), "failed"),  # of just this
        (Checkpoint("/cp"), stream(5, managed=False), "stopped"),  # it may be on a disk elsewhere
        (Checkpoint("/cp", "q", 3, torn={"offsets/3": "it is empty"}), stream(5, worker=RUN), "checkpoint torn"),
    ],
)
def test_what_the_next_start_is_refused_for_is_the_state_of_a_stream_that_stands_still(checkpoint, facts, state):
    """It was called stopped, and a person started it to see it fail."""
    found = SinkFacts(sink(GONE), checkpoint=checkpoint, after=sink(GONE).log, stream=facts)
    assert state_of(health(found).code) == state


def test_every_stream_has_a_state_whatever_its_facts():
    """A combination without a state would end the sensor's tick for all streams."""
    workers = [None] + [
        Worker("run r1", works, owns, begun, age_s, waits, None, frozen)
        for works in (True, False, None)
        for owns in (True, False, None)
        for begun in (True, False)
        for age_s in (1, 1_000)
        for waits in ("", "QUEUED")
        for frozen in ((), (STOPPED,))
    ]
    flags = list(itertools.product((True, False), repeat=3))
    owners = (None, ALIVE, GONE, UNSEEN, FROZEN)
    for worker, owner, lag, waited_s in itertools.product(workers, owners, (0, 5, 300_000), (0, 500)):
        for claimed_here, has_run, managed in flags:
            known = StreamFacts(worker, None, claimed_here, has_run, managed, lag, None, waited_s)
            assert health(SinkFacts(sink(owner), stream=known)).code in STATES


def test_every_state_is_a_registered_symptom_that_needs_the_stream_or_the_sink():
    assert {s for s in SYMPTOMS if SYMPTOMS[s].needs == "stream"} <= set(STATES) <= set(SYMPTOMS)


def test_every_threshold_of_a_symptom_is_in_the_table():
    assert all(hasattr(Thresholds(), s.threshold) for s in SYMPTOMS.values() if s.threshold)


def test_every_symptom_is_planted_and_shows_its_code_and_severity():
    """A new symptom without facts that show it would have no sentence in the golden file."""
    assert set(PLANTED) == set(SYMPTOMS)
    for code, one in SYMPTOMS.items():
        found = planted(code)
        assert found and all((d.code, d.severity) == (code, one.severity) for d in found), code
        assert all(d.remedy for d in found) == (one.severity is not Severity.OK), code
        assert one.meaning.endswith(".") and "\n" not in one.meaning


def test_the_sentences_are_those_of_the_golden_file():
    """Guards against a sentence that changes by the way; run `make golden`, and read what a person would."""
    assert differing("diagnosis") == []

"""The verdicts on what surrounds the output, and the report that they stand in."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import BlockedPartition, Inspection, OpenTransaction, Owner
from exactly_once.kafka.groups import Published
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PROBES, SLOTS, VARIANTS
from exactly_once.protocol.records import Claim, Decision
from exactly_once.tools.cli.verify import show
from exactly_once.tools.diagnosis import SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import HangingName
from exactly_once.tools.verify import sink_findings
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.tools.verify.report import MOST_FINDINGS, Balance, Report, TopicBalance, limited
from exactly_once.txn.coordinators import Listing
from testkit.part_ids import part_id
from testkit.read_back import SINK, TOPIC, ReadBack, decided, log_of

# -- the findings that diagnoses are


def findings_of(owner: Owner | None, *found: OpenTransaction, **more: Any) -> list[Finding]:
    facts = SinkFacts(Inspection(SINK, owner, found, checked_ms=10_000_000), **more)
    return list(sink_findings.findings(diagnose(facts)))


def test_each_transaction_of_a_diagnosis_is_one_finding_with_its_places() -> None:
    """Lingering: readers wait for a transaction that nobody is about to end. The finding must lead to it."""
    where = tuple((TOPIC, p) for p in range(MOST_PLACES + 5))
    name = part_id(SINK, 1, 0, "0.0")
    left = OpenTransaction(name, 0, "0.0", "Ongoing", 7, 2, 3.0, 900, where, "undecided")
    first, second = findings_of(None, left, replace(left, producer_epoch=3, partitions=where[:2]))
    assert (first.anomaly, first.code) == (Anomaly.LINGERING, "HEALTH-STALE-TRANSACTIONS")
    assert first.transaction == "eo:orders:1:0:0.0 (producer 7, epoch 2)" and len(first.places) == MOST_PLACES
    assert second.places == ("out-0", "out-1") and first.what == second.what and first.remedy
    assert findings_of(None, replace(left, verdict="decided")) == []


def test_what_hangs_is_one_finding_for_each_transaction() -> None:
    """Hanging: readers wait for ever. The command that ends it takes the name in the finding."""
    hangs = tuple(HangingName(f"out-{n}@40", owner, "theirs") for n, owner in enumerate(("ours", "foreign", "unknown")))
    found = findings_of(None, hanging=hangs)
    assert {f.anomaly for f in found} == {Anomaly.HANGING}
    assert {f.code: f.places for f in found} == {
        "HEALTH-HANGING": ("out-0@40",),
        "HEALTH-FOREIGN-HANGING": ("out-1@40",),
        "HEALTH-UNKNOWN-WRITER": ("out-2@40",),
    }


def test_only_readers_that_have_not_moved_are_stalled() -> None:
    """A false alarm over every live topic: at any moment some reader waits for a marker."""
    ours, theirs = BlockedPartition(TOPIC, 0, 10, 25, True), BlockedPartition(TOPIC, 1, 10, 11, False)
    earlier = {(TOPIC, 0): 10, (TOPIC, 1): 10}
    stands = tuple(sink_findings.standing([ours, theirs], earlier))
    first, second = findings_of(None, standing=stands)
    assert first.anomaly is Anomaly.STALLED_LAST_STABLE_OFFSET
    assert (first.places, first.records, second.records) == (("out-0@10",), 15, 1)
    for moved in ({}, {(TOPIC, 0): 9}, {(TOPIC, 1): 10}):
        assert list(sink_findings.standing([ours], moved)) == []
    assert list(sink_findings.standing([ours], earlier, {((TOPIC, 0), 10)})) == [], "a batch under way"
    assert len(list(sink_findings.standing([ours], earlier, {((TOPIC, 0), 12)}))) == 1, "another one stands before it"


def forgotten(published: int, *decisions: Decision, owner: str | None = "q") -> dict[str, int]:
    claim = Claim(1, owner, 0, "stream", "host-a", 1) if owner else None
    return sink_findings.forgotten(LogState(claim, decisions), Published({}, {"q": published}))


def test_a_batch_that_only_the_consumer_group_knows_has_lost_its_decision() -> None:
    """A silent pass over a log whose newest decisions are gone; or a false alarm over a query that was superseded."""
    assert forgotten(4, decided(4)) == forgotten(4, decided(5)) == {}
    for found in (forgotten(4, decided(3)), forgotten(4), forgotten(4, owner=None)):
        assert found == {"q": 4}
        [finding] = findings_of(None, forgotten=found)
        assert finding.anomaly is Anomaly.LOST_DECISION and finding.batch == "batch 4"
    assert forgotten(4, decided(0, query="next"), owner="next") == {}


def rewound(checkpoint: Checkpoint, digest: str, *decisions: Decision) -> list[str]:
    log = replace(log_of(*decisions), owner=Claim(1, "q", 0, "stream", "host-a", 1))
    facts = SinkFacts(Inspection(SINK, log=log), checkpoint=checkpoint, planned=digest)
    found = list(sink_findings.findings(diagnose(facts)))
    assert all(f.anomaly is Anomaly.CHECKPOINT_REWOUND and f.batch == "batch 2" for f in found)
    return [f.code.removeprefix("HEALTH-CHECKPOINT-") for f in found]


def test_a_checkpoint_from_which_no_start_goes_on_is_rewound() -> None:
    """A false reassurance: "the next start drains them", and the next start refuses the checkpoint."""
    log = [replace(decided(n), offsets_digest=f"d{n}") for n in range(3)]
    for at in (Checkpoint("/c", "q", 2, 2), Checkpoint("/c", "q", 2, 1), Checkpoint("/c", "q", 2, None)):
        assert rewound(at, "d2", *log) == [], at
        assert rewound(at, "dx", *log) == rewound(at, "", *log) == ["REWOUND"]
    assert rewound(Checkpoint("/c", "q", 3, 2), "d2", *log) == []
    for behind in (Checkpoint("/c", "q", 0, 0), Checkpoint("/c", "q"), Checkpoint("/c", "q", 1, 1), Checkpoint("/c")):
        assert rewound(behind, "", *log) == ["LOST"], behind
    assert rewound(Checkpoint("/c", "q", 2, 2, torn={"offsets/2": "it is empty"}), "", *log) == []
    assert rewound(Checkpoint("/c", "q", 1, 1), "") == [], "nothing is decided yet"


def test_a_checkpoint_of_another_query_is_one_finding() -> None:
    log = replace(log_of(decided(2)), owner=Claim(1, "q", 0, "stream", "host-a", 1))
    facts = SinkFacts(Inspection(SINK, log=log), checkpoint=Checkpoint("/c", "other", 2, 2), planned="", after=log)
    [found] = sink_findings.findings(diagnose(facts))
    assert (found.anomaly, found.code) == (Anomaly.CHECKPOINT_REWOUND, "HEALTH-CHECKPOINT-FOREIGN")


# -- ids


def listing(name: str) -> Listing:
    return Listing(name, 1, "Empty", 0)


def test_the_ids_of_the_scheme_are_no_leak() -> None:
    """A false alarm over every sink: its commit log's id, and the highest slot, part and variant that there are."""
    ids = ["eo:orders:log", f"eo:orders:{SLOTS - 1}:999:7.{VARIANTS + PROBES - 1}", "eo:orders:0:0:0.0"]
    assert sink_findings.leaked(SINK, map(listing, ids)) == ()


@pytest.mark.parametrize("name", [f"eo:orders:{SLOTS}:0:0.0", f"eo:orders:0:0:0.{VARIANTS + PROBES}", "eo:orders:mine"])
def test_an_id_outside_of_the_scheme_is_a_leak(name: str) -> None:
    """Id leak: the brokers keep each id for a week, and their memory fills."""
    leaked = sink_findings.leaked(SINK, [listing("eo:orders:log"), listing(name)])
    (found,) = findings_of(None, leaked=leaked)
    assert found.anomaly is Anomaly.ID_LEAK and found.transaction == name


def test_many_leaked_ids_are_counted_and_the_first_of_them_named() -> None:
    """A report of megabytes over a leak of a million ids."""
    leaked = sink_findings.leaked(SINK, [listing(f"eo:orders:x{n}") for n in reversed(range(9))])
    (found,) = findings_of(None, leaked=leaked)
    assert len(leaked) == 9 and found.transaction == "eo:orders:x0, eo:orders:x1, eo:orders:x2"


# -- foreign aborts

SWEEP = sink_findings.SWEEP_MS


def foreign(name: str, *, marked_ms: int = 500_000, claim_ms: int = 490_000, others=None, **more) -> list[Finding]:
    out = ReadBack()
    out.part(0, at_ms=marked_ms, **{"commit": False, **more})
    decisions = [decided(0)]
    ledger = out.ledger(*decisions)
    aborts = sink_findings.foreign_aborts(SINK, ledger, {100: name}, [claim_ms], others or {})
    return findings_of(None, foreign_aborts=tuple(aborts))


def test_an_abort_of_a_longer_name_within_a_minute_of_a_claim_is_foreign() -> None:
    """Foreign abort: a sweep that takes orders2 for a part of orders destroys what another sink has prepared."""
    (found,) = foreign("eo:orders2:1:0:0.0")
    assert found.anomaly is Anomaly.FOREIGN_ABORT and found.records == 4
    assert found.transaction == "eo:orders2:1:0:0.0 (producer 100, epoch 3)"
    assert found.places == ("out-0@0..1", "out-1@0..1")
    assert len(foreign("eo:orders-of-today")) == 1, "an id that no sink of this package made"


@pytest.mark.parametrize("name", ["eo:orders:1:0:0.0", "eo:other:1:0:0.0", "theirs", ""])
def test_an_abort_of_the_sinks_own_or_of_another_name_is_not(name: str) -> None:
    """A false alarm over the sweep itself, and over every other application that aborts."""
    assert foreign(name) == []


@pytest.mark.parametrize(
    ("found", "more"),
    [
        *((n, {"marked_ms": ms}) for n, ms in ((0, 489_999), (1, 490_000), (1, 490_000 + SWEEP), (0, 490_001 + SWEEP))),
        *((n, {"others": {"orders2": ms}}) for n, ms in ((0, 500_000), (0, 500_000 - SWEEP), (1, 499_999 - SWEEP))),
        (1, {"others": {"orders2": 500_001}}),
        (1, {"others": {"orders3": 500_000}}),
        (0, {"commit": True}),
        (0, {"commit": None}),
    ],
)
def test_only_an_abort_in_the_minute_after_the_claim_that_is_not_of_the_others_own_sweep_counts(found, more) -> None:
    """A false alarm over each abort of a sink with a similar name, at any time; and where both sinks start at the same
    time, as after a deployment.
    """
    assert len(foreign("eo:orders2:1:0:0.0", **more)) == found


def test_other_transactions_do_not_hide_a_foreign_abort() -> None:
    """A search that ends at the first transaction of another name; a claim that is not the last one."""
    out = ReadBack()
    for n in range(3):
        out.part(n, commit=False, at_ms=500_000)
    ids = {100: "theirs", 101: "eo:orders:1:0:0.0", 102: "eo:orders2:1:0:0.0"}
    found = list(sink_findings.foreign_aborts(SINK, out.ledger(), ids, [490_000, 10], {}))
    assert [(f.transactional_id, f.producer_id) for f in found] == [("eo:orders2:1:0:0.0", 102)]
    assert list(sink_findings.foreign_aborts(SINK, out.ledger(), {}, [490_000], {})) == []


def test_a_foreign_abort_names_no_more_places_than_a_person_looks_at() -> None:
    many = range(MOST_PLACES + 5)
    (found,) = foreign("eo:orders2:1:0:0.0", records=len(many), partitions=many)
    assert len(found.places) == MOST_PLACES and found.records == len(many)


# -- published offsets, checkpoint


def at(**offsets: int) -> str:
    return "v1\n{}\n" + json.dumps({"in": {p[1:]: o for p, o in offsets.items()}})


def skewed(decisions: Sequence[Decision], published, batch: int | None = None, sizes=None) -> list[Finding]:
    """With the word of ``batch`` at the offsets."""
    words = {} if batch is None else {"q": batch}
    found = sink_findings.skewed(decisions, Published(published, words), {"in": 2} if sizes is None else sizes)
    return findings_of(None, skewed=tuple(found))


def test_published_offsets_are_those_of_the_last_decision() -> None:
    """Offset skew: lag tools show input as read that is not, or the other way round."""
    last = [decided(1, offsets=at(p0=7, p1=9))]
    assert skewed(last, {"in": {0: 7, 1: 9}}, 1) == []
    low, high = skewed(last, {"in": {1: 10, 0: 3}})
    assert low.anomaly is Anomaly.OFFSET_SKEW and (low.places, low.batch) == (("in-0@3",), "batch 1")
    assert high.places == ("in-1@10",)


def test_a_partition_whose_offset_the_last_decision_published_and_that_is_gone_is_skewed() -> None:
    """Offset skew: somebody deleted an offset of the group, and lag tools miss the partition."""
    (gone,) = skewed([decided(1, offsets=at(p0=7, p1=9))], {"in": {0: 7}}, 1)
    assert gone.anomaly is Anomaly.OFFSET_SKEW and (gone.places, gone.batch) == (("in-1@9",), "batch 1")


def test_a_group_that_stands_at_a_decision_which_came_during_the_look_is_not_skewed() -> None:
    """A false alarm over every stream that decides faster than the checker looks."""
    three = [decided(n, offsets=at(p0=n)) for n in range(3)]
    for n in range(3):
        assert skewed(three, {"in": {0: n}}, n) == []
    (found,) = skewed(three, {"in": {0: 7}}, 1)
    assert found.batch == "batch 2"


@pytest.mark.parametrize(
    ("decision", "published", "batch", "sizes"),
    [
        pytest.param(decided(0), {"in": {0: 1}}, 0, {}, id="the decision keeps no offsets"),
        pytest.param(decided(0, offsets=at(p0=7)), {}, None, {"in": 1}, id="nothing is published, or to be seen"),
        pytest.param(
            decided(0, offsets=at(p0=7)), {"in": {0: 7, 1: 5}, "old": {0: 5}}, 0, {"in": 2}, id="no longer an input"
        ),
        pytest.param(
            decided(2, offsets=at(p0=7, p1=0)), {"in": {0: 7}}, 1, {"in": 2}, id="EO-WARN-GROUP with a new partition"
        ),
        pytest.param(decided(2, offsets=at(p0=7, p1=0)), {"in": {0: 7, 1: 0}}, 2, {"in": 2}, id="without records yet"),
        pytest.param(decided(2, offsets=at(p0=7)), {"other": {0: 1}}, 2, {}, id="an input topic that was deleted"),
        pytest.param(decided(2, offsets=at(p0=7, p1=8)), {"in": {0: 7}}, 2, {"in": 1}, id="made again, and smaller"),
    ],
)
def test_offsets_that_cannot_be_compared_accuse_nobody(decision: Decision, published, batch, sizes) -> None:
    """A false alarm over a stream that does not publish, whose offsets were refused, or that has changed its input."""
    assert skewed([decision], published, batch, sizes) == []


def test_without_a_decision_no_offset_is_skewed() -> None:
    """A false alarm over a stream that has just begun."""
    assert skewed([], {"in": {0: 1}}) == []


def ahead(checkpoint: Checkpoint, log: LogState) -> list[tuple[str, str]]:
    facts = SinkFacts(Inspection(SINK, log=log), checkpoint=checkpoint, after=log)
    return [(f.anomaly.value, f.batch) for f in sink_findings.findings(diagnose(facts))]


def test_a_checkpoint_is_ahead_when_it_has_committed_what_is_not_decided() -> None:
    """Checkpoint ahead: Spark will never write that batch again, and nobody has it."""
    assert ahead(Checkpoint("/c", "q", 1, 1), log_of(decided(0))) == [("checkpoint ahead", "batch 1")]
    assert ahead(Checkpoint("/c", "q", 0, 0), log_of()) == [("checkpoint ahead", "batch 0")]
    assert ahead(Checkpoint("/c", "q", 0, 0), log_of(decided(0))) == []


def test_a_checkpoint_without_a_commit_or_of_another_query_says_nothing_of_these_decisions() -> None:
    """A false alarm before the first commit; and a decision of another query that hides a lost batch."""
    for checkpoint in (Checkpoint("/c"), Checkpoint("/c", "q", 0, None), Checkpoint("/c", None, 0, 0)):
        assert ahead(checkpoint, LogState()) == []
    assert len(ahead(Checkpoint("/c", "q", 0, 0), log_of(decided(5, query="other")))) == 1


# -- the report


def test_a_report_shows_the_first_findings_of_each_anomaly_and_counts_them_all() -> None:
    """A rare anomaly that drowns in a thousand of another one."""
    many = [Finding(Anomaly.LOST, str(n)) for n in range(MOST_FINDINGS + 7)]
    findings, counts = limited([*many, Finding(Anomaly.CORRUPT, "one")])
    assert counts == {"lost": MOST_FINDINGS + 7, "corrupt": 1}
    assert [f.what for f in findings] == [*(str(n) for n in range(MOST_FINDINGS)), "one"]


def test_a_report_for_scripts_says_whether_it_is_clean_and_whether_there_was_anything_to_prove() -> None:
    """A script that takes "clean" for "proven"."""
    empty = Report("s")
    assert empty.clean and empty.nothing_yet and not empty.claimed
    assert empty.as_json() == {
        "sink_id": "s", "clean": True, "nothing_yet": True, "anomalies": {}, "findings": [],
        "proven": {"batches": 0, "parts": 0, "records": 0}, "first_batch": "", "last_batch": "", "unproven": {},
        "by_origin": {}, "window": "", "against": None, "topics_not_searched": 0, "read": 0, "took_s": 0,
        "checked_ms": 0, "removed": {}, "diagnoses": [], "balance": Balance().as_json(),
    }  # fmt: skip
    assert not Report("s", last_batch="batch 0").nothing_yet and not Report("s", by_origin={"input": 0}).nothing_yet
    found = Report("s", (Finding(Anomaly.LOST, "w", "b", "t", ("p",), 3),), took_s=1.23456, claimed=True)
    plain = found.as_json()
    assert not found.clean and plain["clean"] is False and plain["took_s"] == 1.235
    meaning = "A record that must be visible is not, and no transaction that is still open holds it."
    assert plain["findings"] == [
        {"anomaly": "lost", "meaning": meaning, "what": "w", "batch": "b", "transaction": "t", "places": ["p"],
         "records": 3, "examples": [], "code": "", "remedy": ""}
    ]  # fmt: skip


def shown(report: Report) -> str:
    console = Console(file=StringIO(), width=200)
    show(report, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_last_line_never_says_that_all_is_well_of_what_was_not_seen() -> None:
    """ "No anomalies in 0 records" over a hundred records that retention took; a copy that nobody compared."""
    right = Balance({"out": TopicBalance(75, right=70, not_judged=Counter({"other writers": 2}), markers=3)})
    well = shown(Report("s", batches=1, parts=1, last_batch="batch 0", read=72, balance=right))
    assert "Not judged: 2 records (other writers)." in well and "No anomalies in 72 records" in well
    assert "out: 75 offsets: 70 right, 0 wrong, 2 not judged, 0 not proven, 3 end markers." in well
    gone = Report("s", last_batch="batch 0", unproven={"retention": 3}, removed={"retention": 100})
    assert re.search(r"Not in the output .*: 100 records .*\(retention\)\.", shown(gone))
    assert re.search("Nothing is proven, .*no anomalies in 0 records", shown(gone))
    broken = Balance({"out": TopicBalance(75, right=70)})
    assert "5 offsets are not explained" in shown(replace(gone, balance=broken))


def test_topics_that_could_not_be_searched_are_said_in_one_line_and_are_no_anomaly() -> None:
    """Silence over what nobody looked at; or a check that is red for the topics of others."""
    for topics, said in ((0, 0), (1_200, 1)):
        report, out = Report("s", last_batch="batch 0", not_searched=topics), StringIO()
        show(report, Console(file=out, width=200))
        assert len(re.findall("Not searched for .*: 1,200 other topics", out.getvalue())) == said
        assert report.clean


def test_each_anomaly_has_a_meaning_and_only_what_a_healthy_stream_shows_may_pass() -> None:
    """A corrupt record that is looked at again until it is forgotten; a moment of a healthy stream that is reported."""
    assert all(a.meaning.endswith(".") for a in Anomaly)
    passing = {a.value for a in Anomaly if a.may_pass}
    assert passing == {
        "lost", "unseen", "torn transaction", "torn batch", "outcome lie", "lingering", "stalled last stable offset",
        "split sink", "offset skew", "checkpoint ahead",
    }  # fmt: skip

"""The verdicts on outputs beside Kafka, by what each says that its readers see."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.errors import CommitLogDamaged, Unfinished
from exactly_once.participant import Found, PartName
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Aborted, Claim, Completed, Decision, PreparedPart, PreparedTransaction
from exactly_once.tools.verify.anomalies import MOST_PLACES, Finding
from exactly_once.tools.verify.by_log.judge import NO_DIGEST, OTHER_OUTPUT, UNDER_WAY, Verdict
from exactly_once.tools.verify.outputs import Seen, judge_outputs, read_again, read_outputs
from testkit.planted_outputs import LOG, SINK

KEY = ("q", 1)


def part(
    number: int = 0, batch: int = 1, output: str = "archive", token: int = 3, attempt: str = "0.1"
) -> PreparedPart:
    name = str(PartName(SINK, token, batch, number, attempt, LOG, output))
    return PreparedPart(output, name, number, 3, "d")


def decided(*parts: PreparedPart, batch: int = 1, token: int = 3, query: str = "q") -> Decision:
    return Decision(query, batch, token, parts, "", 2, 0)


def log_of(*decisions: Decision, marked: bool = True, token: int = 3, aborted: Aborted | None = None) -> LogState:
    marks = {(d.query_id, d.batch_id): Completed(d.query_id, d.batch_id, 3, 0) for d in decisions if marked}
    return LogState(Claim(token, "q", 0, "stream", "h", 1), decisions, marks, aborted=aborted)


def right(of: PreparedPart, **more: Any) -> Found:
    return replace(Found(of.name, True, records=3, digest="d", places=(f"/{of.part}",)), **more)


def gone(of: PreparedPart, **more: Any) -> Found:
    return Found(of.name, **more)


def judged(
    decision: Decision, *, marked: bool = True, shown: bool = False, absent: bool = False, **seen: Any
) -> Verdict:
    """The verdict on one batch by what each output found of its parts, or a ``Seen``."""
    verdict = Verdict(whole={KEY}, shown={KEY} if shown else set(), absent={KEY} if absent else set())
    given = {n: s if isinstance(s, Seen) else Seen({f.name: f for f in s}) for n, s in seen.items()}
    judge_outputs([decision], log_of(decision, marked=marked), given, verdict)
    return verdict


def names(found: Verdict) -> list[str]:
    return [f.anomaly.value for f in found.findings]


# -- a part


def test_what_readers_see_as_it_was_written_is_proven() -> None:
    """A proof that counts what it has not compared; a false alarm over a healthy output."""
    first, second = part(0), part(1)
    found = judged(decided(first, second), archive=[right(first), right(second)])
    assert found.findings == [] and (found.parts, found.records, found.whole) == (2, 6, {KEY})


@pytest.mark.parametrize(
    ("said", "marked", "anomalies", "records", "says"),
    [
        pytest.param({"visible": False, "places": ("/0",)}, True, ["lost", "outcome lie"], 3, "not find it", id="gone"),
        pytest.param({"visible": False, "wrong": "rolled back"}, False, ["lost"], 3, "find it: rolled back", id="why"),
        pytest.param({"visible": False, "prepared": True}, True, ["unseen", "outcome lie"], 3, "waits", id="staged"),
        pytest.param({"places": ("/a", "/b", "/c")}, True, ["duplicate"], 6, "is visible 3 times", id="three times"),
        pytest.param({"records": 1}, True, ["lost"], 2, "readers find 1 of its 3 rows", id="fewer"),
        pytest.param({"records": 1, "wrong": "cut"}, True, ["lost"], 2, "3 rows: cut", id="fewer, and why"),
        pytest.param({"records": 5}, True, ["phantom"], 2, "find 5 rows, but its task wrote 3", id="more"),
        pytest.param({"wrong": "another row"}, True, ["corrupt"], 3, "differs: another row", id="wrong"),
        pytest.param(
            {"digest": "e"}, True, ["corrupt"], 3, "have the digest e, but its task wrote d", id="other digest"
        ),
    ],
)
def test_what_is_wrong_with_a_part_has_its_name_and_its_number(said, marked, anomalies, records, says) -> None:
    """Each of these would pass for proven, or be called by a name that leads an operator elsewhere."""
    one = part()
    found = judged(decided(one), marked=marked, archive=[right(one, **said)])
    assert names(found) == anomalies and found.findings[0].records == records and says in found.findings[0].what
    assert found.findings[0].batch == "batch 1" and found.findings[0].transaction == one.name
    assert found.findings[0].what.startswith("part 0 of batch 1 in archive")
    assert found.parts == found.records == 0 and not found.whole and not +found.unproven


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"unproven": "another database"}, "archive: another database"),
        ({"visible": False, "prepared": True}, UNDER_WAY),
        ({"digest": ""}, NO_DIGEST),
    ],
)
def test_what_an_output_cannot_tell_is_unproven_and_accuses_nobody(said, why) -> None:
    """A false alarm, or a false proof, of what nobody has compared."""
    one = part()
    found = judged(decided(one), marked=False, archive=[right(one, **said)])
    assert found.findings == [] and found.unproven == {why: 1} and not found.whole and found.parts == 0


def test_what_is_visible_counts_as_visible_wherever_else_it_waits() -> None:
    """A right part called unproven, or an orphan one a batch on its way, because a copy of it is still staged."""
    one = part()
    found = judged(decided(one), marked=False, archive=[right(one, prepared=True)])
    assert found.findings == [] and found.parts == 1 and not found.unproven
    assert foreign(replace(visible(part(0, 3)), prepared=True)) == [("output ahead", "batch 3")]


def test_a_part_that_was_written_again_meanwhile_is_no_second_attempt() -> None:
    """A false duplicate over a lost part that the sink has written again, under a newer decision of the same batch."""
    before, again, verdict = decided(part(0)), decided(part(0, attempt="1.2")), Verdict()
    found = Seen({part(0).name: right(part(0))}, (visible(part(0, attempt="1.2")),))
    judge_outputs([before], log_of(again), {"archive": found}, verdict)
    assert verdict.findings == []


def test_a_handle_without_a_digest_and_an_output_that_skips_a_part_are_unproven() -> None:
    """A proof of rows that nobody compared."""
    old, skipped = replace(part(0), digest=""), part(1)
    found = judged(decided(old, skipped), archive=[right(old)])
    assert {why.partition(": ")[0]: parts for why, parts in found.unproven.items()} == {NO_DIGEST: 1, "archive": 1}
    assert any("cannot report" in why for why in found.unproven)
    assert found.findings == [] and not found.whole


def test_one_part_that_is_not_proven_leaves_its_batch_unproven() -> None:
    """A proof of a batch of which one part was compared."""
    first, second = part(0), part(1)
    found = judged(decided(first, second), archive=[right(first), right(second, digest="")])
    assert not found.whole and found.parts == 1 and found.unproven == {NO_DIGEST: 1}


def test_kafkas_parts_are_judged_elsewhere() -> None:
    """Each part in Kafka counted as one of an output that was not given."""
    kafka, one = PreparedTransaction("eo:orders:3:0:0.1", 7, 0, 0, 3), part()
    found = judged(decided(kafka, one), archive=[right(one)])  # type: ignore[arg-type]
    assert found.findings == [] and not found.unproven and found.whole == {KEY}


def test_an_output_that_was_not_given_or_does_not_answer_is_unproven_part_by_part() -> None:
    """A disk that is not mounted called a loss."""
    decision = decided(part(0), part(1), part(0, output="copy"))
    found = judged(decision, archive=Seen(failed="archive cannot be checked"))
    assert found.findings == [] and not found.whole
    assert found.unproven == {"archive cannot be checked": 2, OTHER_OUTPUT: 1}


def test_a_part_in_many_places_names_the_first_of_them() -> None:
    """A report of megabytes."""
    one = part()
    found = judged(decided(one), archive=[right(one, places=tuple(f"/{n}" for n in range(MOST_PLACES + 5)))])
    assert len(found.findings[0].places) == MOST_PLACES


# -- a batch


def test_an_output_with_some_parts_is_torn_and_not_split() -> None:
    """A torn batch: readers of this output have a half of it."""
    parts = [part(n) for n in range(3)]
    found = judged(decided(*parts), shown=True, archive=[right(parts[0]), gone(parts[1]), gone(parts[2])])
    assert names(found) == ["lost", "lost", "torn batch", "outcome lie"] and found.parts == 1
    torn = found.findings[2]
    assert torn.what == "batch 1: archive shows 1 of its 3 parts" and torn.records == 6
    assert torn.transaction == found.findings[3].transaction == parts[1].name
    assert "archive does not show" in found.findings[3].what


@pytest.mark.parametrize(("shown", "says"), [(True, "visible in copy, kafka, and"), (False, "visible in copy, and")])
def test_an_output_without_a_batch_that_others_have_is_split_from_them(shown: bool, says: str) -> None:
    """A split sink: one output has the batch, and another one has nothing of it."""
    here, there = part(0), part(0, output="copy")
    found = judged(decided(here, there), shown=shown, archive=[gone(here)], copy=[right(there)])
    assert names(found) == ["lost", "split sink", "outcome lie"]
    split = found.findings[1]
    assert says in split.what and "archive shows nothing" in split.what
    assert (split.records, split.batch) == (3, "batch 1")


def test_kafka_without_a_batch_is_split_from_an_output_that_shows_it() -> None:
    """A split sink, with Kafka on the side that lacks it; what is not shown anywhere is lost, and not split."""
    one = part()
    found = judged(decided(one), absent=True, archive=[right(one)])
    assert names(found) == ["split sink"]
    assert re.search("visible in archive, .*kafka shows nothing", found.findings[0].what)
    assert "split sink" not in names(judged(decided(one), absent=True, archive=[gone(one)]))


def test_what_cannot_be_told_counts_for_no_side_of_a_split() -> None:
    """A false split sink, where an output cannot tell whose rows it has, or is itself not there."""
    here, there = part(0), part(0, output="copy")
    found = judged(decided(here, there), archive=[gone(here)], copy=[right(there, unproven="restored")])
    assert names(found) == ["lost", "outcome lie"]
    assert names(judged(decided(here, there), archive=[gone(here)])) == ["lost", "outcome lie"]


# -- what no decision names


def foreign(*found: Found, **more: Any) -> list[tuple[str, str]]:
    return [(f.anomaly.value, f.batch) for f in judged_foreign(*found, **more)]


def judged_foreign(*found: Found, decisions: Sequence[Decision] | None = None, **log: Any) -> list[Finding]:
    decisions = [decided(part(0)), decided(part(0, 2), batch=2)] if decisions is None else decisions
    verdict = Verdict()
    shown = {h.name: right(h) for d in decisions for h in d.handles if isinstance(h, PreparedPart)}
    judge_outputs(decisions, log_of(*decisions, **log), {"archive": Seen(shown, found)}, verdict)
    return verdict.findings


def visible(of: PreparedPart) -> Found:
    return Found(of.name, True, records=3, places=("/x",))


def staged(of: PreparedPart) -> Found:
    return Found(of.name, prepared=True, places=("/x",))


@pytest.mark.parametrize(
    ("of", "anomaly"),
    [
        pytest.param(part(0, attempt="1.2"), "duplicate", id="another attempt of a decided part"),
        pytest.param(part(5), "phantom", id="a part that its decision does not name"),
        pytest.param(part(0, 3), "output ahead", id="behind the last decision"),
        pytest.param(part(0, 0), None, id="a batch whose decision the log has dropped"),
        pytest.param(part(5, token=2), None, id="perhaps of a query whose decisions are gone"),
    ],
)
def test_a_visible_part_without_a_decision_is_told_by_its_name(of: PreparedPart, anomaly: str | None) -> None:
    """Each of these would go unnoticed, or be called by a name that leads an operator elsewhere."""
    batch = PartName.parse(of.name).batch_id  # type: ignore[union-attr]
    assert foreign(visible(of)) == ([(anomaly, f"batch {batch}")] if anomaly else [])


@pytest.mark.parametrize(
    ("token", "batch", "anomaly"), [(3, 3, "aborted read"), (2, 3, "output ahead"), (3, 2, "output ahead")]
)
def test_a_visible_part_of_the_execution_that_was_given_up_is_an_aborted_read(token, batch, anomaly) -> None:
    """Aborted read called output ahead; and the other way round after another claim, or another batch, was given up."""
    gave_up = Aborted("q", batch, "", token, "e1", 0)
    (one,) = judged_foreign(visible(part(0, 3)), aborted=gave_up)
    assert (one.anomaly.value, one.batch, one.records) == (anomaly, "batch 3", 3)
    assert one.transaction == part(0, 3).name
    assert one.what.endswith("gave up this execution of batch 3") == (anomaly == "aborted read")


def test_a_decided_batch_was_not_given_up_for_good() -> None:
    """A second attempt called an aborted read, because the batch had been given up before it was decided."""
    gave_up = Aborted("q", 2, "", 3, "e1", 0)
    assert foreign(visible(part(0, 2, attempt="1.2")), aborted=gave_up) == [("duplicate", "batch 2")]


def test_the_same_part_of_another_output_is_no_decided_attempt() -> None:
    """A phantom called a copy: whoever deletes it, or keeps it, does so for the wrong reason."""
    assert foreign(visible(part(5)), decisions=[decided(part(0), part(5, output="copy"))]) == [("phantom", "batch 1")]


@pytest.mark.parametrize(
    ("of", "owner", "anomaly"),
    [
        pytest.param(part(0, 3), 3, None, id="the next batch on its way"),
        pytest.param(part(0, 3), 4, "lingering", id="of a superseded driver"),
        pytest.param(part(0, 2, attempt="1.2"), 3, "lingering", id="of a batch that is decided without it"),
        pytest.param(part(0, 3, token=4), 3, None, id="of a driver that claimed after the look"),
    ],
)
def test_a_staged_part_without_a_decision_lingers_when_nobody_will_decide_it(of, owner, anomaly) -> None:
    """A false alarm over each live stream; and silence over what holds locks and disk for ever."""
    batch = PartName.parse(of.name).batch_id  # type: ignore[union-attr]
    assert foreign(staged(of), token=owner) == ([(anomaly, f"batch {batch}")] if anomaly else [])


def test_without_a_claim_in_the_log_the_last_decisions_counts() -> None:
    """An error over a log whose claim was cleaned away."""
    decision = decided(part(0))
    verdict = Verdict()
    log = replace(log_of(decision), owner=None)
    seen = Seen({part(0).name: right(part(0))}, (staged(part(0, 2, token=2)), staged(part(0, 2))))
    judge_outputs([decision], log, {"archive": seen}, verdict)
    assert [f.transaction for f in verdict.findings] == [part(0, 2, token=2).name]


def test_rows_without_a_name_are_phantoms_at_their_place() -> None:
    """Phantom: in a table, readers cannot tell them from the stream's."""
    decision, verdict = decided(part(0)), Verdict()
    found = Found("", True, records=2, places=("t, xmin 7", "t, xmin 8"))
    judge_outputs([decision], log_of(decision), {"archive": Seen({part(0).name: right(part(0))}, (found,))}, verdict)
    (phantom,) = verdict.findings
    assert phantom.anomaly.value == "phantom" and phantom.records == 2 and phantom.batch == ""
    assert phantom.what.startswith("archive: t, xmin 7, t, xmin 8 holds 2 rows") and phantom.places == found.places


def test_parts_of_another_commit_log_are_not_judged_and_those_of_earlier_versions_are() -> None:
    """A false alarm over the files of a log that was deleted; silence over all that an earlier version wrote."""
    name = PartName(SINK, 3, 3, 0, "0.1", "a" * 10, "archive")
    assert foreign(visible(replace(part(), name=str(name)))) == []
    assert foreign(visible(replace(part(), name=str(name._replace(incarnation=""))))) == [("output ahead", "batch 3")]


def test_a_part_of_any_claim_of_the_window_is_judged_and_a_name_of_its_own_kind_is_none() -> None:
    """Silence over what an earlier claim left, and an error over a decided part whose name tells nothing."""
    decisions = [decided(replace(part(0), name="odd"), part(1)), decided(part(0, 2, token=5), batch=2, token=5)]
    assert foreign(visible(part(0, 3, token=4)), decisions=decisions, token=5) == [("output ahead", "batch 3")]
    assert foreign(visible(part(0, 3)), decisions=decisions[:1]) == [("output ahead", "batch 3")]


def test_decisions_that_came_later_explain_what_was_found() -> None:
    """A false alarm over the batch that a live stream commits while the output is read."""
    newer = decided(part(0, 2), batch=2)
    verdict = Verdict()
    seen = {"archive": Seen({part(0).name: right(part(0))}, (visible(part(0, 2)), visible(part(0, 3))))}
    judge_outputs([decided(part(0))], log_of(decided(part(0)), newer), seen, verdict)
    assert [(f.anomaly.value, f.batch) for f in verdict.findings] == [("output ahead", "batch 3")]
    assert "decision is of batch 2" in verdict.findings[0].what


def test_another_querys_decisions_are_not_those_of_the_batch() -> None:
    """A duplicate called right: batch 1 of the query before had other rows."""
    before, now = decided(part(0, token=2), query="old", token=2), decided(part(0, 2), batch=2)
    assert foreign(visible(part(0, attempt="1.1")), decisions=[before, now]) == []
    assert foreign(visible(part(0, 2, token=2)), decisions=[before, now]) == []


# -- looking


class Output:
    """Answers what a test says, look by look."""

    def __init__(self, *answers: list[Found] | Exception, name: str = "archive"):
        self.name, self.answers, self.closed, self.asked = name, list(answers), 0, list[list[str]]()

    def found(self, sink_id: str, handles: Sequence[PreparedPart]) -> list[Found]:
        assert sink_id == SINK
        self.asked.append([h.name for h in handles])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


def test_an_output_is_asked_for_its_own_parts_and_closed() -> None:
    """Connections that stay open after each evaluation of the check; parts of another output taken for foreign."""
    mine, other = part(0), part(0, output="copy")
    output: Any = Output([right(mine), visible(part(0, 9))])
    seen = read_outputs(SINK, [decided(mine, other)], [output])["archive"]
    assert output.asked == [[mine.name]] and output.closed == 1
    assert set(seen.parts) == {mine.name} and [f.name for f in seen.foreign] == [part(0, 9).name]


def test_an_output_that_fails_says_why_and_a_damaged_log_stops_the_check() -> None:
    """A silent output called proven; a proof by a log that others have written to."""
    failing: Any = Output(Unfinished("the disk hangs", "Wait"))
    seen = read_outputs(SINK, [], [failing])["archive"]
    assert "archive cannot be checked" in seen.failed and "the disk hangs" in seen.failed and failing.closed == 1
    damaged: Any = Output(CommitLogDamaged("a forged handle", "Find out"))
    with pytest.raises(CommitLogDamaged):
        read_outputs(SINK, [], [damaged])
    assert damaged.closed == 1


def test_only_rows_without_a_name_are_asked_for_again() -> None:
    """A scan of the whole table twice, for nothing; a phantom that a second look forgets."""
    stays, passes = (Found("", True, records=1, places=(p,)) for p in ("stays", "passes"))
    named = visible(part(0, 9))
    once: Any = Output([named])
    seen = read_outputs(SINK, [], [once])
    assert read_again(SINK, [], [once], seen) == seen and len(once.asked) == 1
    twice: Any = Output([named, stays, passes, right(part(0))], [stays])
    decision = decided(part(0))
    seen = read_outputs(SINK, [decision], [twice])
    again = read_again(SINK, [decision], [twice], seen)["archive"]
    assert again.foreign == (named, stays) and again.parts == seen["archive"].parts and not again.failed
    assert twice.closed == 2

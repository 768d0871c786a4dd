"""The fault lab without Kafka and Spark: plans, settings, the verdict on made output, and the two readers together."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.errors import CommitLogDamaged
from exactly_once.kafka.connection import Connection
from exactly_once.options import Guarantee
from exactly_once.tools.verify import Anomaly, Finding, Report
from faultlab import checker
from faultlab.faults import FAULTS, Fault
from faultlab.history import LabHistory
from faultlab.judge import NAMED, LabVerdict, compare, split_keys
from faultlab.lab import Execution, Lab
from faultlab.plan import GAPS_S, LASTS_S, FaultPlan, Step, load_plan, make_plan, save_plan
from faultlab.rounds import ALLOWED, Round
from faultlab.settings import Settings, draw_settings
from faultlab.state import STORES, firsts
from testkit.oracle import Message, Row

NAMES = sorted(FAULTS)
POINTS = ("decided", "all-prepared")


# -- plans


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_one() -> None:
    """A seed in a report of a failure is worth nothing when it leads to other faults the next day."""
    assert make_plan(7, 60, NAMES, POINTS) == make_plan(7, 60, NAMES, POINTS)
    assert len({make_plan(seed, 60, NAMES, POINTS).steps for seed in range(20)}) == 20


def test_the_faults_of_a_plan_begin_in_its_time_and_last_as_long_as_they_may() -> None:
    """A fault after the end of a round is never done, and one that lasts for ever leaves nothing to drain."""
    for seed in range(50):
        plan = make_plan(seed, 60, NAMES, POINTS)
        moments = [step.at_s for step in plan.steps]
        assert moments == sorted(moments) and all(0 < at <= 60 for at in moments)
        assert all(b - a >= min(GAPS_S) / 2 - 0.01 for a, b in pairwise(moments))
        assert all(min(LASTS_S) / 2 <= step.lasts_s <= max(LASTS_S) * 1.5 for step in plan.steps)
        assert [step.number for step in plan.steps] == list(range(len(plan.steps)))


def test_some_hundred_seeds_draw_every_fault_with_and_without_a_point() -> None:
    """A fault that no plan draws is not tried, however often make faults runs."""
    steps = [step for seed in range(500) for step in make_plan(seed, 60, NAMES, POINTS).steps]
    assert {(s.fault, s.point) for s in steps} == {(f, p) for f in NAMES for p in (None, *POINTS)}


def test_a_step_has_random_numbers_of_its_own() -> None:
    """In a replay, steps that were left out must not change what the others strike."""
    plan = make_plan(3, 60, NAMES)
    later = plan.steps[2]
    assert replace(plan, steps=plan.steps[2:]).random(later).random() == plan.random(later).random()
    assert plan.random(plan.steps[0]).random() != plan.random(later).random()


def test_a_plan_without_faults_to_draw_from_is_refused() -> None:
    """A round of nothing would end clean."""
    with pytest.raises(ValueError, match="at least one fault"):
        make_plan(1, 60, [])


def test_a_plan_that_is_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    """Else a replay is another run than the one that failed."""
    for seed in range(20):
        plan, settings = make_plan(seed, 60, NAMES, POINTS), draw_settings(seed)
        save_plan(plan, asdict(settings), tmp_path / "history.json")
        loaded, had = load_plan(tmp_path / "history.json")
        assert (loaded, Settings(**had)) == (plan, settings)


def test_a_history_from_before_a_setting_existed_is_replayed_without_it(tmp_path: Path) -> None:
    """Histories are kept beside the issues that they prove."""
    settings = {k: v for k, v in asdict(Settings(nodes=3)).items() if k != "origin"}
    save_plan(FaultPlan(1, 10, (Step(0, 1.0, "kill-driver", 2.0),)), settings, tmp_path / "history.json")
    assert Settings(**load_plan(tmp_path / "history.json")[1]) == Settings(nodes=3)


# -- faults in their time


class Struck(Fault):
    """Notes what is done to it."""

    name, what = "struck", "a note"

    def do(self, lab: Lab, random: Random) -> str:
        return "something"

    def undo(self, lab: Lab) -> None:
        pass


class Points:
    """A system that comes to some points of the protocol, and to no others."""

    topic, points = "out", POINTS

    def __init__(self, *comes_to: str):
        self.comes_to, self.armed = comes_to, list[str]()

    def arm(self, point: str, action: str) -> None:
        self.armed.append(point)

    def has_reached(self, point: str) -> bool:
        return point in self.comes_to

    def process_at(self, point: str) -> int:
        return 0

    def disarm(self, point: str) -> None:
        self.armed.remove(point)


def executed(
    plan: FaultPlan, system: Points, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Step], list[list[str]]]:
    """The steps as they were done, and the events and targets of the history."""
    monkeypatch.setitem(FAULTS, "struck", Struck)
    monkeypatch.setattr("faultlab.lab.POINT_S", 0.3)
    lab = Lab(None, None, system, LabHistory(folder / "history"))  # type: ignore[arg-type]
    lab.history.begin()
    Execution(lab, plan).run()
    return lab.done, [line.split(" s  ")[1].split() for line in (folder / "history").read_text().splitlines()]


def test_a_fault_is_done_when_a_process_comes_to_its_point_and_undone_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that is never undone, or is done beside its point, is not the one that the history names."""
    plan = FaultPlan(1, 1.0, (Step(0, 0.0, "struck", 0.2, "decided"), Step(1, 0.1, "struck", 0.1)))
    done, events = executed(plan, Points("decided"), tmp_path, monkeypatch)
    assert done[0] == plan.steps[0] and (done[1].number, done[1].point) == (1, None)
    assert events[0] == ["do", "struck", "something", "at", "decided"]
    assert sorted(event[0] for event in events) == ["do", "do", "undo", "undo"]


def test_a_fault_whose_point_nobody_comes_to_is_done_without_it_and_replayed_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds were once half empty: a stream that never aborts does not come to "aborting"."""
    system = Points()
    done, events = executed(FaultPlan(1, 1.0, (Step(0, 0.0, "struck", 0.1, "decided"),)), system, tmp_path, monkeypatch)
    assert [event[0] for event in events] == ["do", "undo"] and system.armed == []
    assert done[0].point is None and 0.3 <= done[0].at_s < 1


# -- settings


def test_the_same_seed_gives_the_same_settings_and_a_few_seeds_all_of_them() -> None:
    """A guarantee or a number of brokers that is never drawn is never tried."""
    drawn = [draw_settings(seed) for seed in range(1, 60)]
    assert drawn == [draw_settings(seed) for seed in range(1, 60)]
    assert {s.guarantee for s in drawn} == {g.value for g in Guarantee} == set(ALLOWED)
    assert {s.nodes for s in drawn} == {1, 3} and {s.executors for s in drawn} == {True, False}
    assert all(s.origin for s in drawn if s.guarantee != "exactly_once"), "the checker has nothing else to go by"
    assert {s.state for s in drawn} == {"", *STORES}
    assert not any(s.origin for s in drawn if s.state), "by origin, a record that came twice has one that is lost"


def test_a_stream_with_state_owes_the_first_record_of_each_id() -> None:
    """A record that comes twice and goes out twice is what its state is there to prevent."""
    twice = [*SENT[:6], ("k1", "in-0-20|w.1"), *SENT[6:], ("k0", "in-0-21|w.0")]
    assert firsts(twice) == SENT
    assert compare(twice, firsts(twice)).anomalies == {"phantom": 2}


# -- the verdict


SENT: list[Row] = [(f"k{n % 3}", f"in-0-{n}|w.{n}") for n in range(12)]


@pytest.mark.parametrize(
    ("name", "found", "count"),
    [
        ("lost", SENT[:4] + SENT[5:], 1),
        ("lost", [], 12),
        ("duplicate", SENT + SENT[-2:], 2),
        ("phantom", [*SENT, ("k0", "in-0-99|w.99")], 1),
        ("key reorder", [SENT[3], *SENT[:3], *SENT[4:]], 1),
    ],
)
def test_each_anomaly_of_the_output_is_found_alone_and_counted(name: str, found: list[Row], count: int) -> None:
    """A judge that misses one, or that cries at another, makes every clean round and every failure worthless."""
    verdict = compare(found, SENT)
    assert verdict.anomalies == {name: count} and not verdict.clean
    assert verdict.examples[name] and len(verdict.examples[name]) <= NAMED
    assert name in str(verdict)


def test_a_record_under_another_key_is_lost_and_a_phantom() -> None:
    """A value that arrives is not yet the record that was sent."""
    assert compare([("k1", SENT[0][1]), *SENT[1:]], SENT).anomalies == {"lost": 1, "phantom": 1}


def test_output_that_is_whole_is_clean_in_whatever_order_its_keys_come() -> None:
    """Partitions are read one after the other: only the order within a key means anything."""
    by_key = sorted(SENT, key=lambda row: str(row[0]))
    verdict = compare(by_key, SENT)
    assert verdict.clean and (verdict.records, verdict.read) == (12, 12)
    assert str(verdict) == "clean: 12 records"


def test_a_key_on_two_partitions_is_found() -> None:
    """Its readers would get it in no order at all, which no comparison of contents shows."""
    read = [Message("out", p, n, key, "v", (), 0) for n, (p, key) in enumerate([(0, "a"), (1, "b"), (1, "a")])]
    assert split_keys(read) == ["a on [0, 1]"]


@pytest.mark.parametrize(
    ("guarantee", "kept", "allowed"),
    [
        ("exactly_once", {"lost", "duplicate", "key reorder", "phantom"}, set()),
        ("at_least_once", {"lost", "phantom"}, {"duplicate", "key reorder"}),
        ("none", {"phantom"}, {"lost", "duplicate", "key reorder"}),
    ],
)
def test_a_weaker_guarantee_forgives_what_it_does_not_rule_out_and_nothing_else(
    guarantee: str, kept: set[str], allowed: set[str]
) -> None:
    """Else rounds of at_least_once never end clean, or a loss under it passes for one that was promised."""
    verdict = LabVerdict(10)
    for name in kept | allowed:
        verdict.add(name, ["x"])
        verdict.add(checker.BY_CHECKER + name, ["x"])
    verdict.forgive(ALLOWED[guarantee])
    assert set(verdict.anomalies) == kept | {checker.BY_CHECKER + name for name in kept}
    assert set(verdict.allowed) == allowed | {checker.BY_CHECKER + name for name in allowed}


def test_a_round_that_was_not_drained_is_not_clean_and_says_how_to_run_it_again(tmp_path: Path) -> None:
    """A stream that never comes back must not count as one without anomalies."""
    history = LabHistory(tmp_path / "history")
    one = Round(make_plan(5, 20, NAMES), Settings(), history, None, "Stopped: EO-LOST", 3, "python -m faultlab --x")
    assert not one.clean
    assert "NOT CLEAN: Stopped: EO-LOST" in str(one) and "replay: python -m faultlab --x" in str(one)
    assert replace(one, verdict=LabVerdict(10)).clean


# -- the checker beside it


def report(*anomalies: Anomaly, **fields: object) -> Report:
    found = tuple(Finding(anomaly, "something", "batch 3") for anomaly in anomalies)
    counts = Counter(anomaly.value for anomaly in anomalies)
    proven = {"batches": 4, "parts": 12, "records": 12, "first_batch": "batch 0", "last_batch": "batch 3"}
    return Report("sink", found, counts=counts, **(proven | fields))  # type: ignore[arg-type]


def checked(monkeypatch: pytest.MonkeyPatch, verdict: LabVerdict, said: Report | Exception, origin: bool) -> LabVerdict:
    def verify(*_: object, **__: object) -> Report:
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(checker, "verify", verify)
    checker.check(verdict, Connection("localhost:1"), "sink", "out", "checkpoint", origin)
    return verdict


BY_ORIGIN = {"input": 12, "output": 12}


@pytest.mark.parametrize(("origin", "by_origin"), [(False, {}), (True, BY_ORIGIN)])
def test_two_readers_that_find_nothing_agree(
    origin: bool, by_origin: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab that cries at a healthy stream is not run again."""
    assert checked(monkeypatch, compare(SENT, SENT), report(by_origin=by_origin), origin).clean


def test_what_the_checker_alone_finds_makes_a_round_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the commit log, the checkpoint and the brokers, which no reader of the output sees."""
    verdict = checked(monkeypatch, compare(SENT, SENT), report(Anomaly.OFFSET_SKEW), False)
    assert verdict.anomalies == {"verify: offset skew": 1}
    assert verdict.examples["verify: offset skew"] == ["batch 3 something"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (SENT[1:], report()),  # a loss that the commit log's proof of every batch does not show
        (SENT[1:], report(by_origin={"input": 12, "output": 11})),
        (SENT, report(records=11)),  # a batch that is proven and that no reader got
        (SENT, report(by_origin={"input": 12, "output": 13})),
        (SENT, report(by_origin={"input": 11, "output": 12})),
    ],
)
def test_a_checker_that_sees_less_than_the_reader_is_named(
    found: list[Row], said: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker is what users have: where it is blind, the lab must not hide it behind its own reader."""
    verdict = checked(monkeypatch, compare(found, SENT), said, bool(said.by_origin))
    assert verdict.anomalies[checker.DISAGREES] == 1


def test_two_readers_that_find_the_same_loss_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hidden behind an open transaction is unseen to one and lost to the other: both are right."""
    for name in (Anomaly.LOST, Anomaly.UNSEEN):
        said = report(name, by_origin={"input": 12, "output": 11})
        verdict = checked(monkeypatch, compare(SENT[1:], SENT), said, True)
        assert verdict.anomalies == {"lost": 1, f"verify: {name.value}": 1}


@pytest.mark.parametrize("fields", [{"unproven": {"an old decision": 1}}, {"first_batch": "batch 7"}])
def test_the_commit_log_is_not_asked_for_batches_that_it_cannot_prove(
    fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the last 64 batches of a stream: of what came before, its silence says nothing."""
    assert checked(monkeypatch, compare(SENT, SENT), report(records=5, **fields), False).clean


def test_of_two_queries_the_log_proves_the_batches_of_the_newer_one_alone() -> None:
    """A way out that begins a new checkpoint must not look as if the two judges had read different outputs."""
    fewer = report(records=3)
    assert checker.disagreements(compare(SENT, SENT), fewer)
    assert not checker.disagreements(compare(SENT, SENT), fewer, one_query=False)


def test_a_checker_that_comes_to_no_end_makes_a_round_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the checker must not pass for a clean report."""
    verdict = checked(monkeypatch, compare(SENT, SENT), CommitLogDamaged("the log is torn", "Look"), False)
    assert verdict.anomalies == {checker.NO_END: 1}


# -- the page


def test_the_page_names_each_fault_in_its_own_words() -> None:
    """Somebody who trusts the sink for what was tried must not read of faults that are not."""
    page = (Path(__file__).parents[3] / "docs" / "lab" / "faults.md").read_text(encoding="utf-8")
    page = page.split("\n## Each kind of fault\n")[1].split("\n## ")[0]
    rows = [f"| `{name}` | {fault.what} |" for name, fault in FAULTS.items()]
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def test_a_fault_is_drawn_only_where_the_stream_has_the_process_that_it_strikes() -> None:
    """Tasks of the JVM have no Python: a plan with faults of it would strike nothing, and look as if it had."""
    expected = {"kill-worker": "worker", "pause-worker": "worker", "kill-executor": "executor", "kill-python": "python"}
    for name, role in expected.items():
        fits = FAULTS[name].fits
        assert fits(with_roles("driver", role)) and not fits(with_roles("driver"))


def with_roles(*roles: str) -> Any:
    return SimpleNamespace(system=SimpleNamespace(roles=roles))


def test_a_fault_at_a_point_strikes_the_process_that_waits_there() -> None:
    """A worker killed at a point while it has nothing to do there proves nothing about that point."""
    with ExitStack() as stack:
        some = [stack.enter_context(subprocess.Popen(["sleep", "60"])) for _ in range(4)]
        for process in some:
            stack.callback(process.kill)
        lab: Any = SimpleNamespace(system=SimpleNamespace(pids=lambda role: sorted(p.pid for p in some)))
        for struck in some:
            fault = FAULTS["kill-worker"]()
            fault.at = struck.pid
            fault.do(lab, Random(1))
            assert struck.wait(10) == -signal.SIGKILL

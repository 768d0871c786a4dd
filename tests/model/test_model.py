"""Every state of the protocol in small sizes: with all rules nothing is violated, without each of them something is."""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.model.code import TRANSITIONS
from tests.model.explore import Found, explore
from tests.model.properties import HARM, OPEN, SUPERSEDED, TAKES, TWICE
from tests.model.scenarios import ABANDONED, COUNTEREXAMPLES, REACHED, SCENARIOS, SWEPT, ZOMBIE
from tests.model.state import DRIVER, RECOVERY, Faults, Rules, Scenario

SHORT = [name for name, s in SCENARIOS.items() if not s.long]
#: Its counterexample has the most steps.
DEEP = ("heals_older_only",)
ON_THE_LOG = SCENARIOS["somebody else on the log"]


def without(*rules: str) -> Rules:
    """All rules but these."""
    return Rules()._replace(**dict.fromkeys(rules, False))


@lru_cache
def explored(name: str) -> Found:
    """A size under all rules, explored once for all tests."""
    return explore(SCENARIOS[name], lives=True)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if s.long else []) for name, s in SCENARIOS.items()]
)
def test_no_order_of_steps_violates_the_protocol(name: str) -> None:
    """A loss, a duplicate, a second decision or a transaction that stays open, in an unforeseen order of steps.

    An exploration that never came to an end of its own, or never got where things are difficult, would be silent too.
    """
    found, scenario = explored(name), SCENARIOS[name]
    assert found.violation is None, "\n".join([str(found.violation), *found.path])
    assert found.complete
    wanted = {"everything written", *scenario.reaches}
    if len(scenario.kinds) > 1:
        wanted |= {"a driver stopped", "two claims alive"}
    if RECOVERY in scenario.kinds:
        wanted.add("a recovery at rest")
    assert wanted <= found.ends


@pytest.mark.parametrize(
    ("off", "name", "kind"),
    [pytest.param(*c, marks=[pytest.mark.long] if c[0] == DEEP else []) for c in COUNTEREXAMPLES],
    ids=lambda x: "+".join(x) if x is not str(x) else "",
)
def test_without_a_rule_there_is_a_counterexample(off: tuple[str, ...], name: str, kind: str) -> None:
    """A rule that could be left out unseen is a rule that the next change leaves out."""
    found = explore(SCENARIOS[name], without(*off))
    assert found.violation == kind, "\n".join([str(found.violation), *found.path])


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        pytest.param(rule, name, marks=[pytest.mark.long] if SCENARIOS[name].long else [])
        for off, name, _ in COUNTEREXAMPLES
        if len(off) == 2
        for rule in off
    ],
)
def test_one_of_two_guards_is_enough(rule: str, name: str) -> None:
    """The plan and the decision each keep a batch from being decided twice, and so on: COUNTEREXAMPLES has both
    switched off.
    """
    assert explore(SCENARIOS[name], without(rule)).violation is None


@pytest.mark.long
def test_a_log_that_is_not_read_to_its_end_breaks_nearly_everything() -> None:
    """With a reader that stops at somebody's open transaction, two claims get the same number, decided transactions are
    aborted, and a superseded driver decides. That the decision looks once more keeps batches from being decided twice;
    it does not keep the rest, so it cannot stand in for the reading.
    """
    rest = {SUPERSEDED, OPEN, SWEPT, ZOMBIE, ABANDONED}
    alone = explore(ON_THE_LOG, without("reads_to_high_watermark"), every_kind=True)
    assert set(alone.kinds) == rest
    both = explore(ON_THE_LOG, without("reads_to_high_watermark", "rechecks_decided"), every_kind=True)
    assert set(both.kinds) == rest | {TWICE}
    assert explore(ON_THE_LOG, without("rechecks_decided")).violation is None


@pytest.mark.parametrize(("slots", "kind"), [(2, HARM), (4, HARM), pytest.param(6, None, marks=pytest.mark.long)])
def test_the_ring_of_slots_must_be_twice_as_long_as_claims_are_alive(slots: int, kind: str | None) -> None:
    """Three claims that may all breathe: in a shorter ring the oldest one's sweep, or a late task of it, meets what the
    newest one has decided."""
    found = explore(Scenario("ring", (DRIVER,) * 3, ((1,),) * 3, slots=slots))
    assert (found.violation or "").endswith(kind or "") and bool(found.violation) == bool(kind)


@pytest.mark.parametrize(("rule", "name", "what"), REACHED)
def test_without_a_rule_a_sink_stands_still(rule: str, name: str, what: str) -> None:
    """A backfill by days that waits for one bad day, a decided part that nobody may write again, and a committed batch
    whose rows would be read only to throw them away: nothing is lost, and no start gets on.
    """
    alone = explore(SCENARIOS[name], without(rule))
    assert what in explored(name).ends | explored(name).transitions
    assert alone.violation is None and what not in alone.ends | alone.transitions


def test_the_rules_do_not_rule_out_a_commit_marker_that_is_missing_when_the_id_is_used_again() -> None:
    """README names it under what is not guaranteed: a rule that ends it moves this size to the others."""
    found = explore(Scenario("used again", (DRIVER, DRIVER), ((1, 2), (1, 2)), faults=Faults(unmarked=1)))
    assert (found.violation or "").endswith(TAKES), found.path


def test_every_rule_has_its_counterexample() -> None:
    """A rule that is added to the model says what it is for."""
    shown = {rule for off, _, _ in COUNTEREXAMPLES for rule in off}
    assert shown | {rule for rule, _, _ in REACHED} == set(Rules._fields)


def test_every_transition_is_taken() -> None:
    """A step that no size takes is an unchecked step."""
    taken = set().union(*(explored(name).transitions for name in SHORT))
    assert taken == set(TRANSITIONS)

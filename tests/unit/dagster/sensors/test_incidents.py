"""Incidents: when a person is told, that it happens once, and when it is over."""

from __future__ import annotations

import json

import pytest

from dagster_exactly_once.notify import CRITICAL, WARNING, Notice, NotSent
from dagster_exactly_once.sensors import incidents
from dagster_exactly_once.sensors.incidents import OVER_AFTER_S, NoticeSender
from exactly_once.tools.diagnosis import Diagnosis, Severity
from testkit.dagster_runs import Receiver
from testkit.sensor_facts import STREAM

AFTER_S = 180.0
BAD = Diagnosis("HEALTH-STALLED", Severity.ERROR, "s", "It is stalled", "Look")
SOON = Diagnosis("HEALTH-SLOW-START", Severity.WARN, "s", "It starts slowly", "Look")
HANGS = Diagnosis("HEALTH-HANGING", Severity.ERROR, "s", "It hangs", "Look")


def lag(level: int) -> Diagnosis:
    return Diagnosis("HEALTH-LAGGING", Severity.WARN, "s", "It lags", "Look", None, {"lag": level})


def told(
    *ticks: tuple[float, Diagnosis | None], receiver: Receiver | None = None, location: str = ""
) -> list[tuple[str, str, bool]]:
    """What is sent while a stream looks like this at these times: code, severity, whether it is over."""
    receiver, kept = receiver or Receiver(), {}
    for now, seen in ticks:
        sender = NoticeSender(receiver, "health", AFTER_S, location)
        kept, _ = sender.report(STREAM, seen, "Look.", json.loads(json.dumps(kept)), now)
    return [(n.code, n.severity, n.resolved) for n in receiver.taken]


STALLED, OVER = ("HEALTH-STALLED", CRITICAL, False), ("HEALTH-STALLED", CRITICAL, True)
LAGS, SLOW = ("HEALTH-LAGGING", WARNING, False), ("HEALTH-SLOW-START", WARNING, False)


@pytest.mark.parametrize(
    ("ticks", "sent"),
    [
        ([(0, BAD), (170, BAD)], []),  # a recovery may still help
        ([(0, BAD), (180, BAD)], [STALLED]),
        ([(0, BAD), (180, BAD), (190, BAD), (9_000, BAD)], [STALLED]),  # once
        ([(0, BAD), (100, None), (110, BAD), (200, BAD)], []),  # it was over in between
        ([(0, BAD), (180, BAD), (190, None), (200, BAD), (300, BAD)], [STALLED]),  # one look
        ([(0, BAD), (180, BAD), (190, None), (250, None), (260, None)], [STALLED, OVER]),
        ([(0, BAD), (180, BAD), (190, None), (250, None), (260, BAD), (440, BAD)], [STALLED, OVER, STALLED]),
        ([(0, HANGS)], [("HEALTH-HANGING", CRITICAL, False)]),  # nothing ends it but a person
        # a stream that falls behind, one that catches up with every batch, one that stops to catch up
        ([(0, lag(500)), (100, lag(400)), (180, lag(550))], []),
        ([(0, lag(500)), (100, lag(520)), (180, lag(510))], [LAGS]),
        ([(0, lag(500)), (100, lag(400)), (200, lag(300)), (300, lag(200)), (400, lag(100))], []),
        ([(0, lag(500)), (100, lag(400)), (200, lag(600)), (280, lag(400))], [LAGS]),
        # it gets worse: the same incident, told again when the worse has stayed too
        ([(0, SOON), (180, SOON), (190, BAD), (360, BAD), (370, BAD), (380, BAD)], [SLOW, STALLED]),
        ([(0, BAD), (180, BAD), (190, SOON), (900, SOON)], [STALLED]),  # it gets better
        ([(0, SOON), (170, SOON), (180, BAD)], []),  # a moment of worse wakes nobody
        ([(0, SOON), (10, BAD), (20, SOON), (180, SOON), (190, BAD)], [SLOW]),
    ],
)
def test_a_person_is_told_once_of_what_stays_and_once_that_it_is_over(ticks, sent) -> None:
    """A page for what mends by itself, or one at each tick, is switched off by the second night."""
    assert told(*ticks) == sent


def test_nothing_is_over_while_the_stream_is_down_and_its_input_waits() -> None:
    """Mishap: "no longer needs a person", of a stream that was down for good: its trouble had given way to its end."""
    receiver, kept = Receiver(), {}
    for now, seen in ((0, BAD), (180, BAD), (190, None), (900, None), (910, None)):
        kept, _ = NoticeSender(receiver, "health", AFTER_S).report(
            STREAM, seen, "Look.", kept, now, hold=190 <= now < 910
        )
        assert not receiver.taken or not receiver.taken[-1].resolved
    NoticeSender(receiver, "health", AFTER_S).report(STREAM, None, "Healthy.", kept, 910 + OVER_AFTER_S)
    assert [n.resolved for n in receiver.taken] == [False, True]


def test_all_notices_of_an_incident_have_its_key_and_the_next_incident_another() -> None:
    """A receiver joins what belongs together, and opens a new page for the next night."""
    receiver = Receiver()
    told((0, SOON), (180, SOON), (190, BAD), (400, BAD), (410, None), (480, None), receiver=receiver)
    assert [n.resolved for n in receiver.taken] == [False, False, True]
    assert len({n.incident for n in receiver.taken}) == 1
    mending = Receiver()
    told((0, lag(500)), (180, lag(500)), (190, lag(400)), (200, None), (260, None), receiver=mending)
    assert [n.resolved for n in mending.taken] == [False, True] and len({n.incident for n in mending.taken}) == 1
    other = Receiver()
    told((500, BAD), (700, BAD), receiver=other)
    assert other.taken[0].incident != receiver.taken[0].incident
    assert other.taken[0].what.startswith(BAD.text) and STREAM.asset in other.taken[0].what  # the next click


def test_streams_of_one_name_in_two_locations_have_incidents_of_their_own() -> None:
    """Trouble that begins in one second would be one page, and the end of one would close that of the other."""
    staging, production = Receiver(), Receiver()
    for receiver, name in ((staging, "staging"), (production, "production")):
        told((0, BAD), (180, BAD), (190, None), (260, None), receiver=receiver, location=f"__repository__@{name}")
        assert [n.location for n in receiver.taken] == [name, name] and len({n.incident for n in receiver.taken}) == 1
        assert all(f"the stream {STREAM.name} ({name}) " in n.headline for n in receiver.taken)
    assert staging.taken[0].incident != production.taken[0].incident


def test_an_incident_that_an_older_version_has_told_ends_by_its_name() -> None:
    """After an upgrade, the receiver would keep a page that nobody closes."""
    before, after = Receiver(), Receiver()
    kept, _ = NoticeSender(before, "health", 0.0).report(STREAM, BAD, "Look.", {}, 0.0)
    kept, _ = NoticeSender(after, "health", 0.0, "__repository__@staging").report(STREAM, None, "Healthy.", kept, 10.0)
    NoticeSender(after, "health", 0.0, "__repository__@staging").report(STREAM, None, "Healthy.", kept, 100.0)
    assert [n.incident for n in after.taken] == [before.taken[0].incident]


@pytest.mark.parametrize("error", [NotSent("the webhook is down"), RuntimeError("a bug in somebody's notifier")])
def test_a_notice_that_nobody_took_is_sent_by_the_next_tick_and_the_tick_lives(error: Exception) -> None:
    """A receiver that is down must neither swallow the notice, nor keep the sensor from recovering the stream."""
    receiver = Receiver()
    receiver.errors.append(error)
    sender = NoticeSender(receiver, "health", 0.0)
    kept, said = sender.report(STREAM, BAD, "Look.", {}, 0.0)
    assert "Nobody was notified" in said and not receiver.taken
    assert sender.send(receiver_notice()) and not receiver.taken  # it would take its time for each stream of this tick
    _, said = NoticeSender(receiver, "health", 0.0).report(STREAM, BAD, "Look.", kept, 10.0)
    assert said == "" and len(receiver.taken) == 1


def receiver_notice() -> Notice:
    return Notice("other", "o", "Look.", "X", "o/x")


def test_a_slow_receiver_does_not_hold_up_the_tick_for_each_stream(monkeypatch) -> None:
    """Dagster gives up a tick after a minute, with everything that it found out."""
    monkeypatch.setattr(incidents, "NOTICES_BUDGET_S", 0.0)
    assert "took longer" in NoticeSender(Receiver()).send(receiver_notice())


def test_an_end_that_nobody_took_is_told_again() -> None:
    """An incident that stays open in PagerDuty hides the next one."""
    receiver, kept = Receiver(), {}
    for now, seen in ((0, BAD), (180, BAD), (190, None)):
        kept, _ = NoticeSender(receiver, "health", AFTER_S).report(STREAM, seen, "Look.", kept, now)
    receiver.errors.append(NotSent("down"))
    over = 190 + OVER_AFTER_S
    kept, said = NoticeSender(receiver, "health", AFTER_S).report(STREAM, None, "Healthy.", kept, over)
    assert said and kept
    kept, said = NoticeSender(receiver, "health", AFTER_S).report(STREAM, None, "Healthy.", kept, over + 10)
    assert (said, kept) == ("", {}) and receiver.taken[-1].resolved

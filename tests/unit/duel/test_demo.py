"""The duel without Kafka and Spark: moments, counting, the verdict, the table, the picture; and what makes it fail."""

from __future__ import annotations

import io
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from rich.console import Console
from rich.text import Text

from exactly_once_local.duel import feed, picture, reader
from exactly_once_local.duel.departures import FlightEvent
from exactly_once_local.duel.kills import LONGEST_S, MOMENT_S, SHORTEST_S, TRIES, InBatch, Kills
from exactly_once_local.duel.score import FlightTally, Score, Story, markdown, number_of, rows
from exactly_once_local.duel.screen import Screen, show_result
from exactly_once_local.duel.sinks import OURS, SPARKS, DuelFailed
from testkit.processes import until

CLEAN = Score(OURS, flights=10, records=10, distinct=10, kills=3, seconds=61.4)
TWICE = replace(CLEAN, sink=SPARKS, records=13, seconds=50.0)


def record(number: int) -> bytes:
    return b'{"sequence":%d,"carrier":"UA"}' % number


def story() -> Story:
    told = Story(kills=[20.0, 40.0])
    told.add(10.0, 4, (replace(TWICE, records=0, distinct=0), replace(CLEAN, records=4, distinct=4)))
    told.add(61.4, 10, (TWICE, CLEAN))
    return told


def test_a_kill_waits_until_both_are_at_work_and_then_for_a_time_of_the_seed() -> None:
    """Else the one that starts slower would be killed before it has written anything."""

    def waits(seed: int) -> float:
        kills = Kills(seed, 3)
        assert not kills.aim(5.0, both_at_work=False)
        assert not kills.aim(6.0, both_at_work=True) and not kills.aim(6.0 + SHORTEST_S / 2, both_at_work=True)
        return next(n for n in range(100) if kills.aim(6.0 + n * LONGEST_S / 50, both_at_work=n % 2 == 0))

    assert waits(1) == waits(1) and len({waits(seed) for seed in range(9)}) > 1
    assert all(waits(seed) <= 50 for seed in range(9))


def test_only_kills_in_the_middle_of_a_batch_count_and_the_duel_goes_on_until_enough_did() -> None:
    """A duel that ended with 0 duplicates on both sides has shown nothing."""
    kills = Kills(1, 2)
    for struck, over in ((True, False), (False, False), (True, True)):
        assert not kills.over
        kills.killed(struck)
        assert kills.over is over and not kills.aim(1e9, both_at_work=False)
    assert (kills.done, kills.struck, kills.gave_up) == (3, 2, "")
    assert not kills.aim(1.0, both_at_work=True)


def test_a_duel_whose_moments_do_not_come_ends_and_says_so() -> None:
    """Guards against a demo that hangs where no batch lasts long enough, and against one that then says nothing."""
    kills = Kills(1, 3)
    kills.aim(0.0, both_at_work=True)
    assert kills.aim(MOMENT_S, both_at_work=True) and not kills.over
    assert not kills.aim(MOMENT_S + LONGEST_S, both_at_work=True) and kills.over
    assert "no moment came within 60 s" in kills.gave_up
    missed = Kills(1, 3)
    for _ in range(3 * TRIES):
        assert not missed.over
        missed.killed(False)
    assert missed.over and "9 kills came too late" in missed.gave_up


def test_only_records_that_came_after_a_batch_was_planned_are_of_it() -> None:
    """Guards against a kill between two batches that counts as one in the middle of a batch."""
    looks = [
        (3, 3, 100, False),  # nothing in flight
        (4, 3, 100, False),  # planned, nothing written
        (4, 3, 130, True),
        (4, 4, 150, False),
        (5, 4, 170, False),  # perhaps the last ones of batch 4
        (5, 4, 171, True),
        (6, 5, 190, False),
    ]
    watched = InBatch()
    assert [watched.seen(*look[:3]) for look in looks] == [look[3] for look in looks]


def test_the_screen_says_which_kill_struck_and_fits_80_columns() -> None:
    """A table that wraps cannot be read, and this one is made to be looked at."""
    console = Console(width=80, file=io.StringIO(), force_terminal=True, soft_wrap=True)
    kills, screen = Kills(1, 3), Screen(console)
    for struck in (True, False):
        kills.killed(struck)
        screen.killed(kills)
    large = replace(TWICE, flights=336_776, records=339_650, distinct=336_776, seconds=400.0, struck=3)
    with screen:
        screen.show((large, replace(large, sink=OURS)), ("writing", "starting"), 0.5)
    show_result(console, (large, replace(large, sink=OURS)))
    assert isinstance(console.file, io.StringIO)
    said = Text.from_ansi(console.file.getvalue()).plain
    assert re.search(r"both, in the middle .*\(1 of 3\)", said) and "does not count (1 of 3)" in said
    assert "seconds, restarts included" in said and said.count("in the middle") > 1
    assert max(len(line) for line in said.splitlines()) <= 80 and "…" not in said


class _Producer:
    """Takes every flight, and tells how that went in ``flush`` only, as a producer may."""

    error: KafkaError | None = None

    def __init__(self, settings: dict[str, object]):
        self._told: list[Callable[[KafkaError | None, None], None]] = []

    def produce(self, *record: object, on_delivery: Callable[[KafkaError | None, None], None], **more: object) -> None:
        self._told.append(on_delivery)

    def poll(self, seconds: float) -> None: ...

    def flush(self, seconds: float) -> int:
        for tell in self._told:
            tell(self.error, None)
        return 0


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> type[_Producer]:
    """A hundred flights for a feed, and the producer it sends them with."""
    monkeypatch.setattr(feed, "events", lambda: (FlightEvent(n, None, record(n), 0) for n in range(100)))
    monkeypatch.setattr(feed, "Producer", _Producer)
    monkeypatch.setattr(_Producer, "error", None)
    return _Producer


def test_a_flight_that_the_broker_refused_at_the_very_end_is_no_flight_that_both_sinks_lost(
    flights: type[_Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An early duel missed one flight on both sides: the last reports of deliveries come in the flush."""
    monkeypatch.setattr(flights, "error", KafkaError(KafkaError._MSG_TIMED_OUT))
    fed = feed.DuelFeed("", 1_000, 100)
    fed.send(5)
    with pytest.raises(DuelFailed, match="could not be sent"):
        fed.finish()


def test_the_feed_goes_at_the_rate_it_is_told(flights: type[_Producer]) -> None:
    """Slowly while a sink starts: else a busy machine would mostly show how a backlog is worked off."""
    fed = feed.DuelFeed("", 0, 100)
    fed.start()
    time.sleep(3 * feed.EVERY_S)
    assert fed.sent == 1, "the first one, before the thread begins"
    fed.rate = 1_000
    until("all are sent", lambda: fed.sent == 100, 10)
    assert fed.finish() == 100


def test_what_the_reader_could_not_read_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The duel fails then: a table with losses that are none would be wrong about both sinks."""

    class Stuck:
        def __init__(self, **settings: object): ...

        def position(self, place: object) -> int:
            return 0

        def poll(self, ms: int) -> dict[Any, Any]:
            return {}

    monkeypatch.setattr(reader, "KafkaConsumer", Stuck)
    monkeypatch.setattr(reader, "KafkaAdminClient", Stuck)
    monkeypatch.setattr(reader, "ends", lambda admin, places, isolation: dict.fromkeys(places, 1))
    monkeypatch.setattr(reader, "SETTLE_S", 0.01)
    with pytest.raises(DuelFailed, match=r"not reach .*end of duel-spark"):
        reader.Reader("", 10).settle()


@pytest.mark.parametrize(
    ("value", "number"),
    [(record(17), 17), (b'{"carrier":"UA"}', None), (b'{"sequence":null,"a":1}', None), (b"", None), (b"x:1,", None)],
)
def test_a_record_names_its_flight_or_is_none_of_the_duel(value: bytes, number: int | None) -> None:
    assert number_of(value) == number


def test_every_record_counts_once_as_new_again_or_unknown() -> None:
    """Duplicates are what is left over, so nothing may be counted twice or not at all."""
    tally = FlightTally(4)
    tally.add([record(0), record(1), record(1), record(1)])
    tally.add([record(3), record(4), b"?"])
    assert tally.seen == (7, 3, 2)
    assert tally.missing(4) == [2]
    score = Score(OURS, 4, *tally.seen)
    assert (score.duplicates, score.missing, score.unknown) == (2, 1, 2)


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        ({}, []),
        ({"distinct": 9, "records": 9}, ["1 lost"]),
        ({"records": 12}, ["2 duplicated"]),
        ({"records": 11, "unknown": 1}, ["1 never sent"]),
        ({"open_transactions": 1}, ["1 transactions left open"]),
        ({"held_back": 5}, ["5 offsets held back from readers"]),
    ],
)
def test_whatever_is_not_exactly_once_is_said(change: dict[str, int], problems: list[str]) -> None:
    """The exit code is 1 for each of them."""
    assert replace(CLEAN, **change).problems == problems


def test_the_table_shows_both_sinks_as_they_came_out() -> None:
    found = {what: (first, second) for what, first, second in rows((TWICE, CLEAN))}
    assert found["duplicated"] == ("3", "0")
    assert found["lost"] == ("0", "0")
    lines = markdown((TWICE, CLEAN)).splitlines()
    assert lines[0] == "| | Spark's own sink, `kafka` | This sink, `kafka_exactly_once` |"
    assert "| duplicated | 3 | 0 |" in lines
    assert "| seconds, restarts included | 50 | 61 |" in lines
    assert "never | 61 |" in markdown((replace(TWICE, distinct=9), CLEAN))
    assert {line.count("|") for line in lines} == {4}


def test_the_picture_is_xml_that_says_in_words_what_it_shows() -> None:
    """Text as text: it can be searched, and read aloud."""
    root = ET.fromstring(picture.draw(story(), (TWICE, CLEAN)))
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "3 duplicates" in words and "0 duplicates" in words
    assert words.count("kill -9") == 4, "two kills, in each of the two columns"
    assert "Spark's own sink: 3 duplicates, 0 lost." in root.attrib["aria-label"]


def test_the_picture_can_be_drawn_of_a_duel_without_duplicates_and_kills() -> None:
    """Spark's sink may be lucky."""
    told = Story()
    clean = replace(CLEAN, sink=SPARKS)
    told.add(9.0, 10, (clean, CLEAN))
    ET.fromstring(picture.draw(told, (clean, CLEAN)))


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (1, [0, 1]),
        (4, [0, 1, 2, 3, 4]),
        (7, [0, 2, 4, 6]),
        (2_874, [0, 1000, 2000]),
        (336_776, [0, 100_000, 200_000, 300_000]),
    ],
)
def test_a_scale_has_few_round_numbers(most: int, marks: list[int]) -> None:
    assert picture.scale(most) == marks

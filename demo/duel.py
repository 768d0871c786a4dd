"""One duel, from the first flight to what the reader found."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from demo.corner import Corner, kill_all, start_all
from demo.feed import Feed, make_topics
from demo.reader import Reader
from demo.referee import Referee
from demo.rules import SINKS, DuelFailed
from demo.score import Score, Story
from demo.screen import Screen

#: Both are looked at this often; a kill is on time all the same.
TICK_S = 0.1

#: A duel took five minutes on two cores that were busy with other work; one that takes twice as long hangs.
LIMIT_S = 600.0


@dataclass(frozen=True)
class Terms:
    """What a duel is about.

    Attributes
    ----------
    rate : int
        Flights a second; they come until the last kill is over, ``limit`` of them at most.
    batch : int
        Rows of a micro-batch, at most.
    moments : tuple of float
        From :func:`demo.referee.draw`.
    archive : Path
        From :func:`demo.archive.prepare`.
    """

    rate: int
    limit: int
    batch: int
    moments: tuple[float, ...]
    archive: Path


def hold(terms: Terms, brokers: str, folder: Path, screen: Screen) -> tuple[tuple[Score, Score], Story]:
    """Let both write while the flights come in, kill both at the moments of ``terms``, and count.

    Raises
    ------
    DuelFailed
        A driver ended by itself, or the duel did not come to its end.
    """
    make_topics(brokers)
    feed = Feed(brokers, terms.rate, terms.limit)
    feed.start()
    screen.say(f"{terms.rate:,} flights a second go to Kafka; both sinks start")
    corners = [Corner(sink, brokers, folder, terms.batch, terms.archive) for sink in SINKS]
    try:
        with Reader(brokers, terms.limit) as reader:
            return _Duel(terms, corners, feed, reader, screen).run()
    finally:
        for corner in corners:
            corner.close()


class _Duel:
    def __init__(self, terms: Terms, corners: list[Corner], feed: Feed, reader: Reader, screen: Screen):
        self._terms, self._corners, self._feed, self._reader = terms, corners, feed, reader
        self._screen, self._referee, self._story = screen, Referee(terms.moments), Story()
        self._began = time.monotonic()
        self._ended: dict[str, float] = {}

    def run(self) -> tuple[tuple[Score, Score], Story]:
        start_all(self._corners)
        while not (self._referee.over and self._both_at_work()):
            self._check_time()
            due = self._referee.next_kill(self._now, self._both_at_work())
            time.sleep(TICK_S if due is None else max(0.0, min(TICK_S, due - self._now)))
            if due is not None and self._now >= due:
                self._kill()
            self._show()
        self._screen.say(f"{self._feed.finish():,} flights are in Kafka; both write the rest")
        for corner in self._corners:
            corner.finish()
        while not self._all_done():
            self._check_time()
            time.sleep(TICK_S)
            self._show()
        held_back = self._reader.settle()
        if (there := self._reader.flights_in()) != self._feed.sent:
            raise DuelFailed(f"{self._feed.sent:,} flights were sent, and the input has {there:,}")
        first, second = (replace(s, held_back=held_back[s.sink.topic]) for s in self._show())
        for score in (first, second):
            if score.missing:
                named = self._reader.missing(score.sink, score.flights)
                self._screen.say(f"{score.sink.title} lost {score.missing:,} flights, the first are {named}")
        return (first, second), self._story

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _check_time(self) -> None:
        if self._now > LIMIT_S:
            raise DuelFailed(f"The duel did not end within {LIMIT_S:.0f} s")

    def _both_at_work(self) -> bool:
        return all(corner.at_work for corner in self._corners)

    def _all_done(self) -> bool:
        for corner in self._corners:
            if corner.done:
                self._ended.setdefault(corner.sink.name, self._now)
        return len(self._ended) == len(self._corners)

    def _kill(self) -> None:
        self._story.kills.append(self._now)
        kill_all(self._corners)
        self._referee.killed()
        self._screen.killed(len(self._story.kills), len(self._terms.moments))
        start_all(self._corners)

    def _show(self) -> tuple[Score, Score]:
        sent = self._feed.sent
        first, second = (self._score(corner, sent) for corner in self._corners)
        self._story.add(self._now, sent, (first, second))
        states = [self._state(corner) for corner in self._corners]
        self._screen.show((first, second), (states[0], states[1]))
        return first, second

    def _score(self, corner: Corner, sent: int) -> Score:
        seconds = self._ended.get(corner.sink.name, self._now)
        return self._reader.score(corner.sink, flights=sent, kills=corner.kills, seconds=seconds)

    def _state(self, corner: Corner) -> str:
        if corner.sink.name in self._ended:
            return "done"
        return "writing" if corner.at_work else "starting"

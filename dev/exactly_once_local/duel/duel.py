"""One duel, from the first flight to what the reader found."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from exactly_once_local.duel.feed import DuelFeed, make_topics
from exactly_once_local.duel.kills import Kills
from exactly_once_local.duel.moment import Moment
from exactly_once_local.duel.reader import Reader
from exactly_once_local.duel.score import Score, Story
from exactly_once_local.duel.screen import Screen
from exactly_once_local.duel.sinks import SINKS, DuelFailed, Sink
from exactly_once_local.duel.supervisor import Driver

#: Interval at which both sinks are shown.
TICK_S = 0.1

#: Interval of the looks for a moment to kill; a batch of Spark's own sink may take a tenth of a second.
AIM_S = 0.005

#: Share of the rate while a sink is starting: more would only be worked off at the end.
WHILE_STARTING = 0.1

#: Time after which a duel counts as hanging: it took nine minutes on two cores with a load of 14 to 42.
LIMIT_S = 1200.0


@dataclass(frozen=True)
class Terms:
    """The terms of a duel.

    Attributes
    ----------
    rate : int
        Flights a second while both sinks are at work; they come until the last kill is over, ``limit`` at most.
    batch : int
        Rows of a micro-batch, at most.
    kills : int
        Kills that must strike both sinks in the middle of a batch.
    seed : int
        Seed of the time between a start and the search for such a moment.
    java : str
        From :func:`exactly_once_local.duel.archive.prepare`.
    """

    rate: int
    limit: int
    batch: int
    kills: int
    seed: int
    java: str


def hold(terms: Terms, brokers: str, folder: Path, screen: Screen) -> tuple[tuple[Score, Score], Story]:
    """Let both sinks write while the flights come in, kill their driver in the middle of a batch of both, and count.

    Raises
    ------
    DuelFailed
        The driver ended by itself, the feed or the reader failed, or the duel did not come to its end.
    """
    make_topics(brokers)
    began = time.monotonic()
    with closing(Driver(brokers, folder, terms.batch, terms.java)) as driver:
        driver.start()
        screen.say("Both sinks start, in one driver process")
        feed = DuelFeed(brokers, terms.rate * WHILE_STARTING, terms.limit)
        feed.start()
        screen.say(f"Flights go to Kafka, {terms.rate:,} a second while both sinks write")
        with Reader(brokers, terms.limit) as reader, closing(Moment(brokers, folder)) as moment:
            return _Duel(terms, driver, feed, reader, moment, screen, began).run()


class _Duel:
    def __init__(
        self, terms: Terms, driver: Driver, feed: DuelFeed, reader: Reader, moment: Moment, screen: Screen, began: float
    ):
        self._terms, self._driver, self._feed, self._reader, self._moment = terms, driver, feed, reader, moment
        self._screen, self._kills, self._story = screen, Kills(terms.seed, terms.kills), Story()
        self._began = began
        self._complete: dict[str, float] = {}

    def run(self) -> tuple[tuple[Score, Score], Story]:
        while not (self._kills.over and self._driver.at_work):
            if self._kills.aim(self._now, self._driver.at_work):
                self._watch(TICK_S)
            else:
                time.sleep(TICK_S)
            self._take_scores()
        if why := self._kills.gave_up:
            self._screen.say(f"Only {self._kills.struck} of {self._kills.wanted} kills struck both: {why}")
        self._screen.say(f"{self._feed.finish():,} flights are in Kafka; both sinks write the rest")
        self._driver.finish()
        while not self._driver.done:
            time.sleep(TICK_S)
            self._note_complete(self._take_scores())
        return self._judge(), self._story

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _watch(self, seconds: float) -> None:
        """Kill at the first moment when both are in the middle of a batch, if it comes within ``seconds``."""
        end = self._now + seconds
        while not self._moment.come():
            if self._now > end:
                return
            time.sleep(AIM_S)
        self._story.kills.append(self._now)
        self._driver.kill()
        self._kills.killed(struck=self._moment.come())  # by what is left now that nothing runs
        self._screen.killed(self._kills)
        self._driver.start()

    def _take_scores(self) -> tuple[Score, Score]:
        """Take the state of both for the picture and the screen."""
        if self._now > LIMIT_S:
            raise DuelFailed(f"The duel did not end within {LIMIT_S:.0f} s")
        scores = self._scores()
        self._feed.rate = self._terms.rate * (1 if self._driver.at_work else WHILE_STARTING)
        self._screen.show(scores, (self._state(SINKS[0]), self._state(SINKS[1])), self._progress())
        return scores

    def _progress(self) -> float:
        """Return how much of the duel is over (a start, a kill, a start ..., the other flights); each counts alike."""
        over = 2 * self._kills.struck + self._driver.at_work + self._driver.done
        return over / (2 * self._terms.kills + 2)

    def _note_complete(self, scores: tuple[Score, Score]) -> None:
        for score in scores:
            if not score.missing:
                self._complete.setdefault(score.sink.name, self._now)

    def _judge(self) -> tuple[Score, Score]:
        held_back = self._reader.settle()
        if (there := self._reader.flights_in()) != self._feed.sent:
            raise DuelFailed(f"{self._feed.sent:,} flights were sent, and the input has {there:,}")
        self._note_complete(self._scores())
        first, second = (replace(s, held_back=held_back[s.sink.topic]) for s in self._take_scores())
        for score in (first, second):
            if score.missing:
                named = self._reader.missing(score.sink, score.flights)
                self._screen.say(f"{score.sink.title} lost {score.missing:,} flights, the first are {named}")
        return first, second

    def _scores(self) -> tuple[Score, Score]:
        sent = self._feed.sent
        first, second = (self._score(sink, sent) for sink in SINKS)
        self._story.add(self._now, sent, (first, second))
        return first, second

    def _score(self, sink: Sink, sent: int) -> Score:
        seconds = self._complete.get(sink.name, self._now)
        counted = {"kills": self._driver.kills, "struck": self._kills.struck}
        return self._reader.score(sink, flights=sent, seconds=seconds, **counted)

    def _state(self, sink: Sink) -> str:
        if sink.name in self._complete:
            return "done"
        return "writing" if self._driver.works(sink) else "starting"

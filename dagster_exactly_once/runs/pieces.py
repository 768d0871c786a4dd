"""A line of a long run each 30 s, and how far it is with the pieces of its work."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dagster_exactly_once.runs.failures import Failure, FailurePlace

#: The longest silence of a run that works, in seconds.
EVERY_S = 30.0


@contextmanager
def logged_every(log: Callable[[str], object], doing: Callable[[], str], every_s: float = EVERY_S) -> Iterator[None]:
    """Log what the block is ``doing``, each ``every_s``: from a thread, since the block may be one long call."""
    over, began = threading.Event(), time.monotonic()

    def beat() -> None:
        while not over.wait(every_s):
            log(f"{doing()}; this run has worked for {time.monotonic() - began:.0f} s.")

    thread = threading.Thread(target=beat, name="logged-every", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass
class Pieces:
    """The pieces of a run's work, such as days: those done, the one at work, those not tried.

    Attributes
    ----------
    kind : str
        One of them, in words.
    named : callable
        Returns several of them in words.
    again : callable
        Returns what a person launches for some of them.
    left, done : list of str
        Their names.
    at : str
        The one at work; "" between two.
    input : mapping
        Where the input of that one begins, by topic and partition.
    doing : str
        What the run does now.
    decided : callable
        Returns whether the commit log has decided the one at work; None when nobody can tell.
    """

    kind: str
    named: Callable[[Sequence[str]], str]
    again: Callable[[Sequence[str]], str]
    left: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    at: str = ""
    input: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    doing: str = "The run reads the commit log"
    decided: Callable[[], bool | None] = field(default=lambda: None)

    def begin(self, name: str, what: str, waiting: Mapping[str, Mapping[int, int]]) -> None:
        """Begin the next one."""
        self.left.remove(name)
        self.at, self.input, self.doing = name, waiting, what

    def end(self) -> None:
        """End the one at work: it is written."""
        self.done.append(self.at)
        self.at, self.input = "", {}

    @property
    def place(self) -> FailurePlace:
        """The place of the run, for the diagnosis of its failure."""
        piece = f"{self.kind} {self.at}" if self.at else ""
        return FailurePlace(piece=piece, again=self._again, waiting=self.input, decided=self.decided)

    @property
    def _again(self) -> str:
        return self.again([*([self.at] if self.at else []), *self.left])

    def failed(self, why: Failure) -> Failure:
        """Return the failure with what was done, what was not tried, and what a person launches."""
        place, told = self.place, [why.sentence.rstrip(". ")]
        if self.at and place.piece not in why.sentence:
            told.append(f"It happened on {place.piece}{f', which begins at {place.input}' if place.input else ''}")
        told += [f"{what}: {self.named(its)}" for what, its in (("Done", self.done), ("Not tried", self.left)) if its]
        remedy = why.remedy.rstrip(". ")
        if self._again not in remedy:
            remedy = f"{remedy}. Then {self._again}" if remedy else self._again
        return replace(why, sentence=f"{'. '.join(told)}.", remedy=remedy)

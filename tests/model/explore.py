"""Every state that can be reached, breadth first: the first violation found has a shortest way to it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.model.environment import Environment
from tests.model.properties import ENDS, illegal_step, violation
from tests.model.state import Actor, Rules, Scenario, World
from tests.model.steps import Actors, Step


@dataclass
class Found:
    """What an exploration found: the violations by kind, each with a shortest way to it, processor seconds, ends."""

    kinds: dict[str, list[str]] = field(default_factory=dict)
    states: int = 0
    seconds: float = 0.0
    ends: set[str] = field(default_factory=set)
    transitions: set[str] = field(default_factory=set)
    complete: bool = True

    @property
    def violation(self) -> str | None:
        """The first kind of violation, None without any."""
        return next(iter(self.kinds), None)

    @property
    def path(self) -> list[str]:
        """A shortest way to it."""
        return next(iter(self.kinds.values()), [])


#: As the code is.
ALL_RULES = Rules()


class Model:
    """One scenario under some rules."""

    def __init__(self, scenario: Scenario, rules: Rules = ALL_RULES):
        self.scenario, self.rules = scenario, rules
        self._actors = Actors(scenario, rules)
        self._environment = Environment(scenario, rules, self._actors)

    def start(self) -> World:
        """Nothing has begun."""
        return World(self.scenario.faults, tuple(Actor() for _ in self.scenario.kinds))

    def steps(self, w: World) -> Iterator[Step]:
        """Everything that may happen next."""
        yield from self._actors.steps(w)
        yield from self._environment.tasks(w)
        yield from self._environment.world(w)


def explore(
    scenario: Scenario, rules: Rules = ALL_RULES, limit: int = 5_000_000, every_kind: bool = False, lives: bool = False
) -> Found:
    """Look at every state until a property is violated; with ``every_kind``, until every kind of violation is found.

    With ``lives``, a part that takes a step which its :class:`PartState` does not have is a violation too. ``complete``
    of the answer is False when ``limit`` states were not enough.
    """
    began = time.process_time()
    model = Model(scenario, rules)
    start = model.start()
    back: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([start])
    found = Found()
    unseen = dict(ENDS)
    while queue and len(back) <= limit:
        w = queue.popleft()
        for name, text, nw in model.steps(w):
            found.transitions.add(name)
            if nw in back:
                continue
            back[nw] = (w, text)
            bad = violation(nw, w, scenario)
            if bad is None and lives:
                bad = illegal_step(nw, w)
            for end in [end for end, holds in unseen.items() if holds(nw, scenario)]:
                del unseen[end]
            if bad is None:
                queue.append(nw)
                continue
            found.kinds.setdefault(bad, _path(back, nw))
            if not every_kind:
                queue.clear()
                break
    found.states, found.seconds, found.ends = len(back), time.process_time() - began, set(ENDS) - set(unseen)
    found.complete = not queue
    return found


def _path(back: dict[World, tuple[World, str] | None], w: World) -> list[str]:
    path = []
    while (before := back[w]) is not None:
        w, text = before
        path.append(text)
    return path[::-1]

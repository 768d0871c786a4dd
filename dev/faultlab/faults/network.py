"""The network between the stream and its brokers, and between the brokers: one direction at a time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from faultlab.broker import BETWEEN, SYSTEM
from faultlab.faults.fault import Fault
from faultlab.proxy import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Direction,
    ProxyAction,
    Rule,
)

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: Requests whose answers matter most, one kind at a time; the first one alone is all of them.
KINDS = (
    frozenset[int](),
    frozenset({END_TXN}),
    frozenset({PRODUCE}),
    frozenset({INIT_PRODUCER_ID}),
    frozenset({ADD_PARTITIONS, ADD_OFFSETS, TXN_OFFSET_COMMIT}),
    frozenset({DESCRIBE_TRANSACTIONS}),
    frozenset({FETCH}),
)

#: What a client may send twice: with the same producer id, epoch and sequence. A second InitProducerId would fence the
#: first, which is no repetition.
REPEATED = (frozenset({END_TXN}), frozenset({PRODUCE}), frozenset({END_TXN, PRODUCE, TXN_OFFSET_COMMIT}))

#: All connections, or some of them.
SHARES = (1.0, 1.0, 0.5, 0.2)

#: Below and above the time-outs of single requests, in seconds.
DELAYS_S = (0.05, 0.3, 1.5)


class _Network(Fault):
    """A rule of some proxies."""

    action: ProxyAction
    listener = SYSTEM
    directions: tuple[Direction, ...] = tuple(Direction)

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return bool(lab.broker.proxies) and (cls.listener != BETWEEN or lab.broker.nodes > 1)

    def do(self, lab: Lab, random: Random) -> str:
        proxies = {node: p for (listener, node), p in lab.broker.proxies.items() if listener == self.listener}
        nodes = [random.choice(sorted(proxies))] if random.random() < 0.5 else sorted(proxies)
        self._rule = self.rule(random)
        self._proxies = [proxies[node] for node in nodes]
        for proxy in self._proxies:
            proxy.add(self._rule)
        return f"nodes {nodes}: {self._rule}"

    def rule(self, random: Random) -> Rule:
        """Draw what happens."""
        return Rule(
            random.choice(self.directions),
            self.action,
            random.choice(SHARES),
            random.choice(KINDS),
            random.choice(DELAYS_S),
            random.randrange(1000),
        )

    def undo(self, lab: Lab) -> None:
        for proxy in self._proxies:
            proxy.remove(self._rule)


class HoldNetwork(_Network):
    """A partition in one direction; what was on its way arrives late."""

    name = "net-hold"
    what = "requests, or answers, wait until the fault ends and then arrive late: as packets lost and sent again"
    action = ProxyAction.HOLD


class DelayNetwork(_Network):
    """A slow line."""

    name = "net-delay"
    what = "requests, or answers, arrive 0.05, 0.3 or 1.5 s later"
    action = ProxyAction.DELAY


class SwallowNetwork(_Network):
    """A request that never arrives, or one that arrives and is never answered."""

    name = "net-swallow"
    what = "requests, or answers, never arrive; the connection stays open until the fault ends"
    action = ProxyAction.SWALLOW


class CutNetwork(_Network):
    """A connection that breaks before a request, or between a request and its answer."""

    name = "net-cut"
    what = "connections are closed before a request, or between a request and its answer"
    action = ProxyAction.CUT


class TearNetwork(_Network):
    """Half of a request or an answer."""

    name = "net-tear"
    what = "half of a request, or of an answer, arrives; then the connection is closed"
    action = ProxyAction.TEAR


class RepeatNetwork(_Network):
    """A request that the broker sees twice."""

    name = "net-repeat"
    what = "Produce, EndTxn or TxnOffsetCommit arrives twice"
    action, directions = ProxyAction.REPEAT, (Direction.REQUESTS,)

    def rule(self, random: Random) -> Rule:
        return Rule(Direction.REQUESTS, self.action, random.choice(SHARES), random.choice(REPEATED))


class CutAll(Fault):
    """A firewall that restarts."""

    name = "net-reset"
    what = "every connection of the stream is closed, once"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return bool(lab.broker.proxies)

    def do(self, lab: Lab, random: Random) -> str:
        cut = [proxy.cut_all() for (listener, _), proxy in lab.broker.proxies.items() if listener == SYSTEM]
        return f"{sum(cut)} connections"


class Between(_Network):
    """The brokers lose each other in one direction: replication stops, leaders and coordinators move or stand still."""

    name = "net-between"
    what = "requests, or answers, between the brokers (replication, transaction markers) wait, or are cut"
    listener = BETWEEN

    def rule(self, random: Random) -> Rule:
        action = random.choice((ProxyAction.HOLD, ProxyAction.CUT, ProxyAction.DELAY))
        return Rule(random.choice(tuple(Direction)), action, 1.0, frozenset(), random.choice(DELAYS_S))


NETWORK = (
    HoldNetwork, DelayNetwork, SwallowNetwork, CutNetwork, TearNetwork, RepeatNetwork, CutAll, Between,
)  # fmt: skip

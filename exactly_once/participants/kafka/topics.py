"""The topics of a decided batch as they are now: an answer about a transaction does not speak of a recreated topic."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass

from kafka.errors import KafkaError

from exactly_once.deadline import Deadline
from exactly_once.errors import NotAuthorized
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.protocol.topics import recreated

#: Time for which a topic that a broker does not know is asked for again: a broker may hear of it late.
_SURE_S = 2.0


@dataclass(frozen=True)
class Topics:
    """The topics of a decided batch, compared with their ids in its decision: partitions ``away`` without a leader,
    topics that have another id now, topics that are gone, and whether some topic of the batch is still the one it was
    written to (``stand``).
    """

    away: list[Partition]
    recreated: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    stand: bool = True

    @property
    def changed(self) -> frozenset[str]:
        return self.recreated | self.gone


#: Topics of a batch that are those that it was written to.
AS_DECIDED = Topics([])


def topics_now(admin: Admin, partitions: Collection[Partition], ids: Mapping[str, str]) -> Topics:
    """Ask for the topics, and wait for the leaders of ``partitions``, within the budget: one request if all is well.
    ``ids`` are the topics of the batch with the ids that its decision has; "" when it has none.

    Where a transaction ends while one of its partitions has no leader, Kafka (4.3 at least) takes that one for deleted:
    it writes no end marker there, and the next transaction of the producer decides over both. Whoever may not describe
    the topics ends transactions all the same.
    """
    compared, sure = AS_DECIDED, Deadline(_SURE_S)
    for _ in admin.deadline.tries() if partitions or ids else ():
        try:
            compared = admin.ask(lambda: _ask_once(admin, partitions, ids))
        except NotAuthorized:
            return AS_DECIDED
        if not compared.away and (not compared.gone or sure.over):
            break
    return compared


def begin_looking(admin: Admin, partitions: Collection[Partition], ids: Mapping[str, str]) -> Awaitable[Topics]:
    """Ask once, as :func:`topics_now` does, without waiting: :func:`end_looking`."""
    return admin.begin(lambda: _ask_once(admin, partitions, ids))


def end_looking(admin: Admin, begun: Awaitable[Topics]) -> Topics | None:
    """Return what :func:`begin_looking` has asked for; None when the brokers did not answer, or not for good."""
    try:
        found = admin.run(lambda: begun)
    except KafkaError:
        return None
    return None if found.gone else found


async def _ask_once(admin: Admin, partitions: Collection[Partition], ids: Mapping[str, str]) -> Topics:
    leaderless: list[Partition] = []
    now: dict[str, str] = {}
    await admin.leaders(sorted({topic for topic, _ in partitions} | set(ids)), leaderless, now)
    return compare(ids, now, [p for p in leaderless if p in partitions])


def compare(ids: Mapping[str, str], now: Mapping[str, str], leaderless: Collection[Partition] = ()) -> Topics:
    """Compare the ids of a decision's topics with those of the topics that exist ``now``."""
    gone = frozenset(topic for topic in ids if topic not in now)
    again = frozenset(recreated(ids, now))
    away = sorted(p for p in leaderless if p[0] not in again)
    return Topics(away, again, gone, stand=not ids or again != frozenset(ids))

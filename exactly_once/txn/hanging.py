"""End what Kafka has left open: a transaction at a partition's leader that its coordinator calls ended.

Kafka 4.3.1 leaves out the end marker of a partition that has no leader just then: of every open transaction, say, that
has timed out while a broker was away. The id of such a transaction can do it: its coordinator adds these partitions to
a new transaction of the same producer, and the end marker of that one ends what is open there. Nothing is written, and
WRITE on the id and on the topic is enough, where WriteTxnMarkers needs ALTER on the cluster. The new transaction is
always aborted: whoever died before a commit would leave it to a timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.txn.coordinators import (
    ENDED,
    Description,
    add_partitions,
    describe,
    end_one,
    end_txn_version,
    ids_of,
    initialise,
)
from exactly_once.txn.leaders import Hanging, open_where_asked, write_marker

#: Timeout of the transaction that ends another one: it is ended at once, and if its owner dies by this timeout.
_TIMEOUT_MS = 10_000

#: Budget for asking the leaders and ending what they know as open, until they no longer do.
END_BUDGET_S = 5.0

#: Function that says whether to commit a hanging transaction (True) or to abort it; None: to leave it as it is. Its
#: coordinator's view of its id is given too.
How = Callable[[Hanging, Description], bool | None]


class Left(NamedTuple):
    """The hanging transactions that were ended, those that were left, and why some could not be found or ended."""

    ended: list[Hanging]
    left: list[Hanging]
    why: str = ""


def was_aborted(h: Hanging, d: Description, version: int) -> bool:
    """Return whether the coordinator's word is that it aborted this very transaction; ``version`` is that of EndTxn on
    this cluster.

    A timeout raises the epoch in every version of EndTxn, but below version 5 the next transaction has that epoch too.
    """
    same = d.producer_epoch == h.producer_epoch
    raised = version >= 5 and d.producer_epoch == h.producer_epoch + 1
    return d.state == "CompleteAbort" and d.producer_id == h.producer_id and (same or raised)


def end_left_open(admin: Admin, topics: Iterable[str], mine: Callable[[str], bool], how: How) -> Left:
    """End the hanging transactions on ``topics`` whose transactional id satisfies ``mine``, as ``how`` says.

    Each is ended under the producer id and epoch that its coordinator named last: under an id that somebody has
    initialised since, no marker is written. (Its coordinator compares epochs behind the abort of what is open.)

    Raises BrokerUnreachable or NotAuthorized when nothing could be asked.
    """
    names, ended = sorted(set(topics)), dict[tuple[object, ...], Hanging]()
    left: list[Hanging] = []
    why = ""
    for _ in Deadline(min(END_BUDGET_S, max(1.0, admin.deadline.left))).tries() if names else ():
        hanging, why, silent = _hanging(admin, names, mine)
        todo: dict[tuple[str, bool], list[tuple[Hanging, Description]]] = {}
        for h, d in hanging:
            if (commit := how(h, d)) is not None:
                todo.setdefault((d.transactional_id, commit), []).append((h, d))
        left = [h for h, _ in hanging]
        for (_, commit), some in todo.items():
            try:
                _commit(admin, some) if commit else _abort(admin, some)
                ended |= {h[:6]: h for h, _ in some}
            except ExactlyOnceError as e:
                why = e.what
        if not todo and not silent:
            break
    remaining = {h[:6] for h in left}
    return Left([h for key, h in ended.items() if key not in remaining], left, why)


def _hanging(
    admin: Admin, topics: list[str], mine: Callable[[str], bool]
) -> tuple[list[tuple[Hanging, Description]], str, bool]:
    """Return what is open on ``topics`` and ended by the word of its coordinator; why some leaders could not be asked;
    and whether these may answer the next time.
    """
    opened, why, silent = open_where_asked(admin, topics)
    ids = ids_of(admin, {h.producer_id for h in opened}) if opened else {}
    known = describe(admin, {i for i in ids.values() if mine(i)})
    asked = [(h._replace(transactional_id=i), known[i]) for h in opened if (i := ids.get(h.producer_id, "")) in known]
    past = [(h, d) for h, d in asked if d.state in ENDED and d.producer_id == h.producer_id]
    if not past:
        return [], why, silent
    # one whose markers were written between the two looks is not hanging
    still, _, later = open_where_asked(admin, sorted({h.topic for h, _ in past}))
    keys = {h[:6] for h in still}
    return [(h, d) for h, d in past if h[:6] in keys], why, silent or later


def _abort(admin: Admin, some: list[tuple[Hanging, Description]]) -> None:
    name, d = some[0][1].transactional_id, some[0][1]
    for topic in {h.topic for h, _ in some}:
        admin.check_rights(topic, ("WRITE",))  # checked before the id forgets how its last transaction ended
    producer_id, epoch = initialise(admin, name, _TIMEOUT_MS, d.producer_id, d.producer_epoch)
    if producer_id != d.producer_id:  # its epochs are used up: the markers of the new one end nothing of the old one
        return
    add_partitions(admin, name, producer_id, epoch, [(h.topic, h.partition) for h, _ in some])
    end_one(admin, name, producer_id, epoch, False, end_txn_version(admin))


def _commit(admin: Admin, some: list[tuple[Hanging, Description]]) -> None:
    for h, _ in some:
        write_marker(admin, h, commit=True)

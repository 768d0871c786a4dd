"""Transactions, by their coordinators: requests over an :class:`~exactly_once.kafka.admin.Admin`, whose budget and
errors each function has.

Sources: KIP-98 and KIP-890 (EndTxn), KIP-664 (List- and DescribeTransactions), KIP-1152 (id pattern).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self
from uuid import uuid4

from kafka.errors import KafkaError
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from exactly_once.errors import BrokerRefused, BrokerTooOld, NotAuthorized
from exactly_once.kafka.admin import Admin, Partition, by_topic
from exactly_once.kafka.asking import IDS_AT_ONCE, IN_FLIGHT
from exactly_once.kafka.cluster_info import finalized_features
from exactly_once.kafka.errors import LOWERED, RAISE, check, name_of, refuse
from exactly_once.protocol.outcomes import Outcome, read_answer
from exactly_once.protocol.records import PreparedTransaction

#: Version of InitProducerId: brokers since 2.7 know it, and later versions change nothing in what is asked here.
_INIT_VERSION = 4

#: Version of AddPartitionsToTxn: later ones are for brokers.
_ADD_VERSION = 3

#: The EndTxn version of transaction.version 2. Level 1 takes it, too; level 0, to which Kafka calls the way back safe,
#: cannot write the state of an id that was used with it, and keeps the id busy until its coordinator restarts.
FENCING_VERSION = 5

#: The states in which no transaction of an id is under way: its coordinator has nothing to end any more.
ENDED = ("Empty", "CompleteCommit", "CompleteAbort")


class Listing(NamedTuple):
    """One row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class End(NamedTuple):
    """One transaction to end: exactly the one that (producer id, epoch) of this id began."""

    transactional_id: str
    producer_id: int
    epoch: int

    @classmethod
    def of(cls, handle: PreparedTransaction) -> Self:
        """Return the identity that an EndTxn for the transaction of ``handle`` needs."""
        return cls(handle.transactional_id, handle.producer_id, handle.epoch)


class Description(NamedTuple):
    """A coordinator's view of one transactional id.

    Times are the coordinator's, in ms (``started_ms`` -1 outside a transaction). ``state`` is "" when no coordinator
    knows the id.
    """

    transactional_id: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = 0
    started_ms: int = -1
    partitions: tuple[tuple[str, int], ...] = ()
    coordinator: int = -1

    @property
    def end(self) -> End:
        """The identity that ends this very transaction, and no later one of the same id."""
        return End(self.transactional_id, self.producer_id, self.producer_epoch)


def begin_features(admin: Admin) -> Awaitable[Mapping[str, int]]:
    """Ask what :func:`end_txn_version` does while its caller asks something else."""
    return admin.begin(partial(finalized_features, admin))


def end_txn_version(admin: Admin, begun: Awaitable[Mapping[str, int]] | None = None, old_s: float = 0.0) -> int:
    """Return the EndTxn version for new decisions.

    5 where the cluster's finalized transaction.version is 2 or more, else at most 4 (the broker takes the semantics
    from the version alone, so 5 must not be sent below that). ``begun`` and ``old_s`` as for
    :func:`transaction_level`.

    Raises
    ------
    BrokerTooOld
        Without EndTxn 3 (Kafka 2.8) or DescribeTransactions (Kafka 3.0).
    """
    level = transaction_level(admin, begun, old_s)
    end_txn = admin.api_version(EndTxnRequest())
    if end_txn < 3 or admin.api_version(DescribeTransactionsRequest()) < 0:
        raise BrokerTooOld(
            f"the brokers at {admin.connection.bootstrap_servers} cannot describe transactions (KIP-664)",
            "Use Apache Kafka 3.0 or newer, or a service that has these requests (docs/managed-kafka.md); this one can "
            "be an input",
        )
    return min(end_txn, FENCING_VERSION if level >= 2 else 4)


def transaction_level(admin: Admin, begun: Awaitable[Mapping[str, int]] | None = None, old_s: float = 0.0) -> int:
    """Return the cluster's finalized transaction.version (KIP-890), by an answer no older than that; 0 where the
    brokers have none. ``begun`` is what :func:`begin_features` has returned.
    """
    ask = partial(admin.ask, partial(finalized_features, admin), begun)
    [features] = admin.remembered("features", lambda: [ask()], old_s)  # kept also where a cluster has none
    return features.get("transaction.version", 0)


def refuse_lowered(admin: Admin, used: Iterable[int]) -> None:
    """Raise BrokerRefused where ids were ``used`` with EndTxn 5 and the cluster's transaction.version is 0 now: before
    a request keeps one of them busy. Asks the brokers only where it was used.
    """
    if max(used, default=0) >= FENCING_VERSION and transaction_level(admin) == 0:
        raise BrokerRefused(LOWERED, RAISE, "Nothing was written; a decided batch stays decided")


# -- look -------------------------------------------------------------------------------------------------------------


def list_transactions(admin: Admin, prefix: str = "", states: Sequence[str] = ("Ongoing",)) -> list[Listing]:
    """Return the transactional ids that begin with ``prefix`` and are in one of ``states`` (any state when empty).

    Asks every broker; one that is still loading its part of the transaction log is asked again, since its ids would be
    missed. Ids without the DESCRIBE right are left out by the broker, silently: see :func:`check_seen`.
    """
    options: dict[str, Any] = {"state_filters": list(states)}
    if prefix and admin.api_version(ListTransactionsRequest()) >= 2:
        options["transactional_id_pattern"] = re.escape(prefix) + ".*"
    answer = admin.call(lambda: admin.client.list_transactions(broker_ids=admin.run(admin.brokers), **options))
    return [
        Listing(t.transactional_id, t.producer_id, str(t.state.value), broker)
        for broker, rows in answer.items()
        for t in rows
        if t.transactional_id.startswith(prefix)
    ]


def ids_of(admin: Admin, producer_ids: set[int]) -> dict[int, str]:
    """Return the transactional ids to which the coordinators have given these producer ids."""
    wanted = sorted(producer_ids)
    answer = admin.call(
        lambda: admin.client.list_transactions(broker_ids=admin.run(admin.brokers), producer_id_filters=wanted)
    )
    return {t.producer_id: t.transactional_id for rows in answer.values() for t in rows}


def check_seen(admin: Admin, prefix: str, begun: Awaitable[object] | None = None) -> None:
    """Raise NotAuthorized unless :func:`list_transactions` lists the ids that begin with ``prefix``: without the right,
    nothing is open as far as this principal can see. ``begun`` is what :func:`begin_check_seen` has returned.
    """
    try:
        admin.ask(partial(_describe, admin, [_check_id(prefix)]), begun)
    except NotAuthorized as e:
        raise NotAuthorized(
            f"this principal may not see the transactional ids with the prefix {prefix}, so the brokers leave them "
            "out of their answers",
            f"Grant DESCRIBE on the transactional ids with the prefix {prefix} (principals that run streams, "
            "writes or recoveries need WRITE, which includes it)",
        ) from e


def begin_check_seen(admin: Admin, prefix: str) -> Awaitable[object]:
    """Ask what :func:`check_seen` does while its caller asks something else."""
    return admin.begin(partial(_describe, admin, [_check_id(prefix)]))


def _check_id(prefix: str) -> str:
    """Return an id with this prefix that nobody initialises."""
    return f"{prefix}check"


def check_all_seen(admin: Admin) -> None:
    """Raise NotAuthorized unless the brokers show this principal every transactional id."""
    try:
        describe(admin, [uuid4().hex])  # an id that no right on a prefix covers
    except NotAuthorized as e:
        raise NotAuthorized(
            "this principal may not see all transactional ids",
            "Grant DESCRIBE on all transactional ids (*); docs/reference.md lists all rights",
        ) from e


def describe(admin: Admin, transactional_ids: Iterable[str]) -> dict[str, Description]:
    """Return the coordinators' view of these ids, all coordinators asked at once."""
    ids = list(dict.fromkeys(transactional_ids))
    return admin.ask(partial(_describe, admin, ids)) if ids else {}


async def _describe(admin: Admin, ids: list[str]) -> dict[str, Description]:
    by_node: dict[int, list[str]] = {}
    for transactional_id, node in (await admin.coordinators(ids)).items():
        by_node.setdefault(node, []).append(transactional_id)
    rows: list[tuple[int, Any]] = []
    try:
        while by_node:
            sent = [
                (node, admin.send(DescribeTransactionsRequest(transactional_ids=some[:IDS_AT_ONCE]), node))
                for node, some in by_node.items()
            ]
            rows += [(node, t) for node, answer in sent for t in (await answer).transaction_states]
            by_node = {node: rest for node, some in by_node.items() if (rest := some[IDS_AT_ONCE:])}
    except KafkaError:
        for transactional_id in ids:  # the coordinator died: its successor has to be looked up
            admin.forget_coordinator(transactional_id)
        raise
    return {t.transactional_id: _description(admin, node, t) for node, t in rows}


def _description(admin: Admin, node: int, t: Any) -> Description:
    if name_of(t.error_code) == "TRANSACTIONAL_ID_NOT_FOUND":
        return Description(t.transactional_id, coordinator=node)
    if t.error_code:
        admin.forget_coordinator(t.transactional_id)
        refuse(t.error_code, f"DescribeTransactions of {t.transactional_id}")
    return Description(
        t.transactional_id,
        t.transaction_state,
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        timeout_ms=t.transaction_timeout_ms,
        started_ms=t.transaction_start_time_ms,
        partitions=tuple(sorted((topic.topic, p) for topic in t.topics for p in topic.partitions)),
        coordinator=node,
    )


# -- end --------------------------------------------------------------------------------------------------------------


def initialise(
    admin: Admin, transactional_id: str, timeout_ms: int, producer_id: int = -1, epoch: int = -1
) -> tuple[int, int]:
    """Initialise an id: no producer that was initialised with it before can begin a transaction any more, and what one
    of them has begun is aborted. Return the producer id and the epoch.

    Parameters
    ----------
    timeout_ms : int
        transaction.timeout.ms of what is begun with it.
    producer_id, epoch : int
        Only if these are the id's last ones (KIP-360); -1: whatever they are. Else BrokerRefused is raised; with its
        last producer id and another epoch, what is open is aborted all the same.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        max_version=_INIT_VERSION,
    )

    async def question() -> tuple[int, int]:
        node = (await admin.coordinators([transactional_id]))[transactional_id]
        try:
            answer = await admin.send(request, node)
            check(answer.error_code, f"InitProducerId of {transactional_id}")
        except KafkaError:
            admin.forget_coordinator(transactional_id)
            raise
        return answer.producer_id, answer.producer_epoch

    return admin.ask(question)


def begin_initialise(admin: Admin, transactional_id: str) -> None:
    """Look up whom :func:`initialise` will ask while its caller asks something else."""

    async def question() -> None:
        with suppress(KafkaError):  # it is looked up again, then
            await admin.coordinators([transactional_id])

    admin.begin(question)


def add_partitions(
    admin: Admin, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[Partition]
) -> None:
    """Add partitions to the transaction of a producer, which begins with the first ones; its end writes a marker to
    each. It needs WRITE on the id and on the topics.
    """
    request = add_request(transactional_id, producer_id, epoch, partitions)

    async def question() -> None:
        node = (await admin.coordinators([transactional_id]))[transactional_id]
        try:
            check_added(await admin.send(request, node))
        except KafkaError:
            admin.forget_coordinator(transactional_id)
            raise

    admin.ask(question)


def add_request(transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[Partition]) -> Any:
    """Return the request of :func:`add_partitions`."""
    of_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[of_topic(name=name, partitions=some) for name, some in by_topic(partitions).items()],
        max_version=_ADD_VERSION,
    )


def check_added(answer: Any) -> None:
    """Raise kafka-python's error for the first partition that an answer to :func:`add_request` refuses."""
    for topic in answer.results_by_topic_v3_and_below:
        for p in topic.results_by_partition:
            check(p.partition_error_code, f"AddPartitionsToTxn of {topic.name}-{p.partition_index}")


def end_one(admin: Admin, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int) -> Outcome:
    """End one transaction; see :func:`end_all`."""
    return end_all(admin, [End(transactional_id, producer_id, epoch)], commit, version)[transactional_id]


def end_all(admin: Admin, ends: Sequence[End], commit: bool, version: int) -> dict[str, Outcome]:
    """Send EndTxn for all of ``ends``, in their order, to all coordinators at once; repeat what got no definite answer
    until the budget is spent.

    Parameters
    ----------
    version : int
        The version of the request, and of the first try if this is a retry: it chooses the semantics on the broker.

    Returns
    -------
    dict of str to Outcome
        By transactional id; ``RETRY`` for those without a definite answer within the budget.
    """
    outcomes = dict.fromkeys((e.transactional_id for e in ends), Outcome.RETRY)
    todo = list(ends)
    for _ in admin.deadline.tries():
        outcomes |= _end_round(admin, todo, commit, version)
        todo = [e for e in todo if outcomes[e.transactional_id] is Outcome.RETRY]
        if not todo:
            break
    return outcomes


def _end_round(admin: Admin, ends: list[End], commit: bool, version: int) -> dict[str, Outcome]:
    """Ask for each of ``ends`` once, many of them over several connections; no answer for what was not sent."""
    admins = admin.shares(len(ends))
    if len(admins) == 1:
        return _end_share(admin, ends, commit, version)
    with ThreadPoolExecutor(len(admins), "exactly-once-end") as threads:
        asked = [threads.submit(_end_share, a, ends[n :: len(admins)], commit, version) for n, a in enumerate(admins)]
    return {transactional_id: outcome for share in asked for transactional_id, outcome in share.result().items()}


def _end_share(admin: Admin, ends: list[End], commit: bool, version: int) -> dict[str, Outcome]:
    """Ask for each of ``ends`` once, by windows that a connection takes."""

    async def question() -> dict[str, Outcome]:
        coordinators = await admin.coordinators([e.transactional_id for e in ends])
        queues: dict[int, list[End]] = {}
        for e in ends:
            queues.setdefault(coordinators[e.transactional_id], []).append(e)
        outcomes: dict[str, Outcome] = {}
        while queues and not admin.deadline.over:
            window = {node: queue[:IN_FLIGHT] for node, queue in queues.items()}
            sent = [(e, admin.send(_end_txn(e, commit, version), node)) for node, some in window.items() for e in some]
            outcomes |= {e.transactional_id: await _outcome(answer) for e, answer in sent}
            # a coordinator that does not answer may be dead: the next round asks its successor
            queues = {
                node: rest
                for node, queue in queues.items()
                if (rest := queue[IN_FLIGHT:])
                and any(outcomes[e.transactional_id] is not Outcome.RETRY for e in window[node])
            }
        for e in ends:
            if outcomes.get(e.transactional_id, Outcome.RETRY) is Outcome.RETRY:
                admin.forget_coordinator(e.transactional_id)
        return outcomes

    try:
        return admin.run(question)
    except KafkaError as e:
        if not e.retriable:
            raise admin.named(e) from e
        return {}


async def _outcome(answer: Any) -> Outcome:
    try:
        return read_answer(name_of((await answer).error_code))
    except KafkaError as failure:
        if not failure.retriable:
            raise
        return Outcome.RETRY  # something broke on the way: nobody knows whether the broker acted


def _end_txn(e: End, commit: bool, version: int) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=e.transactional_id,
        producer_id=e.producer_id,
        producer_epoch=e.epoch,
        committed=commit,
        min_version=version,
        max_version=version,
    )

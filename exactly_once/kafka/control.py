"""The transaction control plane: the requests that librdkafka does not have, sent raw through kafka-python.

Sources: KIP-98 and KIP-890 (EndTxn), KIP-664 (List- and DescribeTransactions), KIP-1152 (id pattern).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from kafka.errors import KafkaError, for_code
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest
from kafka.structs import TopicPartition

from exactly_once.kafka.raw import IN_FLIGHT, RawClient
from exactly_once.protocol.outcomes import Outcome, read_answer
from exactly_once.protocol.records import PreparedTransaction

#: In one request that names ids. A request is given up after a fixed time, so what it asks must not grow with a batch;
#: a thousand take a broker some tens of milliseconds.
IDS_AT_ONCE = 1_000

#: Of InitProducerId: brokers since 2.7 know it, and later versions change nothing in what is asked here.
_FENCE_VERSION = 4


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
        """What ends the transaction of ``handle``."""
        return cls(handle.transactional_id, handle.producer_id, handle.epoch)


class Description(NamedTuple):
    """A coordinator's view of one transactional id.

    Times are the coordinator's, in ms (``started_ms`` -1 outside a transaction). ``state`` is "" when no coordinator
    knows the id.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[tuple[str, int], ...]
    coordinator: int

    @property
    def end(self) -> End:
        """What ends this very transaction, and no later one of the same id."""
        return End(self.transactional_id, self.producer_id, self.producer_epoch)


class Control(RawClient):
    """List, describe and end transactions; budget and errors as in :class:`~exactly_once.kafka.raw.RawClient`."""

    def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int) -> Outcome:
        """End one transaction; see :meth:`end_all`."""
        return self.end_all([End(transactional_id, producer_id, epoch)], commit, version)[transactional_id]

    def end_all(self, ends: Sequence[End], commit: bool, version: int) -> dict[str, Outcome]:
        """Send EndTxn for all of ``ends``, in their order, to all coordinators at once; repeat what got no definite
        answer until the budget is spent.

        Parameters
        ----------
        version : int
            Of the request, and of the first try if this is a retry: it chooses the semantics on the broker.

        Returns
        -------
        dict of str to Outcome
            By transactional id; ``RETRY`` for those without a definite answer within the budget.
        """
        outcomes = dict.fromkeys((e.transactional_id for e in ends), Outcome.RETRY)
        todo = list(ends)
        for _ in self._deadline.tries():
            outcomes |= self._end_round(todo, commit, version)
            todo = [e for e in todo if outcomes[e.transactional_id] is Outcome.RETRY]
            if not todo:
                break
        return outcomes

    def _end_round(self, ends: list[End], commit: bool, version: int) -> dict[str, Outcome]:
        """Ask for each of ``ends`` once, by windows that a connection takes; no answer for what was not sent."""

        async def one_round() -> dict[str, Outcome]:
            coordinators = await self._coordinators([e.transactional_id for e in ends])
            queues: dict[int, list[End]] = {}
            for e in ends:
                queues.setdefault(coordinators[e.transactional_id], []).append(e)
            outcomes: dict[str, Outcome] = {}
            while queues and not self._deadline.over:
                window = {node: queue[:IN_FLIGHT] for node, queue in queues.items()}
                sent = [(e, self._send_end(e, node, commit, version)) for node, some in window.items() for e in some]
                outcomes |= {e.transactional_id: await self._answer(e, future) for e, future in sent}
                # a coordinator that does not answer may be dead: whom to ask instead is for the next round
                queues = {
                    node: rest
                    for node, queue in queues.items()
                    if (rest := queue[IN_FLIGHT:])
                    and any(outcomes[e.transactional_id] is not Outcome.RETRY for e in window[node])
                }
            for e in ends:
                if outcomes.get(e.transactional_id, Outcome.RETRY) is Outcome.RETRY:
                    self._forget_coordinator(e.transactional_id)
            return outcomes

        try:
            answer: dict[str, Outcome] = self._admin._manager.run(one_round)
            return answer
        except KafkaError as e:
            if not e.retriable:
                raise self._named(e) from e
            return {}

    async def _answer(self, e: End, future: Any) -> Outcome:
        try:
            return read_answer(_name(for_code((await future).error_code)))
        except KafkaError as failure:
            if not failure.retriable:
                raise
            return Outcome.RETRY  # whatever broke on the way: whether the broker acted is not known

    def _send_end(self, e: End, node: int, commit: bool, version: int) -> Any:
        request = EndTxnRequest(
            transactional_id=e.transactional_id,
            producer_id=e.producer_id,
            producer_epoch=e.epoch,
            committed=commit,
            min_version=version,
            max_version=version,
        )
        return self._admin._manager.send(request, node_id=node)

    def list_transactions(self, prefix: str = "", states: Sequence[str] = ("Ongoing",)) -> list[Listing]:
        """The transactional ids that begin with ``prefix`` and are in one of ``states`` (any state when empty).

        Asks every broker; one that is still loading its part of the transaction log is asked again, since its ids would
        be missed. Ids without the DESCRIBE right are left out by the broker, silently.
        """

        async def ask() -> list[Listing]:
            options: dict[str, Any] = {"state_filters": list(states)}
            if prefix and self._api_version(ListTransactionsRequest()) >= 2:
                options["transactional_id_pattern"] = re.escape(prefix) + ".*"
            answer = await self._admin._async_list_transactions(broker_ids=await self._brokers(), **options)
            return [
                Listing(t.transactional_id, t.producer_id, str(t.state.value), broker)
                for broker, rows in answer.items()
                for t in rows
                if t.transactional_id.startswith(prefix)
            ]

        return self._retry(ask)

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, Description]:
        """The coordinators' view of these ids, all coordinators asked at once."""
        ids = list(dict.fromkeys(transactional_ids))

        async def ask() -> dict[str, Description]:
            by_node: dict[int, list[str]] = {}
            for transactional_id, node in (await self._coordinators(ids)).items():
                by_node.setdefault(node, []).append(transactional_id)
            rows: list[tuple[int, Any]] = []
            try:
                while by_node:
                    sent = [(node, self._send_describe(some[:IDS_AT_ONCE], node)) for node, some in by_node.items()]
                    rows += [(node, t) for node, future in sent for t in (await future).transaction_states]
                    by_node = {node: rest for node, some in by_node.items() if (rest := some[IDS_AT_ONCE:])}
            except KafkaError:
                for transactional_id in ids:  # a coordinator that died: its successor has to be looked up
                    self._forget_coordinator(transactional_id)
                raise
            return {t.transactional_id: self._description(node, t) for node, t in rows}

        return self._retry(ask) if ids else {}

    def _send_describe(self, ids: list[str], node: int) -> Any:
        return self._admin._manager.send(DescribeTransactionsRequest(transactional_ids=ids), node_id=node)

    def fence(self, transactional_id: str, timeout_ms: int) -> None:
        """Initialise an id: no producer that was initialised with it before can begin a transaction any more, and what
        one of them has begun is aborted.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=_FENCE_VERSION,
        )

        async def ask() -> None:
            node = (await self._coordinators([transactional_id]))[transactional_id]
            code = (await self._admin._manager.send(request, node_id=node)).error_code
            if code:
                self._forget_coordinator(transactional_id)
                raise for_code(code)(f"InitProducerId of {transactional_id}")

        self._retry(ask)

    def describe_beside(self, transactional_id: str, topic: str) -> tuple[Description, int]:
        """The coordinator's view of one id, and the high watermark of partition 0 of ``topic``: both asked at once."""
        asked = self._admin._manager.call_soon(lambda: self._high_watermark(TopicPartition(topic, 0)))
        described = self.describe([transactional_id])[transactional_id]
        try:
            return described, int(self._admin._manager.run(lambda: asked))
        except KafkaError:
            return described, self.high_watermark(topic, 0)

    def _description(self, node: int, t: Any) -> Description:
        error = for_code(t.error_code)
        if _name(error) == "TRANSACTIONAL_ID_NOT_FOUND":
            return Description(t.transactional_id, "", -1, -1, 0, -1, (), node)
        if t.error_code:
            self._forget_coordinator(t.transactional_id)
            raise error(f"DescribeTransactions of {t.transactional_id}")
        return Description(
            t.transactional_id,
            t.transaction_state,
            t.producer_id,
            t.producer_epoch,
            t.transaction_timeout_ms,
            t.transaction_start_time_ms,
            tuple(sorted((topic.topic, p) for topic in t.topics for p in topic.partitions)),
            node,
        )

    def _api_version(self, request: Any) -> int:
        return int(self._admin._manager.broker_version_data.api_version(request))

    async def _coordinators(self, ids: list[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for first in range(0, len(ids), IDS_AT_ONCE):
            some = ids[first : first + IDS_AT_ONCE]
            found |= await self._admin._find_coordinator_ids(some, key_type=CoordinatorType.TRANSACTION)
        return found

    def _forget_coordinator(self, transactional_id: str) -> None:
        """Look it up again next time: it may have moved."""
        self._admin._manager.cluster._coordinators.pop((CoordinatorType.TRANSACTION, transactional_id), None)


def _name(error: type[Exception]) -> str:
    """The broker's name of an error class; NONE for success."""
    return "NONE" if not getattr(error, "errno", None) else str(getattr(error, "message", error.__name__))

"""One Fetch request: what a partition's leader gives a reader from an offset on, as bytes (KIP-98).

Needs READ on the topic.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaError
from kafka.protocol.consumer.fetch import FetchRequest

from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.errors import check

READ_UNCOMMITTED, READ_COMMITTED = 0, 1

#: Versions of Fetch with isolation levels and topic names: KIP-98 brought the one, KIP-516 takes the other away in 13.
_FIRST_VERSION, _LAST_VERSION = 4, 12


def fetch(admin: Admin, where: Partition, offset: int, isolation: int, some_bytes: int) -> Any:
    """Return the leader's answer for one partition.

    Parameters
    ----------
    isolation : int
        :data:`READ_COMMITTED`: up to the last stable offset, with the aborted transactions in ``aborted_transactions``;
        or :data:`READ_UNCOMMITTED`: up to the high watermark.
    some_bytes : int
        About as much at once; the leader returns the first batch whole, however large it is.

    Raises BrokerUnreachable, NotAuthorized or UnknownTopic.
    """
    topic, number = where
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=number,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=some_bytes,
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=some_bytes,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=_FIRST_VERSION,
        max_version=_LAST_VERSION,
    )

    async def question() -> Any:
        try:
            answer = await admin.send(request, await admin.led_by(where))
            found = answer.responses[0].partitions[0]
            check(found.error_code, f"Fetch of {topic}-{number}")
        except KafkaError:
            admin.forget_leader(where)
            raise
        return found

    return admin.ask(question)

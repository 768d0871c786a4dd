"""The topics of a batch: the ones that earlier batches wrote to, or topics that were made again since."""

from __future__ import annotations

from collections.abc import Callable

from exactly_once.errors import TopicRecreated
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.records import Decision


def check_topics(
    admin: Admin, last: Decision | None, topics: list[str], adopts: Callable[[str], bool]
) -> dict[str, str]:
    """Make sure that no topic was recreated since the last decision.

    Parameters
    ----------
    adopts
        Whether the user adopts the new topic with this id.

    Returns
    -------
    dict of str to str
        The brokers' ids of the topics.

    Raises
    ------
    TopicRecreated
        Unless the user adopts the new topic.
    """
    ids = admin.topic_ids(topics)
    known = last.topic_ids if last else {}
    for topic, topic_id in ids.items():
        if known.get(topic, topic_id) != topic_id and not adopts(topic_id):
            raise TopicRecreated(
                f"topic {topic!r} was deleted and recreated: the records that earlier batches wrote to it are gone",
                "If this was intended and the stream should continue into the new topic, set the option "
                f"sink.adopt={topic_id} for one start; to write everything again, start with a new checkpoint and a "
                "new sink.id",
            )
    return ids

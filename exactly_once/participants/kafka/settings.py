"""The settings of topics that a start checks and that anybody may change under a stream. They are asked for again while
the tasks of each batch run, so that no batch waits for the answer, and judged before its decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from kafka.errors import KafkaError

from exactly_once.commitlog import log_topic, progress
from exactly_once.errors import CommitLogDamaged, InvalidOption
from exactly_once.kafka.admin import Admin, TopicConfigs
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka.checks import check_dead_letter_topic
from exactly_once.protocol.names import commit_log_topic

#: Settings that are asked of each topic.
_NAMES = ("cleanup.policy", "message.timestamp.type", "retention.ms", "segment.ms")

_UNDECIDED = "The batch is not decided; none of it is visible"

Rule = Callable[[str, Mapping[str, str]], None]


class TopicSettings:
    """The settings of one query's topics: the question of the batch in flight, and what a start refuses."""

    def __init__(self, options: SinkOptions):
        dead = options.dead_letters
        rules: dict[str | None, Rule] = {
            options.progress_topic or None: progress.check_config,
            dead.topic if dead else None: check_dead_letter_topic,
            commit_log_topic(options.sink_id): log_topic.check_config,
        }
        self._rules = {topic: rule for topic, rule in rules.items() if topic is not None}
        self._asked: Awaitable[TopicConfigs] | None = None

    def ask(self, admin: Admin, also: Iterable[str]) -> None:
        """Ask for the settings of these topics, and of those in ``also``, without waiting."""
        topics = sorted({*self._rules, *also})
        self._asked = admin.begin(lambda: admin.topic_configs(topics, _NAMES))

    def answer(self, admin: Admin) -> TopicConfigs:
        """Return what was asked for since the last call; nothing where no broker answered, or nothing was asked."""
        asked, self._asked = self._asked, None
        try:
            return admin.run(lambda: asked) if asked is not None else {}
        except KafkaError:
            return {}

    def check(self, found: TopicConfigs) -> None:
        """Refuse as a start does; a topic whose settings this principal may not read is left out.

        Raises CommitLogDamaged or InvalidOption.
        """
        for topic, rule in self._rules.items():
            try:
                rule(topic, found.get(topic, {}))
            except (CommitLogDamaged, InvalidOption) as e:
                raise type(e)(e.what, e.way_out, _UNDECIDED) from None

"""The input's offsets as a consumer group's, for lag tools: a convenience.

It holds a decision up only where the group's coordinator dies between its answer, some seconds before, and the end of
the decision's transaction, which cannot end without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from kafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from exactly_once.commitlog.log_writer import GroupOffsets, OffsetsFailed
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, NotAuthorized
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.errors import may_pass
from exactly_once.kafka.groups import answering_coordinator
from exactly_once.protocol.names import offsets_group

log = logging.getLogger(__name__)

#: Topic -> partition -> the next offset to read.
Offsets = Mapping[str, Mapping[int, int]]

#: Answers of the brokers that stay as they are: no READ on the group or the topic, or an input on another cluster.
_FOR_EVER = (GroupAuthorizationFailedError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError)

#: Time for which the offsets are left out after any other refusal, so that not every decision waits for them.
_AGAIN_S = 60.0

#: The share of a write's budget that they may take.
_SHARE = 0.2

#: Longest time that they take when the group's coordinator has just answered: two requests, of milliseconds each.
_LONGEST_S = 2.0

#: Age of an answer up to which its coordinator counts as alive: a broker that dies needs longer until its successor has
#: loaded its groups.
_ANSWERS_S = 5.0


class InputOffsets:
    """The sink's progress in its input, committed to the group :func:`~exactly_once.protocol.names.offsets_group`.

    Parameters
    ----------
    ask : callable
        Seconds -> the connection with this budget.
    """

    def __init__(self, ask: Callable[[float], Admin], sink_id: str):
        self._ask = ask
        self._sink_id = sink_id
        self._coordinator = -1
        self._not_before = 0.0
        self._answered = float("-inf")
        self._late = False
        self._asking = threading.Lock()

    @property
    def group(self) -> str:
        """The consumer group."""
        return offsets_group(self._sink_id)

    @property
    def has_answered(self) -> bool:
        """True when :meth:`may_be_sent` would say so without asking."""
        return time.monotonic() - self._answered < _ANSWERS_S

    def refresh(self, offsets: Offsets, deadline: Deadline) -> None:
        """Ask again unless the last answer will do for the next decision, whose tasks begin now."""
        if time.monotonic() - self._answered > _ANSWERS_S / 2:
            self._answered = float("-inf")
        self.may_be_sent(offsets, deadline)

    def may_be_sent(self, offsets: Offsets, deadline: Deadline) -> bool:
        """Return whether the group's coordinator answers, or has just answered.

        A transaction with a coordinator that is away could not even be aborted, and would hold the log for as long.
        """
        with self._asking:
            if time.monotonic() < self._not_before:
                return False
            if self.has_answered:
                return True
            if self._answers(offsets, deadline):
                self._answered = time.monotonic()
                return True
            return False

    def _answers(self, offsets: Offsets, deadline: Deadline) -> bool:
        topic, ends = next(iter(offsets.items()))
        try:
            admin = self._ask(deadline.seconds * _SHARE)
            self._coordinator = answering_coordinator(admin, self.group, (topic, next(iter(ends))))
        except ExactlyOnceError as e:
            self._refused(e.what, isinstance(e, NotAuthorized))
            return False
        return True

    def to_write(self, offsets: Offsets, metadata: str, deadline: Deadline) -> GroupOffsets:
        """Return ``offsets`` for a transaction, each with ``metadata``, which names the batch: by it, a start
        recognises a log that has lost the decision. It comes after :meth:`may_be_sent`.
        """
        timeout_s = min(deadline.left, deadline.seconds * _SHARE, _LONGEST_S)
        return GroupOffsets(self.group, self._coordinator, offsets, metadata, timeout_s)

    def again_after(self, e: OffsetsFailed) -> bool:
        """Return whether another transaction shall take them: once behind what may pass, since the coordinator that was
        asked may be one of before. :meth:`may_be_sent` then asks again, and another one where that one refuses.
        """
        self._answered = float("-inf")
        why = e.__cause__
        for_ever = isinstance(why, _FOR_EVER)
        self._late = not self._late and not for_ever and isinstance(why, KafkaError) and may_pass(why)
        if not self._late:
            self._refused(str(e), for_ever)
        return self._late

    def taken(self) -> None:
        """Note that the coordinator took them."""
        self._late = False

    def _refused(self, why: str, for_ever: bool) -> None:
        self._not_before = float("inf") if for_ever else time.monotonic() + _AGAIN_S
        log.warning(
            "sink %s: EO-WARN-GROUP the input's offsets cannot be committed to the consumer group %s (%s), so lag "
            "tools %s. Records are not affected, but a start cannot notice if the commit log loses a decision",
            self._sink_id,
            self.group,
            why,
            "will not see the stream" if for_ever else f"see an old position for the next {_AGAIN_S:g} s at least",
        )

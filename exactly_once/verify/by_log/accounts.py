"""The answer on the records of each span, and the balance of what was read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exactly_once.kafka.admin import Partition, Watermarks
from exactly_once.verify.answers import (
    NOT_JUDGED,
    NOT_PROVEN,
    OTHER_BATCHES,
    OTHERS,
    UNCOMPARED,
    UNDECIDED,
    UNENDED,
    WRONG,
    Answer,
    Balance,
    TopicBalance,
)
from exactly_once.verify.by_log.ledger import Ledger, Span

#: Where a span begins -> the answer on its records.
Answers = dict[tuple[Partition, int], Answer]


def give(answers: Answers, spans: Iterable[Span], answer: Answer) -> None:
    """Give an answer on the records of ``spans``; what is wrong stays wrong."""
    for s in spans:
        before = answers.get((s.where, s.first))
        if before is None or before.kind != WRONG:
            answers[s.where, s.first] = answer


def balance_of(ledger: Ledger, marks: Mapping[Partition, Watermarks], answers: Answers) -> Balance:
    """Return the balance of what was read.

    Parameters
    ----------
    marks : mapping
        The ends of every partition, by its leader.
    answers : mapping
        What was judged; a span without an answer is not judged, or belongs to nobody's decision yet.
    """
    topics: dict[str, TopicBalance] = {}
    for (topic, partition), ends in marks.items():
        one = topics.setdefault(topic, TopicBalance())
        one.offsets += ends.high - ends.low
        read = ledger.stretches.get((topic, partition))
        if read is None:
            one.unread += ends.high - ends.low
            continue
        one.unread += read.first - ends.low
        one.markers += read.markers
        one.compacted += read.gaps + ends.high - read.next
    for spans in (*ledger.spans.values(), *ledger.strangers.values()):
        for s in spans:
            one = topics.setdefault(s.where[0], TopicBalance())
            if s.committed is False:
                one.aborted += s.records
            else:
                one.count(answers.get((s.where, s.first)) or _unasked(s), s.records)
    for topic, records in ledger.others.items():
        topics.setdefault(topic, TopicBalance()).not_judged[OTHERS] += records
    for topic, records in ledger.uncompared.items():
        topics.setdefault(topic, TopicBalance()).not_judged[UNCOMPARED] += records
    return Balance(topics)


def _unasked(span: Span) -> Answer:
    if not span.matters:
        return Answer(NOT_JUDGED, OTHERS if span.committed else UNENDED)
    return Answer(NOT_JUDGED, OTHER_BATCHES) if span.committed else Answer(NOT_PROVEN, UNDECIDED)

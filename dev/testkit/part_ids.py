"""Transactional ids of parts, as Java's tasks make them."""

from __future__ import annotations

from exactly_once.protocol.names import VARIANTS, PartId, slot_of


def attempt_of(task_attempt: int, task_attempt_id: int) -> str:
    """Return the attempt part of an id: Spark's attempt number, and a variant from the task attempt's unique id.

    When Spark runs a stage again (after a lost shuffle file), attempts count from 0 again while tasks of the first run
    may still be alive. The variant distinguishes most of these attempts. Where it does not, the later InitProducerId
    fences the other attempt, and the check before the decision finds that.
    """
    return f"{task_attempt}.{task_attempt_id % VARIANTS}"


def part_id(sink_id: str, token: int, part: int, attempt: str) -> str:
    """Return the transactional id for one attempt of one part, under the claim ``token``.

    ``attempt`` comes from :func:`attempt_of`: two attempts that are alive at once do not share an id, so neither can
    abort the other's transaction.
    """
    return str(PartId(sink_id, slot_of(token), part, attempt))

"""Two sinks that read the same input: an old version of a stream and a new one, and what both have decided of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from exactly_once.checkpoint import first_offsets
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointAway, CheckpointUnusable, InvalidOption
from exactly_once.inspection.words import never_claimed
from exactly_once.kafka.admin import Partition
from exactly_once.kafka.connection import Connection
from exactly_once.verify.by_origin.ledger import SinkOutput
from exactly_once.verify.by_origin.origin import inputs_of
from exactly_once.verify.expected import Expected, expected_input
from exactly_once.verify.window import Positions


@dataclass(frozen=True)
class Version:
    """One of the two sinks.

    Attributes
    ----------
    topics : tuple of str
        Its output topics; empty: those that its decisions name.
    checkpoint : str or None
        The location of its stream's checkpoint. None: what its last claim names, if that can be read; else it counts as
        having read the input from its beginning.
    """

    sink_id: str
    topics: tuple[str, ...] = ()
    checkpoint: str | None = None


@dataclass(frozen=True)
class Versions:
    """Both versions, and the input that both have decided and committed: by partition, its first offset and its end."""

    old: SinkOutput
    new: SinkOutput
    first: Positions
    end: Positions

    @property
    def offsets(self) -> int:
        """The number of offsets of this input, markers and aborted records included."""
        return sum(self.end[p] - first for p, first in self.first.items())


def versions_of(
    connection: Connection,
    old: Version,
    new: Version,
    inputs: Sequence[str] = (),
    last: int | None = None,
    budget_s: float = 60.0,
) -> Versions | None:
    """Read what the two have worked off by now; None where one of them has decided nothing yet.

    Parameters
    ----------
    last : int, optional
        Of the input that both have worked off, only the newest batches with at most so many offsets.

    Raises
    ------
    InvalidOption
        A sink that was never used; nothing says where the new one began; both write to one topic.
    BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged, CheckpointUnusable
    """
    for version in (old, new):
        log = read_log(connection, version.sink_id, budget_s)
        if log.owner is None:
            raise never_claimed(version.sink_id)
        if not log.decisions:
            return None
        if version is old and not old.checkpoint:
            old = replace(old, checkpoint=_with_beginning(log.owner.checkpoint))
    its, other = _worked_off(connection, old, new, inputs, budget_s)
    first, end = common(other, its)
    if last is not None and first:
        its, other = _worked_off(connection, old, new, inputs, budget_s, last, end)
        first, end = common(other, its, end)
    olds, news = apart(old, new, other.topics, its.topics)
    return Versions(SinkOutput(old.sink_id, olds, other), SinkOutput(new.sink_id, news, its), first, end)


def common(
    old: Expected, new: Expected, until: Positions | None = None
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the input that both have worked off, from its first offset to its end; without empty partitions.

    Parameters
    ----------
    until : mapping, optional
        No input from there on.
    """
    end = {p: min(offset, new.end[p]) for p, offset in old.end.items() if p in new.end}
    if until is not None:
        end = {p: min(offset, end[p]) for p, offset in until.items() if p in end}
    first = {p: max(old.wanted.get(p, offset), new.wanted.get(p, offset)) for p, offset in end.items()}
    return {p: o for p, o in first.items() if o < end[p]}, {p: o for p, o in end.items() if first[p] < o}


def apart(
    old: Version, new: Version, old_named: Sequence[str], new_named: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the topics of each version: as given, or as its decisions name them; raise InvalidOption where a record
    may be of either.
    """
    its = new.topics or tuple(new_named)
    other = old.topics or tuple(t for t in old_named if t not in new_named) or tuple(old_named)
    for sink_id, topics in ((old.sink_id, other), (new.sink_id, its)):
        if not topics:
            raise InvalidOption(
                f"no decision of sink {sink_id!r} names an output topic", "Run the command again after its first output"
            )
    if shared := sorted(set(its) & {*other, *old_named}):
        raise InvalidOption(
            f"{old.sink_id} and {new.sink_id} both write to {', '.join(shared)}, and nothing tells whose a record is",
            f"Name with --topic only topics that {new.sink_id} alone has written to, such as its shadow topic",
        )
    return other, its


def _worked_off(
    connection: Connection,
    old: Version,
    new: Version,
    inputs: Sequence[str],
    budget_s: float,
    last: int | None = None,
    stop: Positions | None = None,
) -> tuple[Expected, Expected]:
    """Return what the new version has worked off, and the old one of the same topics."""
    its = expected_input(connection, new.sink_id, new.checkpoint, inputs, budget_s, last, stop)
    read = inputs or inputs_of(its.end)
    return its, expected_input(connection, old.sink_id, old.checkpoint, read, budget_s, last, stop)


def _with_beginning(location: str) -> str | None:
    """Return a location whose checkpoint says where its stream began; None where it does not, or cannot be read."""
    with suppress(CheckpointUnusable, CheckpointAway):
        return location if location and first_offsets(location) else None
    return None

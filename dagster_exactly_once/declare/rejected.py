"""The topics beside a stream's outputs: for the records that its function rejects, and for the sink's dead letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import dagster as dg

from dagster_exactly_once.declare.errors import BadDeclaration
from exactly_once.protocol.dead_letters import DEFAULT_MOST

#: A function that makes the value to send again from that of the rejected record, or of the dead letter.
Repair = Callable[[bytes | None], str | bytes | None]


def spec_of(asset: dg.AssetSpec | str) -> dg.AssetSpec:
    """Return the asset of an output, which a declaration names by its spec or its key."""
    return asset if isinstance(asset, dg.AssetSpec) else dg.AssetSpec(dg.AssetKey.from_user_string(asset))


@dataclass(frozen=True)
class SideTopic:
    """A topic for what does not become an output, an asset beside the outputs; of one of the two kinds below."""

    asset: dg.AssetSpec | str
    warn_above: int | None = 0
    error_above: int | None = None
    repair: Repair | None = None

    #: The argument of a declaration, the check on the asset, and the numbers in its metadata: those that wait, and all.
    argument: ClassVar[str]
    check: ClassVar[str]
    metadata: ClassVar[str]
    metadata_total: ClassVar[str]
    #: The words for one of them, and for what the topic holds.
    noun: ClassVar[str]
    holds: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("warn_above", "error_above"):
            if (limit := getattr(self, name)) is not None and limit < 0:
                raise BadDeclaration(f"{type(self).__name__}({name}={limit}): a number of records is 0 or more")

    def spec(self, stream: str) -> dg.AssetSpec:
        """Return the asset, with a description."""
        made = spec_of(self.asset)
        return made.replace_attributes(description=made.description or self.holds.format(stream=stream))


@dataclass(frozen=True)
class Rejected(SideTopic):
    """A topic for the records that a stream rejects (:func:`exactly_once.attempt`), an asset beside its outputs.

    Attributes
    ----------
    asset : AssetSpec or str
        A string is the asset's key; its last part is the topic.
    warn_above, error_above : int or None
        The check ``rejected_since_last_look`` warns, and fails, above so many records that nobody has sent again or
        acknowledged; None: never.
    repair : callable, optional
        What the job ``<name>_resend`` does to the value of each record before it sends it again. Where it returns None,
        it leaves the record out for good; where it raises, the run sends nothing.
    """

    argument = "rejected"
    check = "rejected_since_last_look"
    metadata = "rejected_records"
    metadata_total = "rejected_total"
    noun = "rejected record"
    holds = (
        "Records that the stream {stream} could not process, byte for byte; headers that begin with "
        "__exactly_once.errors. have the reason and the place in the input."
    )


@dataclass(frozen=True)
class DeadLetters(SideTopic):
    """A topic for the rows that Kafka cannot take (``sink.dead.letter.topic``), an asset beside the outputs.

    Attributes
    ----------
    asset : AssetSpec or str
        A string is the asset's key; its last part is the topic.
    warn_above, error_above : int or None
        The check ``dead_letters_since_last_look`` warns, and fails, above so many; see :class:`Rejected`.
    repair : callable, optional
        What the job ``<name>_resend`` does to the value of each row before it sends it to the output that it was for;
        see :class:`Rejected`. With ``value.format``, it gets and returns encoded values with their schema ids; but of a
        row that did not fit its schema it gets JSON. Without it the job leaves such a row.
    most : int
        The stream stops when more rows of one batch cannot be written (``sink.dead.letter.max``).
    """

    most: int = DEFAULT_MOST

    argument = "dead_letters"
    check = "dead_letters_since_last_look"
    metadata = "dead_letters"
    metadata_total = "dead_letters_total"
    noun = "dead letter"
    holds = (
        "Rows of the stream {stream} that Kafka cannot take, byte for byte; headers that begin with "
        "__exactly_once.errors. have the reason, and the output that the row was for."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1:
            raise BadDeclaration(f"DeadLetters(most={self.most}): a number of rows is 1 or more")

    def options(self, topic: str) -> dict[str, str]:
        """Return the options of the sink that write them to ``topic``."""
        return {"sink.dead.letter.topic": topic, "sink.dead.letter.max": str(self.most)}


_L = TypeVar("_L", bound=SideTopic)


def side_topic_of(kind: type[_L], said: SideTopic | dg.AssetSpec | str | None, stream: str) -> _L | None:
    """Return what the argument for this kind says. Raises BadDeclaration for the other kind."""
    if said is None or isinstance(said, kind):
        return said
    if isinstance(said, SideTopic):
        raise BadDeclaration(
            f"{stream}: {kind.argument} takes a {kind.__name__}, and got a {type(said).__name__}. Write "
            f"{said.argument}={type(said).__name__}(...)"
        )
    return kind(said)

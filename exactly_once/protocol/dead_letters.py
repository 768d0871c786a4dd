"""Dead letters: rows that cannot be written, as records of the topic that ``sink.dead.letter.topic`` names. Pure.

A task of the JVM writes them (``java/exactlyonce/write/DeadLetters.java``), each in its part's own transaction: key,
value and headers of the row, and behind these the sink's own headers, whose names :mod:`exactly_once.error_headers`
has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from exactly_once.error_headers import CODE, PREFIX
from exactly_once.errors import InvalidOption, InvalidRecord, InvalidSchema
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.ticket import Part
from exactly_once.protocol.topics import ANY_TOPIC

#: Most rows of a batch that may be dead letters. More of them are no bad records, but a mistake in the query or in the
#: settings of a topic, for which a person is needed.
DEFAULT_MOST = 100

Header = tuple[str, bytes | None]

#: The option that names the header in which rows say where they came from, and the form of its value.
ORIGIN, IN_HEADER = "sink.dead.letter.origin", "header:"


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The topic, and how many rows of a batch may go there.

    Attributes
    ----------
    origin : str
        The header in which a row says which input record it came from; "" without one.
    """

    topic: str
    most: int = DEFAULT_MOST
    origin: str = ""

    @classmethod
    def parse(
        cls, name: str, most: str, output: str | None, exactly_once: bool, origin: str = ""
    ) -> DeadLetterTopic | None:
        """Read ``sink.dead.letter.topic``, ``sink.dead.letter.max`` and ``sink.dead.letter.origin``; None without the
        first.

        Parameters
        ----------
        output
            The topic of all rows; None: each row names its own.
        exactly_once
            Whether the sink's guarantee is ``exactly_once``.

        Raises
        ------
        InvalidOption
        """
        if not name:
            if given := "sink.dead.letter.max" if most else ORIGIN if origin else "":
                raise InvalidOption(
                    f"{given} is set, but sink.dead.letter.topic is not",
                    f"Set sink.dead.letter.topic, or remove {given}",
                )
            return None
        if why := ANY_TOPIC.refusal(name):
            raise InvalidOption(f"sink.dead.letter.topic={name!r} {why}", "Name a topic of its own for dead letters")
        if name == output:
            raise InvalidOption(
                f"sink.dead.letter.topic={name} is the topic of the rows too",
                "Name a topic of its own for dead letters",
            )
        if not exactly_once:
            raise InvalidOption(
                "sink.dead.letter.topic needs sink.guarantee=exactly_once: under a weaker guarantee, a row could be in "
                "both topics or in none",
                "Remove sink.guarantee or sink.dead.letter.topic",
            )
        if most and not (most.isascii() and most.isdigit() and int(most) > 0):
            raise InvalidOption(
                f"sink.dead.letter.max={most} is not a whole number above 0",
                "Set sink.dead.letter.max to the most rows of a batch that may be dead letters",
            )
        return cls(name, int(most) if most else DEFAULT_MOST, _header(origin))

    def check_columns(self, names: Collection[str]) -> None:
        """Raise InvalidSchema when no row can say where it came from, because the columns have no ``headers``."""
        if self.origin and "headers" not in names:
            raise InvalidSchema(
                f"there is no column 'headers', in which {ORIGIN}={IN_HEADER}{self.origin} expects the origin of a row",
                f"Add the header {self.origin} to the rows, as docs/verify.md shows, or remove {ORIGIN}",
            )


def check_number(dead: DeadLetterTopic | None, parts: Sequence[Part]) -> None:
    """Raise InvalidRecord, with what is wrong with the first row, when more rows of a batch than ``dead`` allows cannot
    be written. A replay has its number from the decision that it completes.
    """
    count = sum(p.dead_letters for p in parts)
    if dead is None or count <= dead.most or parts[0].plan is Plan.REPLAY:
        return
    what, way_out = first_refusal(parts)
    raise InvalidRecord(
        f"{what}; and it is not the only one: {count} rows of this batch cannot be written, more than "
        f"sink.dead.letter.max={dead.most}",
        f"{way_out}; or raise sink.dead.letter.max, and all of them go to {dead.topic}",
    )


def first_refusal(parts: Iterable[Part]) -> tuple[str, str]:
    """Return what is wrong with the first row that is a dead letter, and the way out."""
    what, way_out = next((p.refused for p in parts if p.refused), ("", ""))
    return what, way_out


def _header(origin: str) -> str:
    """Return the header that ``header:NAME`` names; "" for "". Raise InvalidOption for anything else."""
    name = origin.removeprefix(IN_HEADER)
    if origin and (name in ("", origin)):
        raise InvalidOption(
            f"{ORIGIN}={origin} does not name a header",
            f"Use {IN_HEADER}NAME: the header in which rows have topic-partition-offset of their input record",
        )
    return name


def own_headers(headers: Sequence[Header]) -> tuple[list[Header], dict[str, bytes | None]]:
    """Part the headers of a dead letter: those of its row, and what the sink says of it, without the prefix."""
    at = max((i for i, (name, _) in enumerate(headers) if name == CODE), default=len(headers))
    return list(headers[:at]), {name.removeprefix(PREFIX): value for name, value in headers[at:]}

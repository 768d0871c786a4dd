"""The output under test: what a test class must define, and the helpers of the tests."""

from __future__ import annotations

import datetime as dt
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from exactly_once.digest import RowDigest
from exactly_once.outputs.conformance.processes import elsewhere, prepare
from exactly_once.participant import Found, Participant, PartName, Scope
from exactly_once.protocol.encoding import decode, encode
from exactly_once.protocol.names import incarnation
from exactly_once.protocol.records import Decision

#: Values that outputs get wrong: signs, extremes, quotes, line ends, empty values and null.
_TEXTS = ("plain", "", "ü→😀 ", 'it\'s "quoted", \\N', "line\nfeed\ttab\r\n", None, "NULL", " ")
_RATIOS = (0.1, -1.5e300, 5e-324, None, 2.0, -0.0)
_FLAGS = (True, False, None)
_RAWS = (b"plain", b"", b"\x00\xff\\x\n", None)
_INSTANTS = (
    dt.datetime(2026, 7, 8, 9, 10, 11, 123456, dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
    None,
    dt.datetime(2000, 2, 29, tzinfo=dt.UTC),
)


class Output:
    """Override the members under "yours"; the others are the same for all participants.

    Each test uses a new instance of the class, as pytest does, and must find the output empty.
    """

    # ---- yours ----

    #: The rows' columns. Override them if the output has other columns. :meth:`rows` can fill integers, doubles,
    #: booleans, strings, binary, dates and timestamps; the first column is never null.
    schema: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("number", pa.int32()),
            pa.field("ratio", pa.float64()),
            pa.field("flag", pa.bool_()),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("raw", pa.binary()),
        ]
    )

    #: The sink id; the tests also use ids that extend it, or that a careless pattern confuses with it.
    sink_id: ClassVar[str] = "orders_1"

    #: The incarnation of the commit log.
    incarnation: ClassVar[str] = incarnation("cluster", "log")

    #: The number of lines, spread evenly over a step, at which the suite kills the process. Each costs a process.
    crashes: ClassVar[int] = 8

    def participant(self) -> Participant[Any]:
        """Return a new instance, with the same name and settings every time."""
        raise NotImplementedError

    def visible(self) -> list[dict[str, Any]]:
        """Return all rows that an independent reader sees now, in any order, over another connection and without code
        of the participant. Values as from Arrow's ``to_pylist``; time zones may differ.
        """
        raise NotImplementedError

    def leftovers(self) -> set[str]:
        """Return the names of everything in the output that is begun or prepared, foreign names too:
        ``str(PartName)`` for parts, anything for the rest. Looks independently, as :meth:`visible` does.
        """
        raise NotImplementedError

    def foreign(self) -> set[str]:
        """Put things that are not parts among the staged parts of the output.

        Optional. Returns their names as :meth:`leftovers` would. The suite itself makes parts of other sinks.
        """
        return set()

    def lose(self, handle: Any) -> None:
        """Make the output forget or roll back a prepared part.

        Optional: it acts without the participant, as an operator, a timeout or a broken disk does. Without it, the
        suite skips the tests of losses.
        """
        raise unittest.SkipTest("the class does not override lose()")

    def neighbour(self) -> Participant[Any]:
        """Return another participant of the same sink, at the very same place. Optional."""
        other = self.participant()
        other.name = f"{other.name}-2"
        return other

    def digest(self, rows: Sequence[pa.RecordBatch]) -> str:
        """Return the digest that a handle must have for these rows. Optional."""
        digest = RowDigest()
        for batch in rows:
            digest.add_batch(batch)
        return digest.text

    def stored(self, handle: Any) -> Any:
        """Return the handle as the commit log stores and restores it. Optional."""
        read = decode(encode(Decision("query", 7, 3, (handle,), "", 0, 0)))
        assert isinstance(read, Decision)
        return read.handles[0]

    # ---- tools of the tests ----

    def name(self, part: int = 0, batch: int = 7, token: int = 3, attempt: str = "0.1", sink: str = "") -> PartName:
        """Make the name of a part."""
        of = sink or self.sink_id, token, batch, part, attempt
        return PartName(*of, self.incarnation, self.participant().name)

    def scope(self, before: int, own: int | None = None, *decided: Any) -> Scope:
        """Make the scope that the participant's sweep may touch, without the handles that are ``decided``."""
        return Scope(self.sink_id, before, own, decided, self.incarnation, self.participant().name)

    def rows(self, name: PartName, count: int = 3) -> list[pa.RecordBatch]:
        """Make rows that no other part has, in two batches. Every attempt of a part has the same rows."""
        first = ((name.token * 1_000 + name.batch_id) * 100 + name.part) * 100
        columns = [
            [value(field.type, n, unique=i == 0) for n in range(first, first + count)]
            for i, field in enumerate(self.schema)
        ]
        table = pa.table(columns, schema=self.schema)
        half = count // 2
        return [b for t in (table[:half], table[half:]) for b in t.combine_chunks().to_batches()]

    def prepared(self, *names: PartName) -> list[Any]:
        """Prepare parts; return their handles as the next driver reads them from the commit log."""
        return [self.stored(prepare(self.participant(), name, self.rows(name))) for name in names]

    def batch(self, batch: int = 7, token: int = 3, parts: int = 3) -> tuple[list[PartName], list[Any]]:
        """Prepare a whole batch; return its names and handles."""
        names = [self.name(part, batch, token) for part in range(parts)]
        return names, self.prepared(*names)

    def checked(self) -> Participant[Any]:
        """Return a participant that has started."""
        participant = self.participant()
        participant.check(self.sink_id, self.schema)
        return participant

    def found(self, handles: Sequence[Any]) -> list[Found]:
        """Return what the participant finds; skip the test if it does not override ``found``."""
        if not (found := list(self.participant().found(self.sink_id, handles))):
            raise unittest.SkipTest("the participant does not override found()")
        return found

    def assert_visible(self, *names: PartName) -> None:
        """Assert that exactly the rows of these parts are visible, each once."""
        want = Counter(key(row) for name in names for b in self.rows(name) for row in b.to_pylist())
        seen = Counter(key(row) for row in self.visible())
        assert seen == want, f"lost: {list((want - seen).elements())}; too many: {list((seen - want).elements())}"

    def assert_left(self, *names: PartName | str) -> None:
        """Assert that exactly these names are begun or prepared."""
        want, left = {str(n) for n in names}, self.leftovers()
        assert left == want, f"gone: {sorted(want - left)}; left behind: {sorted(left - want)}"

    def points(self, lines: int) -> list[int]:
        """Choose the lines of a step at which to kill the process: the first, the last, and some between."""
        assert lines > 0, (
            "no line of the participant was counted: put its class into the folder of the code that does the work"
        )
        return sorted({1 + round(i * (lines - 1) / max(1, self.crashes - 1)) for i in range(self.crashes)})

    def lines(self, step: Callable[..., Any], *args: Any) -> int:
        """Run the step, and return the number of lines that it runs."""
        return elsewhere(step, self.participant(), *args, count=True).lines


def value(kind: pa.DataType, n: int, unique: bool) -> Any:
    """Return a value of the type that depends on ``n`` alone."""
    if pa.types.is_integer(kind):
        edge = 2 ** (kind.bit_width - 1)
        return n if unique else (0, -1, None, edge - 1, -edge)[n % 5]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"row {n}" if unique else _TEXTS[n % len(_TEXTS)]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return f"row {n}".encode() if unique else _RAWS[n % len(_RAWS)]
    if pa.types.is_timestamp(kind):
        at = _INSTANTS[n % len(_INSTANTS)]
        return at if at is None or kind.tz else at.replace(tzinfo=None)
    if pa.types.is_date(kind):
        return (dt.date(2026, 7, 8), dt.date(1969, 12, 31), None)[n % 3]
    if pa.types.is_floating(kind):
        return _RATIOS[n % len(_RATIOS)]
    assert pa.types.is_boolean(kind), f"override rows(): the suite has no values of type {kind}"
    return _FLAGS[n % len(_FLAGS)]


def key(row: dict[str, Any]) -> str:
    """Return a row as text; equal values give equal text."""
    return repr(sorted((column, repr(_plain(value))) for column, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value

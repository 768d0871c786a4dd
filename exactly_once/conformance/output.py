"""What a test class says about its output, and what the tests make of it."""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from exactly_once.conformance.processes import elsewhere, prepare
from exactly_once.conformance.rows import key, value
from exactly_once.digest import RowDigest
from exactly_once.participant import Participant, PartName, Scope
from exactly_once.protocol.names import incarnation
from exactly_once.protocol.records import Decision, decode, encode


class Output:
    """Override what stands under "yours"; the rest is the same for all participants.

    Each test uses a new instance of the class, as pytest does, and must find the output empty.
    """

    # ---- yours ----

    #: The rows' columns. Override where the output has other ones. Types that :meth:`rows` can fill: integers, doubles,
    #: booleans, strings, binary, dates, timestamps; the first column is never null.
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

    #: The sink; the tests also use ids that extend it or that a careless pattern takes for it.
    sink_id: ClassVar[str] = "orders_1"

    #: The commit log's.
    incarnation: ClassVar[str] = incarnation("cluster", "log")

    #: At how many lines, spread evenly over a step, the process is killed. Each costs a process.
    crashes: ClassVar[int] = 8

    def participant(self) -> Participant[Any]:
        """A new instance, with the same name and settings every time."""
        raise NotImplementedError

    def visible(self) -> list[dict[str, Any]]:
        """All rows that an independent reader sees now: no code of the participant, another connection. In any order;
        values as Arrow's ``to_pylist`` gives them, time zones may differ.
        """
        raise NotImplementedError

    def leftovers(self) -> set[str]:
        """The names of everything begun or prepared that lies in the output, foreign ones too: ``str(PartName)`` for
        parts, anything for what is not a part. An independent look, as :meth:`visible` is.
        """
        raise NotImplementedError

    def foreign(self) -> set[str]:
        """Optional: put something into the output's space, among what is staged, that is nobody's part, and return
        its names as :meth:`leftovers` tells them. Parts of other sinks are made by the suite.
        """
        return set()

    def lose(self, handle: Any) -> None:
        """Optional: make the output forget or roll back a prepared part behind the participant's back, as an operator,
        a time-out or a broken disk does. Not overridden: the tests of losses are skipped.
        """
        raise unittest.SkipTest("the class does not say how the output loses a part")

    def neighbour(self) -> Participant[Any]:
        """Optional: another participant of the same sink, at the very same place."""
        other = self.participant()
        other.name = f"{other.name}-2"
        return other

    def digest(self, rows: Sequence[pa.RecordBatch]) -> str:
        """Optional: what a handle's digest has to be for these rows."""
        digest = RowDigest()
        for batch in rows:
            digest.add_batch(batch)
        return digest.text

    def stored(self, handle: Any) -> Any:
        """Optional: the handle after a way through the commit log."""
        read = decode(encode(Decision("query", 7, 3, (handle,), "", 0, 0)))
        assert isinstance(read, Decision)
        return read.handles[0]

    # ---- tools of the tests ----

    def name(self, part: int = 0, batch: int = 7, token: int = 3, attempt: str = "0.1", sink: str = "") -> PartName:
        """A part's name."""
        of = sink or self.sink_id, token, batch, part, attempt
        return PartName(*of, self.incarnation, self.participant().name)

    def scope(self, before: int, own: int | None = None, *decided: Any) -> Scope:
        """What the participant's sweep may touch: not the handles that are ``decided``."""
        return Scope(self.sink_id, before, own, decided, self.incarnation, self.participant().name)

    def rows(self, name: PartName, count: int = 3) -> list[pa.RecordBatch]:
        """Rows that no other part has, in two batches. An attempt does not change them."""
        first = ((name.token * 1_000 + name.batch_id) * 100 + name.part) * 100
        columns = [
            [value(field.type, n, unique=i == 0) for n in range(first, first + count)]
            for i, field in enumerate(self.schema)
        ]
        table = pa.table(columns, schema=self.schema)
        half = count // 2
        return [b for t in (table[:half], table[half:]) for b in t.combine_chunks().to_batches()]

    def prepared(self, *names: PartName) -> list[Any]:
        """Handles of prepared parts, as the next driver reads them from the commit log."""
        return [self.stored(prepare(self.participant(), name, self.rows(name))) for name in names]

    def batch(self, batch: int = 7, token: int = 3, parts: int = 3) -> tuple[list[PartName], list[Any]]:
        """Names and handles of a whole prepared batch."""
        names = [self.name(part, batch, token) for part in range(parts)]
        return names, self.prepared(*names)

    def checked(self) -> Participant[Any]:
        """A participant whose start is through."""
        participant = self.participant()
        participant.check(self.sink_id, self.schema)
        return participant

    def assert_visible(self, *names: PartName) -> None:
        """Exactly the rows of these parts are visible, each once."""
        want = Counter(key(row) for name in names for b in self.rows(name) for row in b.to_pylist())
        seen = Counter(key(row) for row in self.visible())
        assert seen == want, f"lost: {list((want - seen).elements())}; too many: {list((seen - want).elements())}"

    def assert_left(self, *names: PartName | str) -> None:
        """Exactly this is begun or prepared."""
        want, left = {str(n) for n in names}, self.leftovers()
        assert left == want, f"gone: {sorted(want - left)}; left behind: {sorted(left - want)}"

    def points(self, lines: int) -> list[int]:
        """At which of the lines of a step the process is killed: the first, the last, and some between."""
        assert lines > 0, (
            "no line of the participant was seen: its class must stand in the folder of what does the work"
        )
        return sorted({1 + round(i * (lines - 1) / max(1, self.crashes - 1)) for i in range(self.crashes)})

    def lines(self, step: Callable[..., Any], *args: Any) -> int:
        """How many lines the step runs through; it is done."""
        return elsewhere(step, self.participant(), *args, count=True).lines

"""The output that the queries of ``testkit.stateful`` owe, computed in plain Python, batch after batch.

Every query gets its batches one by one and without batches that have no input, so the watermark in batch n is the
latest second of the batches before it, less the delay, and everything follows from the rows alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from testkit.stateful import (
    DUPLICATE_MS,
    JOIN_S,
    PATIENCE_S,
    SHORT_LIVED,
    WATERMARK_MS,
    WINDOW_S,
    second_of,
)
from testkit.stream import Row

#: From one batch's first second to the next one's. A batch has ten seconds of events.
BATCH_S = 20
ALL_KEYS = range(6)

#: A state as the tests compare it: one entry for each key in the store.
State = dict[str, Any]


class Operator:
    """One stateful query: its input, and what must come of it.

    Attributes
    ----------
    transform : str
        For :attr:`testkit.stream.Job.transform`.
    stores : tuple of dict
        Options of ``format("statestore")``, one for each part of the state.
    """

    transform = ""
    stores: tuple[dict[str, str], ...] = ({},)

    def rows(self, batch: int) -> list[Row]:
        """Return the input of one batch; two parts are made of it."""
        raise NotImplementedError

    def arguments(self, mode: str) -> dict[str, Any]:
        """Return :attr:`testkit.stream.Job.arguments`."""
        return {}

    def expected(self, batches: int, mode: str) -> tuple[list[Row], State]:
        """Return the output in its order, and the state after it."""
        raise NotImplementedError

    def read(self, stores: list[list[dict[str, Any]]]) -> State:
        """Return the state from the rows that ``format("statestore")`` gives for each of :attr:`stores`."""
        raise NotImplementedError


class Windows(Operator):
    """Counts of every key in every second; from batch 3 on, also a row of second 0 that is too late for its window."""

    transform = "testkit.stateful:windows"

    def rows(self, batch: int) -> list[Row]:
        some = [(f"k{k}", f"b{batch}-{k}-{i}-{first_s(batch) + i}") for i in range(10) for k in ALL_KEYS if i >= k]
        # of windows that began in the batch before: only a state that is right goes on with their counts
        some += [(f"k{k}", f"b{batch}-{k}-behind-{first_s(batch - 1) + 9}") for k in ALL_KEYS if batch]
        return some + ([("k0", f"b{batch}-late-0")] if batch > 2 else [])

    def expected(self, batches: int, mode: str) -> tuple[list[Row], State]:
        output: list[Row] = []
        open_windows: Counter[tuple[str, int]] = Counter()
        for batch in range(batches):
            fresh = Counter(
                (key, second_of(value) // WINDOW_S * WINDOW_S)
                for key, value in self.rows(batch)
                if (second_of(value) // WINDOW_S + 1) * WINDOW_S > watermark_s(batch - 1)
            )
            open_windows += fresh
            closed = {w: n for w, n in open_windows.items() if w[1] + WINDOW_S <= watermark_s(batch)}
            written = closed if mode == "append" else {w: open_windows[w] for w in fresh}
            output += [(f"{key}@{start}", str(n)) for (key, start), n in sorted(written.items())]
            open_windows = Counter({w: n for w, n in open_windows.items() if w not in closed})
        return output, {f"{key}@{start}": n for (key, start), n in open_windows.items()}

    def read(self, stores: list[list[dict[str, Any]]]) -> State:
        return {f"{r['key.key']}@{_seconds(r['key.window']['start'])}": r["value.count"] for r in stores[0]}


class Join(Operator):
    """Orders whose payment comes in the same batch, in the next one, or never."""

    transform = "testkit.stateful:joined"
    stores = ({"joinSide": "left"}, {"joinSide": "right"})

    def rows(self, batch: int) -> list[Row]:
        first = first_s(batch)
        some = [(f"o{batch}.{i}", f"l-{first + i}") for i in range(10)]
        some += [(f"o{batch}.{i}", f"r-{first + i}") for i in range(0, 10, 3)]
        return some + [(f"o{batch - 1}.{i}", f"r-{first + i}") for i in range(1, 10, 3) if batch]

    def expected(self, batches: int, mode: str) -> tuple[list[Row], State]:
        output: list[Row] = []
        left: dict[str, tuple[int, bool]] = {}
        right: list[tuple[str, int]] = []
        for batch in range(batches):
            for key, value in self.rows(batch):
                if value.startswith("l"):
                    left[key] = (second_of(value), False)
            for key, value in self.rows(batch):
                if value.startswith("r"):
                    right.append((key, second_of(value)))
                    if key in left and left[key][0] <= second_of(value) <= left[key][0] + JOIN_S:
                        output.append((key, f"{left[key][0]}+{second_of(value)}"))
                        left[key] = (left[key][0], True)
            for key, (second, matched) in list(left.items()):
                if second + JOIN_S < watermark_s(batch):
                    if not matched:
                        output.append((key, f"{second}+none"))
                    del left[key]
            right = [(key, second) for key, second in right if second > watermark_s(batch)]
        return output, {
            **{f"l {key}@{second}": 1 for key, (second, _) in left.items()},
            **{f"r {key}@{second}": 1 for key, second in right},
        }

    def read(self, stores: list[list[dict[str, Any]]]) -> State:
        found = [
            f"{side[0]} {r[f'value.{names[0]}']}@{_seconds(r[f'value.{names[1]}'])}"
            for side, names, rows in zip(
                ("left", "right"), (("key", "left_time"), ("right_key", "right_time")), stores, strict=True
            )
            for r in rows
        ]
        return dict(Counter(found))


class Deduplication(Operator):
    """Every id comes twice: in its batch and in the next one. One comes back after its time."""

    transform = "testkit.stateful:deduplicated"

    def rows(self, batch: int) -> list[Row]:
        first = first_s(batch)
        some = [(f"d{batch}.{i}", f"first-{first + i}") for i in range(10)]
        some += [(f"d{batch - 1}.{i}", f"again-{first + i}") for i in range(10) if batch]
        return some + ([("back", f"back-{first}")] if batch in (0, 1, 4) else [])

    def expected(self, batches: int, mode: str) -> tuple[list[Row], State]:
        output: list[Row] = []
        expires_ms: dict[str, int] = {}
        for batch in range(batches):
            for key, value in self.rows(batch):
                if key not in expires_ms:
                    output.append((key, value))
                    expires_ms[key] = second_of(value) * 1000 + DUPLICATE_MS
            watermark_ms = watermark_s(batch, DUPLICATE_MS) * 1000
            expires_ms = {key: at for key, at in expires_ms.items() if at > watermark_ms}
        return output, expires_ms

    def read(self, stores: list[list[dict[str, Any]]]) -> State:
        return {r["key.key"]: r["value.expiresAtMicros"] // 1000 for r in stores[0]}


@dataclass
class _Total:
    rows: int = 0
    seconds: int = 0
    timer_s: int | None = None


class TransformWithState(Operator):
    """Totals of keys that stay, and of keys that have rows in two batches and are then given up."""

    transform = "testkit.stateful:totals"
    stores = ({"stateVarName": "total"}, {"readRegisteredTimers": "true"})

    def rows(self, batch: int) -> list[Row]:
        first = first_s(batch)
        some = [(f"k{k}", f"b{batch}-{i}-{first + i}") for k in ALL_KEYS for i in range(k, 10)]
        short_lived = [f"{SHORT_LIVED}{b}.{k}" for b in (batch - 1, batch) for k in ALL_KEYS if b >= 0]
        return some + [(key, f"b{batch}-{first + 1}") for key in short_lived]

    def arguments(self, mode: str) -> dict[str, Any]:
        return {"mode": mode.capitalize()}

    def expected(self, batches: int, mode: str) -> tuple[list[Row], State]:
        output: list[Row] = []
        totals: dict[str, _Total] = {}
        for batch in range(batches):
            touched = {}
            for key, value in self.rows(batch):
                total = totals.setdefault(key, _Total())
                total.rows, total.seconds = total.rows + 1, total.seconds + second_of(value)
                touched[key] = second_of(value)
            for key, latest in touched.items():
                output.append((key, f"{totals[key].rows}:{totals[key].seconds}"))
                if key.startswith(SHORT_LIVED):
                    totals[key].timer_s = latest + PATIENCE_S
            for key, total in list(totals.items()):
                if total.timer_s is not None and total.timer_s <= watermark_s(batch):
                    output.append((key, f"over:{total.rows}:{total.seconds}"))
                    del totals[key]
        return output, {
            **{key: (t.rows, t.seconds) for key, t in totals.items()},
            **{f"{key} until {t.timer_s}": 1 for key, t in totals.items() if t.timer_s is not None},
        }

    def read(self, stores: list[list[dict[str, Any]]]) -> State:
        found: State = {r["key.key"]: (r["value.rows"], r["value.seconds"]) for r in stores[0]}
        for r in stores[1]:
            found[f"{r['key.key']} until {r['expiration_timestamp_ms'] // 1000}"] = 1
        return found


def parts_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Two input files of one batch."""
    some = list(rows)
    return [some[::2], some[1::2]]


def first_s(batch: int) -> int:
    """Return the first second of a batch.

    It is not 0, which is the watermark before any: Spark drops what is not later than it.
    """
    return BATCH_S * (batch + 1)


def watermark_s(batch: int, delay_ms: int = WATERMARK_MS) -> float:
    """Return the watermark in seconds, while ``batch`` runs.

    Late rows are measured by the one of the batch before.
    """
    return first_s(batch - 1) + 9 - delay_ms / 1000 if batch > 0 else 0.0


def _seconds(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp())

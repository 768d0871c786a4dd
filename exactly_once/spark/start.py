"""``exactly_once.check``: what a start can refuse, asked of a DataFrame before a query of it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from exactly_once.coordinator import start
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant
from exactly_once.registry import encoding
from exactly_once.spark.columns import check_names, types_of
from exactly_once.spark.modes import check_session
from exactly_once.spark.session import check_connector, check_driver, check_jar, has_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check(df: DataFrame, options: Mapping[str, str], participants: tuple[Participant[Any], ...], mode: str) -> None:
    """See :func:`exactly_once.check`."""
    start.check_mode(mode)
    check_session(df.sparkSession)
    if participants:
        check_driver(df.sparkSession)
    elif has_jvm(df.sparkSession):
        check_jar(df.sparkSession)
    check_connector(df.sparkSession, needed=False)  # rows of a session without one are not Kafka's
    columns = [(f.name, f.dataType.simpleString()) for f in df.schema.fields]
    # as foreach_batch: without a topic the rows go to the participants alone
    to_kafka = not participants or bool(options.get("topic")) or "topic" in df.columns
    checked = start.check(options, columns if to_kafka else None, batch=not df.isStreaming)
    if to_kafka:
        encoding.check(checked.registry, types_of(df.schema))
    check_participants(df, checked, participants)


def check_participants(df: DataFrame, options: SinkOptions, participants: tuple[Participant[Any], ...]) -> None:
    """Refuse rows that do not fit a participant, which gets all columns."""
    if not participants:
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    check_names(df)
    schema = to_arrow_schema(df.schema)
    for p in participants:
        p.check(options.sink_id, schema)

"""``exactly_once.check``: what a start can refuse, asked of a DataFrame before a query of it starts."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from exactly_once.coordinator import start
from exactly_once.errors import InvalidOption
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participant import Participant
from exactly_once.protocol.records import KAFKA
from exactly_once.spark import encoders
from exactly_once.spark.columns import check_names, types_of
from exactly_once.spark.location import check_scheme, located
from exactly_once.spark.modes import check_session
from exactly_once.spark.session import check_connector, check_driver, check_jar, has_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

#: Pattern of what Spark writes of a batch read of Kafka that ends where each of its tasks finds the end: -1 is
#: "latest".
_UNBOUNDED = re.compile(r"KafkaRelation\(strategy=(.*), start=.*, end=(?:Latest.*|Specific.* -> -1\b.*)\)")


def check(df: DataFrame, options: Mapping[str, str], participants: tuple[Participant[Any], ...], mode: str) -> None:
    """See :func:`exactly_once.check`."""
    start.check_mode(mode)
    check_session(df.sparkSession)
    # without a topic the rows go to the participants alone, as in foreach_batch
    to_kafka = not participants or bool(options.get("topic")) or "topic" in df.columns
    options = located(options, df.sparkSession)
    if at := next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None):
        check_scheme(df.sparkSession, at)
    if participants:
        check_foreach(SinkOptions.parse(options, batch=not df.isStreaming), participants)
        check_driver(df.sparkSession)
    if to_kafka and has_jvm(df.sparkSession):
        check_jar(df.sparkSession)
    check_connector(df.sparkSession, reads=False, sends=to_kafka)  # rows of a session without one are not Kafka's
    columns = [(f.name, f.dataType.simpleString()) for f in df.schema.fields]
    checked = start.check(options, columns if to_kafka else None, batch=not df.isStreaming)
    if to_kafka:
        encoders.check(checked.registry, types_of(df.schema))
    check_participants(df, checked, participants)
    if not df.isStreaming and has_jvm(df.sparkSession):
        _warn_unbounded(df, checked.sink_id)


def check_foreach(options: SinkOptions, participants: tuple[Participant[Any], ...]) -> None:
    """Raise InvalidOption for options, or outputs, that ``exactly_once.foreach_batch`` does not take."""
    if other := next((p for p in participants if not isinstance(p, Participant)), None):
        raise InvalidOption(
            f"{other!r} is no output: its class is {type(other).__name__}, and not one of exactly_once.participant's",
            "Give each output as an argument of its own: foreach_batch(options, *outputs)",
        )
    names = [p.name for p in participants]
    if KAFKA in names or len(set(names)) < len(names):
        raise InvalidOption(
            f"the participants' names {', '.join(names)} are not unique, or one of them is {KAFKA!r}",
            "Give each participant a name of its own that stays the same across restarts",
        )
    if options.guarantee is not Guarantee.EXACTLY_ONCE:
        raise InvalidOption(
            f"foreach_batch supports sink.guarantee=exactly_once only, not {options.guarantee.value}",
            'Remove sink.guarantee; for a weaker one, write with format("kafka_exactly_once")',
        )


def check_participants(df: DataFrame, options: SinkOptions, participants: tuple[Participant[Any], ...]) -> None:
    """Refuse rows that do not fit a participant, which gets all columns."""
    if not participants:
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    check_names(df)
    schema = to_arrow_schema(df.schema)
    for p in participants:
        p.check(options.sink_id, schema)


def _warn_unbounded(df: DataFrame, sink_id: str) -> None:
    """Say which reads of Kafka have no end in numbers: a task that is tried again reads other rows."""
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    relations = (leaves.apply(n) for n in range(leaves.size()))
    for relation in relations:
        if relation.nodeName() == "LogicalRelation" and (read := _UNBOUNDED.match(relation.relation().toString())):
            log.warning(
                "sink %s: EO-WARN-UNBOUNDED the rows come from a read of Kafka without an end in numbers (%s): each "
                "task asks for the end itself, so a repeat has other rows. Set endingOffsets of the read to an offset "
                "for each partition",
                sink_id,
                read[1],
            )

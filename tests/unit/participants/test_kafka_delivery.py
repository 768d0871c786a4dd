"""Kafka under the weaker guarantees, without a broker."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType

from exactly_once.errors import ExactlyOnceError, InvalidRecord, PrepareFailed
from exactly_once.options import SinkOptions
from exactly_once.participant import PartName
from exactly_once.participants.kafka.delivery import KafkaDelivery
from exactly_once.spark.columns import columns_of
from tests.unit.spark.test_columns import schema


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_a_refused_row_says_that_records_sent_before_may_be_visible(guarantee: str) -> None:
    """A wrong promise: whoever is told that nothing of the batch is visible does not look for duplicates."""
    options = SinkOptions.parse(
        {
            "sink.id": "s",
            "checkpointLocation": "/c",
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "sink.guarantee": guarantee,
        }
    )
    columns = columns_of(schema(value=StringType(), partition=IntegerType()), "t")
    part = KafkaDelivery(options, columns).begin(PartName("s", 0, 3, 0, "0.0", ""))
    with pytest.raises(InvalidRecord, match="negative partition") as refused:
        part.write(pa.record_batch({"value": ["a"], "partition": pa.array([-1], pa.int32())}))
    assert refused.value.safe == (
        f"Records of this batch that were sent before may be visible: this sink's guarantee is {guarantee}, and the "
        "next start writes the batch again"
    )
    assert "None of this batch" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__, "one sentence in the trace"


@pytest.mark.parametrize("error", [InvalidRecord("a row", "Correct it"), PrepareFailed("no answer", "Wait", "Safe")])
def test_an_error_with_other_words_on_what_is_safe_is_the_same_error(error: ExactlyOnceError) -> None:
    """Its code decides whether a stream restarts."""
    told = pickle.loads(pickle.dumps(error.with_safe("Some of it is visible")))
    assert type(told) is type(error) and (told.what, told.way_out) == (error.what, error.way_out)
    assert told.safe == "Some of it is visible"

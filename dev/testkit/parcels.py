"""A code location with a stream whose values and keys the sink encodes, that rejects records and makes dead letters;
``python -m testkit.parcels JOB`` runs one of its jobs. ``REGISTRY_URL`` names the schema registry; with
``REPAIRS_PARCELS`` the stream repairs its dead letters.
"""

from __future__ import annotations

import json
import os
import sys

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import DeadLetters, exactly_once_stream
from testkit.location import located, run_of

PARCELS, SHIPPED, REJECTED, DEAD = "shop.parcels", "parcels_shipped", "parcels_rejected", "parcels_dead"

REGISTRY = os.environ.get("REGISTRY_URL", "http://127.0.0.1:9")
PARCEL = json.dumps(
    {
        "type": "record",
        "name": "Parcel",
        "fields": [{"name": "id", "type": "string"}, {"name": "grams", "type": "int"}],
    }
)


def weighed(value: bytes | None) -> bytes | None:
    """Return a parcel without a weight with one, encoded, and all others as they are."""
    if not value or value[:1] == b"\0":
        return value
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    settings = {"auto.register.schemas": False, "use.latest.version": True}
    encode = AvroSerializer(SchemaRegistryClient({"url": REGISTRY}), PARCEL, conf=settings)
    parcel = {"grams": 1, **json.loads(value)}
    made: bytes | None = encode(parcel, SerializationContext(SHIPPED, MessageField.VALUE))
    return made


@exactly_once_stream(
    source=PARCELS,
    outputs=SHIPPED,
    rejected=REJECTED,
    dead_letters=DeadLetters(DEAD, repair=weighed if os.environ.get("REPAIRS_PARCELS") else None),
    options={
        "schema.registry.url": REGISTRY,
        "value.format": "avro",
        "value.schema": PARCEL,
        "value.schema.register": "true",
        "key.format": "avro",
        "key.schema.register": "true",
    },
    output_partitions=1,
)
def ship_parcels(events: DataFrame) -> DataFrame:
    """Parcels; those that are astray are for a topic that does not exist."""
    from pyspark.sql import functions as F

    import exactly_once

    rows = exactly_once.attempt(events, "id STRING NOT NULL, grams INT")
    topic = F.when(F.col("parsed.id").startswith("astray"), "parcels_nowhere").otherwise(SHIPPED)
    key, value = F.col("key").cast("string"), F.col("parsed")
    return rows.select("tried", key.alias("key"), value.alias("value"), topic.alias("topic"))


def definitions() -> dg.Definitions:
    """Return the code location."""
    return located(ship_parcels)


if __name__ == "__main__":
    sys.exit(run_of(definitions(), *sys.argv[1:]))

"""A stream under Dagster whose rows the sink encodes by a schema registry: its rejected records go back to the input as
they are, and of its dead letters the job sends what readers of the output take, and leaves the rest.
"""

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from exactly_once.error_headers import JSON
from platform_assets.report.reader import read_committed
from testkit import oracle
from testkit import registry as support
from testkit.parcels import DEAD, PARCELS, REJECTED, SHIPPED, ship_parcels
from tests.dagster.test_rejected import Shop
from tests.integration.test_schema_registry import client

pytestmark = pytest.mark.long  # the registry alone takes 20 s


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with support.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def parcels(site, registry):
    site.env["REGISTRY_URL"] = registry.url
    return Shop(site, "testkit.parcels", [PARCELS])


def shipped(parcels, registry):
    """Key and value of each record of the output, as Confluent's reader has them."""
    decode = AvroDeserializer(client(registry))
    return [
        (
            decode(r.key, SerializationContext(SHIPPED, MessageField.KEY)),
            decode(r.value, SerializationContext(SHIPPED, MessageField.VALUE)),
        )
        for r in read_committed(parcels.site.connection, SHIPPED)
    ]


def test_rejected_records_return_as_they_are_and_dead_letters_are_sent_once_they_have_their_bytes(parcels, registry):
    """Guards against a record that comes back to the input in Avro, or behind an id, for ever rejected; against JSON
    among Avro in the output; and against a letter that counts as sent, and is nowhere.
    """
    parcels.send(
        b'{"id": "a", "grams": 5}', b"{", b'{"id": "b"}', b'{"id": "astray", "grams": 7}', b'{"id": "c"}', topic=PARCELS
    )
    parcels.stream(ship_parcels)
    expected = [("customer-0", {"id": "a", "grams": 5})]
    assert shipped(parcels, registry) == expected
    [rejected] = read_committed(parcels.site.connection, REJECTED)
    assert (rejected.key, rejected.value) == (b"customer-1", b"{")
    letters = list(read_committed(parcels.site.connection, DEAD))
    assert [dict(r.headers).get(JSON) for r in letters] == [b"value", None, b"value"]
    assert [r.value for r in letters if JSON in dict(r.headers)] == [b'{"id":"b"}', b'{"id":"c"}']

    parcels.killed_resend("decided", ship_parcels)
    parcels.resend(stream=ship_parcels)
    back = list(read_committed(parcels.site.connection, PARCELS))[5:]
    assert [(r.key, r.value, r.headers) for r in back] == [(b"customer-1", b"{", (("n", b"1"),))]

    left = "Left 2 records in parcels_dead: "
    said = parcels.resend(stream=ship_parcels, topic=DEAD, to=SHIPPED)
    assert f"Sent 1 record of parcels_dead again. {left}" in said and "is JSON. Declare repair=" in said
    expected.append(("customer-3", {"id": "astray", "grams": 7}))
    assert shipped(parcels, registry) == expected
    said = parcels.resend(stream=ship_parcels, topic=DEAD, to=SHIPPED)
    assert left in said and "again" not in said.partition(left)[0].rpartition("\n")[2]
    assert shipped(parcels, registry) == expected

    parcels.site.env["REPAIRS_PARCELS"] = "1"
    parcels.killed_resend("all-prepared", ship_parcels, topic=DEAD)
    for _ in range(2):
        said = parcels.resend(stream=ship_parcels, topic=DEAD)
    assert "no record left" in said
    expected += [("customer-2", {"id": "b", "grams": 1}), ("customer-4", {"id": "c", "grams": 1})]
    assert shipped(parcels, registry) == expected
    oracle.assert_settled(parcels.site.connection, ship_parcels.resend_spec.sink_id, [PARCELS, SHIPPED, DEAD])

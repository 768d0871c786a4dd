"""One symptom has one code, one sentence and one remedy, on every screen: planted in a real broker, read everywhere."""

import json

import pytest

from exactly_once.kafka.connection import Connection
from testkit import broker as brokers
from testkit.hanging import UNVERIFIED
from testkit.one_diagnosis import PLANTS, engine_screens, hanging


def check(connection, plant, folder):
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=4)
    with plant(connection, topic, folder) as planted:
        screens = engine_screens(connection, planted)
    mine = {name: [d for d in found if d["code"] == planted.code] for name, found in screens.items()}
    assert {name for name, found in mine.items() if found} == planted.screens
    said = {
        (d["severity"], d["subject"], d["sentence"], d["remedy"], d["since"])
        for found in mine.values()
        for d in found
        if "sentence" in d
    }
    assert len(said) == 1, json.dumps(sorted(map(str, said)), indent=1)


@pytest.mark.quick("checkpoint_torn", "frozen", "lost_part")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_every_screen_says_the_same_of_a_symptom(plant, connection, tmp_path):
    """Mishap: the alert, the command and the doctor send the person on call three ways."""
    check(connection, plant, tmp_path)


@pytest.mark.long
def test_every_screen_says_the_same_of_a_hanging_transaction(own_broker, tmp_path):
    """Mishap: the list says "hanging", and the proof of the output "stalled"."""
    broker = own_broker(properties=UNVERIFIED)
    check(Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers}), hanging, tmp_path)

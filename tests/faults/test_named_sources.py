"""Named sources (``readStream.name("orders")``): a crash, a torn file, one topic more or less, a new name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from exactly_once.checkpoint import check_whole
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import offsets_group
from testkit import repair
from testkit.broker import create_topic
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.stream import NAMED_SOURCES, Job, SparkDriver
from tests.integration.test_input_offsets import of_group

#: How many batches Spark keeps the offsets of.
RETAINED = "spark.sql.streaming.minBatchesToRetain"

#: Three topics get the same rows; with the topic's name in them, each is known.
COLUMNS = ["concat(topic, key) key", "concat(topic, value) value"]


@pytest.fixture
def evolving(warm: SparkDriver) -> Iterator[SparkDriver]:
    """The driver that stays, in the mode that takes names."""
    with warm.having(NAMED_SOURCES):
        yield warm


def reading(bench: Bench, **inputs: KafkaInput) -> Job:
    """The bench's job over these sources, by name."""
    first, *others = [one.source(1000) | {"name": name} for name, one in inputs.items()]
    more = {"sources": others, "columns": COLUMNS}
    return replace(bench.job, source=first, select=COLUMNS, transform="testkit.transforms:with_sources", arguments=more)


def plan_anew(bench: Bench) -> list[str]:
    """Make Spark plan the batch in flight again; returns the files that the repair has removed."""
    done = repair.mend(bench, plan_anew=True)
    assert done.applied
    return [finding.name for finding in done.findings]


@pytest.mark.long
def test_named_sources_go_through_a_crash_a_torn_file_and_one_more_topic_and_a_new_name_is_refused(
    connection: Connection, bench: Bench, driver: StartDriver, evolving: SparkDriver
) -> None:
    """Guards against a torn plan that counts as whole (loss), against offsets of another topic in the group, and
    against a renamed source, which Spark reads from the beginning (duplicates).
    """
    orders, refunds, more = (KafkaInput(connection, create_topic(connection.bootstrap_servers), []) for _ in range(3))

    def fill(*inputs: KafkaInput) -> None:
        for one in inputs:
            one.add_uneven(20)

    def assert_all(*inputs: KafkaInput) -> None:
        bench.assert_exactly([(one.topic + k, one.topic + v) for one in inputs for k, v in one.sent])
        committed = CheckpointReader(root="").committed_offsets(str(bench.checkpoint))
        assert of_group(connection, offsets_group(bench.sink_id)) == committed
        assert committed.keys() == {one.topic for one in inputs}

    fill(orders, refunds)
    job = reading(bench, orders=orders, refunds=refunds)
    first = driver(conf=NAMED_SOURCES)
    first.hold(job, "decided")
    first.kill9()
    plan = bench.checkpoint / "offsets" / "0"
    whole = plan.read_bytes()
    assert whole.startswith(b"v2\n") and b"\norders:{" in whole and b"\nrefunds:{" in whole
    plan.write_bytes(whole[:-3])

    (bench.checkpoint / "offsets" / ".0.crc").unlink()  # as on a store without checksums

    with pytest.raises(CheckpointUnusable, match="offsets/0 is torn"):
        check_whole(str(bench.checkpoint), bench.sink_id)
    done = repair.repair(connection, bench.sink_id, str(bench.checkpoint))
    assert done.applied and plan.read_bytes() == whole
    evolving.complete(job)
    assert_all(orders, refunds)

    fill(orders, refunds, more)
    evolving.complete(reading(bench, more=more, orders=orders, refunds=refunds))
    assert_all(orders, refunds, more)

    fill(refunds)
    renamed = evolving.run(reading(bench, more=more, orders=orders, refunds_2=refunds))
    assert renamed.code == "EO-REWOUND" and ".name('refunds')" in renamed.sentence
    assert plan_anew(bench) == ["offsets/2"]
    again = evolving.run(reading(bench, more=more, orders=orders, refunds=refunds))
    assert again.code in (None, "EO-FENCED")  # this driver lived on, and the repair has fenced it
    evolving.complete(reading(bench, more=more, orders=orders, refunds=refunds))
    assert_all(orders, refunds, more)


@pytest.mark.long
def test_a_named_source_that_is_dropped_reads_no_more_and_returns_where_it_stopped_or_not_at_all(
    connection: Connection, bench: Bench, evolving: SparkDriver
) -> None:
    """Guards against records of a dropped topic in the output, and against a topic that returns from its beginning:
    Spark looks for its offsets in the last two batches alone (duplicates).
    """
    orders, refunds = (KafkaInput(connection, create_topic(connection.bootstrap_servers), []) for _ in range(2))
    wanted: list[tuple[str, str]] = []

    def wrote(job: Job, *inputs: KafkaInput) -> None:
        """Both topics get rows, and the output those of these inputs since they were last read."""
        evolving.complete(job)
        rows = [(one.topic + k, one.topic + v) for one in inputs for k, v in one.sent]
        wanted.extend(row for row in rows if row not in wanted)
        bench.assert_exactly(wanted)

    def fill() -> None:
        for one in (orders, refunds):
            one.add_uneven(20)

    both, alone = reading(bench, orders=orders, refunds=refunds), reading(bench, orders=orders)
    fill()
    wrote(both, orders, refunds)
    stopped = of_group(connection, offsets_group(bench.sink_id))[refunds.topic]
    fill()
    wrote(alone, orders)
    assert of_group(connection, offsets_group(bench.sink_id))[refunds.topic] == stopped
    committed = CheckpointReader(root="").committed_offsets(str(bench.checkpoint))
    assert committed.keys() == {orders.topic, refunds.topic} and committed[refunds.topic] == {}, "no lag"
    fill()
    wrote(both, orders, refunds)

    stopped = of_group(connection, offsets_group(bench.sink_id))[refunds.topic]
    for _ in range(2):
        fill()
        wrote(alone, orders)
    fill()
    returned = evolving.run(both)
    assert returned.code == "EO-REWOUND" and "no source has read" in returned.sentence
    plan_anew(bench)

    again = reading(bench, orders=orders, refunds_again=refunds)
    [source] = again.arguments["sources"]
    source["options"]["startingOffsets"] = json.dumps({refunds.topic: stopped})
    assert evolving.run(again).code in (None, "EO-FENCED")  # this driver lived on, and the repair has fenced it
    wrote(again, orders, refunds)


@pytest.mark.long
def test_a_topic_that_returns_when_spark_has_forgotten_its_offsets_is_refused_and_goes_on_where_it_ended(
    connection: Connection, bench: Bench, evolving: SparkDriver
) -> None:
    """Guards against records that are written twice, in silence: Spark keeps the offsets of a hundred batches (here of
    two), and reads a topic that was away for longer from its beginning.
    """
    orders, refunds = (KafkaInput(connection, create_topic(connection.bootstrap_servers), []) for _ in range(2))
    both, alone = reading(bench, orders=orders, refunds=refunds), reading(bench, orders=orders)
    evolving.ask("conf", name=RETAINED, value="2")
    try:
        for one in (orders, refunds):
            one.add_uneven(20)
        evolving.complete(both)
        wanted = [(one.topic + k, one.topic + v) for one in (orders, refunds) for k, v in one.sent]
        for _ in range(4):
            orders.add_uneven(5)
            evolving.complete(alone)
        kept = [p.read_text() for p in (bench.checkpoint / "offsets").glob("[0-9]*")]
        assert kept and not any(refunds.topic in text for text in kept)
        refunds.add_uneven(7)
        returned = evolving.run(both)
        assert returned.code == "EO-REWOUND", returned
        ended = json.dumps({refunds.topic: {"0": 21}})
        assert f"startingOffsets {ended}" in returned.sentence

        plan_anew(bench)
        again = reading(bench, orders=orders, refunds_again=refunds)
        [source] = again.arguments["sources"]
        source["options"]["startingOffsets"] = ended
        assert evolving.run(again).code in (None, "EO-FENCED")  # this driver lived on, and the repair has fenced it
        evolving.complete(again)
    finally:
        evolving.ask("unset", name=RETAINED)
    late = [(one.topic + k, one.topic + v) for one in (orders, refunds) for k, v in one.sent]
    bench.assert_exactly([*wanted, *(row for row in late if row not in wanted)])


@pytest.mark.long
@pytest.mark.parametrize("several", [False, True], ids=["format", "foreach_batch"])
def test_a_source_is_not_dropped_while_the_batch_in_flight_has_records_of_it(
    connection: Connection, bench: Bench, driver: StartDriver, evolving: SparkDriver, several: bool
) -> None:
    """Guards against records that are lost in silence: Spark runs a batch that a crash left undecided again without the
    source that the query has dropped, and counts its records as read.
    """
    orders, refunds = (KafkaInput(connection, create_topic(connection.bootstrap_servers), []) for _ in range(2))
    more = {"participants": []} if several else {}
    both = replace(reading(bench, orders=orders, refunds=refunds), **more)
    alone = replace(reading(bench, orders=orders), **more)
    for one in (orders, refunds):
        one.add_uneven(20)
    first = driver(conf=NAMED_SOURCES)
    first.arm("all-prepared")
    run = first.start(both)
    run.await_true("all parts are prepared", lambda: first.has_reached("all-prepared"))
    first.kill9()

    refused = evolving.run(alone)
    assert refused.code == "EO-CHECKPOINT" and "no source refunds" in refused.sentence
    evolving.complete(both)
    orders.add_uneven(5)
    evolving.complete(alone)
    bench.assert_exactly([(one.topic + k, one.topic + v) for one in (orders, refunds) for k, v in one.sent])

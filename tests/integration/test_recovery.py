"""The recovery on a real broker, without Spark."""

from __future__ import annotations

from exactly_once.coordinator.recover import recover
from exactly_once.kafka.connection import Connection
from tests.support.dead_sink import DeadSink


def test_a_recovery_ends_what_a_late_task_opened_under_the_id_of_a_lost_part(
    connection: Connection, topic: str
) -> None:
    """A task that outlived its driver began anew under a decided id, which ended the decided transaction. Spared for
    its id, its own rows would hold readers back until their timeout, and no recovery would be clean.
    """
    sink = DeadSink(connection, topic)
    sink.decide(sink.open_part(0), sink.open_part(1), placed=True)
    late = sink.open_part(0)

    report = recover(connection, sink.sink_id)

    assert report.rolled_back == {"kafka": [late]}
    assert report.clean and [d.batch_id for d in report.to_rewrite] == [0]
    assert sink.visible() == ["part 1"]

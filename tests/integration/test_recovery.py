"""The recovery on a real broker, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import exactly_once
from exactly_once.coordinator.recover import claim_sink, recover
from exactly_once.deadline import Deadline
from exactly_once.errors import Fenced, InvalidOption
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.records import Claim, Decision, Tally
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.recover import RECOVER, RecoveryParameters
from exactly_once.tools.operation.rules import Refused
from exactly_once.tools.operation.transactions import ABORT, TransactionParameters
from testkit.dead_sink import DeadSink
from testkit.one_diagnosis import write
from testkit.repair import repair


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


# -- who operates it ---------------------------------------------------------------------------------------------------

PRODUCTION, STAGING = "dagster/prod-ä/0a1b", "dagster/staging/77"


def gone(claim: Claim) -> bool | None:
    """What production's own instance would answer: the run is over."""
    return False if claim.operator == PRODUCTION else None


@pytest.fixture
def sink(connection: Connection, topic: str) -> DeadSink:
    """Its driver ran in a container elsewhere, operated by production."""
    sink = DeadSink(connection, topic)
    elsewhere = Claim(2, "q", 0, "stream", "worker-0", 1, "/c", 1.0, PRODUCTION, "another")
    sink.log.claim(lambda state: elsewhere, Deadline(30))
    return sink


def test_a_claim_is_read_back_from_the_log_with_its_operator(connection: Connection, sink: DeadSink) -> None:
    """A claim that was written and got no answer is looked for by equality: one that changed on the way is written
    again and again, until the start fails.
    """
    owner = sink.read().owner
    assert owner == Claim(2, "q", 0, "stream", "worker-0", 1, "/c", 1.0, PRODUCTION, "another")
    assert inspect_sink(connection, sink.sink_id).owner.as_json()["operator"] == PRODUCTION


def test_a_fenced_driver_is_told_who_operates_the_new_owner(connection: Connection, sink: DeadSink) -> None:
    """Outage: production was fenced from a laptop, and its log says only that it was fenced."""
    claim_sink(connection, sink.sink_id, operator=STAGING)
    with pytest.raises(Fenced, match=rf"superseded by claim 3 \(recovery on .*, process \d+, operated by {STAGING}\)"):
        sink.log.append(Tally(2), Deadline(30))


def test_a_recovery_goes_by_what_the_operator_of_the_driver_says(connection: Connection, sink: DeadSink) -> None:
    """Outage: no host can see into another one, so that nobody would ever recover a stream that died on Kubernetes."""
    with pytest.raises(Refused) as refused:
        exactly_once.recover(connection, sink.sink_id, operator=STAGING)
    assert refused.value.phrase == f"fence the driver 1 on worker-0 (operated by {PRODUCTION})"
    assert inspect_sink(connection, sink.sink_id, alive_of=lambda claim: True).owner.works is True
    assert inspect_sink(connection, sink.sink_id, alive_of=gone).owner.works is False
    context = OperationContext(connection, STAGING, alive_of=gone)
    report = RECOVER.apply(context, RecoveryParameters(sink_id=sink.sink_id)).value
    assert report.claim is not None and report.claim.operator == STAGING
    assert sink.read().owner == report.claim


@pytest.mark.long
def test_every_recovery_and_repair_says_who_operates_it(connection: Connection, sink: DeadSink, tmp_path: Path) -> None:
    """Outage: a driver that finds itself fenced by "a recovery on worker-1" does not know whose that was."""
    assert recover(connection, sink.sink_id, operator="dagster/prod/recovery").clean
    owners = [sink.read().owner]

    sink.log.claim(lambda state: Claim(4, "q", 0, "stream", "worker-0", 1, "/c", 1.0, PRODUCTION), Deadline(30))
    undecided = sink.open_part(0)
    context = OperationContext(connection, "dagster/prod/abort", alive_of=gone)
    ABORT.apply(context, TransactionParameters(id=undecided))
    owners.append(sink.read().owner)

    sink.log.claim(lambda state: Claim(6, "q", 0, "stream", "worker-0", 1, "/c", 1.0, PRODUCTION), Deadline(30))
    offsets = 'v1\n{"batchTimestampMs":1}\n{"in":{"0":5}}'
    sink.log.append(Decision("q", 0, 6, (), digest_of(offsets), 5, 0, offsets=offsets), Deadline(30))
    write(tmp_path, {"metadata": '{"id":"q"}', "offsets/0": offsets, "commits/0": ""})
    place = connection, sink.sink_id, str(tmp_path)
    with pytest.raises(Refused, match="operated by"):
        repair(*place)
    done = repair(*place, operator="dagster/prod/repair", alive_of=gone)
    owners.append(sink.read().owner)

    assert [o.operator for o in owners if o] == [f"dagster/prod/{by}" for by in ("recovery", "abort", "repair")]
    assert done.applied and '"operator": "dagster/prod/repair"' in (tmp_path / done.kept_in / "audit.json").read_text()


def test_an_operator_that_cannot_be_said_is_refused_before_anybody_is_fenced(
    connection: Connection, sink: DeadSink
) -> None:
    """Outage: a driver that is stopped by a recovery which then fails over a name."""
    with pytest.raises(InvalidOption, match=r"sink\.operator"):
        recover(connection, sink.sink_id, operator="two\nlines")
    assert sink.read().owner is not None and sink.read().owner.token == 2

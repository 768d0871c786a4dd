"""A new version of a stream takes the place of the old one under Dagster: the job, and the stream that follows."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_exactly_once import exactly_once_definitions, exactly_once_resources, exactly_once_stream
from dagster_exactly_once.names import CHECKS_JOB, SUCCESSOR_JOB
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import classify
from dagster_exactly_once.runs.tags import TAG_SINK, TAG_STREAM
from exactly_once.commitlog.commit_log import read_log
from testkit import oracle
from testkit.bookings import GROWING, PAID, definitions
from tests.dagster.test_several_sources import run
from tests.integration.test_successor import Old


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def launched(defs, instance, stream, **config):
    """Run the job; the result, and what it wrote into the audit trail, oldest first."""
    done = defs.resolve_job_def(SUCCESSOR_JOB).execute_in_process(
        instance=instance,
        run_config={"ops": {"compare": {"config": {"stream": stream, **config}}}},
        raise_on_error=False,
    )
    found = [e.asset_observation_data.asset_observation for e in done.all_events if e.is_asset_observation]
    return done, found + [e.materialization for e in done.get_asset_materialization_events()]


@pytest.mark.long
def test_the_job_says_what_it_does_and_does_it_once(connection, topic, tmp_path, instance, monkeypatch):
    """Outage: a person who asks has retired a stream. Mishap: one who did it does not see where it goes on."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    old = Old(connection, topic, tmp_path / "checkpoint")
    new = exactly_once_stream(
        name="orders", source=old.input, outputs=[topic], sink_id=old.new_id, continues=old.sink_id, checks=None
    )(lambda events: events)
    resources = exactly_once_resources(work_dir=str(tmp_path), checkpoints=str(tmp_path / "new"))
    defs = exactly_once_definitions(new, resources=resources)
    where = {"checkpoint": str(old.checkpoint), "reason": "a test"}

    days = {"dagster/asset_partition_range_start": "2026-11-20", "dagster/asset_partition_range_end": "2026-11-24"}
    tags = {TAG_SINK: f"{old.sink_id}-backfill", TAG_STREAM: "rooms_backfill", **days}
    instance.add_run(dg.DagsterRun(job_name="rooms_backfill", tags=tags))
    for day in ("2026-11-20", "2026-11-21"):
        instance.report_runless_asset_event(dg.AssetMaterialization("rooms_by_day", partition=day))

    dry, [examined] = launched(defs, instance, "orders", **where)
    assert dry.success and old.read().retired is None
    unfilled = "3 days of rooms_by_day are not written (2026-11-22 to 2026-11-24), and no run can"
    assert unfilled in examined.description, "afterwards their asset is an orphan"
    assert " dry run, " in examined.description and "changes nothing. Sink" in examined.description
    assert examined.metadata["starting_offsets"].value == old.begins()

    undecided = old.open_part(0)
    refused, _ = launched(defs, instance, "orders", dry_run=False, **where)
    why = classify(instance, refused.run_id)
    assert why.code == "EO-REFUSED" and undecided in why.sentence and old.read().retired is None
    for producer in old.producers:
        producer.abort_transaction(30)

    done, [began, ended] = launched(defs, instance, "orders", dry_run=False, **where)
    assert done.success and old.read().retired is not None
    assert began.description.startswith(f"This run retires sink {old.sink_id} for good: ")
    assert ended.description.endswith(": it begins there.")
    assert ended.metadata["successor_reason"].value == "a test"
    assert ended.metadata["starting_offsets"].value == old.begins()

    again, said = launched(defs, instance, "orders", dry_run=False, **where)
    assert again.success and said[-1].metadata["starting_offsets"].value == old.begins()


@pytest.mark.long  # four starts of Spark
def test_a_stream_that_continues_another_begins_after_its_last_batch_and_no_sooner(site, instance, monkeypatch):
    """Loss or duplicate: a declaration with a new sink id begins where its topic begins."""
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    kafka.create_topics({"grow.a": 2})
    site.send("grow.a", "a0", "a1")
    succeeded, said = run(site, "young")
    assert succeeded, said[-5000:]
    site.send("grow.a", "a2")
    succeeded, said = run(site, "renewed")
    assert not succeeded and "EO-REFUSED" in said and SUCCESSOR_JOB in said

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", site.bootstrap_servers)
    done, _ = launched(definitions(site.folder, GROWING["renewed"]), instance, "growing", dry_run=False)
    assert done.success and read_log(site.connection, "growing").retired is not None

    succeeded, said = run(site, "renewed")
    assert succeeded and "continues sink growing, " in said and "last decided batch" in said, said[-5000:]
    site.send("grow.a", "a3")
    succeeded, said = run(site, "young")
    assert not succeeded and "EO-RETIRED" in said
    succeeded, said = run(site, "renewed")
    assert succeeded, said[-5000:]
    found = sorted(m.value for m in oracle.read(site.connection, ["growing"]))
    assert found == ["a0", "a1", "new a2", "new a3"]


def checked(defs, instance, output):
    """Run the checks of a location; those of one output, by name."""
    done = defs.resolve_job_def(CHECKS_JOB).execute_in_process(instance=instance)
    return {e.check_name: e for e in done.get_asset_check_evaluations() if e.asset_key == dg.AssetKey(output)}


@pytest.mark.long  # four starts of Spark
def test_a_new_version_reads_along_is_compared_and_takes_over_with_its_own_checkpoint(site, instance, monkeypatch):
    """Blue/green. Loss or duplicate: what the new one wrote beside the old one is written again, or by neither of them
    into the topic that readers know; or it takes over while the old one may still write.
    """
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", site.bootstrap_servers)
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    kafka.create_topics({"pay.in": 2})
    green, over = (definitions(site.folder, PAID[name]) for name in ("green", "over"))

    def ran(stream, *values):
        """The stream reads to the end of its input, with these records behind it; what it says."""
        site.send("pay.in", *values)
        succeeded, said = run(site, stream)
        return said if succeeded else f"FAILED {said[-5000:]}"

    assert "FAILED" not in ran("blue", "a0", "a1", "a2")
    begun = ran("green", "a3", "a4", "a5", "a6")
    assert "along with sink paid, " in begun and "last decided batch" in begun, begun
    before = checked(green, instance, "paid_shadow")["same_as_blue"]
    assert before.passed and before.description.startswith("Nothing to compare yet"), before.description
    assert "FAILED" not in ran("blue")
    found = checked(green, instance, "paid_shadow")
    same = found["same_as_blue"]
    assert same.passed and " as paid for 4 input records" in same.description, found
    assert all(e.passed for e in found.values()), {name: e.description for name, e in found.items()}

    early = ran("over")
    assert early.startswith("FAILED") and "EO-REFUSED" in early and SUCCESSOR_JOB in early
    dry, [examined] = launched(over, instance, "paid_v2")
    assert dry.success
    assert "paid-v2 has read" in examined.description and "its own checkpoint." in examined.description
    done, [*_, ended] = launched(over, instance, "paid_v2", dry_run=False)
    assert done.success
    assert ended.description.endswith("from its own checkpoint."), ended.description

    assert "EO-RETIRED" in ran("blue", "a7", "a8")
    assert "FAILED" not in ran("over")
    written = {
        topic: sorted(m.value.partition("/")[0] for m in oracle.read(site.connection, [topic]))
        for topic in ("paid", "paid_shadow")
    }
    assert written == {"paid": [f"a{n}" for n in range(9)], "paid_shadow": ["a3", "a4", "a5", "a6"]}
    found = checked(over, instance, "paid")
    assert all(e.passed for e in found.values()), {name: e.description for name, e in found.items()}
    assert found["no_duplicates_and_no_loss"].metadata["input_records_compared"].value == 6

    again = next(m.value for m in oracle.read(site.connection, ["paid_shadow"]))
    with kafka.producer("somebody") as producer, producer.transaction():
        producer.send("paid_shadow", again.encode())
    red = checked(green, instance, "paid_shadow")["same_as_blue"]
    assert not red.passed and red.severity is dg.AssetCheckSeverity.WARN, red.description
    assert "paid-v2 differs" in red.description and " paid: 1 differs" in red.description
    assert "old 1 record, new 2" in str(red.metadata)

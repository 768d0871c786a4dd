"""One symptom has one code, one sentence and one remedy on every screen of Dagster, and those of the command line."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_exactly_once import RestartPolicy, WatchPolicy, exactly_once_stream
from dagster_exactly_once.checks.definitions import checks_of, health_check
from dagster_exactly_once.names import ALL_STREAMS, NOTIFY, RECOVERY_JOB
from dagster_exactly_once.notify import Notice, Notifier
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.sensors.checkpoint_progress import checkpoint_progress_sensor
from dagster_exactly_once.sensors.run_failure import run_failure_sensor
from dagster_exactly_once.sensors.stale_transactions import stale_transactions_sensor
from exactly_once.kafka.connection import Connection
from testkit import broker as brokers
from testkit import one_diagnosis as plants
from testkit.daemon import Daemon
from testkit.dead_sink import DEAD, DeadSink
from testkit.hanging import UNVERIFIED
from testkit.sensing import empty_job, failed_run, failure

PROGRESS, STALE, FAILURE = (
    "exactly_once_checkpoint_progress",
    "exactly_once_stale_transactions",
    "exactly_once_run_failure",
)

#: The screens that show the state of a stream.
STATE = {PROGRESS, "health", "health by hand", "transactions", ALL_STREAMS}

#: The screens of Dagster that have each of the symptoms, beside :data:`STATE` where it is one.
SCREENS = {
    plants.left_open: {STALE, "notice", "no_old_open_transaction"},
    plants.in_doubt: {*STATE, STALE, "notice", "no_old_open_transaction"},
    plants.lost_part: {STALE},
    plants.frozen: {*STATE, STALE, "notice"},
    plants.held_back: {"last_stable_offset_is_high_watermark"},
    plants.hanging: {STALE, "notice"},
    plants.checkpoint_lost: {"checkpoint_equals_commit_log"},
    plants.checkpoint_foreign: {"checkpoint_equals_commit_log"},
    plants.checkpoint_torn: {*STATE, "checkpoint_equals_commit_log", "freshness"},
}


class Kept(Notifier):
    """Keeps what it was sent."""

    def send(self, notice: Notice) -> None:
        TAKEN.append(notice)


TAKEN: list[Notice] = []


class Location:
    """The screens of a code location with one stream, which writes through the sink ``sink_id``."""

    def __init__(self, connection: Connection, instance: dg.DagsterInstance, sink_id: str, topic: str):
        source = brokers.create_topic(connection.bootstrap_servers, partitions=1)
        declared = exactly_once_stream(name="planted", source=source, outputs=[topic], sink_id=sink_id)
        self.stream, self.instance = declared(lambda events: events), instance
        spec = self.stream.spec
        servers = {"bootstrap_servers": connection.bootstrap_servers}
        self.resources = {
            "kafka": KafkaTransactionalProducerFactory(**servers),
            "transactions": TransactionAdmin(**servers),
            "checkpoints": CheckpointReader(root="/nowhere"),
            "restart_policy": RestartPolicy(),
            "watch_policy": WatchPolicy(notice_after_s=0.0, hanging_every_s=0.0, hanging_older_than_s=0.001),
            NOTIFY: Kept(),
        }
        sensors = {
            PROGRESS: checkpoint_progress_sensor([spec]),
            STALE: stale_transactions_sensor([spec]),
            FAILURE: run_failure_sensor([spec], [empty_job(RECOVERY_JOB), empty_job(spec.job)]),
        }
        self.daemon = Daemon(instance, sensors, self.resources)

    def screens(self) -> dict[str, str]:
        """Return what each screen shows: its codes and its text."""
        TAKEN.clear()
        found = {name: self._ticked(name) for name in (FAILURE, STALE)}
        found |= {PROGRESS: self._ticked(PROGRESS), "notice": " ".join(f"{n.code}: {n.what}" for n in TAKEN)}
        for event in self.events:
            if isinstance(event, dg.AssetCheckEvaluation):
                found["health"] = _shown(event)
            elif event.asset_key == dg.AssetKey(ALL_STREAMS):
                found[ALL_STREAMS] = str(event.metadata["planted: says"].value)
            elif event.asset_key == dg.AssetKey(self.stream.spec.asset):
                found["transactions"] = _shown(event)
        return found | self._checks()

    def _ticked(self, name: str) -> str:
        """Return what a tick says; of one that asks for a recovery, what the next one says while that waits."""
        result = self.daemon.tick(name)
        self.events = result.asset_events
        if result.run_requests:
            result = self.daemon.tick(name)
        return str(result.skip_reason.skip_message if result.skip_reason else "")

    def _checks(self) -> dict[str, str]:
        checks = [*checks_of(self.stream), health_check(self.stream)]
        policy = {"last_stable_offset_is_high_watermark": {"config": {"policy_s": 0.001}}}
        asset = self.stream.topics[0].replace("-", "_")
        named = {f"{asset}_{name}": config for name, config in policy.items()}
        job = dg.define_asset_job(
            "checks", selection=dg.AssetSelection.checks(*checks), executor_def=dg.in_process_executor
        )
        defs = dg.Definitions(
            assets=list(self.stream.assets), asset_checks=checks, jobs=[job], resources=self.resources
        )
        done = defs.resolve_job_def("checks").execute_in_process(run_config={"ops": named}, instance=self.instance)
        found = {e.check_name: _shown(e) for e in done.get_asset_check_evaluations()}
        return {**found, "health by hand": found["health"]}


def _shown(event: dg.AssetCheckEvaluation | dg.AssetObservation) -> str:
    return f"{event.metadata['code'].value}: {event.description}"


def check(connection, instance, plant, folder):
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=4)
    with plant(connection, topic, folder) as planted:
        screens = Location(connection, instance, planted.sink_id, topic).screens()
        where = ("--checkpoint", planted.checkpoint) if planted.checkpoint else ()
        proved = plants.screen("verify", connection, planted.sink_id, "--settle", "0", *where)
    said = next(d for d in proved if d["code"] == planted.code)
    text = f"{said['sentence']}. {said['remedy']}."
    assert {name for name, shown in screens.items() if planted.code in shown} == SCREENS[plant], screens
    other = {name: shown for name, shown in screens.items() if planted.code in shown and text not in shown}
    assert not other, (text, other)


@pytest.mark.quick("held_back")
@pytest.mark.parametrize("plant", plants.PLANTS, ids=lambda plant: plant.__name__)
def test_every_screen_of_dagster_says_of_a_symptom_what_the_command_line_says(plant, connection, instance, tmp_path):
    """Mishap: health has the cause, the table says "never used", and a sensor "another's driver, stop it"."""
    check(connection, instance, plant, tmp_path)


@pytest.mark.long
def test_every_screen_of_dagster_says_the_same_of_a_hanging_transaction(own_broker, instance, tmp_path):
    broker = own_broker(properties=UNVERIFIED)
    connection = Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
    check(connection, instance, plants.hanging, tmp_path)


@pytest.mark.long
def test_every_screen_says_why_the_newest_run_failed(connection, instance, tmp_path):
    """Mishap: at 3 a.m. the table of all streams sent a person to look for input, of a stream whose code was wrong."""
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=1)
    sink = DeadSink(connection, topic, plants.socket.gethostname(), DEAD, checkpoint=str(tmp_path))
    plants.write(tmp_path, {"metadata": '{"id":"q"}'})
    why = failure("EO-TRANSFORM", cause="KeyError: 'amount' in priced", way_out="Correct the function")
    failed = failed_run(instance, why, "planted", "planted_stream")
    screens = Location(connection, instance, sink.sink_id, topic).screens()
    text = f"Run {failed.run_id[:8]} failed. EO-TRANSFORM: KeyError: 'amount' in priced. Correct the function."
    assert {name for name, shown in screens.items() if text in shown} == {*STATE, FAILURE, "notice"}, screens
    assert all("HEALTH-FAILED" in screens[name] for name in {*STATE, FAILURE})

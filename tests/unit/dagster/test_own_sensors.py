"""The sensors of declared streams: made by themselves, or with the intervals that a code location says."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import dagster as dg
import pytest

from dagster_exactly_once import (
    Backfill,
    BadDeclaration,
    Stream,
    StreamTopic,
    StreamTranslator,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_sensors,
    exactly_once_stream,
    observed_stream,
)
from testkit.syntax import ROOT

RESOURCES = exactly_once_resources(work_dir="s", checkpoints="s3://c", kafka={"bootstrap_servers": "b1:9092"})


class ByCluster(StreamTranslator):
    """The keys of the assets begin with the brokers' name."""

    def get_asset_key(self, topic: StreamTopic) -> dg.AssetKey:
        return super().get_asset_key(topic).with_prefix(topic.bootstrap_servers.partition(":")[0])


@exactly_once_stream(
    source="raw", outputs=["orders"], backfill=Backfill.daily("2026-01-01"), translator=ByCluster(), sink_id="orders"
)
def orders(events):  # type: ignore[no-untyped-def]
    """Orders."""
    return events


clicks = observed_stream("clicks", source="clicks_in", outputs=["clicks_out"])


def intervals(sensors: object) -> dict[str, int | None]:
    """The sensors by name, each with its interval as Dagster has it."""
    assert isinstance(sensors, (list, tuple))
    return {sensor.name: sensor.minimum_interval_seconds for sensor in sensors}


BY_ITSELF = {
    # a second less than 10, 30 and 5: Dagster's look at exactly that time would come too early by milliseconds
    "exactly_once_checkpoint_progress": 9,
    "exactly_once_stale_transactions": 29,
    "exactly_once_run_failure": 4,
    "exactly_once_liveness": 4,
}


def test_streams_are_watched_without_a_word() -> None:
    """Guards against a stream that nothing restarts because somebody did not know that it takes sensors."""
    defs = exactly_once_definitions(orders, clicks, resources=RESOURCES)
    assert intervals(defs.sensors) == intervals(exactly_once_sensors(orders, clicks)) == BY_ITSELF


def test_an_interval_of_ones_own_changes_that_sensor_alone() -> None:
    """Guards against a second set of sensors beside the first, or jobs that Dagster refuses as two of one name."""
    defs = exactly_once_definitions(
        orders, clicks, resources=RESOURCES, sensors=partial(exactly_once_sensors, stale_every_s=60)
    )
    dg.Definitions.validate_loadable(defs)
    assert intervals(defs.sensors) == {**BY_ITSELF, "exactly_once_stale_transactions": 59}
    assert [job.name for job in defs.jobs or ()].count("exactly_once_recovery") == 1


def test_the_sensors_request_jobs_of_the_streams_on_these_brokers() -> None:
    """Mishap: a translator puts the cluster into the keys, and sensors made before it is known request other assets."""
    seen: list[Stream] = []

    def noting(*streams: Stream) -> list[dg.SensorDefinition]:
        seen.extend(streams)
        return exactly_once_sensors(*streams)

    defs = exactly_once_definitions(orders, resources=RESOURCES, sensors=noting)
    dg.Definitions.validate_loadable(defs)
    assert [s.spec.asset_keys for s in seen] == [("b1/orders",)]
    assert defs.resolve_job_def("orders_stream").asset_layer.executable_asset_keys == {dg.AssetKey(["b1", "orders"])}


def test_a_sensor_of_ones_own_stands_beside_them_and_may_request_a_job_of_the_stream() -> None:
    """Guards against a rule "all or nothing" for somebody who wants a fifth sensor."""

    def five(*streams: Stream) -> list[dg.SensorDefinition]:
        @dg.sensor(name="mine", job_name=streams[0].spec.job)
        def mine() -> dg.SkipReason:
            return dg.SkipReason("nothing to do")

        return [*exactly_once_sensors(*streams), mine]

    defs = exactly_once_definitions(orders, resources=RESOURCES, sensors=five)
    dg.Definitions.validate_loadable(defs)
    assert len(defs.sensors or ()) == 5


def test_sensors_instead_of_the_function_that_makes_them_are_refused_with_the_way_out() -> None:
    """Mishap: ``sensors=exactly_once_sensors(orders)`` beside two streams: nothing would watch the second one."""
    with pytest.raises(BadDeclaration, match=r"sensors=functools\.partial\(exactly_once_sensors"):
        exactly_once_definitions(orders, clicks, sensors=exactly_once_sensors(orders))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [exactly_once_definitions, exactly_once_sensors])
def test_a_list_of_streams_is_refused_in_a_sentence_that_says_how_to_pass_them(make: Any) -> None:
    """``TypeError: replace() should be called on dataclass instances`` names neither the mistake nor the way out."""
    said = r"one by one, .* a list\. Write \w+\(first, second\), or \w+\(\*streams\)"
    with pytest.raises(BadDeclaration, match=said):
        make([orders, clicks])


def test_a_code_location_loads_without_warnings_that_nobody_can_act_on() -> None:
    """Mishap: seventeen BetaWarnings, of Dagster's own copies of the sensors, before anything else in the terminal."""
    load = "from platform_assets.definitions import defs; defs.get_repository_def()"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "Warning" not in done.stderr, done.stderr

"""Dagster's daemon in a few lines: it evaluates sensors, drops run keys that it has seen, and creates runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.test_utils import create_run_for_test


class Daemon:
    """Ticks sensors by hand, each with the cursor of its last tick."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        sensors: Mapping[str, dg.SensorDefinition],
        resources: Mapping[str, Any],
    ):
        self.instance, self.sensors, self.resources = instance, sensors, resources
        self.cursors: dict[str, str] = {}

    def look(self, name: str) -> dg.SensorResult:
        """One tick, of which nobody launches the runs that it asks for."""
        sensor = self.sensors[name]
        wanted = {k: v for k, v in self.resources.items() if k in sensor.required_resource_keys}
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursors.get(name), resources=wanted, sensor_name=name
        ) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        if result.cursor:
            self.cursors[name] = result.cursor
        return result

    def tick(self, name: str) -> dg.SensorResult:
        """One tick; the runs that it asks for wait to be started afterwards."""
        result = self.look(name)
        for request in result.run_requests or []:
            assert request.run_key and request.job_name
            if not self.instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": request.run_key})):
                create_run_for_test(
                    self.instance,
                    job_name=request.job_name,
                    status=dg.DagsterRunStatus.NOT_STARTED,
                    run_config=request.run_config,
                    tags={**request.tags, "dagster/run_key": request.run_key, "dagster/sensor_name": name},
                )
        return result

    def said(self, name: str) -> str:
        """Return the message of one tick that asks for nothing."""
        result = self.tick(name)
        assert not result.run_requests, result.run_requests
        assert result.skip_reason is not None
        return str(result.skip_reason.skip_message)

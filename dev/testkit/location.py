"""A code location of tests, in the folder of a site, and one run of a job of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_exactly_once import Stream, exactly_once_definitions, exactly_once_resources


def folder() -> Path:
    """Return the folder of the site."""
    return Path(os.environ["EXACTLY_ONCE_RUN_DIR"])


def located(*streams: Stream, at: Path | None = None) -> dg.Definitions:
    """Return a code location with its state below ``at``, or :func:`folder`; ``KAFKA_BOOTSTRAP_SERVERS`` names the
    brokers.
    """
    below = at or folder()
    found = exactly_once_resources(work_dir=str(below / "spark"), checkpoints=str(below / "checkpoints"))
    return exactly_once_definitions(*streams, resources=found)


def config_of(stream: Stream, **config: Any) -> str:
    """Return the configuration of a run of ``stream``."""
    return json.dumps({"ops": {stream.spec.op: {"config": config}}})


def run_of(
    location: dg.Definitions,
    job: str,
    config: str = "{}",
    *,
    tags: Mapping[str, str] | None = None,
    instance: dg.DagsterInstance | None = None,
) -> int:
    """Return 0 when a run succeeded, by default one of the site's instance; the failure's text is on standard error."""
    done = location.resolve_job_def(job).execute_in_process(
        run_config=json.loads(config),
        tags=dict(tags or {}),
        instance=instance or dg.DagsterInstance.get(),
        raise_on_error=False,
    )
    return 0 if done.success else 1

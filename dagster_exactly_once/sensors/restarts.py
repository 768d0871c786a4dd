"""The request for the run of a stream that follows a failed one: after its recovery, or beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_exactly_once.runs.runs import Run, op_config
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_ATTEMPT, TAG_BESIDE, TAG_CAUSE, TAG_RESTART, TAG_RESTART_OF, TAG_STREAM


def restart_after(failed: Run, recovery: Run, attempt: int, stream: StreamSpec) -> dg.RunRequest:
    """Return the run that follows ``failed``, whose sink ``recovery`` has recovered."""
    why = "By a person" if recovery.by_person else _code(recovery.tags)
    who = "A person requested this start" if recovery.by_person else f"This is restart attempt {attempt}"
    cause = f"{why}: {_ended(failed)}, and recovery {recovery.name} recovered the sink. {who}."
    shown = {} if recovery.by_person else {TAG_RESTART: recovery.tags.get(TAG_RESTART, f"{attempt}")}
    return _restart(failed, recovery.run_id, cause, {TAG_ATTEMPT: str(attempt), **shown}, stream)


def restart_with(failed: Run, recovery: dg.RunRequest, stream: StreamSpec) -> dg.RunRequest:
    """Return the run that follows ``failed``, requested together with the ``recovery`` of its sink: its query starts
    once that has ended.
    """
    tags, key = recovery.tags, recovery.run_key or ""
    cause = (
        f"{_code(tags)}: {_ended(failed)}, and a recovery of the sink was requested together with this run. This is "
        f"restart attempt {tags[TAG_ATTEMPT]}."
    )
    copied = {name: tags[name] for name in (TAG_ATTEMPT, TAG_RESTART)}
    return _restart(failed, key, cause, {**copied, TAG_BESIDE: key}, stream)


def _ended(run: Run) -> str:
    return f"run {run.name} ended as {run.status}"


def _code(tags: Mapping[str, str]) -> str:
    """Return the code with which the cause of a recovery begins."""
    return tags.get(TAG_CAUSE, "").partition(":")[0] or "Restart"


def _restart(failed: Run, recovery: str, cause: str, tags: Mapping[str, str], stream: StreamSpec) -> dg.RunRequest:
    config, dropped = restart_config(failed, stream)
    if dropped:
        cause += f" This start drops a consent that a person gave run {failed.name} for its own start: {dropped}."
    shared = {TAG_STREAM: stream.name, TAG_CAUSE: cause, TAG_RESTART_OF: failed.run_id}
    return dg.RunRequest(f"restart/{recovery}", config, {**shared, **tags}, stream.job)


def restart_config(run: Run, stream: StreamSpec) -> tuple[dict[str, Any], str]:
    """Return the configuration of a run of the stream's job that replaces ``run``, without the consents that a person
    gave for one start, and these as text. Of a run of another job (Materialize), only that of the stream's op fits.
    """
    ops = run.config.get("ops", {})
    mine = ops.get(stream.op) if isinstance(ops, Mapping) else None
    config = dict(run.config) if run.job == stream.job else {"ops": {stream.op: mine} if mine is not None else {}}
    once = op_config(run.config, stream.op).get("once")
    if once is None or not isinstance(mine, Mapping):
        return config, ""
    kept = {key: value for key, value in mine["config"].items() if key != "once"}
    config["ops"] = {**config["ops"], stream.op: {**mine, "config": kept}}
    given = once if isinstance(once, Mapping) else {"once": once}
    return config, ", ".join(f"{name}={confirmation}" for name, confirmation in given.items() if confirmation)

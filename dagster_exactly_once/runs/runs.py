"""The runs of streams and of recoveries in Dagster's run storage: which runs belong to which stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.private import REPOSITORY_LABEL_TAG, RETRY_NUMBER_TAG
from dagster_exactly_once.runs.location import is_of
from dagster_exactly_once.runs.process import FINISHED, UNFINISHED, WORKING, RunProcess, own_tag, process_of, signed
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_RECOVERS, TAG_RESTART_OF, TAG_SINK, TAG_STREAM
from exactly_once.inspection.processes import Frozen

#: The number of finished runs of each kind that the sensors read: far above any limit of attempts.
MOST_RUNS = 50

#: The number of newest runs that say what a stream does now.
NEWEST_RUNS = 3


@dataclass(frozen=True)
class Run:
    """A run. Times are seconds since the epoch, None before the event; ``status`` is Dagster's name.

    ``alive``: whether its Python process (``pid`` on ``host``) lives; None when that is on another host, or has not
    tagged the run yet. ``frozen``: those of its processes that live and do nothing.
    """

    run_id: str
    job: str
    status: str
    created: float
    started: float | None = None
    ended: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    host: str = ""
    pid: int = -1
    alive: bool | None = None
    frozen: tuple[Frozen, ...] = ()

    @property
    def in_progress(self) -> bool:
        """True while the run is not finished, also while it is queued."""
        return dg.DagsterRunStatus(self.status) not in FINISHED

    @property
    def waits(self) -> bool:
        """True before its process has started."""
        return self.status in ("QUEUED", "NOT_STARTED")

    @property
    def works(self) -> bool:
        """True unless its process is known to be gone."""
        return self.in_progress and not self.waits and self.alive is not False

    @property
    def over(self) -> float:
        """Its end in seconds since the epoch; its creation as long as nobody knows that."""
        return self.ended or self.created

    @property
    def by_person(self) -> bool:
        """True if a person launched it, also as a re-execution of a sensor's run, whose tags it then carries."""
        return RETRY_NUMBER_TAG not in self.tags and ("dagster/sensor_name" not in self.tags or self.parent is not None)

    @property
    def restart_of(self) -> str | None:
        """The stream run that this one replaces."""
        return self.tags.get(TAG_RESTART_OF)

    @property
    def name(self) -> str:
        """Its name for people: the beginning of its id, as in the UI."""
        return self.run_id[:8]

    @property
    def sink_id(self) -> str | None:
        """The sink that it works on; None before it has said so."""
        return self.tags.get(TAG_SINK)


class Runs:
    """One tick's view of the run storage, as far as it is of one code ``location`` ("": of all).

    What is in progress is read once for all streams; finished runs by the tags of their stream, so that no stream's
    runs can push out those of another.
    """

    def __init__(self, instance: dg.DagsterInstance, location: str = ""):
        self._instance, self._location = instance, location
        #: All runs that are in progress. They are read first: a run that ends meanwhile is then seen twice, a run that
        #: begins meanwhile is not missed.
        self.unfinished = tuple(self._read(dg.RunsFilter(statuses=UNFINISHED), None))

    def in_progress(self, stream: StreamSpec) -> tuple[Run, ...]:
        """Return the runs of the stream that are in progress on its own sink, newest first."""
        return _runs(r for r in self.unfinished if _is_of(r.dagster_run, stream))

    def of_stream(self, stream: StreamSpec, limit: int = MOST_RUNS) -> tuple[Run, ...]:
        """Return the runs of the stream on its own sink, newest first: those in progress, and ``limit`` newest ones."""
        tagged = dg.RunsFilter(tags={TAG_STREAM: stream.name})
        found = self._read(tagged, limit)
        if MOST_RUNS > limit <= len(found) and not any(_is_of(r.dagster_run, stream) for r in found):
            found = self._read(tagged, MOST_RUNS)  # the newest ones tried out another sink
        return _runs(r for r in (*self.unfinished, *found) if _is_of(r.dagster_run, stream))

    def newest(self, streams: Sequence[StreamSpec]) -> dict[str, tuple[Run, ...]]:
        """Return the newest runs of each stream, by sink id: one query, and one for each that did not run lately."""
        if not streams:
            return {}
        limit = NEWEST_RUNS * len(streams)
        page = self._read(dg.RunsFilter(tags={TAG_STREAM: [s.name for s in streams]}), limit)
        found = {s.sink_id: _runs(r for r in page if _is_of(r.dagster_run, s)) for s in streams}
        if len(page) < limit:  # that were all
            return found
        return {s.sink_id: found[s.sink_id] or self.of_stream(s, NEWEST_RUNS) for s in streams}

    def restarting(self, run_ids: Sequence[str]) -> dict[str, tuple[Run, ...]]:
        """Return the recoveries that request a restart of these runs, by the run, newest first: one query."""
        wanted = dg.RunsFilter(job_name=RECOVERY_JOB, tags={TAG_RESTART_OF: list(run_ids)})
        found = _runs(self._read(wanted, None)) if run_ids else ()
        return {run_id: tuple(r for r in found if r.restart_of == run_id) for run_id in run_ids}

    def recoveries(self, stream: StreamSpec) -> tuple[Run, ...]:
        """Return the recoveries of the stream's sink, newest first."""
        found = [*self.unfinished, *self._newest_recoveries]
        if len(self._newest_recoveries) >= MOST_RUNS:  # those of other streams may have pushed out this one's
            by = {TAG_RECOVERS: [stream.sink_id, recovers_tag(stream, self._location)], TAG_SINK: stream.sink_id}
            for tag, value in by.items():
                found += self._read(dg.RunsFilter(job_name=RECOVERY_JOB, tags={tag: value}), MOST_RUNS)
        return _runs(r for r in found if recovers(r.dagster_run, stream))

    def recovering(self, stream: StreamSpec) -> tuple[Run, ...]:
        """Return the recoveries of the stream's sink that are in progress, newest first."""
        return _runs(r for r in self.unfinished if recovers(r.dagster_run, stream))

    def others(self, stream: StreamSpec) -> tuple[Run, ...]:
        """Return the runs in progress that are neither the stream's nor recoveries, but work on its sink or will."""
        found = (r for r in self.unfinished if r.dagster_run.job_name != RECOVERY_JOB)
        return _runs(r for r in found if not _is_of(r.dagster_run, stream) and _touches(r.dagster_run, stream))

    @cached_property
    def _newest_recoveries(self) -> list[dg.RunRecord]:
        """The newest recoveries of any sink. Only here is one that was canceled before it was tagged with its sink."""
        return self._read(dg.RunsFilter(job_name=RECOVERY_JOB), MOST_RUNS)

    def _read(self, which: dg.RunsFilter, limit: int | None) -> list[dg.RunRecord]:
        """Return the newest runs: ``limit`` or more, or all that there are."""
        found = list(self._instance.get_run_records(which, limit=limit))
        if self._location and len(found) == limit:  # those of other locations may have pushed out the own ones
            tags = {**which.tags, REPOSITORY_LABEL_TAG: self._location}
            found += self._instance.get_run_records(dg.RunsFilter(job_name=which.job_name, tags=tags), limit=limit)
        return [r for r in found if is_of(r.dagster_run, self._location)]


def op_config(config: Mapping[str, Any], op: str) -> Mapping[str, Any]:
    """Return the configuration of one op in that of a run; empty without one."""
    found: Any = config
    for key in ("ops", op, "config"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def works_on(run: dg.DagsterRun, stream: StreamSpec) -> bool:
    """Return whether a run of the stream works on its own sink: by its tag, or its configuration, or by default."""
    said = own_tag(run, TAG_SINK) or op_config(run.run_config, stream.op).get("sink_id")
    return said in (None, "", stream.sink_id)


def recovers(run: dg.DagsterRun, stream: StreamSpec) -> bool:
    """Return whether a run is a recovery of the stream: by its own tag, its configuration, or the requesting sensor.

    A dry run is none: it takes no sink, so that its process tags the run without one.
    """
    config = op_config(run.run_config, RECOVERY_OP)
    if run.job_name != RECOVERY_JOB or config.get("dry_run") is True:
        return False
    if signed(run) and own_tag(run, TAG_SINK) is None:
        return False
    said = own_tag(run, TAG_SINK) or config.get("sink_id")
    if said is None and "stream" in config:
        return bool(config["stream"] == stream.name)
    return stream.sink_id == (said or run.tags.get(TAG_RECOVERS, "").partition("@")[0])


def recovers_tag(stream: StreamSpec, location: str) -> str:
    """Return the tag of a recovery that a sensor of a code location requests; older versions wrote the sink alone."""
    return f"{stream.sink_id}@{location}" if location else stream.sink_id


def _is_of(run: dg.DagsterRun, stream: StreamSpec) -> bool:
    tagged = run.tags.get(TAG_STREAM) == stream.name and run.job_name != RECOVERY_JOB
    return tagged and works_on(run, stream)


def _touches(run: dg.DagsterRun, stream: StreamSpec) -> bool:
    sink_id = own_tag(run, TAG_SINK)
    if sink_id is not None:
        return sink_id == stream.sink_id
    if TAG_STREAM in run.tags:
        return False
    selected = any(key.to_user_string() in stream.asset_keys for key in run.asset_selection or ())
    return (selected or run.job_name == stream.job) and works_on(run, stream)


def _runs(records: Iterable[dg.RunRecord]) -> tuple[Run, ...]:
    """Return each run once, newest first. Where a run was read twice, the later reading counts."""
    by_id = {r.dagster_run.run_id: r for r in records}
    return tuple(run_of(r) for r in sorted(by_id.values(), key=lambda r: -r.storage_id))


def runs_on(instance: dg.DagsterInstance, sink_id: str, location: str = "") -> list[Run]:
    """Return the runs of a code location on ``sink_id`` that may have a live process, newest first."""
    records = instance.get_run_records(dg.RunsFilter(statuses=WORKING))
    ours = (r for r in records if is_of(r.dagster_run, location))
    return [run_of(r) for r in ours if r.dagster_run.tags.get(TAG_SINK) == sink_id]


def run_of(record: dg.RunRecord) -> Run:
    """Return a run, and what became of its process."""
    run = record.dagster_run
    process = RunProcess() if run.is_finished else process_of(run)
    return Run(
        run_id=run.run_id,
        job=run.job_name,
        status=run.status.value,
        created=record.create_timestamp.timestamp(),
        started=record.start_time,
        ended=record.end_time,
        tags=run.tags,
        config=run.run_config,
        parent=run.parent_run_id,
        **process._asdict(),
    )

"""The first step of each job that changes a sink: it inspects, writes the audit trail, and ends a dry run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import sink_of, with_streams
from dagster_exactly_once.names import MEMORY
from dagster_exactly_once.recovery.work import Audit, SinkRegistry
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.tags import TAG_CAUSE


@dataclass(frozen=True)
class JobFinding:
    """The finding of the first step of a job.

    Attributes
    ----------
    said : str
        One sentence for people.
    value : object
        The first output of the step, as plain values, with ``metadata``.
    task : callable
        Returns the second output, for the next step; None when there is nothing to do. It is not called on a dry run,
        and raises what a person must resolve first.
    trail : mapping
        Entries of the audit trail; ``metadata`` when it is empty.
    """

    said: str
    value: Any
    metadata: dict[str, Any]
    task: Callable[[Audit], Any]
    trail: Mapping[str, Any] = field(default_factory=dict)


def first_step(
    registry: SinkRegistry,
    config: type[dg.Config],
    inspect: Callable[[dg.OpExecutionContext, Any, str], JobFinding],
    op: str,
    trail: tuple[str, str],
    found: tuple[str, dg.Out],
    task: tuple[str, dg.Out],
    resources: Sequence[str],
    description: str,
) -> dg.OpDefinition:
    """Make the first step of a job, which knows the streams of the code location by name.

    Parameters
    ----------
    inspect : callable
        ``inspect(context, config, sink_id)`` asks the brokers.
    trail : tuple of str
        ``job`` and ``prefix`` of the :class:`Audit`.
    found, task : tuple of (str, Out)
        The names and the definitions of the two outputs.
    """
    config_class = with_streams(config, registry.sink_ids())

    @dg.op(name=op, out=dict([found, task]), required_resource_keys=set(resources), description=description)
    def first(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
    ) -> Iterator[dg.Output[Any]]:
        given: Any = config
        with classified():
            sink_id = sink_of(given)
            finding = inspect(context, given, sink_id)
        reason = given.reason or context.run.tags.get(TAG_CAUSE, "") or "no reason was given"
        audit = Audit(registry.asset(sink_id), *trail, who(context.run), reason)
        audit.began(context, "dry run" if given.dry_run else "began", finding.said, finding.trail or finding.metadata)
        yield dg.Output(finding.value, found[0], metadata=finding.metadata)
        if given.dry_run:
            return
        with classified():
            todo = finding.task(audit)
        if todo is not None:
            yield dg.Output(todo, task[0])

    return first


def passed_on(kind: type, description: str, required: bool = True) -> dg.Out:
    """Define an output that stays in the memory of the run's process."""
    return dg.Out(kind, io_manager_key=MEMORY, is_required=required, description=description)


def who(run: dg.DagsterRun) -> str:
    """Return the person or sensor that launched a run."""
    sensor = run.tags.get("dagster/sensor_name")
    if sensor and run.parent_run_id is None:
        return f"sensor {sensor}"
    return f"{run.tags['user']}" if "user" in run.tags else "a person"

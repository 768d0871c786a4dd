"""Streams declared in YAML: ``dg scaffold defs dagster_exactly_once.ExactlyOnceStreams streams``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_exactly_once.definitions import exactly_once_definitions, exactly_once_resources
from dagster_exactly_once.stream import (
    TOPIC,
    Backfill,
    BadDeclaration,
    Checks,
    KafkaTopic,
    Stream,
    exactly_once_stream,
)
from dagster_exactly_once.streaming.complete import Complete
from dagster_exactly_once.streaming.start import EARLIEST


class Source(dg.Model, dg.Resolvable):
    """The input topic of a stream."""

    topic: str
    start_from: str = Field(default=EARLIEST, description="earliest, latest, or a date or time.")
    options: dict[str, str] = Field(default={}, description="More options of Spark's Kafka source.")


class Output(dg.Model, dg.Resolvable):
    """An output topic of a stream, as an asset."""

    topic: str
    key: str | None = Field(default=None, description="Key of the asset, like shop/orders; default: the topic.")
    description: str | None = None
    owners: list[str] = Field(default=[])
    tags: dict[str, str] = Field(default={})


class ChecksModel(dg.Model, dg.Resolvable):
    """What the asset checks judge."""

    freshness_s: float = Field(default=Checks.freshness_s, description="Input may wait this long without a commit.")
    origin: str | None = Field(default=None, description="Dotted name of origin(topic, record): see Checks.")

    def declared(self) -> Checks:
        """Return the checks."""
        return Checks(self.freshness_s, found(self.origin) if self.origin else None)


class BackfillModel(dg.Model, dg.Resolvable):
    """Days from before the stream's first start."""

    start: str = Field(description="The first day, like 2026-01-31.")
    end: str = Field(default="", description="The last day; empty: yesterday.")


class CompleteModel(dg.Model, dg.Resolvable):
    """Windows of event time that are materialized when the watermark has passed them."""

    every: str = Field(description="hour or day.")
    start: str = Field(description="The first day, like 2026-01-31.")


class StreamModel(dg.Model, dg.Resolvable):
    """One stream; the fields are the arguments of ``exactly_once_stream``."""

    name: str
    transform: str = Field(description="Dotted name of a function from DataFrame to DataFrame.")
    source: Source
    outputs: list[Output]
    sink_id: str | None = None
    options: dict[str, str] = Field(default={})
    checks: ChecksModel | None = ChecksModel()
    backfill: BackfillModel | None = None
    complete: CompleteModel | None = None
    output_partitions: int | None = None
    state_partitions: int | None = None
    group_name: str | None = None
    owners: list[str] = Field(default=[])
    tags: dict[str, str] = Field(default={})

    def stream(self) -> Stream:
        """Return the stream.

        Raises
        ------
        BadDeclaration
            A dotted name leads nowhere, or the declaration is wrong.
        """
        return exactly_once_stream(
            name=self.name,
            source=KafkaTopic(self.source.topic, self.source.start_from, self.source.options),
            outputs=[_spec(output) for output in self.outputs],
            sink_id=self.sink_id,
            options=self.options,
            checks=self.checks.declared() if self.checks else None,
            backfill=Backfill(self.backfill.start, self.backfill.end) if self.backfill else None,
            complete=Complete(self.complete.every, self.complete.start) if self.complete else None,
            output_partitions=self.output_partitions,
            state_partitions=self.state_partitions,
            group_name=self.group_name,
            owners=self.owners,
            tags=self.tags,
        )(found(self.transform))


class ExactlyOnceStreams(dg.Component, dg.Model, dg.Resolvable):
    """All streams of a code location, with the jobs and sensors that they share: one such component for a location."""

    streams: list[StreamModel]
    work_dir: str | None = Field(
        default=None, description="Folder for Spark's temporary files; without it, bring your own resources."
    )
    checkpoints: str | None = Field(default=None, description="Folder or URI of all checkpoints; with work_dir.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the definitions of the streams."""
        return exactly_once_definitions(*(model.stream() for model in self.streams), resources=self.resources())

    def resources(self) -> Mapping[str, Any] | None:
        """Return the resources that the file declares; None: the code location brings its own.

        Raises
        ------
        BadDeclaration
        """
        if (self.work_dir is None) != (self.checkpoints is None):
            raise BadDeclaration("work_dir and checkpoints belong together. Give both, or neither")
        if self.work_dir is None or self.checkpoints is None:
            return None
        return exactly_once_resources(work_dir=self.work_dir, checkpoints=self.checkpoints)


def found(name: str) -> Callable[..., Any]:
    """Return the function of a dotted name.

    Raises
    ------
    BadDeclaration
    """
    module, _, function = name.rpartition(".")
    try:
        its = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadDeclaration(
            f"{name} leads to no function ({error}). Write it as package.module.function, importable where Dagster runs"
        ) from error
    return its  # type: ignore[no-any-return]


def _spec(output: Output) -> dg.AssetSpec:
    return dg.AssetSpec(
        dg.AssetKey.from_user_string(output.key or output.topic),
        description=output.description,
        owners=output.owners,
        tags=output.tags,
        metadata={TOPIC: output.topic},
    )

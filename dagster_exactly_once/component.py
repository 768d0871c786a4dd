"""Streams declared in YAML: ``dg scaffold defs dagster_exactly_once.ExactlyOnceStreams streams``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field

from dagster_exactly_once.declare.complete import Complete
from dagster_exactly_once.declare.decorator import exactly_once_stream, observed_stream
from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.inputs import EARLIEST, KafkaTopic
from dagster_exactly_once.declare.outputs import TOPIC
from dagster_exactly_once.declare.rejected import DeadLetters, Rejected, SideTopic
from dagster_exactly_once.declare.stream import Backfill, Checks, Stream
from dagster_exactly_once.declare.translator import StreamTranslator
from dagster_exactly_once.definitions import exactly_once_definitions, exactly_once_resources
from dagster_exactly_once.notify import EmailNotifier, Notifier, WebhookNotifier


class Source(dg.Model, dg.Resolvable):
    """An input topic of a stream."""

    topic: str
    name: str | None = Field(
        default=None,
        description="With several sources: the parameter of the function that gets this topic; "
        "default: the name of the topic.",
    )
    start_from: str = Field(default=EARLIEST, description="earliest, latest, or a date or time.")
    options: dict[str, str] = Field(default={}, description="More options of Spark's Kafka source.")
    asset: bool = Field(default=True, description="False where this code location declares the topic's asset itself.")


class OutputModel(dg.Model, dg.Resolvable):
    """An output topic of a stream, as an asset."""

    topic: str
    key: str | None = Field(default=None, description="Key of the asset, like shop/orders; default: the topic.")
    description: str | None = None
    owners: list[str] = Field(default=[])
    tags: dict[str, str] = Field(default={})


class RejectedModel(OutputModel):
    """The topic of a stream's rejected records, with the limits of its check; see Rejected."""

    kind: ClassVar[type[SideTopic]] = Rejected

    warn_above: int | None = Field(
        default=SideTopic.warn_above,
        description="Warn above this many records that nobody has sent again or acknowledged.",
    )
    error_above: int | None = Field(
        default=None, description="Fail above this many records that nobody has sent again or acknowledged."
    )
    repair: str | None = Field(default=None, description="Dotted name of a function.")

    def declared(self) -> SideTopic:
        own = {name: value for name, value in self if name not in OutputModel.model_fields}
        return self.kind(**own | {"asset": _spec(self), "repair": found(self.repair) if self.repair else None})


class DeadLettersModel(RejectedModel):
    """The topic of a stream's dead letters; see DeadLetters."""

    kind = DeadLetters

    most: int = Field(default=DeadLetters.most, description="The most rows of one batch that may go there.")


class ChecksModel(dg.Model, dg.Resolvable):
    """The limits by which the asset checks judge."""

    freshness_s: float = Field(default=Checks.freshness_s, description="Seconds that input may wait without a commit.")
    origin: str | None = Field(
        default=None, description="header:NAME, key, value, json:FIELD, or dotted name of a function: see Checks."
    )
    verify_cron: str | None = Field(default=None, description="When the check verified is evaluated: see Checks.")
    every_s: float = Field(
        default=Checks.every_s, description="Seconds between two evaluations of the others: see Checks."
    )

    def declared(self) -> Checks:
        said = self.origin or ""
        function = found(said) if "." in said and ":" not in said else None
        return Checks(**dict(self) | {"origin": function or said or None})


class BackfillModel(dg.Model, dg.Resolvable):
    """Days from before the stream's first start."""

    start: str = Field(description="The first day, like 2026-01-31.")
    end: str = Field(default="", description="The last day; empty: yesterday.")

    def declared(self) -> Backfill:
        return Backfill(**dict(self))


class CompleteModel(dg.Model, dg.Resolvable):
    """Windows of event time that are materialized when the watermark has passed them."""

    every: str = Field(description="hour or day.")
    start: str = Field(description="The first day, like 2026-01-31.")
    end: str = Field(default="", description="The last day; empty: no end.")
    timezone: str = Field(default="UTC", description="Their time zone, like Europe/Berlin.")

    def declared(self) -> Complete:
        return Complete(**dict(self))


class Declared(dg.Model, dg.Resolvable):
    """The fields of every stream, wherever it runs."""

    name: str
    source: str | Source | list[str] | list[Source]
    outputs: str | OutputModel | list[str] | list[OutputModel]
    sink_id: str | None = None
    column_schema: str | dict[str, str] | None = Field(
        default=None, description="DDL of what value holds, like customer STRING, cents INT; or DDL by topic."
    )
    column_lineage: dict[str, Any] | None = Field(
        default=None,
        description="The columns of the input that each column is made from: {cents: [price, amount]}, or by topic.",
    )
    participants: str | None = Field(
        default=None, description="Dotted name of a function that returns the outputs other than Kafka."
    )
    rejected: str | RejectedModel | None = Field(
        default=None, description="The topic of the records that the function rejects, as an asset."
    )
    dead_letters: str | DeadLettersModel | None = Field(
        default=None, description="The topic of the rows that Kafka cannot take, as an asset."
    )
    checks: ChecksModel | None = ChecksModel()
    group_name: str | None = None
    owners: list[str] = Field(default=[])
    tags: dict[str, str] = Field(default={})
    translator: str | None = Field(default=None, description="Dotted name of a subclass of StreamTranslator.")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the declaration."""
        sources = [Source(topic=s) if isinstance(s, str) else s for s in _listed(self.source)]
        outputs = [OutputModel(topic=o) if isinstance(o, str) else o for o in _listed(self.outputs)]
        return {name: value.declared() if hasattr(value, "declared") else value for name, value in self} | {
            "source": {s.name or s.topic: KafkaTopic(s.topic, s.start_from, s.options, s.asset) for s in sources},
            "outputs": [_spec(output) for output in outputs],
            "participants": found(self.participants) if self.participants else None,
            "translator": _translator(self.translator) if self.translator else None,
        }


class StreamModel(Declared):
    """One stream; the fields are the arguments of ``exactly_once_stream``."""

    transform: str = Field(description="Dotted name of a function from DataFrame to DataFrame.")
    options: dict[str, str] = Field(default={})
    backfill: BackfillModel | None = None
    complete: CompleteModel | None = None
    output_partitions: int | None = None
    state_partitions: int | None = None
    trace_headers: bool = Field(
        default=False, description="Continue the trace of each input record in the headers of its output record."
    )
    continues: str = Field(default="", description="The sink id of an older version, whose place this stream takes.")
    beside: str = Field(default="", description="The sink id of an older version, which this stream reads along with.")

    def stream(self) -> Stream:
        """Return the stream. Raises BadDeclaration, also for a dotted name that leads nowhere."""
        arguments = self.arguments()
        transform = found(arguments.pop("transform"))
        return exactly_once_stream(**arguments)(transform)


class ObservedModel(Declared):
    """One stream that runs elsewhere; the fields are the arguments of ``observed_stream``."""

    description: str = ""

    def stream(self) -> Stream:
        """Return the stream; raises as :meth:`StreamModel.stream`."""
        return observed_stream(**self.arguments())


class Secret(dg.Model, dg.Resolvable):
    """The name of an environment variable: Dagster looks its value up when it is needed, and shows only the name."""

    env: str


class WebhookModel(dg.Model, dg.Resolvable):
    """The fields of ``WebhookNotifier``."""

    url: str | Secret
    format: str = Field(default="json", description="json, slack or pagerduty.")
    routing_key: str | Secret | None = None


class EmailModel(dg.Model, dg.Resolvable):
    """The fields of ``EmailNotifier``."""

    host: str
    port: int = 587
    sender: str
    recipients: list[str]
    user: str | Secret | None = None
    password: str | Secret | None = None


class NotifyModel(dg.Model, dg.Resolvable):
    """The receiver of notices when a stream needs a person: one of the two."""

    webhook: WebhookModel | None = None
    email: EmailModel | None = None

    def notifier(self) -> Notifier:
        """Return the notifier. Raises BadDeclaration when both or neither are given."""
        if (self.webhook is None) == (self.email is None):
            raise BadDeclaration("notify takes one receiver: either webhook or email")
        if self.webhook is not None:
            return WebhookNotifier(**_fields(self.webhook))
        assert self.email is not None
        return EmailNotifier(**_fields(self.email))


class ExactlyOnceStreams(dg.Component, dg.Model, dg.Resolvable):
    """All streams of a code location, with the jobs and sensors that they share: one such component for a location."""

    streams: list[StreamModel] = Field(default=[])
    observed: list[ObservedModel] = Field(
        default=[], description="Streams that run outside this code location, which only watches them."
    )
    notify: NotifyModel | None = Field(default=None, description="Who is notified when a stream needs a person.")
    work_dir: str | None = Field(
        default=None, description="Folder for Spark's temporary files; without it, bring your own resources."
    )
    checkpoints: str | None = Field(default=None, description="Folder or URI of all checkpoints; with work_dir.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the definitions of the streams."""
        streams = [*(model.stream() for model in self.streams), *(model.stream() for model in self.observed)]
        notifier = self.notify.notifier() if self.notify else None
        return exactly_once_definitions(*streams, resources=self.resources(), notify=notifier)

    def resources(self) -> Mapping[str, Any] | None:
        """Return the resources that the file declares; None: the code location brings its own. Raises BadDeclaration
        for one of ``work_dir`` and ``checkpoints`` alone.
        """
        if (self.work_dir is None) != (self.checkpoints is None):
            raise BadDeclaration("work_dir and checkpoints belong together. Give both, or neither")
        if self.work_dir is None or self.checkpoints is None:
            return None
        return exactly_once_resources(work_dir=self.work_dir, checkpoints=self.checkpoints)


def found(name: str) -> Callable[..., Any]:
    """Return what a dotted name leads to. Raises BadDeclaration when the name cannot be imported."""
    module, _, function = name.rpartition(".")
    try:
        its = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadDeclaration(
            f"{name} cannot be imported ({error}). Write it as package.module.name, importable where Dagster runs"
        ) from error
    return its  # type: ignore[no-any-return]


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _spec(output: OutputModel) -> dg.AssetSpec:
    return dg.AssetSpec(
        dg.AssetKey.from_user_string(output.key or output.topic),
        description=output.description,
        owners=output.owners,
        tags=output.tags,
        metadata={TOPIC: output.topic},
    )


def _translator(name: str) -> StreamTranslator:
    kind = found(name)
    if not (isinstance(kind, type) and issubclass(kind, StreamTranslator)):
        raise BadDeclaration(
            f"translator: {name} is not a subclass of StreamTranslator. Write the dotted name of such a class"
        )
    return kind()


def _fields(model: dg.Model) -> dict[str, Any]:
    """Return the fields of a notifier, secrets as references to their variables."""
    return {name: dg.EnvVar(value.env) if isinstance(value, Secret) else value for name, value in model}

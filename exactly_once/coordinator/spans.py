"""OpenTelemetry: sends the steps of a batch as spans, over OTLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Status, StatusCode

from exactly_once.coordinator.tracing import TimedStep
from exactly_once.telemetry import TRACES_PROTOCOL, check_protocol, named


class Spans:
    """Sends spans through ``provider``."""

    def __init__(self, provider: trace.TracerProvider):
        self._tracer = provider.get_tracer("exactly_once")

    @classmethod
    @cache
    def of_process(cls) -> Self:
        """Return the one of this process: through the program's own provider where it has set one, else over OTLP, as
        OpenTelemetry's variables say. Raises InvalidOption.
        """
        theirs = trace.get_tracer_provider()
        return cls(theirs if isinstance(theirs, TracerProvider) else _own_provider())

    def send(self, steps: Sequence[TimedStep], about: Mapping[str, str]) -> None:
        """Send the steps of one batch: the first one, which ``about`` describes, is the parent of the others."""
        spans: list[Span] = []
        for step in steps:
            parent = trace.set_span_in_context(spans[step.parent]) if step.parent is not None else Context()
            spans.append(self._tracer.start_span(step.name, parent, start_time=step.started_ns))
        for place, (step, span) in reversed(list(enumerate(zip(steps, spans, strict=True)))):
            attributes = {**(about if place == 0 else {}), **step.attributes}
            span.set_attributes({f"exactly_once.{name}": value for name, value in attributes.items() if value != ""})
            if step.error:
                span.set_attribute("error.type", step.error)
                span.set_status(Status(StatusCode.ERROR, step.what))
            span.end(step.ended_ns)


def _own_provider() -> TracerProvider:
    """Make a provider that no other code of the program sees. It sends what is left when the process exits."""
    check_protocol(TRACES_PROTOCOL)
    resource = Resource.create()
    provider = TracerProvider(resource=resource.merge(Resource(named(resource, "exactly-once-sink"))))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider

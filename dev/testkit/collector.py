"""A collector of OpenTelemetry: takes spans over OTLP/HTTP, and shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from testkit.http_server import Answer, Asked, HttpServer


@dataclass(frozen=True)
class Seen:
    """A span as it came; the times since 1970 are in nanoseconds."""

    trace: bytes
    id: bytes
    parent: bytes
    name: str
    started: int
    ended: int
    attributes: dict[str, str | int]
    failed: bool
    service: str


class Collector(HttpServer):
    """Listens on a free port of this machine while it is open."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        super().__init__(self._take)

    def _take(self, asked: Asked) -> Answer:
        if asked.path == "/v1/traces":
            self.spans += _spans(ExportTraceServiceRequest.FromString(asked.body))
        return Answer()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a process that sends spans here within a tenth of a second."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def batches(self) -> list[Seen]:
        """The spans without a parent, in the order of time."""
        return sorted((s for s in self.spans if not s.parent), key=lambda s: s.started)

    def steps(self, parent: Seen) -> list[str]:
        """Return the names of the steps of a span, in the order of time."""
        found = [s for s in self.spans if s.parent == parent.id and s.trace == parent.trace]
        assert all(parent.started <= s.started <= s.ended <= parent.ended for s in found)
        return [s.name for s in sorted(found, key=lambda s: s.started)]

    def step(self, parent: Seen, name: str) -> Seen:
        """Return the one step of this name."""
        [found] = [s for s in self.spans if s.parent == parent.id and s.name == name]
        return found


def _value(value: Any) -> str | int:
    found: str | int = value.int_value if value.HasField("int_value") else value.string_value
    return found


def _spans(request: Any) -> list[Seen]:
    return [
        Seen(
            span.trace_id,
            span.span_id,
            span.parent_span_id,
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {a.key: _value(a.value) for a in span.attributes},
            span.status.code == 2,
            next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name"),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]

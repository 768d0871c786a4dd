"""OpenTelemetry: serves the instruments to Prometheus, and sends them over OTLP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Self

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, start_http_server

from exactly_once.errors import InvalidOption
from exactly_once.telemetry import METRICS_PROTOCOL, check_protocol, first, named
from exactly_once.tools.metrics.instruments import BUCKETS_S, INSTRUMENTS, Instrument, Kind, Point

_OTLP = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Exporter:
    """Serves ``points`` to Prometheus, and also sends them over OTLP if OpenTelemetry's variables name an endpoint. A
    context manager.

    Parameters
    ----------
    points : callable
        Returns the current points of a gauge or total.
    interval_s : float
        Between two messages over OTLP, unless ``OTEL_METRIC_EXPORT_INTERVAL`` says otherwise.

    Raises InvalidOption.
    """

    def __init__(self, points: Callable[[Instrument], Iterable[Point]], host: str, port: int, interval_s: float):
        registry = CollectorRegistry()  # not the global registry: that one also holds figures of this process
        self._points = points
        readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False, registry=registry)]
        if first(_OTLP):
            readers.append(_otlp_reader(interval_s))
        self._provider = MeterProvider(readers, _resource(), shutdown_on_exit=False)
        meter = self._provider.get_meter("exactly_once")
        self._instruments = {i: self._create(meter, i) for i in INSTRUMENTS}
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as e:
            self._provider.shutdown()
            raise InvalidOption(
                f"the metrics cannot be served on {host}:{port} ({e})",
                "Choose an address of this machine with --host, and a free port with --port",
            ) from e
        self.port: int = self._server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._provider.shutdown()

    def record(self, point: Point) -> None:
        """Add to a counter or histogram."""
        instrument = self._instruments[point.instrument]
        if isinstance(instrument, Histogram):
            instrument.record(point.value, point.attributes)
        elif isinstance(instrument, Counter):
            instrument.add(point.value, point.attributes)

    def _create(self, meter: Meter, i: Instrument) -> Any:
        def now(options: CallbackOptions) -> list[Observation]:
            return [Observation(p.value, p.attributes) for p in self._points(i)]

        if i.kind is Kind.HISTOGRAM:
            return meter.create_histogram(i.name, i.unit, i.description, explicit_bucket_boundaries_advisory=BUCKETS_S)
        if i.kind is Kind.COUNTER:
            return meter.create_counter(i.name, i.unit, i.description)
        if i.kind is Kind.TOTAL:
            return meter.create_observable_counter(i.name, [now], i.unit, i.description)
        return meter.create_observable_gauge(i.name, [now], i.unit, i.description)


def _otlp_reader(interval_s: float) -> MetricReader:
    check_protocol(METRICS_PROTOCOL)
    set_by_user = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL")
    return PeriodicExportingMetricReader(OTLPMetricExporter(), None if set_by_user else interval_s * 1000)


def _resource() -> Resource:
    """Describe this process by the environment (OTEL_RESOURCE_ATTRIBUTES), with a default name."""
    found = Resource.create()
    return found.merge(Resource(named(found, "exactly-once-observer")))

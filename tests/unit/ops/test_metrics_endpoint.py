"""The endpoint of the metrics and the command that serves it, without a broker."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from exactly_once.errors import ExtraMissing, InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.tools.cli import main
from exactly_once.tools.cli.metrics import observe
from exactly_once.tools.metrics import instruments as i
from exactly_once.tools.metrics.export import Exporter
from exactly_once.tools.metrics.instruments import INSTRUMENTS, Kind, Point
from testkit.scrape import Scrape

NOWHERE = Connection("127.0.0.1:1")


def sample(instrument, value=1.0):
    return Point(instrument, value, dict.fromkeys(instrument.attributes, "x"))


def test_every_instrument_is_served_under_the_name_that_it_says():
    """Mishap: an alert on a name that nobody exposes never fires."""
    with Exporter(lambda instrument: [sample(instrument)], "localhost", 0, 15) as exporter:
        for instrument in INSTRUMENTS:
            if instrument.kind in (Kind.COUNTER, Kind.HISTOGRAM):
                exporter.record(sample(instrument))
        served = Scrape(exporter.port)
    assert served.names == {s for instrument in INSTRUMENTS for s in instrument.series} | {"target_info"}
    for instrument in INSTRUMENTS:
        assert served.one(instrument.series[-1], **dict.fromkeys(instrument.attributes, "x")) == 1.0


def test_a_gauge_without_a_point_is_gone_from_the_endpoint():
    """Mishap: a stale value passes for a present one."""
    present = [Point(i.OLDEST, 7.0, {"sink": "a"}), Point(i.OLDEST, 8.0, {"sink": "b"})]
    with Exporter(lambda x: present if x is i.OLDEST else [], "localhost", 0, 15) as exporter:
        assert Scrape(exporter.port).all(i.OLDEST.series[0]) == {("a",): 7.0, ("b",): 8.0}
        present.pop()
        assert Scrape(exporter.port).all(i.OLDEST.series[0]) == {("a",): 7.0}


def test_the_same_figures_go_out_over_otlp_when_an_endpoint_is_named(monkeypatch):
    """Mishap: two exporters that measure differently."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append((self.path, self.headers.get("Content-Encoding"), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = HTTPServer(("localhost", 0), Collector)
    serving = threading.Thread(target=collector.serve_forever)
    serving.start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://localhost:{collector.server_port}")
        monkeypatch.delenv("OTEL_METRIC_EXPORT_INTERVAL", raising=False)
        monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
        with Exporter(lambda instrument: [sample(instrument, 3.0)], "localhost", 0, 3600) as exporter:
            exporter.record(sample(i.PREPARE, 3.0))
    finally:
        collector.shutdown()
        serving.join()
        collector.server_close()
    [(path, encoding, body)] = bodies  # the interval is an hour; what is left is sent at the end
    assert path == "/v1/metrics" and encoding is None
    resource = ExportMetricsServiceRequest.FromString(body).resource_metrics[0]
    assert "exactly-once-observer" in [a.value.string_value for a in resource.resource.attributes]
    sent = {m.name: m.unit for m in resource.scope_metrics[0].metrics}
    expected = {x.name: x.unit for x in INSTRUMENTS if x.kind in (Kind.GAUGE, Kind.TOTAL) or x is i.PREPARE}
    assert sent == expected


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"])
def test_a_protocol_that_is_not_there_is_refused(monkeypatch, variable):
    """Mishap: figures that are sent to a port which does not understand them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:4317")
    monkeypatch.setenv(variable, "grpc")
    with pytest.raises(InvalidOption, match="grpc"):
        Exporter(lambda instrument: [], "localhost", 0, 15)


def test_a_port_that_is_taken_is_said_in_a_sentence():
    with (
        Exporter(lambda instrument: [], "localhost", 0, 15) as first,
        pytest.raises(InvalidOption, match=f"localhost:{first.port}"),
    ):
        Exporter(lambda instrument: [], "localhost", first.port, 15)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "exactly_once.tools.metrics.export")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    with pytest.raises(ExtraMissing, match=r"opentelemetry.*\[metrics\]"):
        next(observe(NOWHERE, (), "localhost", 0, 15, threading.Event()))


@pytest.mark.parametrize(
    "arguments",
    [["--interval", "0"], ["--interval", "nan"], ["--port", "70000"], ["--sink", "a:b"], ["--host", "1.2.3.4.5"]],
)
def test_arguments_that_cannot_work_end_with_usage(arguments, capsys):
    assert main(["--bootstrap-servers", "127.0.0.1:1", "metrics", "--port", "0", *arguments]) == 2
    assert capsys.readouterr().err.startswith("EO-OPTION")


@pytest.mark.long
def test_nothing_of_opentelemetry_is_loaded_before_an_observer_starts_or_a_sink_asks_for_traces():
    """Mishap: the engine alone, on a cluster without the extra, would not start."""
    code = (
        "import sys, pkgutil, importlib, exactly_once\n"
        "for m in pkgutil.walk_packages(exactly_once.__path__, 'exactly_once.'):\n"
        "    if not m.name.endswith(('.metrics.export', '.spans', '__main__')): importlib.import_module(m.name)\n"
        "print(sorted(m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus_client'))))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"

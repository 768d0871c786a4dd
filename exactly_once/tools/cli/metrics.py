"""``exactly-once metrics``: the observer as a process."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from exactly_once.errors import ExtraMissing, InvalidOption
from exactly_once.inspection.words import plural
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import check_sink_id
from exactly_once.tools.metrics.observer import Observer

#: Seconds from one round to the next. A stream with four batches a second fills the log's 64 places in this time.
INTERVAL_S = 15.0

_OTLP = (
    "With OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT set, the command also sends the metrics "
    "over OTLP (http/protobuf). SIGINT or SIGTERM stops the command."
)


def add_arguments(metrics: argparse.ArgumentParser) -> None:
    metrics.epilog = _OTLP
    metrics.add_argument(
        "--sink", metavar="S", action="append", default=[], help="only this sink; repeatable; default: every sink"
    )
    metrics.add_argument(
        "--host",
        default=os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost"),
        help="address to serve on; 0.0.0.0 for all (default: OTEL_EXPORTER_PROMETHEUS_HOST, or localhost)",
    )
    metrics.add_argument(
        "--port",
        type=int,
        default=os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"),
        help="port to serve on; 0 for a free one (default: OTEL_EXPORTER_PROMETHEUS_PORT, or 9464)",
    )
    metrics.add_argument(
        "--interval",
        metavar="SECONDS",
        type=float,
        default=INTERVAL_S,
        help="time between observations; the log holds the last 64 batches, so a stream of more than 4 batches a "
        "second needs less than the default (default: %(default)g)",
    )


def run(args: argparse.Namespace, connection: Connection) -> None:
    """Observe until a signal ends it."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    names = [check_sink_id(name) for name in args.sink]
    stop = threading.Event()
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        for port in observe(connection, names, args.host, args.port, args.interval, stop):
            what = plural(len(names), "sink") if names else "all sinks"
            print(
                f"Observing {what} of {connection.bootstrap_servers} every {args.interval:g} s; metrics on "
                f"http://{args.host}:{port}/metrics",
                file=sys.stderr,
                flush=True,
            )
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def observe(
    connection: Connection, sink_ids: Sequence[str], host: str, port: int, interval_s: float, stop: threading.Event
) -> Iterator[int]:
    """Observe the sinks, by default all, every ``interval_s`` seconds and serve their metrics, until ``stop`` is set.

    Yields the port of the endpoint when it answers. Raises ExtraMissing; and InvalidOption when the address cannot be
    used, or OTLP is requested in a form other than http/protobuf. An unreachable cluster is not an error: the
    metrics show it.
    """
    if not 1 <= interval_s <= 86_400:
        raise InvalidOption(f"an interval of {interval_s:g} s is not valid", "Use an interval of 1 to 86400 seconds")
    try:
        from exactly_once.tools.metrics.export import Exporter
    except ImportError as e:
        raise ExtraMissing.of("the command metrics", str(e.name), "metrics", e) from e
    observer = Observer(connection, sink_ids, interval_s)
    with Exporter(observer.points, host, port, interval_s) as exporter:
        yield exporter.port
        observer.run(exporter.record, stop)

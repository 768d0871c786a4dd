"""``exactly-once metrics``: the observer as a process."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from exactly_once.kafka.connection import Connection
from exactly_once.ops.metrics import INTERVAL_S, observe
from exactly_once.protocol.names import check_sink_id

_OTLP = (
    "With OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT set, the command also sends the metrics "
    "over OTLP (http/protobuf). SIGINT or SIGTERM stops the command."
)


def add_arguments(metrics: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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

    def ready(port: int) -> None:
        what = f"{len(names)} sinks" if names else "all sinks"
        print(
            f"Observing {what} of {connection.bootstrap_servers} every {args.interval:g} s; metrics on "
            f"http://{args.host}:{port}/metrics",
            file=sys.stderr,
            flush=True,
        )

    try:
        observe(connection, names, args.host, args.port, args.interval, stop, ready)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)

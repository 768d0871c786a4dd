"""Metrics of sinks, taken from outside by an observer: OpenTelemetry instruments, for Prometheus and over OTLP.

The observer reads the commit logs, asks the brokers, and writes nothing. The packages of OpenTelemetry are in the extra
``metrics``; only :func:`observe` imports them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.ops.metrics.observer import Observer

#: Seconds from one round to the next. A stream with four batches a second fills the log's 64 places in this time.
INTERVAL_S = 15.0


def observe(
    connection: Connection,
    sink_ids: Sequence[str],
    host: str,
    port: int,
    interval_s: float,
    stop: threading.Event,
    ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Observe the sinks every ``interval_s`` seconds and serve their metrics, until ``stop`` is set.

    Parameters
    ----------
    sink_ids : sequence of str
        Empty: all sinks of the cluster, later ones included.
    port : int
        Of the Prometheus endpoint; 0 takes a free one.
    ready : callable
        Called with the port when the endpoint answers.

    Raises
    ------
    InvalidOption
        When a package is missing, the address cannot be used, or OTLP is requested in a form other than http/protobuf.
        An unreachable cluster is not an error: the metrics show it.
    """
    if not 1 <= interval_s <= 86_400:
        raise InvalidOption(f"an interval of {interval_s:g} s is not valid", "Use an interval of 1 to 86400 seconds")
    try:
        from exactly_once.ops.metrics.export import Exporter
    except ImportError as e:
        raise InvalidOption(
            f"metrics need the package {e.name!r}, which is not installed",
            "Install the extra: pip install 'pyspark-kafka-exactly-once[metrics]'",
        ) from e
    observer = Observer(connection, sink_ids, interval_s)
    with Exporter(observer.points, host, port, interval_s) as exporter:
        ready(exporter.port)
        observer.run(exporter.record, stop)

"""Metrics of sinks, taken from outside by an observer: OpenTelemetry instruments, for Prometheus and over OTLP.

The observer only reads: the commit logs, and what the brokers say. The packages of OpenTelemetry are in the extra
``platform`` and are imported when :func:`observe` is called, nowhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.ops.metrics.observer import Observer

#: Seconds from one round to the next: four batches a second would fill the 64 places of the log in this time.
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
    """Look at the sinks every ``interval_s`` seconds and serve what is seen, until ``stop`` is set.

    Parameters
    ----------
    sink_ids : sequence of str
        None of them: all sinks of the cluster, those that come later too.
    port : int
        Of the Prometheus endpoint; 0 takes a free one.
    ready : callable
        Is told the port once it answers.

    Raises
    ------
    InvalidOption
        When a package is missing, the address cannot be used, or OTLP is asked for in a form other than http/protobuf.
        An unreachable cluster is no error: it is what is measured.
    """
    if not 1 <= interval_s <= 86_400:
        raise InvalidOption(f"an interval of {interval_s:g} s is not valid", "Use an interval of 1 to 86400 seconds")
    try:
        from exactly_once.ops.metrics.export import Exporter
    except ImportError as e:
        raise InvalidOption(
            f"metrics need the package {e.name!r}, which is not installed",
            "Install the extra: pip install 'pyspark-kafka-exactly-once[platform]'",
        ) from e
    observer = Observer(connection, sink_ids, interval_s)
    with Exporter(observer.points, host, port, interval_s) as exporter:
        ready(exporter.port)
        observer.run(exporter.record, stop)

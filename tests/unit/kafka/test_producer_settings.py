"""The producer settings of a user, tried before a task meets them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka.checks import check_producer

GOOD = {"sink.id": "orders", "topic": "out", "checkpointLocation": "/c", "kafka.bootstrap.servers": "127.0.0.1:1"}


def check(timeout_ms: int = 60_000, **changes: str) -> None:
    options = {k.replace("_", "."): v for k, v in changes.items()}
    check_producer(SinkOptions.parse({**GOOD, **options}), timeout_ms)


def test_the_defaults_are_taken() -> None:
    """A check that refuses too much stops every stream."""
    check()
    check(timeout_ms=5_000)
    check(kafka_delivery_timeout_ms="900000")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kafka_retries": "0"}, "retries"),
        ({"kafka_max_in_flight_requests_per_connection": "10"}, "max.in.flight"),
    ],
)
def test_what_a_transaction_forbids_is_refused_at_the_start(changes: dict[str, str], says: str) -> None:
    """A plain producer takes these, so every task failed on them after the claim, with an error without a code."""
    with pytest.raises(InvalidOption, match=says):
        check(**changes)


def test_the_level_of_another_codec_has_no_effect() -> None:
    """Guards against gzip's level for lz4, which has others."""
    options = SinkOptions.parse({**GOOD, "kafka.compression.type": "lz4", "kafka.compression.gzip.level": "9"})
    assert "compression.level" not in options.producer


def test_a_linger_beyond_the_time_for_deliveries_is_refused_at_the_start() -> None:
    """The time for deliveries is cut to that of the transaction, which the user's setting may not know."""
    check(timeout_ms=60_000, kafka_linger_ms="30000")
    with pytest.raises(InvalidOption, match=r"linger\.ms"):
        check(timeout_ms=20_000, kafka_linger_ms="30000")


_OFFERED = """
import os, psutil, sys
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka import part as tasks
tasks.STALLED_S, settings, tasks.PartTransaction._open = 0.5, tasks._settings, lambda *_: None
OF_TRANSACTIONS = ("transactional.id", "transaction.timeout.ms")  # no broker opens one here
tasks._settings = lambda *a: {k: v for k, v in settings(*a).items() if k not in OF_TRANSACTIONS}
options = SinkOptions.parse(dict(pair.split("=") for pair in sys.argv[1:]))
part = tasks.PartTransaction(options.connection, options.producer, "part", 60_000, None)
before, record = psutil.Process().memory_info().rss, os.urandom(10_000)
ended = "all were taken"
try:
    for _ in range(30_000):
        part.send("out", None, record)
except Exception as e:
    ended = type(e).__name__
print(ended, (psutil.Process().memory_info().rss - before) // 1_000_000, flush=True)
os._exit(0)
"""


def test_a_task_whose_brokers_take_nothing_stays_small() -> None:
    """300 MB of records are offered. A worker that takes them all is killed for its memory, with every task of its
    executor; a broker that is slow for a minute was enough.
    """
    arguments = [f"{k}={v}" for k, v in GOOD.items()]
    done = subprocess.run([sys.executable, "-c", _OFFERED, *arguments], capture_output=True, text=True, timeout=60)
    ended, _, grown_mb = done.stdout.rpartition(" ")
    assert ended == "PrepareFailed", done.stderr or done.stdout
    assert 30 <= int(grown_mb) < 90, "the buffer's 32 MiB, and what librdkafka needs beside them"

"""Symptoms that a broker can have, planted in a real one; and what every screen of the engine then says of the sink."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from exactly_once.kafka.connection import Connection
from exactly_once.tools import cli
from exactly_once.tools.metrics.instruments import DIAGNOSIS
from exactly_once.tools.metrics.observer import Observer
from testkit.broker import open_transaction
from testkit.dead_sink import DEAD, DeadSink
from testkit.hanging import leave_hanging
from testkit.processes import until

#: The screens that look at a sink by itself.
LOOKS = frozenset({"list", "explain", "dry run", "doctor", "verify", "metrics"})


@dataclass(frozen=True)
class Planted:
    """A sink with one symptom: its code, the engine's screens that must have it, and what they are asked with."""

    code: str
    sink_id: str
    transactional_id: str
    screens: frozenset[str] = LOOKS
    checkpoint: str = ""


def dead_sink(connection: Connection, topic: str, checkpoint: str = "/c") -> DeadSink:
    """Return a sink whose owner was on this host, and is dead."""
    return DeadSink(connection, topic, socket.gethostname(), DEAD, checkpoint=checkpoint)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a checkpoint."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@contextmanager
def left_open(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Leave an undecided transaction open that nobody ends."""
    sink = dead_sink(connection, topic)
    yield Planted("HEALTH-STALE-TRANSACTIONS", sink.sink_id, sink.open_part(0))


@contextmanager
def in_doubt(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Decide a batch whose driver dies before it commits it."""
    sink = dead_sink(connection, topic)
    sink.decide(name := sink.open_part(0))
    yield Planted("HEALTH-IN-DOUBT", sink.sink_id, name)


@contextmanager
def lost_part(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Abort a decided part."""
    sink = dead_sink(connection, topic)
    sink.decide(name := sink.open_part(0), placed=True)
    sink.producers[0].abort_transaction(30)
    yield Planted("HEALTH-LOST-PARTS", sink.sink_id, name)


@contextmanager
def frozen(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Stop a driver by a signal."""
    with subprocess.Popen(["sleep", "300"]) as owner:
        try:
            owner.send_signal(signal.SIGSTOP)
            stopped = psutil.Process(owner.pid)
            until("it is stopped", lambda: stopped.status() == psutil.STATUS_STOPPED, 10)
            sink = DeadSink(connection, topic, socket.gethostname(), owner.pid, stopped.create_time())
            yield Planted("HEALTH-FROZEN", sink.sink_id, sink.open_part(0))
        finally:
            os.kill(owner.pid, signal.SIGKILL)


@contextmanager
def held_back(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Hold readers of a sink at rest back by another application's transaction."""
    sink = dead_sink(connection, topic)
    sink.decide(name := sink.open_part(0), placed=True)
    screen("recover", connection, sink.sink_id)
    other = open_transaction(connection, f"{topic}-app")
    other.produce(topic, "x", partition=1)
    other.flush(30)
    yield Planted("HEALTH-READERS-WAIT", sink.sink_id, name, frozenset({"verify", "recover"}))
    other.abort_transaction(30)


@contextmanager
def hanging(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Leave a transaction of the sink that no coordinator will end; the broker must be UNVERIFIED."""
    sink = dead_sink(connection, topic)
    sink.decide(name := sink.open_part(0), placed=True)
    screen("recover", connection, sink.sink_id)
    leave_hanging(connection, topic, 1, f"eo:{sink.sink_id}:1:7:0.0")
    yield Planted("HEALTH-HANGING", sink.sink_id, name, frozenset({"list", "verify"}))


def _with_checkpoint(connection: Connection, topic: str, folder: Path, code: str, files: Mapping[str, str]) -> Planted:
    sink = dead_sink(connection, topic, str(folder))
    sink.decide(name := sink.open_part(0), placed=True)
    write(folder, files)
    return Planted(code, sink.sink_id, name, frozenset({"doctor", "inspect", "verify"}), str(folder))


#: The file ``offsets/0`` of the checkpoints that are made here.
OFFSETS = 'v1\n{"batchTimestampMs":1795271372066}\n{"in":{"0":5}}\n'


@contextmanager
def checkpoint_lost(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Make a checkpoint without the decided batch."""
    yield _with_checkpoint(connection, topic, folder, "HEALTH-CHECKPOINT-LOST", {"metadata": '{"id":"q"}'})


@contextmanager
def checkpoint_foreign(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Make the checkpoint of another query."""
    files = {"metadata": '{"id":"other"}', "offsets/0": OFFSETS}
    yield _with_checkpoint(connection, topic, folder, "HEALTH-CHECKPOINT-FOREIGN", files)


@contextmanager
def checkpoint_torn(connection: Connection, topic: str, folder: Path) -> Iterator[Planted]:
    """Make a checkpoint with an empty file."""
    files = {"metadata": '{"id":"q"}', "offsets/0": ""}
    yield _with_checkpoint(connection, topic, folder, "HEALTH-CHECKPOINT-TORN", files)


#: The symptoms that any broker can have.
PLANTS = (left_open, in_doubt, lost_part, frozen, held_back, checkpoint_lost, checkpoint_foreign, checkpoint_torn)


def screen(verb: str, connection: Connection, *arguments: str) -> list[dict[str, Any]]:
    """Return the diagnoses in the JSON document of a command."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        cli.main(["--bootstrap-servers", connection.bootstrap_servers, "--json", *verb.split(), *arguments])
    return list(json.loads(printed.getvalue())["diagnoses"])


def engine_screens(connection: Connection, p: Planted) -> dict[str, list[dict[str, Any]]]:
    """Return what each screen of the engine says is wrong, by the screen; of the metrics, only codes and severities."""
    checkpoint = ("--checkpoint", p.checkpoint) if p.checkpoint else ()
    observer = Observer(connection, [p.sink_id], 5.0)
    observer.observe()
    found = {
        "list": screen("transactions list", connection, "--sink", p.sink_id, "--hanging", "--older-than", "0"),
        "explain": screen("transactions explain", connection, p.transactional_id),
        "dry run": screen("recover", connection, p.sink_id, "--dry-run"),
        "doctor": screen("doctor", connection, "--sink", p.sink_id, *checkpoint),
        "verify": screen("verify", connection, p.sink_id, "--settle", "0", *checkpoint),
        "metrics": [point.attributes for point in observer.points(DIAGNOSIS)],
    }
    if p.checkpoint:
        found["inspect"] = screen("checkpoint inspect", connection, p.checkpoint, "--sink", p.sink_id)
    if "recover" in p.screens:
        found["recover"] = screen("recover", connection, p.sink_id)
    return found

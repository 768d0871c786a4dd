"""Both sinks and what they are given: plain values, imported by every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INPUT = "duel-flights"

#: Partitions of the input and of both outputs; a batch has as many parts.
PARTITIONS = 4

#: Producer options of both: the safest for Spark's own sink, and equal batching, which this sink else chooses itself.
PRODUCER: Mapping[str, str] = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "5",
    "kafka.compression.type": "none",
}


#: A line for the driver's standard input: write what is in the input now, then end.
FINISH = b"finish"


@dataclass(frozen=True)
class Sink:
    """One of the two.

    Attributes
    ----------
    name : str
        Short, for files and topics.
    title : str
        For people.
    format : str
        What ``writeStream.format`` is given.
    options : mapping
        What it needs beyond the options that both have.
    """

    name: str
    title: str
    format: str
    options: Mapping[str, str]

    @property
    def topic(self) -> str:
        """The topic that it writes."""
        return f"duel-{self.name}"


SPARKS = Sink("spark", "Spark's own sink", "kafka", {})
OURS = Sink("ours", "This sink", "kafka_exactly_once", {"sink.id": "duel"})
SINKS = (SPARKS, OURS)


def checkpoint(folder: Path, sink: Sink) -> Path:
    """Return the checkpoint of the query of ``sink``, of the driver that works in ``folder``."""
    return folder / f"checkpoint-{sink.name}"


class DuelFailed(Exception):
    """The duel could not be held; the message says why, in a sentence."""

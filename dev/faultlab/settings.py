"""The settings of a round: drawn for a seed, or given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from exactly_once.options import Guarantee
from faultlab.file_stores import DISK
from faultlab.state import STORES

#: The least that the sink takes, and what comes near a batch's time with faults in it.
TIMEOUTS_MS = (5_000, 8_000, 15_000)

#: Who operates the stream, when it is not the lab.
DAGSTER = "dagster"


@dataclass(frozen=True)
class Settings:
    """The settings of a round.

    Attributes
    ----------
    guarantee : str
        ``sink.guarantee``.
    nodes : int
        Brokers: 1 or 3.
    executors : bool
        Tasks on a Spark standalone cluster of two workers instead of in the driver.
    timeout_ms : int
        ``kafka.transaction.timeout.ms``.
    parts : int
        Partitions of the input, and so tasks of a batch.
    rate : float
        Records a second.
    origin : bool
        Records have a header that names their input record, by which the checker compares all of them.
    machines : bool
        Driver, Spark workers and brokers each on a machine of its own: with a clock and a disk that faults reach, and a
        small disk under the driver's checkpoint and under each broker.
    outputs : bool
        Files and a table of PostgreSQL beside the topic, with exactly_once.
    tables : bool
        With ``outputs``: a table of Delta Lake and one of Iceberg too, which another process writes to and maintains.
    state : str
        The stream has state in one of :data:`faultlab.state.STORES`, with exactly_once: its input has a fifth of the
        records twice, its output each of them once. Empty: no state.
    operator : str
        :data:`DAGSTER`: Dagster launches the stream's runs, recovers it and starts it again. Empty: the lab does.
    checkpoint : str
        What the checkpoint is on: one of :data:`faultlab.file_stores.PLACES`. No seed draws it.
    """

    guarantee: str = Guarantee.EXACTLY_ONCE.value
    nodes: int = 1
    executors: bool = False
    timeout_ms: int = 8_000
    parts: int = 3
    rate: float = 200.0
    origin: bool = False
    machines: bool = False
    outputs: bool = False
    tables: bool = False
    state: str = ""
    operator: str = ""
    checkpoint: str = DISK


def under_dagster(drawn: Settings) -> Settings:
    """Return the same settings as far as a round under Dagster has them.

    These are exactly_once, without a cluster or machines.
    """
    kept = replace(drawn, executors=False, machines=False)
    return replace(kept, guarantee=Guarantee.EXACTLY_ONCE.value, operator=DAGSTER)


def draw_settings(seed: int) -> Settings:
    """Return settings for a seed: mostly exactly_once on one broker, and all the others too."""
    random = Random(f"settings/{seed}")
    drawn = Settings(
        guarantee=random.choice((*["exactly_once"] * 8, "at_least_once", "none")),
        nodes=random.choice((1, 1, 3)),
        executors=random.random() < 0.25,
        timeout_ms=random.choice(TIMEOUTS_MS),
        parts=random.randint(2, 4),
        machines=random.random() < 0.5,
    )
    # without a commit log, the checker has the origin alone
    drawn = replace(drawn, origin=random.random() < 0.5 or drawn.guarantee != Guarantee.EXACTLY_ONCE.value)
    if drawn.guarantee != Guarantee.EXACTLY_ONCE.value:
        return drawn
    drawn = replace(drawn, outputs=random.random() < 0.25)
    if random.random() < 0.25:  # of records that come twice, the checker would call one of the two lost
        drawn = replace(drawn, state=random.choice(STORES), origin=False)
    return replace(drawn, tables=drawn.outputs and random.random() < 0.5)  # drawn last: older seeds stay what they were

"""Dead letters under kill -9 and loss: each bad row is in the dead letter topic once, and each good one in the output,
whatever dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from exactly_once.outputs.files import FileParticipant
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.broker import change_topic, create_topic
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.stream import Job, Row, SparkDriver

#: Of the output; a bad row is larger, whatever the codec.
LIMIT = 3_000
NUMBER = "cast(split(value, '-')[2] as int)"
NOISE = "concat_ws('', transform(sequence(1, 40), i -> sha2(concat(value, cast(i as string)), 512)))"
#: Every tenth row of a part is bad.
VALUE = f"if({NUMBER} % 10 = 3, concat(value, ' ', {NOISE}), value) value"

#: What rows choose beside key and value.
EVERYTHING = [
    "if({number} % 10 = 7, 99, cast(split(key, '[.]')[1] as int) % 4) partition",
    "timestamp_millis(1700000000000 + {number}) timestamp",
    "array(named_struct('key', 'h', 'value', cast(key as binary))) headers",
]


@dataclass
class Shop:
    """A bench whose output takes small records alone, with a dead letter topic."""

    bench: Bench
    dead: str
    columns: tuple[str, ...] = ()
    archive: Path | None = None

    @property
    def job(self) -> Job:
        bench = self.bench
        job = bench.job.having(sink_dead_letter_topic=self.dead, topic=bench.topic, kafka_compression_type="none")
        columns = ["key", VALUE, *(c.format(number=NUMBER) for c in self.columns)]
        job = replace(job, transform="testkit.transforms:selected", arguments={"columns": columns})
        if self.archive is None:
            return job
        files = {"class": "exactly_once.outputs.files:FileParticipant", "name": "archive", "url": str(self.archive)}
        return replace(job, participants=[files])

    def in_archive(self) -> list[Row]:
        """The rows in the files of the other output."""
        rows = oracle.in_files(self.archive) if self.archive else []
        return sorted((r["key"], r["value"].split()[0]) for r in rows)

    def is_bad(self, row: Row) -> bool:
        last = int(row[1].rpartition("-")[2]) % 10
        return last == 3 or (last == 7 and bool(self.columns))

    def assert_once(self, batches: slice = slice(None)) -> None:
        """Each row of these batches is where it belongs, once, nothing is under way, and every part is proven."""
        topics = [self.bench.topic, self.dead]
        oracle.assert_settled(self.bench.connection, self.bench.sink_id, topics)
        found = {
            t: [(m.key, (m.value or "").split()[0]) for m in oracle.read(self.bench.connection, [t])] for t in topics
        }
        rows = self.bench.input.expected(batches)
        assert sorted(found[self.dead]) == sorted(r for r in rows if self.is_bad(r))
        assert sorted(found[self.bench.topic]) == sorted(r for r in rows if not self.is_bad(r))
        assert self.archive is None or self.in_archive() == sorted(rows)
        for decision in self.bench.log().decisions:
            mine = [r for part in self.bench.input.batches[decision.batch_id] for r in part]
            assert (decision.dead_letters, decision.records) == (sum(map(self.is_bad, mine)), len(mine))
        self.assert_verified()

    def assert_verified(self) -> None:
        checkpoint, topics = str(self.bench.checkpoint), [self.bench.topic, self.dead]
        report = verify(
            self.bench.connection,
            VerifyParameters(self.bench.sink_id, checkpoint=checkpoint, topics=topics, settle_s=5),
            outputs=[FileParticipant("archive", str(self.archive))] if self.archive else (),
        )
        assert report.clean and not report.unproven, report


@pytest.fixture
def shop(bench: Bench) -> Shop:
    return made(bench)


def made(bench: Bench) -> Shop:
    """Give the bench an output with a low limit, and a dead letter topic."""
    servers = bench.connection.bootstrap_servers
    bench.topic = create_topic(servers, f"{bench.sink_id}-small", 4, {"max.message.bytes": str(LIMIT)})
    return Shop(bench, create_topic(servers, f"{bench.sink_id}-dead", 2))


@pytest.mark.long
def test_brokers_that_die_while_a_row_is_shown_to_them_make_no_dead_letter(
    own_broker: Callable[..., EmbeddedBroker], warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against rows among the bad ones because the cluster was away: they would never come to the output."""
    broker = own_broker()
    shop = made(make_bench(Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers}), tmp_path))
    bench = shop.bench
    bench.input.add()
    run = warm.hold(shop.job.having(kafka_max_block_ms="3000", kafka_delivery_timeout_ms="5000"), "shown", "wait")
    broker.kill()
    warm.release("shown")
    assert run.end().code in ("EO-PREPARE", "EO-UNREACHABLE")
    broker.restart()
    assert oracle.read(bench.connection, [bench.topic, shop.dead]) == []

    warm.complete(shop.job)

    shop.assert_once()


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "shown", "all-prepared", "decided", "some-ended", "completed"])
def test_a_driver_that_is_killed_has_each_dead_letter_once_after_the_next_start(
    point: str, shop: Shop, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against dead letters of an execution that came to nothing (duplicates), against those of a decided batch
    that are rolled back (loss), and against a row that is shown to a broker and holds back readers for ever.
    """
    bench, dying = shop.bench, driver()
    bench.kill_at(point, dying, shop.job)

    bench.complete(warm, shop.job)

    shop.assert_once()


@pytest.mark.long
@pytest.mark.parametrize("point", ["pre-commit-archive", "decided", "commit-kafka", "all-ended"])
def test_a_dead_letter_is_once_in_every_other_output_too_whoever_dies(
    point: str, shop: Shop, driver: StartDriver, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against a row that Kafka alone cannot take and the archive has twice, or never."""
    shop.archive = tmp_path / "archive"
    bench, dying = shop.bench, driver()
    bench.kill_at(point, dying, shop.job)

    bench.complete(warm, shop.job)

    shop.assert_once()


def lose(shop: Shop, warm: SparkDriver, *parts: int) -> None:
    """Bring a second batch to its decision, abort some of its parts behind the sink's back, and let its driver see."""
    bench = shop.bench
    bench.complete(warm, shop.job)
    bench.input.add()
    run = warm.hold(shop.job, "decided", "wait")
    bench.abort_parts(bench.log().decisions[-1], *parts)
    warm.release("decided")
    assert run.end().code == "EO-LOST"


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "others"),
    [([], False), (EVERYTHING, False), ([], True)],
    ids=["key and value", "everything", "beside an archive"],
)
def test_a_lost_part_is_written_again_with_its_dead_letters(
    columns: list[str], others: bool, shop: Shop, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against a replay that finds other rows than those that were decided, because some of them are in another
    topic: the stream would stop for good.
    """
    shop.columns, shop.archive = tuple(columns), tmp_path / "archive" if others else None
    lose(shop, warm, 1, 2)

    warm.complete(shop.job)

    assert shop.bench.log().decisions[-1].rewritten == ("kafka/1", "kafka/2")
    shop.assert_once()


@pytest.mark.long
def test_a_row_that_the_topic_takes_by_now_goes_there_when_its_lost_part_is_written_again(
    shop: Shop, warm: SparkDriver
) -> None:
    """Guards against a person who does what the warning says, raises the limit, and then cannot start the stream."""
    lose(shop, warm, 0)
    change_topic(shop.bench.connection.bootstrap_servers, shop.bench.topic, "max.message.bytes", "100000")

    warm.complete(shop.job)

    first, second = shop.bench.log().decisions
    assert second.rewritten == ("kafka/0",) and (first.dead_letters, second.dead_letters) == (20, 15)
    connection, rows = shop.bench.connection, shop.bench.input.expected()
    letters = len(oracle.read(connection, [shop.dead]))
    assert letters == 35 and len(oracle.read(connection, [shop.bench.topic])) == len(rows) - letters
    shop.assert_verified()

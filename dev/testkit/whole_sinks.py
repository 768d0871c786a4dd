"""A clean sink as a stream leaves it, made without Spark in a second: 600 records in 5 batches, 15 parts, 3 partitions.
For tests that damage it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.deadline import Deadline, now_ms
from exactly_once.digest import RowDigest
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.checksum import distribution_of
from exactly_once.protocol.names import commit_log_topic, offsets_group
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Claim, Completed, Decision, OffsetRange, Place, PreparedTransaction, key_of
from exactly_once.txn.coordinators import End, describe, end_all, end_txn_version
from testkit import broker as brokers
from testkit.part_ids import part_id
from testkit.processes import until

BATCHES, PARTS, PARTITIONS, RECORDS = 5, 3, 3, 40

#: Key, value and partition.
Row = tuple[bytes, bytes, int]

#: In a micro-batch's ``offsets/N``, before the offsets of its sources.
_HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n'


class WholeSink:
    """The sink of the query ``q``, whose owner is a process on another host."""

    def __init__(self, connection: Connection, query_id: str = "q"):
        servers = connection.bootstrap_servers
        self.connection, self.query_id = connection, query_id
        self.sink_id = brokers.fresh_name("whole")
        self.topic = brokers.create_topic(servers, partitions=PARTITIONS)
        self.input = brokers.create_topic(servers, partitions=1)
        self.log = CommitLog(connection, self.sink_id)
        self.rows: dict[tuple[int, int], list[Row]] = {}
        self.texts: dict[int, str] = {}  # of offsets/N
        self._client = AdminClient(connection.librdkafka())
        self._producers: dict[str, Producer] = {}
        names = [self._name(batch, part) for batch in range(BATCHES) for part in range(PARTS)]
        with ThreadPoolExecutor(len(names)) as pool:  # each waits a third of a second for its coordinator
            list(pool.map(self._initialise, names))
        claim = Claim(1, query_id, now_ms(), "stream", "elsewhere", 1, "/c")
        self.log.claim(lambda state: claim, Deadline(30))
        with Admin(connection) as admin:
            self._version = end_txn_version(admin)
            self._ids = dict(admin.topic_ids([self.topic]))
            for batch in range(BATCHES):
                self._batch(admin, batch)
                # EndTxn is answered before the markers stand: rows before them would look like an attempt of the batch
                until(
                    f"the markers of batch {batch}",
                    lambda: all(w.last_stable == w.high for w in admin.watermarks(self.topic).values()),
                    20,
                )
        self._producers.clear()  # each has threads of its own
        self._made_ms = now_ms()

    def offsets(self, end: int) -> str:
        """Return the text of an ``offsets/N`` up to this offset of the input."""
        return _HEAD + json.dumps({self.input: {"0": end}})

    def _name(self, batch: int, part: int) -> str:
        return part_id(self.sink_id, 1, part, f"{batch}.0")

    def _initialise(self, name: str) -> Producer:
        producer = Producer({**self.connection.librdkafka(), "transactional.id": name, "linger.ms": 1, "log_level": 2})
        producer.init_transactions(30)
        self._producers[name] = producer  # kept, so that it does not abort what it has open
        return producer

    def add_batch(self, *numbers: int, rewritten: tuple[str, ...], alike: bool = False) -> None:
        """Write one more batch, whose parts have these numbers; with the same rows in the last two if they are
        ``alike``.
        """
        names = [part_id(self.sink_id, 1, part, f"{BATCHES}.{n}") for n, part in enumerate(numbers)]
        for name in names:
            self._initialise(name)
        with Admin(self.connection) as admin:
            self._batch(admin, BATCHES, names, numbers, rewritten, alike)

    def _batch(
        self,
        admin: Admin,
        batch: int,
        names: list[str] | None = None,
        numbers: Sequence[int] = range(PARTS),
        rewritten: tuple[str, ...] = (),
        alike: bool = False,
    ) -> None:
        names = names or [self._name(batch, part) for part in numbers]
        extents: list[dict[tuple[str, int], list[int]]] = []
        for part, name in enumerate(names):
            of = part - 1 if alike and part == len(names) - 1 else part
            rows = [(b"k%d" % n, b"%d-%d-%d" % (batch, of, n), n % PARTITIONS) for n in range(RECORDS)]
            self.rows[batch, part] = rows
            self._producers[name].begin_transaction()
            extents.append(produced(self._producers[name], self.topic, rows))
        described = describe(admin.renew(30), names)
        handles = []
        for part, (name, at) in enumerate(zip(names, extents, strict=True)):
            d, rows, digest = described[name], self.rows[batch, part], RowDigest()
            digest.add_pairs([key for key, _, _ in rows], [value for _, value, _ in rows])
            distribution = distribution_of(
                {where: OffsetRange(min(offsets), len(offsets)) for where, offsets in at.items()}
            )
            first = Place(*min(at), min(at[min(at)]))
            told = name, d.producer_id, d.producer_epoch, numbers[part], len(rows), 0, digest.text
            handles.append(PreparedTransaction(*told, first, form="plain", distribution=distribution))
        end = (batch + 1) * PARTS * RECORDS
        self.texts[batch] = text = self.offsets(end)
        decision = Decision(
            self.query_id, batch, 1, tuple(handles), digest_of(text), self._version, now_ms(),
            topics=(self.topic,), topic_ids=self._ids, offsets=text, rewritten=rewritten,
        )  # fmt: skip
        self.log.append(decision, Deadline(30), {self.input: {0: end}})
        outcomes = end_all(admin.renew(30), [End.of(h) for h in handles], True, self._version)
        assert set(outcomes.values()) == {Outcome.DONE}
        self.log.append(Completed(self.query_id, batch, 1, now_ms()), Deadline(30))

    # -- damages

    @property
    def decisions(self) -> list[Decision]:
        """The decisions, by batch."""
        return sorted(self.log.read(Deadline(30)).decisions, key=lambda d: d.batch_id)

    def decide_again(self, *decisions: Decision) -> None:
        """Write decisions over those of their keys, when their end markers are older than the clocks of two brokers may
        differ.
        """
        until("a second", lambda: now_ms() > self._made_ms + 1_200, 20)
        for decision in decisions:
            self.log.append(decision, Deadline(30))

    def tombstone(self, *keys: str) -> None:
        """Remove records from the commit log."""
        producer = Producer(self.connection.librdkafka())
        for key in keys:
            producer.produce(commit_log_topic(self.sink_id), None, key.encode(), 0)
        assert producer.flush(30) == 0

    def keys(self, *kinds: str) -> list[str]:
        """Return the keys of the log's records of these kinds."""
        state = self.log.read(Deadline(30))
        records: list[Any] = [*state.decisions, *state.marks.values(), *([state.owner] if state.owner else [])]
        return [key for key in map(key_of, records) if not kinds or key.partition("/")[0] in kinds]

    def write(self, rows: list[Row], name: str = "", commit: bool | None = True, topic: str = "") -> None:
        """Write rows as somebody else, in a transaction if there is a name for it; None leaves it open."""
        if not name:
            produced(Producer(self.connection.librdkafka()), topic or self.topic, rows)
            return
        producer = self._initialise(name)
        producer.begin_transaction()
        produced(producer, topic or self.topic, rows)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
            del self._producers[name]

    def delete_records(self, share: float, *partitions: int) -> None:
        """Delete this share of the records of some partitions, by default of all."""
        with Admin(self.connection) as admin:
            marks = admin.watermarks(self.topic)
        upto = [TopicPartition(self.topic, p, int(marks[p].high * share)) for p in partitions or marks]
        for done in self._client.delete_records(upto).values():
            done.result(30)

    def delete_group(self) -> None:
        """Delete the consumer group of the sink."""
        for done in self._client.delete_consumer_groups([offsets_group(self.sink_id)]).values():
            done.result(30)

    def visible(self) -> list[Row]:
        """Return what readers get, partition by partition."""
        config = {"group.id": brokers.fresh_name("r"), "enable.partition.eof": True, "enable.auto.commit": False}
        consumer = Consumer({**self.connection.librdkafka(), **config, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(PARTITIONS)])
        found: list[Row] = []
        ends = 0
        while ends < PARTITIONS:
            for m in consumer.consume(1_000, 1.0):
                if m.error():
                    ends += 1
                else:
                    found.append((m.key() or b"", m.value() or b"", m.partition() or 0))
        consumer.close()
        return found

    def checkpoint(self, folder: Path) -> str:
        """Make Spark's checkpoint of the query, with all batches of ``texts`` committed."""
        files = {"metadata": json.dumps({"id": self.query_id})}
        files["sources/0/0"] = "\0v1\n" + json.dumps({self.input: {"0": 0}})
        for batch, text in self.texts.items():
            files |= {f"offsets/{batch}": text, f"commits/{batch}": "v1\n{}"}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return str(folder)


def produced(producer: Producer, topic: str, rows: list[Row]) -> dict[tuple[str, int], list[int]]:
    """Write rows; return by partition the offsets that they got."""
    at: dict[tuple[str, int], list[int]] = defaultdict(list)

    def acknowledged(error: Any, message: Any) -> None:
        assert error is None, error
        at[message.topic(), message.partition()].append(message.offset())

    for key, value, partition in rows:
        producer.produce(topic, value, key, partition, on_delivery=acknowledged)
    assert producer.flush(30) == 0
    return at

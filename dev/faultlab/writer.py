"""A writer of the input: ``python -m faultlab.writer``, a process of its own, until its stdin ends.

It writes transactions of unique ids and aborts some. What it cannot prove it leaves: the judge asks the input itself.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import deque
from random import Random

from confluent_kafka import KafkaException, Producer

from exactly_once.kafka.connection import Connection

#: Above the pauses of most faults and below the patience of a drain: until then, an open transaction of a writer that
#: was killed holds back the readers of the input.
TIMEOUT_MS = 10_000

#: A record that is sent again is one of the writer's last so many: of the same transaction, or of some seconds before.
REACH = 2_000


def main() -> None:
    """Write until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("name", help="also the transactional id")
    parser.add_argument("--start", type=int, required=True, help="how often the writer was started before: ids are new")
    parser.add_argument("--rate", type=float, required=True, help="records a second")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--aborts", type=float, required=True, help="share of the transactions that are aborted")
    parser.add_argument("--repeats", type=float, default=0.0, help="share of the records that are sent a second time")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=watch, daemon=True).start()
    random = Random(f"{arguments.seed}/{arguments.name}/{arguments.start}")
    number, past = 0, deque[tuple[str, str]](maxlen=REACH)
    while not over.is_set():
        try:
            producer = _producer(arguments.servers, arguments.name)
            while not over.is_set():
                size = random.randint(1, max(1, int(arguments.rate)))
                ids = [f"{arguments.name}.{arguments.start}.{number + n}" for n in range(size)]
                number += size
                aborts = random.random() < arguments.aborts
                keys = [f"k{random.randrange(arguments.keys)}" for _ in ids]
                rows = list(zip(keys, ids, strict=True))
                past += rows
                if arguments.repeats:
                    rows += [random.choice(past) for _ in rows if random.random() < arguments.repeats]
                _write(producer, arguments.topic, rows, aborts)
                over.wait(size / arguments.rate)
        except (KafkaException, BufferError) as e:
            print(f"{arguments.name}: {e}", file=sys.stderr, flush=True)
            time.sleep(0.2)  # the next producer fences what this one left


def _producer(servers: str, name: str) -> Producer:
    producer = Producer(
        {
            **Connection(servers).librdkafka(),
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "message.timeout.ms": TIMEOUT_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    return producer


def _write(producer: Producer, topic: str, rows: list[tuple[str, str]], aborts: bool) -> None:
    producer.begin_transaction()
    for key, value in rows:
        producer.produce(topic, value, key)
    if aborts:
        producer.flush(30)
        producer.abort_transaction(30)
    else:
        producer.commit_transaction(30)


if __name__ == "__main__":
    main()

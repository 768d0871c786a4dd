#!/usr/bin/env bash
# AIOProducer.produce() takes a timestamp, as its docstring says, and keeps the record in its buffer. The next flush() raises
# NotImplementedError, puts every record of the buffer back, also those that it has just written, and so does each further
# flush: the records of other topics are written again each time, with their futures done after the first, and those of the
# same topic are never written. In a transaction commit_transaction() and abort_transaction() raise alike, since both flush
# first, and the transaction stays open. The Producer without asyncio writes such a record with its time.
# Releases: confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Java, Maven, Python 3. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
"$PY" -m pip list 2>/dev/null | grep -i confluent-kafka
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1
JARS=$WORK/jars
read -r PORT CONTROLLER < <(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in "12"]
print(*[s.getsockname()[1] for s in held])')
KAFKA=127.0.0.1:$PORT
cat >"$WORK/kafka.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$CONTROLLER
listeners=PLAINTEXT://$KAFKA,CONTROLLER://127.0.0.1:$CONTROLLER
controller.listener.names=CONTROLLER
log.dirs=$WORK/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
PROPERTIES
java -cp "$JARS/*" kafka.tools.StorageTool format -t RmluZGluZ3NPZlRoaXNQcg -c "$WORK/kafka.properties" >"$WORK/format.log" 2>&1
java -Xmx512m -cp "$JARS/*" kafka.Kafka "$WORK/kafka.properties" >"$WORK/broker.log" 2>&1 &
PIDS=$!
timeout 90 sh -c 'until grep -q "Kafka Server started" "$0"; do sleep 0.3; done' "$WORK/broker.log"
cat >"$WORK/show.py" <<'PYTHON'
import asyncio
import logging
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOProducer

servers = sys.argv[1]
logging.disable(logging.CRITICAL)
TIME = 1_704_067_200_000


def values(topic, isolation="read_uncommitted"):
    """Return the values that the topic has up to its end."""
    settings = {"bootstrap.servers": servers, "group.id": "g", "enable.partition.eof": True, "isolation.level": isolation}
    consumer, found = Consumer(settings), []
    consumer.assign([TopicPartition(topic, 0, 0)])
    while not (message := consumer.poll(60)).error():
        found.append(message.value().decode())
    consumer.close()
    return found


async def tell(words, call):
    """Print how the call ended."""
    try:
        await call
        print(f"{words}: returned")
    except NotImplementedError:
        print(f"{words}: NotImplementedError")


async def main():
    for kind, more in (("plain", {}), ("transactional", {"transactional.id": "t"})):
        producer = AIOProducer({"bootstrap.servers": servers, **more}, buffer_timeout=0)  # it flushes when told alone
        if more:
            await producer.init_transactions()
            await producer.begin_transaction()
        futures = [await producer.produce(f"{kind}-orders", value) for value in ("o0", "o1")]
        await producer.produce(f"{kind}-events", "e0")
        await producer.produce(f"{kind}-events", "e1, with a time", timestamp=TIME)
        if more:
            await tell("commit_transaction", producer.commit_transaction())
            await tell("abort_transaction", producer.abort_transaction())
            await tell("begin_transaction", producer.begin_transaction())
        else:
            await tell("flush", producer.flush())
            while not all(future.done() for future in futures):
                await producer.poll(0.1)
            offsets = [future.result().offset() for future in futures]
            print(f"the futures of o0 and o1 are done with the offsets {offsets}")
            await producer.produce(f"{kind}-events", "e2")
            await tell("flush", producer.flush())
            await tell("flush", producer.flush())
        while len(producer) > (4 if more else 5):  # all records are in its buffer again; what is above them is on its way
            await producer.poll(0.1)
        await producer.purge()  # empties the buffer; else close() raises, too
        await producer.close()
        for topic in ("orders", "events"):
            print(f"{kind}-{topic}: {sorted(values(f'{kind}-{topic}'))}")


admin = AdminClient({"bootstrap.servers": servers})
topics = ["plain-orders", "plain-events", "transactional-orders", "transactional-events", "sync"]
for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
    made.result()
asyncio.run(main())
print("read_committed: transactional-orders:", values("transactional-orders", "read_committed"))
producer = Producer({"bootstrap.servers": servers})
producer.produce("sync", "with a time", timestamp=TIME)
producer.flush()
print("Producer:", values("sync"))
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" >"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
flush: NotImplementedError
the futures of o0 and o1 are done with the offsets [0, 1]
flush: NotImplementedError
flush: NotImplementedError
plain-orders: ['o0', 'o0', 'o0', 'o1', 'o1', 'o1']
plain-events: []
commit_transaction: NotImplementedError
abort_transaction: NotImplementedError
begin_transaction: NotImplementedError
transactional-orders: ['o0', 'o0', 'o0', 'o1', 'o1', 'o1']
transactional-events: []
read_committed: transactional-orders: []
Producer: ['with a time']
EXPECTED
what="one record with a timestamp makes AIOProducer write the other topics' records again at each flush, and its own topic's never."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"

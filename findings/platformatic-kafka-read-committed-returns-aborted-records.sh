#!/usr/bin/env bash
# The consumer of @platformatic/kafka reads under READ_COMMITTED by default, and filters aborted records itself. Of a producer
# with several aborted transactions in one answer of the broker it remembers the last one alone, and returns the records of
# those before it as if they were committed. It also returns the records of an aborted transaction whose marker is not in the
# same answer, since the transaction is longer than maxBytes. kafkajs, on the same topics, returns committed records alone.
# Releases: @platformatic/kafka 2.12.1 on Node 24.11.1, kafkajs 2.2.4, confluent-kafka 2.16.1 (as writer), Apache Kafka 4.4.0.
# Needs: bash, Java, Maven, npm with Node 20 or later, Python 3. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
npm install --prefix "$WORK" --silent --no-audit --no-fund @platformatic/kafka@2.12.1 kafkajs@2.2.4 node@24.11.1 >"$WORK/npm.log" 2>&1
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
cat >"$WORK/write.py" <<'PYTHON'
import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers = sys.argv[1]
admin = AdminClient({"bootstrap.servers": servers})
for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in ("short", "long")]).values():
    made.result()


def transaction(producer, topic, end, values):
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
        producer.flush()
    getattr(producer, f"{end}_transaction")()


for topic in ("short", "long"):
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions()
    if topic == "short":
        for number in (1, 2, 3):
            transaction(producer, topic, "abort", [f"aborted {number}"])
            transaction(producer, topic, "commit", [f"committed {number}"])
    else:
        transaction(producer, topic, "abort", [f"aborted {number} {'x' * 500_000}" for number in range(8)])
    transaction(producer, topic, "commit", ["end"])
PYTHON
"$PY" "$WORK/write.py" "$KAFKA" >"$WORK/write.log" 2>&1

cat >"$WORK/read.mjs" <<'NODE'
import { readFileSync } from 'node:fs'
import { Consumer } from '@platformatic/kafka'
import kafkajs from 'kafkajs'

const servers = [process.argv[2]]
const names = ['@platformatic/kafka', 'kafkajs']
console.log(names.map(n => `${n} ${JSON.parse(readFileSync(`node_modules/${n}/package.json`)).version}`).join(', '))

async function platformatic (topic, take) {
  const less = topic === 'long' ? { maxBytes: 1_000_000, maxBytesPerPartition: 1_000_000 } : {}
  const consumer = new Consumer({ groupId: `p-${topic}`, clientId: 'p', bootstrapBrokers: servers, autocommit: false, ...less })
  const stream = await consumer.consume({ topics: [topic], mode: 'earliest' })
  for await (const message of stream) {
    if (take(message.value.toString())) break
  }
  await consumer.close(true)
}

async function js (topic, take) {
  const consumer = new kafkajs.Kafka({ brokers: servers, logLevel: kafkajs.logLevel.NOTHING }).consumer({ groupId: `k-${topic}` })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise(done => consumer.run({ eachMessage: async ({ message }) => { if (take(message.value.toString())) done() } }))
  await consumer.disconnect()
}

for (const [name, read] of [['@platformatic/kafka', platformatic], ['kafkajs', js]]) {
  for (const topic of ['short', 'long']) {
    const values = []
    await read(topic, value => { values.push(value.slice(0, 11)); return value === 'end' })
    // Of the long transaction it depends on the sizes of the answers how many records come: whether there are any is compared.
    const aborted = values.filter(v => v.startsWith('aborted'))
    console.log(`${name}, ${topic}: ${topic === 'short' ? values.join(', ') : `aborted records: ${aborted.length > 0 ? 'some' : 'none'}`}`)
    if (topic === 'long') console.error(`${name}: ${aborted.length} of 8 aborted records`)
  }
}
process.exit(0)
NODE
(cd "$WORK" && timeout 120 node_modules/.bin/node read.mjs "$KAFKA") >"$WORK/seen" 2>"$WORK/read.log"
cat >"$WORK/expected" <<'EXPECTED'
@platformatic/kafka 2.12.1, kafkajs 2.2.4
@platformatic/kafka, short: aborted 1, committed 1, aborted 2, committed 2, committed 3, end
@platformatic/kafka, long: aborted records: some
kafkajs, short: committed 1, committed 2, committed 3, end
kafkajs, long: aborted records: none
EXPECTED
what="@platformatic/kafka returns the records of each aborted transaction but a producer's last, and those of a long one."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"

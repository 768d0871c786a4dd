#!/usr/bin/env bash
# A topic with message.timestamp.type=LogAppendTime: the broker's time counts, for the search by time, for retention
# and for each reader. The broker writes it once for a batch of records, with a bit that says so, and leaves the
# producer's times in the records. kafka-go, @platformatic/kafka and kafka-ts do not look at the bit, and return the
# producer's time as the record's: here one of 2020, which windows and delays are computed from. franz-go, kafkajs and
# confluent-kafka return the broker's time.
# Releases: segmentio/kafka-go 0.4.51, franz-go 1.22.3, @platformatic/kafka 2.12.1, kafka-ts 1.5.0 and kafkajs 2.2.4 on
# Node 24.11.1, confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Go 1.26, Java, Maven, npm with Node 20 or
# later, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
npm install --prefix "$WORK" --silent --no-audit --no-fund \
    @platformatic/kafka@2.12.1 kafkajs@2.2.4 kafka-ts@1.5.0 node@24.11.1 >"$WORK/npm.log" 2>&1
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>
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
java -cp "$JARS/*" kafka.tools.StorageTool format -t RmluZGluZ3NPZlRoaXNQcg -c "$WORK/kafka.properties" \
    >"$WORK/format.log" 2>&1
java -Xmx512m -cp "$JARS/*" kafka.Kafka "$WORK/kafka.properties" >"$WORK/broker.log" 2>&1 &
PIDS=$!
timeout 90 sh -c 'until grep -q "Kafka Server started" "$0"; do sleep 0.3; done' "$WORK/broker.log"
cat >"$WORK/show.py" <<'PYTHON'
import sys

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

servers = sys.argv[1]
admin = AdminClient({"bootstrap.servers": servers})
topic = NewTopic("t", 1, 1, config={"message.timestamp.type": "LogAppendTime"})
admin.create_topics([topic], operation_timeout=30)["t"].result()
producer = ck.Producer({"bootstrap.servers": servers})
producer.produce("t", "x", timestamp=1_600_000_000_000)
producer.flush()
consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": "c", "auto.offset.reset": "earliest"})
consumer.subscribe(["t"])
message = None
while message is None or message.error():
    message = consumer.poll(1)
consumer.close()
print("confluent-kafka", message.timestamp()[1])
PYTHON
"$PY" "$WORK/show.py" "$KAFKA" >"$WORK/times" 2>"$WORK/show.log"

cat >"$WORK/read.mjs" <<'NODE'
import { Consumer } from '@platformatic/kafka'
import kafkajs from 'kafkajs'
import { createKafkaClient } from 'kafka-ts'

const [host, port] = process.argv[2].split(':')
const consumer = new Consumer({ groupId: 'p', clientId: 'p', bootstrapBrokers: [process.argv[2]], autocommit: false })
for await (const message of await consumer.consume({ topics: ['t'], mode: 'earliest' })) {
  console.log(`@platformatic/kafka ${message.timestamp}`)
  break
}
const kafka = new kafkajs.Kafka({ brokers: [process.argv[2]], logLevel: kafkajs.logLevel.NOTHING })
const js = kafka.consumer({ groupId: 'k' })
await js.connect()
await js.subscribe({ topics: ['t'], fromBeginning: true })
await new Promise(done => js.run({
  eachMessage: async ({ message }) => { console.log(`kafkajs ${message.timestamp}`); done() }
}))
const ts = createKafkaClient({ clientId: 't', bootstrapServers: [{ host, port: Number(port) }] })
await new Promise(done => ts.startConsumer({
  groupId: 't', topics: ['t'], fromTimestamp: -2n,
  onBatch: ([message]) => { console.log(`kafka-ts ${message.timestamp}`); done() }
}))
process.exit(0)
NODE
(cd "$WORK" && timeout 120 node_modules/.bin/node read.mjs "$KAFKA") >>"$WORK/times" 2>"$WORK/read.log"

mkdir "$WORK/go"
cat >"$WORK/go/main.go" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: os.Args[1:2], Topic: "t"})
	message, err := reader.ReadMessage(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println("kafka-go", message.Time.UnixMilli())
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.ConsumeTopics("t"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		panic(err)
	}
	fmt.Println("franz-go", client.PollFetches(context.Background()).Records()[0].Timestamp.UnixMilli())
}
GO
(
    cd "$WORK/go"
    export GOFLAGS=-mod=mod GOPATH="${GOPATH:-$(go env GOPATH)}"
    go mod init finding
    go get github.com/segmentio/kafka-go@v0.4.51 github.com/twmb/franz-go@v1.22.3
    go build -o finding .
) >"$WORK/go.log" 2>&1
timeout 60 "$WORK/go/finding" "$KAFKA" >>"$WORK/times" 2>"$WORK/run.log"
awk '{ print $1 ": time of the " ($2 == 1600000000000 ? "producer" : $2 > 1700000000000 ? "broker" : $2) }' \
    "$WORK/times" | sort >"$WORK/seen"
cat >"$WORK/expected" <<'EXPECTED'
@platformatic/kafka: time of the producer
confluent-kafka: time of the broker
franz-go: time of the broker
kafka-go: time of the producer
kafka-ts: time of the producer
kafkajs: time of the broker
EXPECTED
what="three clients return the producer's time of a record under LogAppendTime, and three the broker's"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"

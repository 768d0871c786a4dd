#!/usr/bin/env bash
# A value and a key of no bytes are something else than none: in a compacted topic a record without a value deletes its
# key. The Reader of segmentio/kafka-go returns nil for both, in Key, Value and each header's Value, and its Writer
# writes nil as none. A program that reads and writes such records as they are, as a mirror does, makes tombstones of
# values that are empty, and records without a key of those with an empty one, without an error. franz-go keeps each.
# Releases: segmentio/kafka-go 0.4.51, franz-go 1.22.3, confluent-kafka 2.16.1, Apache Kafka 4.4.0. Needs: bash, Go
# 1.26, Java, Maven, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
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
cat >"$WORK/write.py" <<'PYTHON'
import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers = sys.argv[1]
admin = AdminClient({"bootstrap.servers": servers})
topics = [NewTopic(topic, 1, 1) for topic in ("from", "kafka-go", "franz-go")]
for made in admin.create_topics(topics, operation_timeout=30).values():
    made.result()
producer = Producer({"bootstrap.servers": servers})
for key, value in (("a", "1"), ("b", ""), ("", "3"), ("d", None)):
    producer.produce("from", value, key, headers=[("empty", b""), ("none", None), ("one", b"1")])
producer.flush()
PYTHON
"$PY" "$WORK/write.py" "$KAFKA" >"$WORK/write.log" 2>&1

mkdir "$WORK/go"
cat >"$WORK/go/main.go" <<'GO'
package main

import (
	"context"
	"os"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx, servers := context.Background(), os.Args[1]
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{servers}, Topic: "from"})
	writer := kafka.Writer{Addr: kafka.TCP(servers), Topic: "kafka-go", RequiredAcks: kafka.RequireAll}
	for range 4 {
		m, err := reader.ReadMessage(ctx)
		check(err)
		check(writer.WriteMessages(ctx, kafka.Message{Key: m.Key, Value: m.Value, Headers: m.Headers, Time: m.Time}))
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.ConsumeTopics("from"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	for seen := 0; seen < 4; {
		for _, r := range client.PollFetches(ctx).Records() {
			copied := kgo.Record{Topic: "franz-go", Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
			check(client.ProduceSync(ctx, &copied).FirstErr())
			seen++
		}
	}
}
GO
(
    cd "$WORK/go"
    export GOFLAGS=-mod=mod GOPATH="${GOPATH:-$(go env GOPATH)}"
    go mod init finding
    go get github.com/segmentio/kafka-go@v0.4.51 github.com/twmb/franz-go@v1.22.3
    go build -o finding .
) >"$WORK/go.log" 2>&1
timeout 60 "$WORK/go/finding" "$KAFKA" >"$WORK/run.log" 2>&1

cat >"$WORK/read.py" <<'PYTHON'
import sys

from confluent_kafka import Consumer, TopicPartition

for topic in ("from", "kafka-go", "franz-go"):
    consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    print(f"{topic}:")
    for message in consumer.consume(4, 30):
        print(f"  key {message.key()}, value {message.value()}, headers {[value for _, value in message.headers()]}")
    consumer.close()
PYTHON
"$PY" "$WORK/read.py" "$KAFKA" >"$WORK/seen" 2>"$WORK/read.log"
cat >"$WORK/expected" <<'EXPECTED'
from:
  key b'a', value b'1', headers [b'', None, b'1']
  key b'b', value b'', headers [b'', None, b'1']
  key b'', value b'3', headers [b'', None, b'1']
  key b'd', value None, headers [b'', None, b'1']
kafka-go:
  key b'a', value b'1', headers [None, None, b'1']
  key b'b', value None, headers [None, None, b'1']
  key None, value b'3', headers [None, None, b'1']
  key b'd', value None, headers [None, None, b'1']
franz-go:
  key b'a', value b'1', headers [b'', None, b'1']
  key b'b', value b'', headers [b'', None, b'1']
  key b'', value b'3', headers [b'', None, b'1']
  key b'd', value None, headers [b'', None, b'1']
EXPECTED
what="kafka-go reads empty values, keys and headers as nil, and a value that is passed on is a tombstone"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"

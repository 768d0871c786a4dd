#!/usr/bin/env bash
# A topic holds a committed transaction (two records), an aborted one (two) and a committed one (one). A reader of
# segmentio/kafka-go with IsolationLevel ReadCommitted returns the aborted records, too, and the three control records of the
# commits and the abort as messages of their own, six bytes each; franz-go returns the three committed ones. Dropping what was
# aborted is the client's part of read_committed: the broker sends everything below the last stable offset.
# Releases: segmentio/kafka-go 0.4.51, franz-go 1.22.3, confluent-kafka 2.16.1, Apache Kafka 4.4.0.
# Needs: bash, Go 1.26, Java, Maven, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1
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
admin.create_topics([NewTopic("t", 1, 1)], operation_timeout=30)["t"].result()
producer = Producer({"bootstrap.servers": servers, "transactional.id": "writer"})
producer.init_transactions()
for end, values in (("commit", ["c0", "c1"]), ("abort", ["a0", "a1"]), ("commit", ["d0"])):
    producer.begin_transaction()
    for value in values:
        producer.produce("t", value)
    producer.flush()
    producer.commit_transaction() if end == "commit" else producer.abort_transaction()
PYTHON
"$PY" "$WORK/write.py" "$KAFKA"

mkdir "$WORK/go"
cat >"$WORK/go/main.go" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers := os.Args[1]
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{servers}, Topic: "t", IsolationLevel: kafka.ReadCommitted, MaxWait: 500 * time.Millisecond,
	})
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		message, err := reader.ReadMessage(ctx)
		cancel()
		if err != nil {
			break
		}
		fmt.Printf("kafka-go: offset %d, value %q\n", message.Offset, message.Value)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.ConsumeTopics("t"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		panic(err)
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		fetches := client.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			break
		}
		fetches.EachRecord(func(r *kgo.Record) { fmt.Printf("franz-go: offset %d, value %q\n", r.Offset, r.Value) })
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
"$WORK/go/finding" "$KAFKA" >"$WORK/seen"
cat >"$WORK/expected" <<'EXPECTED'
kafka-go: offset 0, value "c0"
kafka-go: offset 1, value "c1"
kafka-go: offset 2, value "\x00\x00\x00\x00\x00\x00"
kafka-go: offset 3, value "a0"
kafka-go: offset 4, value "a1"
kafka-go: offset 5, value "\x00\x00\x00\x00\x00\x00"
kafka-go: offset 6, value "d0"
kafka-go: offset 7, value "\x00\x00\x00\x00\x00\x00"
franz-go: offset 0, value "c0"
franz-go: offset 1, value "c1"
franz-go: offset 6, value "d0"
EXPECTED
what="kafka-go's ReadCommitted reader returns aborted records and control records, and franz-go's does not."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"

#!/usr/bin/env bash
# A client with a wrong password. The broker holds its refusal back for 100 ms (connection.failed.authentication.delay.ms),
# then sends it and closes the connection at once. kafka-python often reads both together, and throws away what it has read
# before the end: its log has "socket disconnected". Whether it has thrown it away or not, the constructor repeats the
# wrong password until bootstrap_timeout_ms, and raises a KafkaTimeoutError that gives no reason. aiokafka's error gives none
# either; librdkafka tells its error_cb.
# Releases: kafka-python 3.0.12, confluent-kafka 2.16.1, aiokafka 0.14.0, Apache Kafka 4.4.0.
# Needs: bash, Java, Maven, OpenSSL, Python 3. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill -9 ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check kafka-python==3.0.12 confluent-kafka==2.16.1 aiokafka==0.14.0
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1
JARS=$WORK/jars
read -r PORT PLAIN TLS CONTROLLER < <(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in "1234"]
print(*[s.getsockname()[1] for s in held])')
KAFKA=127.0.0.1:$PORT
LOGIN='org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="right";'
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$WORK/key.pem" -out "$WORK/cert.pem" 2>"$WORK/openssl.log"
cat "$WORK/key.pem" "$WORK/cert.pem" >"$WORK/server.pem"
cat >"$WORK/kafka.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$CONTROLLER
listeners=PLAINTEXT://$KAFKA,SASL_PLAINTEXT://127.0.0.1:$PLAIN,SASL_SSL://127.0.0.1:$TLS,CONTROLLER://127.0.0.1:$CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=$LOGIN
listener.name.sasl_ssl.plain.sasl.jaas.config=$LOGIN
ssl.keystore.type=PEM
ssl.keystore.location=$WORK/server.pem
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
import ssl
import sys

import aiokafka
import confluent_kafka
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

certificate, *ports = sys.argv[1:]
REFUSAL = "Invalid username or password"
LOGIN = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "reader", "sasl_plain_password": "wrong"}
logging.disable(logging.CRITICAL)
received = []  # of each read that has the broker's refusal in it: whether the same read has met the end


def watched(transport):
    read = transport._sock_recv

    def reads(self):
        data, error = read(self)
        if REFUSAL.encode() in data:
            received.append(error is not None)
        return data, error

    transport._sock_recv = reads


watched(KafkaTCPTransport)
watched(KafkaSSLTransport)


def whether(texts):
    return f"{'names' if any(REFUSAL in text for text in texts) else 'does not name'} the refusal"


def by_kafka_python(protocol, servers):
    for _ in range(6):
        try:
            where = {"bootstrap_servers": servers, "security_protocol": protocol, "ssl_cafile": certificate}
            KafkaAdminClient(**where, **LOGIN, bootstrap_timeout_ms=2500)
        except KafkaError as error:
            yield f"{type(error).__name__}, {whether([str(error)])}"


async def by_aiokafka(protocol, servers):
    where = {"bootstrap_servers": servers, "security_protocol": protocol}
    consumer = aiokafka.AIOKafkaConsumer(**where, **LOGIN, ssl_context=ssl.create_default_context(cafile=certificate))
    try:
        await consumer.start()
    except aiokafka.errors.KafkaError as error:
        return f"{type(error).__name__}, {whether([str(error)])}"
    finally:
        await consumer.stop()


def by_confluent(protocol, servers):
    told = []
    settings = {"bootstrap.servers": servers, "security.protocol": protocol, "ssl.ca.location": certificate}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": "wrong"}
    producer = confluent_kafka.Producer({**settings, **login, "log_level": 0, "error_cb": lambda e: told.append(e.str())})
    producer.poll(3)
    return f"error_cb {whether(told)}"


for protocol, port in zip(("SASL_PLAINTEXT", "SASL_SSL"), ports, strict=True):
    servers = f"localhost:{port}"
    received.clear()
    print(f"{protocol}, kafka-python: {' / '.join(sorted(set(by_kafka_python(protocol, servers))))}")
    print(f"  the broker's refusal was read: {len(received) > 6}, and thrown away at some tries: {any(received)}")
    print(f"  aiokafka: {asyncio.run(by_aiokafka(protocol, servers))}")
    print(f"  librdkafka: {by_confluent(protocol, servers)}")
PYTHON
"$PY" "$WORK/show.py" "$WORK/cert.pem" "$PLAIN" "$TLS" >"$WORK/seen" 2>"$WORK/show.log"
cat >"$WORK/expected" <<'EXPECTED'
SASL_PLAINTEXT, kafka-python: KafkaTimeoutError, does not name the refusal
  the broker's refusal was read: True, and thrown away at some tries: True
  aiokafka: KafkaConnectionError, does not name the refusal
  librdkafka: error_cb names the refusal
SASL_SSL, kafka-python: KafkaTimeoutError, does not name the refusal
  the broker's refusal was read: True, and thrown away at some tries: True
  aiokafka: KafkaConnectionError, does not name the refusal
  librdkafka: error_cb names the refusal
EXPECTED
what="kafka-python throws the broker's refusal of a password away where it arrives together with the end of the connection."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"

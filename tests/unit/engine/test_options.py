"""Options: each mistake has its own sentence with the option's name, before anything connects; no sentence has a
secret."""

from __future__ import annotations

import pytest

from exactly_once.errors import CheckpointUnusable, ExactlyOnceError, InvalidOption, InvalidTransactionTimeout
from exactly_once.options import _REFUSED, SHORTEST_TRANSACTION_TIMEOUT_MS, SinkOptions

A_UUID = "8f3c1f6e-0c4b-4ad1-9a77-0a51ce7f7a10"

GOOD = {
    "sink.id": "orders",
    "checkpointLocation": "/data/c",
    "kafka.bootstrap.servers": "localhost:9092",
    "topic": "out",
}
SSL = {"kafka.security.protocol": "SSL"}
SASL = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="u" password="hunter2";',
}


def parse(changes: dict[str, str | None] | None = None) -> SinkOptions:
    """The good options with ``changes``; None takes an option away."""
    options = {**GOOD, **(changes or {})}
    return SinkOptions.parse({k: v for k, v in options.items() if v is not None})


@pytest.mark.parametrize("topic", [None, ""])
def test_without_a_topic_the_column_says_it(topic: str | None) -> None:
    """As with Spark's own sink."""
    assert parse({"topic": topic}).topic is None


@pytest.mark.parametrize(
    ("changes", "attribute", "value"),
    [
        ({"sink.adopt": ""}, "adopt", ()),
        ({"sink.adopt": f"{A_UUID}/7"}, "adopt", (f"{A_UUID}/7",)),
        ({"sink.adopt": f"{A_UUID}/7, {A_UUID}"}, "adopt", (f"{A_UUID}/7", A_UUID)),
        ({"sink.takeover": "8f3c"}, "takeover", "8f3c"),
        ({"sink.takeover": ""}, "takeover", None),
        ({"sink.accept.lost": "0@1700000000001"}, "accept_lost", "0@1700000000001"),
        ({"sink.accept.lost": "orders/2026-01-31@17"}, "accept_lost", "orders/2026-01-31@17"),
        ({"sink.accept.lost": ""}, "accept_lost", None),
        ({}, "operator", ""),
        ({"sink.progress.topic": ""}, "progress_topic", ""),
        ({"sink.progress.topic": "progress"}, "progress_topic", "progress"),
        ({"sink.trace": "true"}, "trace", True),
        ({"sink.trace": "false", "sink.guarantee": "none"}, "trace", False),
        ({}, "batch_headers", False),
        ({"sink.batch.headers": "true"}, "batch_headers", True),
        ({"sink.batch.headers": "TRUE", "sink.guarantee": "none"}, "batch_headers", True),
        ({"sink.batch.headers": "false"}, "batch_headers", False),
        ({"sink.operator": ""}, "operator", ""),
        ({"sink.operator": " dagster/prod/0a1b "}, "operator", "dagster/prod/0a1b"),
        ({"kafka.transaction.timeout.ms": "60000"}, "timeout_ms", 60_000),
    ],
)
def test_a_value_is_read_as_what_it_is(changes: dict[str, str | None], attribute: str, value: object) -> None:
    """Batch 0 may be the lost one."""
    assert getattr(parse(changes), attribute) == value


#: What is wrong -> the options, what the refusal says of them, and the way out.
MISTAKES: dict[str, tuple[dict[str, str | None], str, str]] = {
    "no sink.id": ({"sink.id": None}, "sink.id is missing", "sink.id"),
    "empty sink.id": ({"sink.id": ""}, "sink.id is missing", "sink.id"),
    "bad sink.id": ({"sink.id": "a:b"}, "sink.id 'a:b' is not a valid sink id", "letters, digits"),
    "no checkpointLocation": (
        {"checkpointLocation": None},
        "checkpointLocation is missing",
        '.option("checkpointLocation"',
    ),
    "no bootstrap servers": ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing", "host:port"),
    "blank bootstrap servers": ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing", "host:port"),
    "unknown sink option": ({"sink.adapt": "true"}, "sink.adapt is not an option", "sink.adopt"),
    "acks=1": ({"kafka.acks": "1"}, "kafka.acks", "Remove the option"),
    "acks=0": ({"kafka.acks": "0"}, "kafka.acks", "Remove the option"),
    "no idempotence": ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence", "Remove the option"),
    "transactional.id": ({"kafka.transactional.id": "mine"}, "kafka.transactional.id", "Remove the option"),
    "two-phase commit of Kafka": (
        {"kafka.transaction.two.phase.commit.enable": "true"},
        "kafka.transaction.two.phase.commit.enable",
        "Remove the option",
    ),
    "a serializer": ({"kafka.value.serializer": "x.Y"}, "kafka.value.serializer", "as Spark's sink does"),
    "a way to log in that is Java's alone": (
        {"kafka.sasl.login.class": "x.Y"},
        "kafka.sasl.login.class",
        "the driver's clients are not Java's",
    ),
    "a misspelt kafka option": (
        {"kafka.compresion.type": "lz4"},
        "kafka.compresion.type is not an option of this sink",
        "did you mean kafka.compression.type?",
    ),
    "a misspelt required kafka option": (
        {"kafka.bootstrap.servers": None, "kafka.bootstrap.server": "h:1"},
        "kafka.bootstrap.server is not an option of this sink",
        "did you mean kafka.bootstrap.servers?",
    ),
    "a misspelt sink option": (
        {"sink.guarante": "none"},
        "sink.guarante is not an option of this sink",
        "did you mean sink.guarantee?",
    ),
    "a misspelt registry option": (
        {"schema.registry.uri": "http://r"},
        "schema.registry.uri is not an option of this sink",
        "did you mean schema.registry.url?",
    ),
    "an unknown kafka option": ({"kafka.tempo": "5"}, "kafka.tempo", "docs/reference.md"),
    "a consumer's option": ({"kafka.isolation.level": "x"}, "kafka.isolation.level", "Remove the option"),
    "timeout too small": (
        {"kafka.transaction.timeout.ms": str(SHORTEST_TRANSACTION_TIMEOUT_MS - 1)},
        "kafka.transaction.timeout.ms=4999 is below",
        "at least 5000",
    ),
    "timeout negative": (
        {"kafka.transaction.timeout.ms": "-1"},
        "kafka.transaction.timeout.ms=-1 is below",
        "at least 5000",
    ),
    "timeout no number": (
        {"kafka.transaction.timeout.ms": "15min"},
        "kafka.transaction.timeout.ms='15min' is not a whole number",
        "whole number",
    ),
    "buffer no number": ({"kafka.buffer.memory": "32m"}, "kafka.buffer.memory='32m'", "whole number"),
    "delivery timeout no number": (
        {"kafka.delivery.timeout.ms": "2min"},
        "kafka.delivery.timeout.ms='2min' is not a whole number",
        "whole number",
    ),
    "no codec": ({"kafka.compression.type": "foo"}, "kafka.compression.type='foo' is no codec", "zstd"),
    "linger no number": ({"kafka.linger.ms": "soon"}, "kafka.linger.ms", "whole number"),
    "accept.lost of any time": ({"sink.accept.lost": "7"}, "does not name a decision", "EO-EXPIRED names"),
    "adopt of anything": (
        {"sink.adopt": "true"},
        "sink.adopt=true does not name anything to adopt",
        "EO-TOPIC-RECREATED or EO-INPUT-RECREATED names it",
    ),
    "operator too long": ({"sink.operator": "x" * 201}, "sink.operator has 201 characters", "at most 200"),
    "progress into the output": (
        {"sink.progress.topic": "out"},
        "sink.progress.topic='out' is an output topic",
        "another topic",
    ),
    "progress into the dead letters": (
        {"sink.progress.topic": "dead", "sink.dead.letter.topic": "dead"},
        "sink.progress.topic='dead' is an output topic",
        "another topic",
    ),
    "progress into a commit log": (
        {"sink.progress.topic": "eo.other.commit-log"},
        "sink.progress.topic='eo.other.commit-log' is the commit log of a sink",
        "another topic",
    ),
    "progress without decisions": (
        {"sink.progress.topic": "progress", "sink.guarantee": "at_least_once"},
        "cannot be combined with sink.guarantee=at_least_once",
        "Remove sink.progress.topic",
    ),
    "traces without decisions": (
        {"sink.trace": "true", "sink.guarantee": "none"},
        "sink.trace=true cannot be combined with sink.guarantee=none",
        "Remove sink.trace",
    ),
    "operator of two lines": ({"sink.operator": "a\nb"}, "sink.operator contains '\\n'", "at most 200"),
    "password of no trust store": (
        {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.password": "hunter2"},
        "kafka.ssl.truststore.password is set, but kafka.ssl.truststore.location is not",
        "Set kafka.ssl.truststore.location",
    ),
    "unknown security protocol": (
        {"kafka.security.protocol": "TLS"},
        "kafka.security.protocol='TLS' is not supported",
        "SASL_SSL",
    ),
    "unknown SASL mechanism": (
        {**SASL, "kafka.sasl.mechanism": "DIGEST-MD5"},
        "kafka.sasl.mechanism='DIGEST-MD5' is not supported",
        "SCRAM-SHA-256",
    ),
    "Kerberos with a password": (
        {**SASL, "kafka.sasl.mechanism": "GSSAPI"},
        "kafka.sasl.mechanism=GSSAPI, but kafka.sasl.jaas.config names scram.ScramLoginModule",
        "Krb5LoginModule required useKeyTab=true",
    ),
    "no SASL credentials": (
        {**SASL, "kafka.sasl.jaas.config": None},
        "the SASL user name or password is missing",
        "kafka.sasl.jaas.config",
    ),
}

#: The errors of mistakes that are no InvalidOption.
OTHER_ERRORS: dict[str, type[ExactlyOnceError]] = {
    "no checkpointLocation": CheckpointUnusable,
    "timeout too small": InvalidTransactionTimeout,
    "timeout negative": InvalidTransactionTimeout,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_the_options_name_and_the_way_out(mistake: str) -> None:
    """Before anything connects: a mistake that only a task on an executor finds costs a claim, and fences nobody's
    fault."""
    changes, what, way_out = MISTAKES[mistake]
    with pytest.raises(OTHER_ERRORS.get(mistake, InvalidOption)) as refusal:
        parse(changes)
    assert what in refusal.value.what
    assert way_out in refusal.value.way_out
    assert refusal.value.safe == "Nothing was written"


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_an_option_that_kafka_has_is_not_called_a_misspelling(name: str) -> None:
    """Guards against advice to set another option, where this one can only be taken away."""
    with pytest.raises(InvalidOption) as refusal:
        parse({f"kafka.{name}": "x"})
    assert "did you mean" not in refusal.value.way_out and "Remove" in refusal.value.way_out


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("bootstrap_servers", "kafka.bootstrap.servers"),
        ("kafka_bootstrap_servers", "kafka.bootstrap.servers"),
        ("linger.ms", "kafka.linger.ms"),
        ("retries", "kafka.retries"),
        ("transaction.timeout.ms", "kafka.transaction.timeout.ms"),
        ("topics", "topic"),
        ("kafka.topic", "topic"),
        ("id", "sink.id"),
        ("sink_id", "sink.id"),
        ("sinkId", "sink.id"),
        ("guarantee", "sink.guarantee"),
        ("topics.allowed", "sink.topics.allowed"),
        ("write_id", "write.id"),
        ("checkpoint", "checkpointLocation"),
        ("checkpoint.location", "checkpointLocation"),
    ],
)
def test_an_option_under_another_name_or_without_its_prefix_is_refused_with_its_own(given: str, meant: str) -> None:
    """Mishap: it was ignored, and then "missing" was said of what the user saw in front of him; or nothing was said."""
    with pytest.raises(InvalidOption) as refusal:
        parse({given: "x"})
    assert refusal.value.what.startswith(f"{given.lower()} is not an option")
    assert refusal.value.way_out.endswith(f" did you mean {meant}?")


@pytest.mark.parametrize(("name", "way_out"), [("group.id", "Remove the option"), ("acks", "the sink sets what")])
def test_an_option_that_the_sink_would_not_take_with_its_prefix_either_is_to_be_removed(
    name: str, way_out: str
) -> None:
    """Guards against advice that leads to the next refusal."""
    with pytest.raises(InvalidOption, match=way_out):
        parse({name: "x"})


#: Of the Kafka source and of other sinks.
SPARKS_OWN = """
    path queryName mode truncate numRows subscribe subscribePattern assign startingOffsets endingOffsets
    startingTimestamp startingOffsetsByTimestamp failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix
    includeHeaders asyncProgressTrackingEnabled asyncProgressTrackingCheckpointIntervalMs
"""


def test_options_of_spark_s_own_are_left_alone() -> None:
    """Guards against a job that is refused because one set of options serves its source and its sink."""
    assert parse(dict.fromkeys(SPARKS_OWN.split(), "1")) == parse()


def test_no_two_mistakes_share_a_sentence() -> None:
    """A sentence that fits two mistakes names neither."""
    sentences = {}
    for name, (changes, *_) in MISTAKES.items():
        try:
            parse(changes)
        except ExactlyOnceError as e:
            sentences[name] = str(e)
    twins = {"empty sink.id", "blank bootstrap servers"}
    distinct = [s for name, s in sentences.items() if name not in twins]
    assert len(set(distinct)) == len(distinct)


# -- secrets --------------------------------------------------------------------------------------------------------

SECRETS: dict[str, dict[str, str | None]] = {
    "JAAS": SASL,
    "SASL password": {
        **SASL,
        "kafka.sasl.jaas.config": None,
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "hunter2",
    },
    "key password": {"kafka.security.protocol": "SSL", "kafka.ssl.key.password": "hunter2"},
}


@pytest.mark.parametrize("changes", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_not_in_the_options_text(changes: dict[str, str | None]) -> None:
    """repr() ends up in logs, in Spark's plans and in tracebacks."""
    o = parse(changes)
    assert "hunter2" not in repr(o) + str(o) + f"{o.connection}"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({**SASL, "kafka.acks": "1"}, id="another option is wrong"),
        pytest.param({**SASL, "kafka.sasl.mechanism": "OAUTHBEARER"}, id="the mechanism is not supported"),
        pytest.param({**SASL, "kafka.sasl.jaas.config": "x required password='hunter2';"}, id="JAAS without a user"),
        pytest.param({**SSL, "kafka.ssl.truststore.password": "hunter2"}, id="a JKS trust store's password"),
        pytest.param({**SSL, "kafka.ssl.keystore.password": "hunter2"}, id="a JKS key store's password"),
        pytest.param({**SSL, "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY----- hunter2"}, id="a private key"),
        pytest.param(
            {
                **SASL,
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.client.credentials.client.secret": "hunter2",
            },
            id="an OAuth secret",
        ),
        pytest.param({"kafka.sasl.passwd": "hunter2"}, id="a misspelt password"),
    ],
)
def test_a_secret_is_not_in_a_refusal(changes: dict[str, str | None]) -> None:
    """The refusal stands in Spark's log, in Dagster's event log and in an alert."""
    with pytest.raises(ExactlyOnceError) as refusal:
        parse(changes)
    assert "hunter2" not in str(refusal.value)


def test_a_batch_write_has_an_operator_too() -> None:
    """Its claim fences a driver as a stream's does."""
    write = {"sink.id": "s", "write.id": "w", "kafka.bootstrap.servers": "h:1", "sink.operator": "dagster/prod/0a1b"}
    assert SinkOptions.parse(write, batch=True).operator == "dagster/prod/0a1b"


def test_a_batch_write_has_no_topic_for_whole_batches() -> None:
    """Ends that do not hold: while a write with lost parts waits for its next try, others are written behind it."""
    write = {"sink.id": "s", "write.id": "w", "kafka.bootstrap.servers": "h:1", "sink.progress.topic": "progress"}
    with pytest.raises(InvalidOption, match=r"sink\.progress\.topic=progress .*combined with write\.id"):
        SinkOptions.parse(write, batch=True)


def test_javas_producer_gets_what_the_user_gave_it_and_nothing_that_the_sink_fixes() -> None:
    """Guards against a stream whose settings change with the sink, and against two words on one setting."""
    given = {
        "kafka.acks": "all",
        "kafka.linger.ms": "7",
        "kafka.partitioner.class": "x.Y",
        "kafka.interceptor.classes": "x.Z",
        "kafka.transaction.timeout.ms": "60000",
        "kafka.enable.idempotence": "true",
    }
    java = parse({**SASL, **given}).java()
    assert java == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="hunter2";',
        "linger.ms": "7",
        "partitioner.class": "x.Y",
        "interceptor.classes": "x.Z",
    }


def test_tokens_from_a_python_function_need_a_java_class_in_the_executors() -> None:
    """Guards against a claim that is followed by tasks which cannot log in."""
    oauth = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    function = {**oauth, "kafka.sasl.oauthbearer.token.provider": "json:loads"}
    with pytest.raises(InvalidOption, match=r"sasl\.login\.callback\.handler\.class"):
        parse(function).java()
    java = parse({**function, "kafka.sasl.login.callback.handler.class": "x.Y"}).java()
    assert java["sasl.login.callback.handler.class"] == "x.Y" and not any("token.provider" in name for name in java)


@pytest.mark.parametrize("batch", [False, True])
def test_a_query_has_a_checkpoint_or_a_write_id_and_not_both(batch: bool) -> None:
    """Guards against a stream with a stray write.id that is taken for a batch write: its own sink would be refused as
    another query's.
    """
    both = {**GOOD, "write.id": "w"}
    with pytest.raises(InvalidOption, match=r"write\.id .*combined with checkpointLocation"):
        SinkOptions.parse(both, batch)

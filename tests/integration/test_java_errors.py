"""What a task in Java says of each error of Kafka's client: by the releases of kafka-clients that Spark's connectors
bring, and the newest one.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from exactly_once.errors import all_errors, way_out_in
from testkit.java import Trial, kafka_client

RELEASES = ("3.4.1", "3.9.2", "4.4.0")

TIMESTAMP_SETTINGS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "message.timestamp.type")

#: Codes that Kafka calls retriable, and that a restart does not heal for a part.
RETRIABLE_AND_NOT_OURS = {
    3,  # UNKNOWN_TOPIC_OR_PARTITION: the client has repeated it for long enough; the topic does not exist
    70, 71, 106,  # sessions of fetches, which a client begins again by itself
    72,  # LISTENER_NOT_FOUND: a setting of a broker
    80, 83, 84,  # elections, which only administrators ask for
    122, 123, 133,  # sessions of share groups
}  # fmt: skip

#: Codes that Kafka does not call retriable, and that the next start, with new transactions, need not meet.
OURS_AND_NOT_RETRIABLE = {
    1,  # OFFSET_OUT_OF_RANGE: of a reader, which begins again
    8,  # BROKER_NOT_AVAILABLE
    45, 47, 48, 49, 52, 59, 90, 105, 120,  # they end one transaction
}  # fmt: skip


class Said(NamedTuple):
    code: int
    name: str
    retriable: bool
    record: str
    request: str


def passes(sentence: str) -> bool:
    return all_errors()[sentence.partition(": ")[0]].restart_heals


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.compiled(tmp_path_factory.mktemp("errors"))


@pytest.fixture(scope="module")
def said(trial: Trial) -> dict[str, list[Said]]:
    """Everything that Java says, by the release of kafka-clients."""
    found = {}
    for release in RELEASES:
        lines = [line.split("\t") for line in trial.run(kafka_client(release), "errors")]
        found[release] = [Said(int(c), name, retriable == "true", *texts) for c, name, retriable, *texts in lines]
    return found


#: Codes of the protocol that a restart may heal for a part: the list of record.
RESTARTS = {
    1, 2, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 45, 47, 48, 49, 51, 52, 56, 59, 74, 75, 78, 88, 89, 90, 100, 103,
    105, 120,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_of_all_codes_of_the_protocol_only_a_list_of_them_restarts_a_stream(
    release: str, said: dict[str, list[Said]]
) -> None:
    """A restart storm over what a person must change, or a person called at night for what a restart heals."""
    codes = [one for one in said[release] if one.code]
    assert {-1, *range(1, 109)} <= {one.code for one in codes}
    java = {one.code for one in codes if passes(one.record)}
    assert sorted(java) == sorted(RESTARTS & {one.code for one in codes})
    assert {one.code for one in codes if passes(one.request)} == java
    retriable, known = {one.code for one in codes if one.retriable}, {one.code for one in codes}
    assert sorted(retriable - java) == sorted(RETRIABLE_AND_NOT_OURS & known)
    assert sorted(java - retriable) == sorted(OURS_AND_NOT_RETRIABLE & known)


@pytest.mark.parametrize("release", RELEASES)
def test_whatever_fails_a_record_its_topic_its_key_and_the_broker_s_sentence_are_in_the_message(
    release: str, said: dict[str, list[Said]]
) -> None:
    """A person looks for one row among millions, and for one setting among hundreds."""
    for one in said[release]:
        if not one.code:
            continue
        for sentence in (one.record, one.request):
            what, _, way_out = sentence.partition(" What to do: ")
            assert "the broker's own sentence" in what and way_out, sentence
        assert "orders" in one.record and "key 'k-17'" in one.record, one.record
        assert "Nothing was written" not in one.record or one.record.startswith("EO-OPTION: "), one.record
        log_in = one.name in ("UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "SASL_AUTHENTICATION_FAILED")
        denied = log_in or "AUTHORIZATION" in one.name
        assert denied == one.record.startswith("EO-DENIED: ") == one.request.startswith("EO-DENIED: "), one


@pytest.mark.parametrize("release", RELEASES)
def test_an_error_without_a_text_is_told_in_words(release: str, said: dict[str, list[Said]]) -> None:
    """Mishap: `null (TimeoutException)` is what a stream ended with when no broker answered."""
    of = {one.name: one.request for one in said[release]}
    assert "the brokers did not answer in time. " in of["TimeoutException"]
    assert not [text for text in of.values() if "null" in text]


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_client_raises_without_a_code_needs_a_person_unless_it_is_on_the_list(
    release: str, said: dict[str, list[Said]]
) -> None:
    """A restart storm over a keystore that is not there, or over a bug."""
    found = [(one.name, one.request.partition(": ")[0]) for one in said[release] if not one.code]
    assert found == [
        ("TimeoutException", "EO-PREPARE"),
        ("DisconnectException", "EO-PREPARE"),
        ("TransactionAbortedException", "EO-PREPARE"),
        ("InterruptException", "EO-PREPARE"),
        ("InterruptedException", "EO-PREPARE"),
        ("ConfigException", "EO-PREPARE"),  # the name of a broker is not found at this time
        ("ConfigException", "EO-OPTION"),
        ("SslAuthenticationException", "EO-DENIED"),
        ("KafkaException", "EO-OPTION"),  # a keystore that is not there
        ("KafkaException", "EO-BROKER-REFUSED"),
        ("IllegalStateException", "EO-PROTOCOL"),
    ]


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (-1, "EO-BROKER-REFUSED", ["server.log", "compression.type", "authorizer.class.name", "log.dirs"]),
        (10, "EO-RECORD", ["kafka.max.request.size", "max.message.bytes"]),
        (17, "EO-RECORD", ["the option or the column that names the topic"]),
        (18, "EO-RECORD", ["segment.bytes of topic 'orders'", "kafka.batch.size"]),
        (29, "EO-DENIED", ["Grant WRITE on the topic orders"]),
        (32, "EO-RECORD", ["the column 'timestamp'", "clock", *TIMESTAMP_SETTINGS]),
        (50, "EO-TIMEOUT", ["transaction.max.timeout.ms"]),
        (53, "EO-DENIED", ["with the prefix eo:s:"]),
    ],
)
def test_a_way_out_names_what_to_change(number: int, code: str, words: list[str], said: dict[str, list[Said]]) -> None:
    """Advice that sends a person to the wrong setting, or to none."""
    for release in RELEASES:
        [one] = [one for one in said[release] if one.code == number]
        assert one.record.startswith(f"{code}: "), one.record
        for word in words:
            assert word in way_out_in(one.record), one.record


@pytest.mark.parametrize("python", ["/nowhere/python", "false"])
def test_a_python_that_cannot_run_the_protocol_is_no_matter_of_a_restart(
    python: str, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart storm on a host whose Python lacks this package."""
    monkeypatch.setenv("EXACTLY_ONCE_PYTHON", python)
    [sentence] = trial.run(kafka_client("3.9.2"), "child")
    assert sentence.startswith("EO-COORDINATOR-MISSING: ") and not passes(sentence), sentence
    assert python in sentence and "EXACTLY_ONCE_PYTHON" in way_out_in(sentence)

"""What a client's error means: the same for whoever meets it, and a way out for each."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka import errors as python

from exactly_once.commitlog.log_reader import timed_out
from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    InvalidRecord,
    InvalidTransactionTimeout,
    NotAuthorized,
    PrepareFailed,
    UnknownTopic,
)
from exactly_once.kafka.errors import (
    RAISE,
    SENTENCE_SHOWN,
    Cause,
    cause_of,
    check,
    name_of,
    of_admin,
    of_commit_log,
    of_delivery,
    of_sender,
)

#: librdkafka's code, its cause, and what the commit log and a part's producer call it.
LIBRDKAFKA = [
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, Cause.DENIED, NotAuthorized, NotAuthorized),
    (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Cause.DENIED, NotAuthorized, NotAuthorized),
    (KafkaError.SASL_AUTHENTICATION_FAILED, Cause.DENIED, NotAuthorized, NotAuthorized),
    (KafkaError._AUTHENTICATION, Cause.DENIED, NotAuthorized, NotAuthorized),
    (KafkaError.UNKNOWN_TOPIC_OR_PART, Cause.NO_TOPIC, UnknownTopic, InvalidRecord),
    (KafkaError._UNKNOWN_TOPIC, Cause.NO_TOPIC, UnknownTopic, InvalidRecord),
    (KafkaError._UNKNOWN_PARTITION, Cause.NO_TOPIC, UnknownTopic, InvalidRecord),
    (KafkaError.MSG_SIZE_TOO_LARGE, Cause.TOO_LARGE, BrokerRefused, InvalidRecord),
    (KafkaError.RECORD_LIST_TOO_LARGE, Cause.TOO_LARGE, BrokerRefused, InvalidRecord),
    (KafkaError.INVALID_TRANSACTION_TIMEOUT, Cause.TIMEOUT, InvalidTransactionTimeout, InvalidTransactionTimeout),
    (KafkaError._FENCED, Cause.FENCED, BrokerUnreachable, PrepareFailed),
    (KafkaError.PRODUCER_FENCED, Cause.FENCED, BrokerUnreachable, PrepareFailed),
    (KafkaError.INVALID_PRODUCER_EPOCH, Cause.FENCED, BrokerUnreachable, PrepareFailed),
    (KafkaError._TIMED_OUT, Cause.SILENT, BrokerUnreachable, PrepareFailed),
    (KafkaError._ALL_BROKERS_DOWN, Cause.SILENT, BrokerUnreachable, PrepareFailed),
    (KafkaError._TRANSPORT, Cause.SILENT, BrokerUnreachable, PrepareFailed),
    (KafkaError._MSG_TIMED_OUT, Cause.SILENT, BrokerUnreachable, PrepareFailed),
    (KafkaError.INVALID_RECORD, Cause.RECORD, BrokerRefused, InvalidRecord),
    (KafkaError.INVALID_TIMESTAMP, Cause.RECORD, BrokerRefused, InvalidRecord),
    (KafkaError.TOPIC_EXCEPTION, Cause.RECORD, BrokerRefused, InvalidRecord),
    (KafkaError.POLICY_VIOLATION, Cause.REFUSED, BrokerRefused, BrokerRefused),
    (KafkaError.UNSUPPORTED_COMPRESSION_TYPE, Cause.REFUSED, BrokerRefused, BrokerRefused),
    (KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, Cause.REFUSED, BrokerRefused, BrokerRefused),
    (KafkaError.UNKNOWN, Cause.REFUSED, BrokerRefused, BrokerRefused),
]


@pytest.mark.parametrize(("code", "cause", "of_log", "of_part"), LIBRDKAFKA, ids=[str(r[0]) for r in LIBRDKAFKA])
def test_librdkafka_s_errors_have_one_cause_for_all(code: int, cause: Cause, of_log: type, of_part: type) -> None:
    """A wrong one sends a person to the brokers for a missing right, or restarts for ever what no restart heals."""
    e = KafkaException(KafkaError(code))
    assert cause_of(e) is cause_of(e.args[0]) is cause
    assert type(of_commit_log(e, "log", "h:1", "eo:s:")) is of_log
    assert type(of_sender(e, "part", "t")) is type(of_delivery(e.args[0], "part", "t-0", b"k", 9)) is of_part


#: Every code of the protocol that a client knows, but for success.
PROTOCOL = sorted({getattr(c, "errno", 0) or 0 for c in vars(python).values() if isinstance(c, type)} - {0})

#: Codes of the protocol that a restart may heal for a part: the list of record.
RESTARTS = {
    1, 2, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 45, 47, 48, 49, 51, 52, 56, 59, 74, 75, 78, 88, 89, 90, 100, 103,
    105, 120,
}  # fmt: skip


@pytest.mark.parametrize("code", PROTOCOL)
def test_of_all_codes_of_the_protocol_only_a_list_of_them_restarts_a_stream(code: int) -> None:
    """A restart storm: a code that nobody thought of, restarted for ever with a notice that blames the brokers."""
    said = "the broker's own sentence"
    error = of_delivery(KafkaError(code, said), "part", "orders-0", b"k-17", 9)
    assert error.restart_heals == (code in RESTARTS), error
    for word in ("orders", "key b'k-17'", said):  # a person looks for one row among millions
        assert word in error.what, error


@pytest.mark.parametrize("code", sorted(v for n, v in vars(KafkaError).items() if n[0] == "_" and type(v) is int))
def test_of_librdkafka_s_own_codes_only_a_list_of_them_restarts_a_stream(code: int) -> None:
    """The same for what the client makes up itself: an unlisted one is for a person."""
    error = of_delivery(KafkaError(code), "part", "t-0", b"k", 9)
    assert error.restart_heals == (cause_of(KafkaError(code)) in (Cause.SILENT, Cause.FENCED)), error
    if not error.restart_heals:
        assert isinstance(error, InvalidRecord | NotAuthorized | BrokerRefused)


def test_a_refused_record_is_named_with_the_broker_s_own_sentence() -> None:
    """A person looks for one row among millions: its key, its topic and what the broker has against it."""
    said = "Compacted topic cannot accept message without key in topic partition orders-0."
    error = of_delivery(KafkaError(KafkaError.INVALID_RECORD, said), "part", "orders-0", b"k-17", 9)
    assert isinstance(error, InvalidRecord) and not error.restart_heals
    assert "topic 'orders', first key b'k-17'" in error.what and said.rstrip(".") in error.what


#: What a broker in Java says of a client's certificate that has run out, as Python shows it.
ALERT = "ALERT_CERTIFICATE_UNKNOWN"


def test_a_certificate_that_a_broker_refuses_is_no_outage() -> None:
    """Outage: a certificate that has run out, restarted forever as a broker that does not answer."""
    said = "ssl://h:1: SSL handshake failed: error:0A000415:SSL routines::sslv3 alert certificate expired"
    e = KafkaException(KafkaError(KafkaError._SSL, said))
    assert cause_of(e) is Cause.DENIED
    assert "Renew the client's certificate" in str(of_sender(e, "part", "t"))


@pytest.mark.parametrize(
    ("error", "cause", "called"),
    [
        (python.TopicAuthorizationFailedError(), Cause.DENIED, NotAuthorized),
        (python.SaslAuthenticationFailedError(), Cause.DENIED, NotAuthorized),
        (python.KafkaConnectionError(), Cause.SILENT, BrokerUnreachable),
        (python.KafkaConnectionError(f"[SSL: SSLV3_{ALERT}] sslv3 {ALERT.lower()}"), Cause.DENIED, NotAuthorized),
        (python.KafkaConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED]"), Cause.SILENT, BrokerUnreachable),
        (python.NotCoordinatorError(), Cause.SILENT, BrokerUnreachable),
        (python.UnknownTopicOrPartitionError(), Cause.SILENT, BrokerUnreachable),
        (python.UnknownBrokerIdError(3), Cause.SILENT, BrokerUnreachable),
        (python.KafkaTimeoutError(), Cause.SILENT, BrokerUnreachable),
        (python.InvalidReplicationFactorError(), Cause.REFUSED, BrokerRefused),
        (python.IncompatibleBrokerVersion(), Cause.REFUSED, BrokerRefused),
        (ConnectionRefusedError(), Cause.SILENT, BrokerUnreachable),
        (None, Cause.SILENT, BrokerUnreachable),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else None,
)
def test_kafka_python_s_errors_are_judged_by_whether_they_can_pass(
    error: Exception | None, cause: Cause, called: type
) -> None:
    assert cause_of(error) is cause
    assert type(of_admin(error, "h:1", 5)) is called


def test_an_error_that_names_no_cause_says_where_to_look() -> None:
    """Advice to correct the setting that the answer names, of an answer that names none."""
    error = of_delivery(KafkaError(-1), "part", "orders-0", b"k", 9)
    assert "server.log" in error.way_out and "compression.type" in error.way_out


def test_the_limit_that_a_request_exceeds_is_named() -> None:
    """max.message.bytes can be raised in vain: a request must also fit into a segment."""
    for code, limit in ((KafkaError.MSG_SIZE_TOO_LARGE, "max.message.bytes"), (18, "segment.bytes")):
        assert f"exceeds {limit} of topic 'a-b'" in of_delivery(KafkaError(code), "part", "a-b-0", b"k", 9).what


def test_a_code_in_an_answer_has_the_protocol_s_name_and_raises_the_client_s_error() -> None:
    assert (name_of(0), name_of(48)) == ("NONE", "INVALID_TXN_STATE")
    check(0, "Fetch of t-0")
    with pytest.raises(python.NotLeaderForPartitionError, match="Fetch of t-0"):
        check(6, "Fetch of t-0")


def test_a_silent_broker_s_way_out_is_a_command_that_names_it() -> None:
    """Mishap: "Check the brokers" is all that a person knows at three in the morning, of a cluster of thirty."""
    silent = KafkaException(KafkaError(KafkaError._TRANSPORT))
    assert "Run exactly-once doctor on" in of_admin(silent, "b:1", 5).way_out
    assert "exactly-once doctor --sink orders " in of_commit_log(silent, "eo.orders.commit-log", "b:1").way_out
    assert "exactly-once doctor --topic out " in of_sender(silent, "eo:orders:1:0:0.0", "out").way_out
    assert "exactly-once doctor --sink orders " in timed_out("eo.orders.commit-log", Deadline(1)).way_out


def test_a_timeout_that_is_too_long_leads_to_the_figure_that_the_brokers_allow() -> None:
    """Mishap: "lower the option", and not to what."""
    refused = KafkaException(KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT))
    assert "which exactly-once doctor shows" in of_sender(refused, "eo:orders:1:0:0.0").way_out


REQUEST = "Request 'CreateTopicsRequest(topics=[CreatableTopic(name='t')])' failed with response '{}'."


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (
            "CreateTopicsResponse(topics=[T(error_code=44, error_message='too small')])",
            "PolicyViolationError; too small",
        ),
        ("CreateTopicsResponse(topics=[T(error_message=\"'a' is \\n small\")])", "PolicyViolationError; 'a' is small"),
        ("ListTransactionsResponse(error_code=44)", "PolicyViolationError"),
    ],
)
@pytest.mark.parametrize("kind", [python.PolicyViolationError, python.TopicAuthorizationFailedError])
def test_a_client_s_request_is_in_no_error(kind: type[Exception], response: str, sentence: str) -> None:
    """Mishap: 800 characters of request and response, and the brokers' own sentence near their end."""
    error = of_admin(kind(REQUEST.format(response)), "h:1", 5)
    assert sentence.replace("PolicyViolationError", kind.__name__) in error.what
    assert "Request" not in str(error) and "Response" not in str(error)


def test_a_sentence_of_the_brokers_is_one_line_of_a_length_that_is_read() -> None:
    """A policy of the cluster may say anything, at any length."""
    error = of_admin(python.PolicyViolationError("first\n  " + 1000 * "second "), "h:1", 5)
    assert "first second second" in error.what and len(error.what) < SENTENCE_SHOWN + 60 and "\n" not in error.what


def test_a_version_that_brokers_refuse_names_the_level_that_may_be_the_cause() -> None:
    """Mishap: "correct the setting", where transaction.version was lowered to 0 behind the ids of a sink."""
    error = of_sender(KafkaException(KafkaError(KafkaError.UNSUPPORTED_VERSION)), "eo:s:1:0:0.0")
    assert isinstance(error, BrokerRefused) and RAISE in error.way_out

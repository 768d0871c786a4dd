"""What a client's error means: the same for whoever meets it, and a way out for each."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka import errors as python

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
    SENTENCE_SHOWN,
    Cause,
    cause_of,
    check,
    name_of,
    of_admin,
    of_commit_log,
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


#: What a broker in Java says of a client's certificate that has run out, as Python shows it.
ALERT = "ALERT_CERTIFICATE_UNKNOWN"


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


def test_a_code_in_an_answer_has_the_protocol_s_name_and_raises_the_client_s_error() -> None:
    assert (name_of(0), name_of(48)) == ("NONE", "INVALID_TXN_STATE")
    check(0, "Fetch of t-0")
    with pytest.raises(python.NotLeaderForPartitionError, match="Fetch of t-0"):
        check(6, "Fetch of t-0")


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

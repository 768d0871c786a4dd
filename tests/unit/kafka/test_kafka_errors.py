"""What a client's error means: the same for whoever meets it, and a way out for each."""

from __future__ import annotations

import pytest
from kafka import errors as python

from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    InvalidTransactionTimeout,
    NotAuthorized,
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

#: The protocol's code, its cause, and what the commit log calls it.
CODES = [
    (29, Cause.DENIED, NotAuthorized),  # TOPIC_AUTHORIZATION_FAILED
    (53, Cause.DENIED, NotAuthorized),  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    (58, Cause.DENIED, NotAuthorized),  # SASL_AUTHENTICATION_FAILED
    (3, Cause.NO_TOPIC, UnknownTopic),
    (10, Cause.TOO_LARGE, BrokerRefused),
    (18, Cause.TOO_LARGE, BrokerRefused),
    (50, Cause.TIMEOUT, InvalidTransactionTimeout),
    (90, Cause.FENCED, BrokerUnreachable),
    (47, Cause.FENCED, BrokerUnreachable),
    (7, Cause.SILENT, BrokerUnreachable),
    (1, Cause.SILENT, BrokerUnreachable),  # OFFSET_OUT_OF_RANGE
    (48, Cause.SILENT, BrokerUnreachable),  # INVALID_TXN_STATE
    (87, Cause.RECORD, BrokerRefused),
    (32, Cause.RECORD, BrokerRefused),
    (17, Cause.RECORD, BrokerRefused),
    (44, Cause.REFUSED, BrokerRefused),  # POLICY_VIOLATION
    (76, Cause.REFUSED, BrokerRefused),
    (43, Cause.REFUSED, BrokerRefused),
    (-1, Cause.REFUSED, BrokerRefused),
]


@pytest.mark.parametrize(("code", "cause", "of_log"), CODES)
def test_a_code_has_one_cause_for_all(code: int, cause: Cause, of_log: type) -> None:
    """A wrong one sends a person to the brokers for a missing right, or restarts for ever what no restart heals."""
    e = python.for_code(code)()
    assert cause_of(e) is cause
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
        (python.UnknownTopicOrPartitionError(), Cause.NO_TOPIC, BrokerUnreachable),
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

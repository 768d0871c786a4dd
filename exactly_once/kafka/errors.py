"""One table of causes for the brokers' error codes and kafka-python's own errors, and the sink's error for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from enum import Enum
from typing import NoReturn

from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownBrokerIdError,
    for_code,
)

from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ExactlyOnceError,
    InvalidTransactionTimeout,
    NotAuthorized,
    UnknownTopic,
)
from exactly_once.kafka.codes import FENCED, MAY_PASS, OF_THE_RECORD, OF_THE_TRANSACTION
from exactly_once.protocol.names import PartId, namespace, sink_of_log

#: Characters of a key that are shown.
KEY_SHOWN = 60

#: Pattern of what follows a topic in the name of a partition.
_PARTITION = re.compile(r"-[0-9]+$")


#: Characters that are shown of what brokers or a client say. A policy of the cluster may say anything.
SENTENCE_SHOWN = 300

#: Words that kafka-python puts around the brokers' sentences: request and response as Python prints them.
_DUMPED = "failed with response '"
_DUMPED_SENTENCE = re.compile(r"error_message=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")

#: The cause and the way out on a cluster whose transaction.version was set back to 0, which Kafka calls safe.
LOWERED = (
    "transaction.version of the cluster was set back to 0, where its brokers refuse transactional ids that were used "
    "at 2 (UNSUPPORTED_VERSION, then CONCURRENT_TRANSACTIONS)"
)
RAISE = (
    "Set transaction.version back to 2 (kafka-features.sh upgrade --feature transaction.version=2), restart the "
    "brokers one after the other, and start the stream again"
)

#: TLS alerts with which a broker refuses a client's certificate, as OpenSSL names them in either client's errors. A
#: broker in Java says "certificate unknown" of one that has run out.
_CERTIFICATE_REFUSED = re.compile(
    r"alert[ _](bad[ _]certificate|unsupported[ _]certificate|certificate[ _](revoked|expired|unknown|required)"
    r"|unknown[ _]ca|access[ _]denied)",
    re.IGNORECASE,
)


class Cause(Enum):
    """The reason why a request or a record failed."""

    DENIED = "the principal lacks a right, or cannot authenticate"
    NO_TOPIC = "the topic or partition does not exist"
    TOO_LARGE = "a record, or a request with several, is larger than a limit"
    TIMEOUT = "the transaction timeout is above the brokers' maximum"
    FENCED = "another producer has initialised the transactional id"
    SILENT = "no broker answered, or a retry may get another answer"
    RECORD = "the brokers reject a record"
    REFUSED = "a retry will not change the answer"


#: Causes by the protocol's code. A code in no list is :attr:`Cause.REFUSED`.
_BY_CODE = {
    **dict.fromkeys(MAY_PASS | OF_THE_TRANSACTION, Cause.SILENT),
    **dict.fromkeys(OF_THE_RECORD, Cause.RECORD),
    **dict.fromkeys(FENCED, Cause.FENCED),
    3: Cause.NO_TOPIC,  # UNKNOWN_TOPIC_OR_PARTITION
    10: Cause.TOO_LARGE,  # MESSAGE_TOO_LARGE
    18: Cause.TOO_LARGE,  # RECORD_LIST_TOO_LARGE
    50: Cause.TIMEOUT,  # INVALID_TRANSACTION_TIMEOUT
}


def cause_of(e: Exception | None) -> Cause:
    """Return why a client raised ``e``; None, and an error that is not Kafka's (a socket's), is silence."""
    if "Authorization" in type(e).__name__ or "Authentication" in type(e).__name__ or _is_of_certificate(str(e)):
        return Cause.DENIED
    return _BY_CODE.get(getattr(e, "errno", None) or 0, Cause.SILENT if may_pass(e) else Cause.REFUSED)


def may_pass(e: Exception | None) -> bool:
    """Return whether a call that is made again can succeed where ``e`` ended it. A broker that has just joined is
    unknown to the client until it looks again.
    """
    return not isinstance(e, KafkaError) or e.retriable or isinstance(e, UnknownBrokerIdError)


def _is_of_certificate(said: str) -> bool:
    return _CERTIFICATE_REFUSED.search(said) is not None


def _let_in(said: str) -> str:
    """Return the way out for a client that no broker accepts, or that lacks a right without a name."""
    if _is_of_certificate(said):
        return (
            "Renew the client's certificate (kafka.ssl.keystore.location) on every host: it has expired, was "
            "revoked, or was issued by an authority that the brokers do not trust"
        )
    return "Correct the credentials, or grant the right that docs/reference.md lists under 'Rights'"


# -- codes in answers -------------------------------------------------------------------------------------------------


def name_of(code: int) -> str:
    """Return the protocol's name of an error code in an answer; NONE for success."""
    error: type[KafkaError] = for_code(code)
    return "NONE" if not getattr(error, "errno", None) else str(getattr(error, "message", error.__name__))


def check(code: int, what: str) -> None:
    """Raise kafka-python's error for the code in an answer, unless it is success."""
    if code:
        refuse(code, what)


def refuse(code: int, what: str) -> NoReturn:
    """Raise kafka-python's error for ``code``; callers repeat what may pass by itself."""
    error: type[KafkaError] = for_code(code)
    raise error(what)


# -- what each actor says ---------------------------------------------------------------------------------------------


def of_admin(e: Exception | None, servers: str, seconds: float) -> ExactlyOnceError:
    """Return the error for the failure of a request to ``servers`` within a budget of ``seconds``."""
    sentence = sentence_of(e)
    if cause_of(e) is Cause.DENIED:
        return NotAuthorized(
            f"{servers} refuses this principal: {sentence}",
            _right_to_grant(e),
        )
    if not may_pass(e):
        return BrokerRefused(
            f"{servers} refuses a request: {sentence}",
            "Correct what the brokers' sentence names, in the options or on the brokers; exactly-once doctor shows "
            "what the brokers support",
        )
    return BrokerUnreachable(
        f"no broker of {servers} answered within {round(seconds, 1):g} s ({sentence})",
        "Run exactly-once doctor on this host: it names each address that does not answer, and why. Correct "
        "kafka.bootstrap.servers if these are not your brokers. Otherwise start again, unchanged, once they answer",
    )


def of_new_topic(e: Exception, topic: str) -> BrokerRefused | None:
    """Return the error of brokers that refuse to create ``topic``; None when their reason has a name of its own."""
    if cause_of(e) is not Cause.REFUSED:
        return None
    return BrokerRefused(
        f"the brokers refuse to create the topic {topic}: {_own_sentence(e)}",
        f"Create the topic {topic} as the cluster's policy wants it, or have the policy changed",
    )


def sentence_of(e: Exception | None) -> str:
    """Return what brokers, or a client, say of a failure: one line, shortened, without the client's request."""
    text = str(e)
    if _DUMPED in text:
        text = "; ".join([type(e).__name__, *map(ast.literal_eval, _DUMPED_SENTENCE.findall(text))])
    return shortened(text)


def _own_sentence(e: Exception) -> str:
    """Return the brokers' own sentence of an error that :func:`check` made of their answer, and the code's name."""
    name = name_of(getattr(e, "errno", 0))
    return f"{shortened(str(e.args[0]))} ({name})" if e.args and e.args[0] else name


def shortened(text: str) -> str:
    """Return a sentence of brokers or of a client in one line, cut where it goes on and on."""
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE_SHOWN else f"{line[:SENTENCE_SHOWN]}..."


def _right_to_grant(e: Exception | None) -> str:
    """Return the right that is missing, on what the failed request was about: :func:`check` names that last."""
    asked = str(e).rpartition(" of ")[2] if " of " in str(e) else ""
    if isinstance(e, TransactionalIdAuthorizationFailedError):
        part = PartId.parse(asked)
        whose = f"with the prefix {namespace(part.sink_id)}" if part else f"like {asked}" if asked else "of the sink"
        return f"Grant WRITE on the transactional ids {whose}; a principal that only reads needs DESCRIBE"
    if isinstance(e, TopicAuthorizationFailedError):
        of_partition = "metadata" not in str(e)
        name = _PARTITION.sub("", asked) if of_partition else asked
        topic = f"the topic {name}" if name else "the topic of that request"
        return f"Grant READ on {topic}, or WRITE to a principal that writes records; docs/reference.md lists all rights"
    if isinstance(e, GroupAuthorizationFailedError):
        group = f"the consumer group {asked}" if asked else "the sink's consumer group"
        return f"Grant READ on {group}; a principal that only reads needs DESCRIBE"
    if isinstance(e, ClusterAuthorizationFailedError):
        return "Grant DESCRIBE on the cluster, or what docs/reference.md lists under 'Rights'"
    return _let_in(str(e))


def lacking(operations: Iterable[str], topic: str, who: str = "") -> NotAuthorized:
    """Return the error of a principal that may not do ``operations`` (READ, WRITE) on ``topic``; ``who`` goes first."""
    missing = " and ".join(operations)
    return NotAuthorized(
        f"{who}this principal lacks {missing} on topic {topic!r}",
        f"Grant {missing} on the topic {topic}; docs/reference.md lists all rights",
    )


def of_commit_log(e: KafkaError, topic: str, servers: str, prefix: str = "") -> ExactlyOnceError:
    """Return the error of writing the commit log ``topic``; ``prefix`` is that of the sink's ids."""
    if isinstance(e, TransactionalIdAuthorizationFailedError):
        return NotAuthorized(
            f"this principal may not use the transactional ids that begin with {prefix!r}",
            f"Grant WRITE on the transactional ids with the prefix {prefix}; docs/reference.md lists all rights",
        )
    sentence = sentence_of(e)
    match cause_of(e):
        case Cause.NO_TOPIC:
            return UnknownTopic(
                f"the commit log {topic} does not exist", "Start the stream once: the sink creates the topic"
            )
        case Cause.TIMEOUT:
            return InvalidTransactionTimeout(
                f"the brokers' transaction.max.timeout.ms is below the transaction timeout of {topic}: {sentence}",
                "Raise transaction.max.timeout.ms on the brokers to 30000 at least, and to no less than "
                "kafka.transaction.timeout.ms",
            )
        case Cause.DENIED:
            return NotAuthorized(
                f"this principal may not use the commit log {topic} ({sentence})",
                f"Grant READ on the topic {topic}, and WRITE to principals that run streams, writes or recoveries; "
                "docs/reference.md lists all rights",
            )
        case Cause.REFUSED | Cause.RECORD | Cause.TOO_LARGE:
            return BrokerRefused(
                f"the brokers refuse a request for the commit log {topic}: {sentence}",
                f"Correct the setting of the topic {topic}, or of the brokers, that the brokers' answer names",
            )
    return silent_log(topic, f"the commit log {topic} on {servers}: {sentence}")


def silent_log(topic: str, what: str) -> BrokerUnreachable:
    """Return the error of a commit log whose brokers do not answer."""
    return BrokerUnreachable(
        what,
        f"Run exactly-once doctor --sink {sink_of_log(topic)} on this host: it names the broker or the partition "
        "that does not answer. Start again, unchanged, once it answers",
    )


def shown(key: object) -> str:
    """Return a key (or another cell of a row) for an error, shortened."""
    text = repr(key)
    return text if len(text) <= KEY_SHOWN else f"{text[:KEY_SHOWN]}..."

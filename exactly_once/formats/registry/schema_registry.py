"""Confluent Schema Registry: which schema id stands before each key and value, and what encodes them.

The registry is asked on the driver alone, once for each start of a query, before any task of a batch that writes
begins, and after the claim: while a registry is down, new rows are refused, and decided ones are committed all the
same. Tasks, commit and recovery get the ids and know no registry.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exactly_once.errors import (
    ExactlyOnceError,
    ExtraMissing,
    InvalidOption,
    InvalidSchema,
    NotAuthorized,
    RegistryUnreachable,
)
from exactly_once.formats.registry.encoding import check_alone, encoding, with_schema
from exactly_once.framing import Framing, SparkType
from exactly_once.schema_options import Registry, Side

log = logging.getLogger(__name__)

#: Time for one request. The client's own default is to wait forever, which would hang the start.
REQUEST_TIMEOUT_S = 10.0

#: Retries within which a registry that restarts behind a balancer answers; a start takes at most half a minute for each
#: URL.
_RETRIES = {"max.retries": 2, "retries.wait.ms": 500, "retries.max.wait.ms": 2000}

#: The registry's codes for a subject, and for a version, that it does not have.
_ABSENT = (40401, 40402)

#: Answers after which the same request may succeed.
_PASSING = frozenset({408, 425, 429})


def resolve(registry: Registry, types: Mapping[str, SparkType] | None = None) -> Framing:
    """Ask the registry for the ids, and plan the columns that the sink encodes, by their ``types`` in Spark's JSON.

    Without a schema's text, the next start takes the version that is the latest by then, also for a batch that this one
    did not decide: nothing of it was visible. A lost part of a decided batch is never written under another id; its
    digest tells.

    Raise RegistryUnreachable without an answer in time, or for one that says "later"; InvalidSchema where a subject or
    schema is unknown, may not follow the versions that are there, or a column does not fit; NotAuthorized or
    InvalidOption.
    """
    if not registry.sides:
        return Framing()
    types = types or {}
    client = _client(registry)
    prefixes = {}
    try:
        sides = [with_schema(side, types, _previous(client, registry, side)) for side in registry.sides]
        encodings = {s.column: encoding(s, types, s.schema) for s in sides if s.encodes and s.schema is not None}
        for side in sides:
            found = _ask(client, registry, side)
            prefixes[side.column] = _prefix_of(registry, side, found)
            if side.encodes and side.schema is None:
                check_alone(side, found.schema.references)
                encodings[side.column] = encoding(side, types, str(found.schema.schema_str))
    finally:
        client.close()
    return Framing(**prefixes, encodings=encodings)


def prefix(schema_id: int, schema_type: str, indexes: tuple[int, ...] = (0,)) -> bytes:
    """Confluent's wire format: a zero, the id in four big-endian bytes; for PROTOBUF the path to the message."""
    start = b"\0" + schema_id.to_bytes(4, "big")
    if schema_type != "PROTOBUF":
        return start
    if indexes == (0,):  # the first message of the file has this short form
        return start + b"\0"
    return start + b"".join(map(_varint, (len(indexes), *indexes)))


def _varint(number: int) -> bytes:
    """Return a number from 0 on as Confluent writes it: zigzag (doubled), seven bits to a byte, the low ones first."""
    left, out = number * 2, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _client(registry: Registry) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as e:
        raise ExtraMissing.of(
            "schema.registry.url", "confluent-kafka[schemaregistry]", "schema-registry", e, "on the driver"
        ) from e
    conf: dict[str, Any] = {"url": registry.url, "timeout": REQUEST_TIMEOUT_S, **_RETRIES}
    if registry.user_info is not None:
        conf["basic.auth.user.info"] = registry.user_info
    if registry.ca is not None:
        conf["ssl.ca.location"] = registry.ca
    try:
        return SchemaRegistryClient(conf)
    except (OSError, ValueError, TypeError) as e:  # ssl.SSLError is an OSError: no certificate in the file
        raise InvalidOption(
            _without_secret(registry, f"the registry's client refuses a setting: {e}"),
            "Correct the schema.registry.* option that the registry's client refuses",
        ) from None


def _ask(client: Any, registry: Registry, side: Side) -> Any:
    from confluent_kafka.schema_registry import Schema

    with _answering(registry, side):
        if side.schema is None:
            return client.get_latest_version(side.subject)
        if side.register:
            return client.register_schema_full_response(side.subject, Schema(side.schema, side.type))
        return client.lookup_schema(side.subject, Schema(side.schema, side.type))


def _previous(client: Any, registry: Registry, side: Side) -> str | None:
    """Return the text of the latest version, whose numbers a Protobuf schema that the sink makes keeps; else None."""
    if not side.name or side.type != "PROTOBUF":
        return None
    asked = replace(side, subject=side.subject + (side.name if side.by_record else ""))
    found = None
    with _answering(registry, asked, *_ABSENT):
        found = client.get_latest_version(asked.subject)
    return str(found.schema.schema_str) if found and found.schema.schema_type == "PROTOBUF" else None


@contextmanager
def _answering(registry: Registry, side: Side, *passed: int) -> Iterator[None]:
    """Raise the sink's errors for those of the registry's client, but none for an answer with a code in ``passed``."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        yield
    except SchemaRegistryError as e:
        if e.error_code not in passed:
            raise _refusal(registry, side, e) from None
    except Exception as e:  # the HTTP library's own errors; their text may show what was sent
        raise _unreachable(registry, e) from None


def _prefix_of(registry: Registry, side: Side, found: Any) -> bytes:
    schema_id = found.schema_id
    if not isinstance(schema_id, int) or not 0 <= schema_id < 2**31:
        raise InvalidOption(
            f"{registry.url} answers for subject {side.subject!r} without a schema id",
            "Point schema.registry.url at a Confluent Schema Registry, or at the compatible path of another registry",
        )
    latest = (found.schema.schema_type if side.schema is None else side.type) or "AVRO"
    kind = side.type or latest
    if kind != latest:  # framed so, no reader would understand it
        raise InvalidSchema(
            f"the latest version of subject {side.subject!r} is of type {latest}, but {side.column}.schema.type says "
            f"{side.type}",
            f"Correct {side.column}.schema.type or {side.column}.schema.subject",
        )
    if side.schema is None and side.indexes != (0,) and latest != "PROTOBUF":
        raise InvalidSchema(
            f"the latest version of subject {side.subject!r} is of type {latest}, which has no messages",
            f"Remove {side.column}.schema.message.indexes",
        )
    log.info("%ss are framed with schema id %d (%s, subject %s)", side.column, schema_id, kind, side.subject)
    return prefix(schema_id, kind, side.indexes)


def _refusal(registry: Registry, side: Side, e: Any) -> ExactlyOnceError:
    status, code = int(e.http_status_code), e.error_code
    answer = _without_secret(registry, str(e.error_message))[:400]
    name = f"{side.column}.schema"
    if status >= 500 or status in _PASSING:
        return RegistryUnreachable(
            f"the schema registry at {registry.url} answers {status}: {answer}",
            "Check the registry's health; it is safe to start the stream again at any time",
        )
    if status in (401, 403):
        return NotAuthorized(
            f"the schema registry at {registry.url} refuses access to subject {side.subject!r} ({status})",
            "Correct schema.registry.basic.auth.user.info, or grant its user the right to "
            f"{'write' if side.register else 'read'} the subject",
        )
    if code in _ABSENT:
        way = f"Register a schema for the subject, correct {name}.subject, or set {name} and {name}.register"
        return InvalidSchema(f"subject {side.subject!r} has no schema in {registry.url}: {answer}", way)
    if code == 40403:
        return InvalidSchema(
            f"the text in {name} ({side.type}) is not registered under subject {side.subject!r}: {answer}",
            f"Register the schema first, or set {name}.register to true",
        )
    if status == 409:
        return InvalidSchema(
            f"the text in {name} is incompatible with the versions of subject {side.subject!r}: {answer}",
            "Make the schema compatible with the subject's versions, or change the subject's compatibility rule",
        )
    if status == 422:
        return InvalidSchema(f"the registry does not accept {name} as {side.type}: {answer}", f"Correct {name}")
    return InvalidOption(
        f"{registry.url} answers {status} for subject {side.subject!r}: {answer}",
        "Point schema.registry.url at a Confluent Schema Registry, or at the compatible path of another registry",
    )


def _unreachable(registry: Registry, e: BaseException) -> ExactlyOnceError:
    cause: BaseException | None = e
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return InvalidOption(
                f"the certificate of the schema registry at {registry.url} is not trusted: {cause.verify_message}",
                "Set schema.registry.ssl.ca.location to a PEM file with the certificate of the registry's authority",
            )
        cause = cause.__cause__ or cause.__context__
    return RegistryUnreachable(
        f"the schema registry at {registry.url} does not answer: "
        f"{_without_secret(registry, str(e) or type(e).__name__)[:400]}",
        "Check schema.registry.url and the registry's health; it is safe to start the stream again at any time",
    )


def _without_secret(registry: Registry, text: str) -> str:
    """``text`` as it may be shown, should a server or a library repeat what it was given."""
    if registry.user_info is None:
        return text
    for secret in (registry.user_info, registry.user_info.split(":", 1)[1]):
        text = text.replace(secret, "***") if secret else text
    return text

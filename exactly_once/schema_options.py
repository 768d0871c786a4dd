"""The options of a query for a Confluent Schema Registry: its address, and the schemas of keys and values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exactly_once.errors import InvalidOption
from exactly_once.protocol.spelling import did_you_mean

#: Kafka's names of what a schema is written in. NONE: the column is written as it is.
TYPES = ("AVRO", "JSON", "PROTOBUF", "NONE")

#: Formats into which the sink encodes a column.
FORMATS = ("AVRO", "PROTOBUF", "JSON")

REGISTRY_OPTIONS = tuple(f"schema.registry.{o}" for o in ("url", "topic", "basic.auth.user.info", "ssl.ca.location"))
SIDE_OPTIONS = (
    "format",
    "schema",
    "schema.type",
    "schema.subject",
    "schema.subject.strategy",
    "schema.register",
    "schema.message.indexes",
    "schema.name",
)

#: Prefixes of the options that this module reads.
REGISTRY_PREFIXES = ("schema.registry.", "value.schema", "key.schema", "value.format", "key.format")

#: Strategies of naming subjects: Confluent's TopicNameStrategy (<topic>-value), RecordNameStrategy (the schema's full
#: name) and TopicRecordNameStrategy (<topic>-<full name>).
STRATEGIES = (BY_TOPIC, BY_RECORD, BY_TOPIC_AND_RECORD) = ("topic", "record", "topic-record")


@dataclass(frozen=True, slots=True)
class Side:
    """The user's options for the ``key``, or for the ``value``.

    ``subject`` is, with ``by_record``, what stands before the schema's full name in it. ``schema`` None: the latest
    version of the subject, or with ``name`` the schema of the column's type; ``type`` None: that of the latest version.
    ``register`` registers ``schema`` where it is not; else it must be there. ``indexes`` choose the message of a
    Protobuf file: its number, then those of messages inside it. Without ``encodes``, the column is bytes already.
    ``name`` is the full name of the schema that is made of the column's type; "" when it is not.
    """

    column: str
    subject: str
    schema: str | None = None
    type: str | None = None
    register: bool = False
    indexes: tuple[int, ...] = (0,)
    encodes: bool = False
    name: str = ""
    by_record: bool = False


@dataclass(frozen=True, slots=True)
class Registry:
    """The address of the registry, and the questions to ask it. The secret never appears in ``repr``."""

    url: str
    user_info: str | None = field(default=None, repr=False)
    ca: str | None = None
    sides: tuple[Side, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], topic: str | None) -> Registry | None:
        """Read ``schema.registry.*``, ``value.schema*``, ``key.schema*`` and the two formats (names in lower case);
        None without ``schema.registry.url``. Raise InvalidOption with the name of the option, before anything connects.

        Values are framed once there is a registry, unless ``value.schema.type`` is NONE; keys when an option
        ``key.schema*`` or ``key.format`` asks for it. ``topic`` is the one in the names of subjects.
        """
        known = {*REGISTRY_OPTIONS, *(f"{c}.{o}" for c in ("key", "value") for o in SIDE_OPTIONS)}
        ours = [o for o in options if o.startswith(REGISTRY_PREFIXES)]
        if unknown := [o for o in ours if o not in known]:
            raise InvalidOption(
                f"{unknown[0]} is not an option of this sink",
                did_you_mean(unknown[0], known) or f"Use one of {', '.join(sorted(known))}",
            )
        url = options.get("schema.registry.url", "").strip()
        if not url:
            if ours:
                what = "is empty" if "schema.registry.url" in ours else f"is not set, and {ours[0]} is"
                raise InvalidOption(f"schema.registry.url {what}", "Set schema.registry.url")
            return None
        _check_url(url)
        user_info = options.get("schema.registry.basic.auth.user.info") or None
        if user_info is not None and ":" not in user_info:
            raise InvalidOption(
                "schema.registry.basic.auth.user.info is not of the form user:password",
                "Write the option's value as user:password",
            )
        ca = options.get("schema.registry.ssl.ca.location") or None
        if ca is not None and not Path(ca).exists():
            raise InvalidOption(
                f"schema.registry.ssl.ca.location={ca!r} does not exist on the driver",
                "Set the option to a PEM file with the certificates that the driver should trust",
            )
        topic_or_sink = topic or options.get("sink.id", "")
        sides = tuple(s for c in ("key", "value") if (s := _side(options, c, topic, topic_or_sink)) is not None)
        return cls(url, user_info, ca, sides)

    def frames(self, column: str) -> bool:
        return any(s.column == column for s in self.sides)

    @property
    def encoded(self) -> frozenset[str]:
        """The columns that the sink encodes: of any type, where others are strings or bytes."""
        return frozenset(s.column for s in self.sides if s.encodes)


def _check_url(url: str) -> None:
    for one in url.split(","):
        if "@" in one.split("//", 1)[-1].split("/", 1)[0]:  # not shown: it holds a password
            raise InvalidOption(
                "schema.registry.url contains a user name",
                "Move the credentials to schema.registry.basic.auth.user.info, which is never shown",
            )
        if not one.strip().startswith(("http://", "https://")):
            raise InvalidOption(
                f"schema.registry.url names {one.strip()!r}, which is not an http:// or https:// address",
                "Use http:// or https:// addresses, separated by commas",
            )


def _side(options: Mapping[str, str], column: str, topic: str | None, owner: str) -> Side | None:
    name = f"{column}.schema"
    given = {o: options[f"{column}.{o}"] for o in SIDE_OPTIONS if options.get(f"{column}.{o}")}
    kind = _type(given, column)
    if kind == "NONE" or (column == "key" and not given):
        if rest := [o for o in given if o != "schema.type"]:
            raise InvalidOption(
                f"{column}.{rest[0]} is set, but {name}.type is NONE", f"Remove {column}.{rest[0]}, or {name}.type"
            )
        return None
    schema, encodes = given.get("schema"), "format" in given
    register = given.get("schema.register", "false").lower()
    if register not in ("true", "false"):
        raise InvalidOption(
            f"{name}.register={register!r} is neither true nor false", f"Set {name}.register to true or false"
        )
    if register == "true" and schema is None and not encodes:
        raise InvalidOption(
            f"{name}.register is true, but {name} is missing",
            f"Set {name} to the schema's text, or {column}.format: then the sink makes the schema of the column's type",
        )
    derived = register == "true" and schema is None
    by_record, subject = _subject(given, column, topic, schema is not None or derived)
    indexes = _indexes(f"{name}.message.indexes", given.get("schema.message.indexes", "0"))
    kind = kind or ("AVRO" if schema is not None else None)
    if indexes != (0,) and (derived or kind not in (None, "PROTOBUF")):
        raise InvalidOption(
            f"{name}.message.indexes is set, but {name}" + (" is missing" if derived else f".type is {kind}"),
            f"Remove {name}.message.indexes: only a PROTOBUF schema of yours has other messages than the first",
        )
    full_name = _name(given, column, owner, derived)
    return Side(
        column,
        subject,
        schema=schema,
        type=kind,
        register=register == "true",
        indexes=indexes,
        encodes=encodes,
        name=full_name,
        by_record=by_record,
    )


def _type(given: Mapping[str, str], column: str) -> str | None:
    name = f"{column}.schema.type"
    kind = given["schema.type"].upper() if "schema.type" in given else None
    if kind is not None and kind not in TYPES:
        raise InvalidOption(f"{name}={given['schema.type']!r} is not known", f"Use one of {', '.join(TYPES)}")
    if "format" not in given:
        return kind
    wanted = given["format"].upper()
    if wanted not in FORMATS:
        known = ", ".join(f.lower() for f in FORMATS)
        raise InvalidOption(
            f"{column}.format={given['format']!r} is not known",
            did_you_mean(given["format"].lower(), [f.lower() for f in FORMATS]) or f"Use one of {known}",
        )
    if kind not in (None, wanted):
        raise InvalidOption(f"{column}.format is {given['format']}, but {name} is {kind}", f"Remove {name}")
    return wanted


def _subject(given: Mapping[str, str], column: str, topic: str | None, has_schema: bool) -> tuple[bool, str]:
    """Return whether the schema's full name ends the subject, and the subject, or what stands before that name."""
    name = f"{column}.schema.subject"
    strategy = given.get("schema.subject.strategy", "").lower()
    if strategy and strategy not in STRATEGIES:
        raise InvalidOption(f"{name}.strategy={strategy!r} is not known", f"Use one of {', '.join(STRATEGIES)}")
    if strategy and "schema.subject" in given:
        raise InvalidOption(f"{name} and {name}.strategy are set, but one names the subject", f"Remove {name}.strategy")
    if strategy in (BY_RECORD, BY_TOPIC_AND_RECORD) and not has_schema:
        raise InvalidOption(
            f"{name}.strategy is {strategy}, but no schema says what the record's name is",
            f"Set {name}, or {column}.schema to the schema's text. Or set {column}.format and "
            f"{column}.schema.register=true",
        )
    if strategy == BY_RECORD:
        return True, ""
    if topic is None and "schema.subject" not in given:
        default = "<topic>-<record>" if strategy == BY_TOPIC_AND_RECORD else f"<topic>-{column}"
        raise InvalidOption(
            f"{name} is missing, and its default {default} needs a topic",
            f"Set {name}; or schema.registry.topic, where the column 'topic' names the topics of the rows",
        )
    if strategy == BY_TOPIC_AND_RECORD:
        return True, f"{topic}-"
    return False, given.get("schema.subject") or f"{topic}-{column}"


def _name(given: Mapping[str, str], column: str, owner: str, derived: bool) -> str:
    """Return the full name of the schema that the sink makes; "" when it makes none."""
    name = given.get("schema.name", "")
    if name and not derived:
        raise InvalidOption(
            f"{column}.schema.name is set, but the sink makes no schema that it could name",
            f"Remove {column}.schema.name; or set {column}.format and {column}.schema.register=true, and remove "
            f"{column}.schema: then the sink makes the schema of the column's type",
        )
    if name and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII):
        raise InvalidOption(
            f"{column}.schema.name={name!r} is not a name of letters, digits and underscores between dots",
            f"Write {column}.schema.name like shop.Order",
        )
    if not derived or name:
        return name
    made = re.sub(r"\W", "_", f"{owner}_{column}", flags=re.ASCII)
    return f"_{made}" if made[0].isdigit() else made


def _indexes(name: str, text: str) -> tuple[int, ...]:
    numbers = [n.strip() for n in text.split(",")]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        raise InvalidOption(
            f"{name}={text!r} is not a list of numbers",
            "Write numbers that count the messages from 0: 1 is the second message of the file, and 1,0 is the "
            "first message inside the second",
        )
    return tuple(map(int, numbers))

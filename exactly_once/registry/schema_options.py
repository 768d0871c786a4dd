"""The options of a query for a Confluent Schema Registry: its address, and the schemas of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exactly_once.errors import InvalidOption
from exactly_once.protocol.spelling import did_you_mean

#: Kafka's name of what a schema is written in. NONE: the column is written as it is.
TYPES = ("AVRO", "JSON", "PROTOBUF", "NONE")

REGISTRY_OPTIONS = tuple(f"schema.registry.{o}" for o in ("url", "basic.auth.user.info", "ssl.ca.location"))
SIDE_OPTIONS = ("schema", "schema.type", "schema.subject", "schema.register", "schema.message.indexes")


@dataclass(frozen=True, slots=True)
class Side:
    """The user's options for the keys, or for the values.

    Attributes
    ----------
    column : str
        ``key`` or ``value``.
    subject : str
    schema : str or None
        Its text; None: the latest version of the subject.
    type : str or None
        AVRO, JSON or PROTOBUF; None: that of the latest version.
    register : bool
        Register ``schema`` where it is not; else it must be there.
    indexes : tuple of int
        Which message of a Protobuf file: its number, then those of messages inside it.
    """

    column: str
    subject: str
    schema: str | None = None
    type: str | None = None
    register: bool = False
    indexes: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Registry:
    """The address of the registry, and the questions to ask it. The secret never appears in ``repr``."""

    url: str
    user_info: str | None = field(default=None, repr=False)
    ca: str | None = None
    sides: tuple[Side, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], topic: str | None) -> Registry | None:
        """Read ``schema.registry.*``, ``value.schema*`` and ``key.schema*`` (names in lower case).

        Values are framed once there is a registry, unless ``value.schema.type`` is NONE; keys when an option
        ``key.schema*`` asks for it.

        Returns
        -------
        Registry or None
            None without ``schema.registry.url``.

        Raises
        ------
        InvalidOption
            With the name of the option, before anything connects.
        """
        known = {*REGISTRY_OPTIONS, *(f"{c}.{o}" for c in ("key", "value") for o in SIDE_OPTIONS)}
        ours = [o for o in options if o.startswith(("schema.registry.", "value.schema", "key.schema"))]
        if unknown := [o for o in ours if o not in known]:
            raise InvalidOption(
                f"{unknown[0]} is not an option of this sink",
                did_you_mean(unknown[0], known) or f"Use one of {', '.join(sorted(known))}",
            )
        url = options.get("schema.registry.url", "").strip()
        if not url:
            if ours:
                raise InvalidOption(f"{ours[0]} is set, but schema.registry.url is not", "Set schema.registry.url")
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
        sides = tuple(s for column in ("key", "value") if (s := _side(options, column, topic)) is not None)
        return cls(url, user_info, ca, sides)

    def frames(self, column: str) -> bool:
        """Return whether ``key`` or ``value`` gets an id."""
        return any(s.column == column for s in self.sides)


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


def _side(options: Mapping[str, str], column: str, topic: str | None) -> Side | None:
    name = f"{column}.schema"
    given = {o: options[f"{column}.{o}"] for o in SIDE_OPTIONS if options.get(f"{column}.{o}")}
    kind = given["schema.type"].upper() if "schema.type" in given else None
    if kind is not None and kind not in TYPES:
        raise InvalidOption(f"{name}.type={given['schema.type']!r} is not known", f"Use one of {', '.join(TYPES)}")
    if kind == "NONE" or (column == "key" and not given):
        if rest := [o for o in given if o != "schema.type"]:
            raise InvalidOption(
                f"{column}.{rest[0]} is set, but {name}.type is NONE", f"Remove {column}.{rest[0]}, or {name}.type"
            )
        return None
    schema = given.get("schema")
    register = given.get("schema.register", "false").lower()
    if register not in ("true", "false"):
        raise InvalidOption(
            f"{name}.register={register!r} is neither true nor false", f"Set {name}.register to true or false"
        )
    if register == "true" and schema is None:
        raise InvalidOption(f"{name}.register is true, but {name} is missing", f"Set {name} to the schema's text")
    subject = given.get("schema.subject") or (f"{topic}-{column}" if topic else None)
    if subject is None:
        raise InvalidOption(
            f"{name}.subject is missing, and its default <topic>-{column} needs the option topic",
            f"Set {name}.subject",
        )
    indexes = _indexes(f"{name}.message.indexes", given.get("schema.message.indexes", "0"))
    kind = kind or ("AVRO" if schema is not None else None)
    if indexes != (0,) and kind not in (None, "PROTOBUF"):
        raise InvalidOption(
            f"{name}.message.indexes is set, but {name}.type is {kind}",
            f"Remove {name}.message.indexes: only PROTOBUF has messages",
        )
    return Side(column, subject, schema, kind, register == "true", indexes)


def _indexes(name: str, text: str) -> tuple[int, ...]:
    numbers = [n.strip() for n in text.split(",")]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        raise InvalidOption(
            f"{name}={text!r} is not a list of numbers",
            "Write numbers that count the messages from 0: 1 is the second message of the file, and 1,0 is the "
            "first message inside the second",
        )
    return tuple(map(int, numbers))

"""The options of a query, read once and checked before anything connects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from exactly_once.errors import CheckpointUnusable, InvalidOption, InvalidTransactionTimeout
from exactly_once.kafka import connection as kafka_connection
from exactly_once.kafka import producer_options
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.dead_letters import DeadLetterTopic
from exactly_once.protocol.names import check_operator, check_sink_id
from exactly_once.protocol.row_schema import Column, check_columns, check_topic_option
from exactly_once.protocol.spelling import meant
from exactly_once.protocol.topics import ANY_TOPIC, TopicRule
from exactly_once.schema_options import REGISTRY_PREFIXES, Registry

#: The brokers' default maximum. It is long, because a decided transaction that times out before its commit is lost, and
#: a driver that is down uses up the time. A sweep, not the timeout, frees readers from an undecided transaction.
DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000

#: Shortest timeout: below it, the flush, decision and completion of a healthy batch would not fit with time to spare.
SHORTEST_TRANSACTION_TIMEOUT_MS = 5_000

#: Characters of the longest write id, which is part of a key in the commit log.
LONGEST_WRITE_ID = 400

#: Options, in lower case, whose values nobody may see.
SECRET_OPTIONS = frozenset(
    {*(f"kafka.{name}" for name in kafka_connection.SECRETS), "schema.registry.basic.auth.user.info"}
)

#: The producer's settings that are whole numbers, and that a person may mistype.
_NUMBERS = frozenset(
    """
    batch.size buffer.memory compression.gzip.level compression.lz4.level compression.zstd.level
    connections.max.idle.ms delivery.timeout.ms linger.ms max.in.flight.requests.per.connection max.request.size
    metadata.max.age.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms send.buffer.bytes
    """.split()  # noqa: SIM905
)
#: The values of compression.type, as Java spells them.
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Options of Kafka's clients that the sink cannot honour, listed only so that none is taken for a misspelt other one.
_REFUSED = producer_options.FOREIGN_LOGIN | producer_options.FIXED.keys() | {"group.id", "isolation.level"}
#: Options of Kafka's clients that the sink follows, or takes as without effect.
_KAFKA = producer_options.JAVA | kafka_connection.OPTIONS

_LISTED = "docs/reference.md lists the options that the sink supports"

#: Pattern of a batch of a query, or of the id of a topic.
_ADOPTED = re.compile(r"[0-9a-fA-F-]{36}(/\d+)?")

#: Pattern of the batch or the write, and of when it was decided, in ms.
_DECIDED = re.compile(r".+@\d+")

_SINK = frozenset(
    f"sink.{name}"
    for name in (
        *("id", "guarantee", "operator", "input.offsets", "progress.topic", "topics.allowed", "trace", "batch.headers"),
        *("adopt", "takeover", "accept.lost"),  # a person's consents
        *("dead.letter.topic", "dead.letter.max", "dead.letter.origin"),
    )
)

#: The options beside those of Kafka and of the schema registry: in lower case, as Spark has them, and as written.
_OWN = {name.lower(): name for name in (*_SINK, "topic", "write.id", "checkpointLocation")}

#: Names that options have elsewhere, and that do not look like theirs.
_OTHER_WORDS = {"id": "sink.id", "topics": "topic", "checkpoint": "checkpointlocation"}


class Guarantee(Enum):
    """The number of times that a row is in the output, whatever fails."""

    EXACTLY_ONCE = "exactly_once"
    """Once: two-phase commit."""

    AT_LEAST_ONCE = "at_least_once"
    """Once or more: every record is acknowledged by all replicas before the batch is done."""

    NONE = "none"
    """Any number of times: the sink waits for no acknowledgement, so rows may be lost or duplicated."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a sink, parsed and checked.

    ``sink_id`` owns transactional ids and commit log, and is bound to one query. ``topic`` is None where the column of
    that name has it, ``checkpoint`` "" for a batch write, ``write_id`` "" for a stream. ``timeout_ms`` is
    transaction.timeout.ms as the user set it; None: chosen at the claim. ``client`` has the user's settings of Java's
    producer, without those of the connection and those that the sink fixes. ``adopt``, ``takeover`` and ``accept_lost``
    are a person's consents for one start; each names what it accepts (:mod:`exactly_once.coordinator.consent`). Without
    ``registry``, keys and values have no ids before them; without ``dead_letters``, the first row that cannot be
    written ends the execution. ``operator`` and ``progress_topic`` are "" where there is none. With ``batch_headers``,
    each record names sink and batch (:mod:`exactly_once.protocol.batch_headers`).
    """

    sink_id: str
    connection: Connection
    topic: str | None
    checkpoint: str
    timeout_ms: int | None = None
    client: dict[str, str] = field(default_factory=dict, repr=False)
    adopt: tuple[str, ...] = ()
    takeover: str | None = None
    accept_lost: str | None = None
    input_offsets: bool = True
    write_id: str = ""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    registry: Registry | None = None
    operator: str = ""
    topics: TopicRule = ANY_TOPIC
    dead_letters: DeadLetterTopic | None = None
    progress_topic: str = ""
    trace: bool = False
    batch_headers: bool = False

    def check_columns(self, columns: Iterable[Column]) -> frozenset[str]:
        """Return the names of the columns that a record is made of, as the rules of its row, of the option topic and of
        the dead letters have it.
        """
        registry = self.registry or Registry("")
        names = check_columns(columns, self.topic, registry.frames("key"), registry.encoded)
        check_topic_option(self.topic, names)
        if self.dead_letters is not None:
            self.dead_letters.check_columns(names)
        return names

    def java(self) -> dict[str, str]:
        """Return all settings of Java's producer, those of the connection among them, but for those that the sink
        fixes; holds secrets.
        """
        return {**self.connection.java(), **self.client}

    @classmethod
    def parse(
        cls, options: Mapping[str, str | None], batch: bool = False, pem: Mapping[str, str] | None = None
    ) -> SinkOptions:
        """Read the options of a query, or of a ``batch`` write; names are case-insensitive, as in Spark. ``pem`` is
        what Spark's JVM said of Java's key stores, where the options come from there. Raise InvalidOption,
        InvalidTransactionTimeout or CheckpointUnusable, with the name of the option, before anything connects.
        """
        o = {k.lower(): v for k, v in options.items() if v is not None}
        _check_names(o)
        if not o.get("sink.id"):
            raise InvalidOption(
                "sink.id is missing",
                "Give the output a name that stays the same across restarts and that no other query uses: "
                '.option("sink.id", "...")',
            )
        if o.get("write.id") and o.get("checkpointlocation"):
            raise InvalidOption(
                "write.id cannot be combined with checkpointLocation: a batch write has the one, a stream the other",
                "Remove the one that this query does not need",
            )
        if batch:
            _check_write(o)
        elif not o.get("checkpointlocation"):
            raise CheckpointUnusable(
                "checkpointLocation is missing: without it a restart cannot know what was written",
                'Set checkpointLocation on the query itself, .option("checkpointLocation", "..."): the sink cannot see '
                "the session-wide spark.sql.streaming.checkpointLocation",
            )
        connection = Connection.from_options(o, pem)
        client = _client_settings(o)
        timeout = _timeout(o)
        topics = TopicRule.parse(o.get("sink.topics.allowed", ""))
        topic = _topic(o.get("topic") or None, topics)
        guarantee = _guarantee(o.get("sink.guarantee", Guarantee.EXACTLY_ONCE.value), batch)
        return cls(
            sink_id=check_sink_id(o["sink.id"]),
            connection=connection,
            topic=topic,
            checkpoint="" if batch else o["checkpointlocation"],
            timeout_ms=timeout,
            client=client,
            adopt=_adopt(o.get("sink.adopt", "")),
            takeover=o.get("sink.takeover") or None,
            accept_lost=_accept_lost(o.get("sink.accept.lost") or None),
            input_offsets=_boolean("sink.input.offsets", o.get("sink.input.offsets", "true")),
            write_id=o.get("write.id", ""),
            guarantee=guarantee,
            registry=Registry.parse(o, o.get("schema.registry.topic") or o.get("topic") or None),
            operator=check_operator(o.get("sink.operator", "")),
            topics=topics,
            dead_letters=DeadLetterTopic.parse(
                o.get("sink.dead.letter.topic", ""),
                o.get("sink.dead.letter.max", ""),
                topic,
                guarantee is Guarantee.EXACTLY_ONCE,
                o.get("sink.dead.letter.origin", ""),
            ),
            progress_topic=_progress_topic(o, guarantee, batch),
            trace=_trace(o, guarantee),
            batch_headers=_boolean("sink.batch.headers", o.get("sink.batch.headers", "false")),
        )


def is_secret(name: str, value: str) -> bool:
    """Return whether nobody may see the value of the option ``name``: also an address with a password in it."""
    login = re.search(r"//[^/]*@", value) if name.lower() == "schema.registry.url" else None
    return name.lower() in SECRET_OPTIONS or login is not None


def _check_names(options: Mapping[str, str]) -> None:
    """Refuse misspelt names first: what they do not set would be called missing. An option that is not the sink's, and
    looks like none of it, is left to whoever may know it.
    """
    for name in options:
        what = f"{name} is not an option of this sink"
        if name in _REFUSED:  # Kafka's name, which the sink refuses behind kafka. as well
            raise InvalidOption(what, _way_out(name))
        if found := _meant(name):
            raise InvalidOption(what, f"Correct the name: did you mean {found}?")
        if name.startswith("sink.") and name not in _SINK:
            raise InvalidOption(what, f"Use one of {', '.join(sorted(_SINK))}")


def _meant(name: str) -> str | None:
    """Return the option that was meant by ``name``; None when it is one, or looks like none."""
    kafkas = name.removeprefix("kafka.")
    if name in _OWN or name.startswith(REGISTRY_PREFIXES):
        return None
    if kafkas != name and kafkas in _OWN:
        return _OWN[kafkas]
    if kafkas == name and (own := _OTHER_WORDS.get(name) or meant(name, _OWN)):
        return _OWN[own]
    if kafkas == name and f"sink.{name}" in _SINK:
        return f"sink.{name}"
    found = kafkas if kafkas in _KAFKA | _REFUSED else meant(kafkas, _KAFKA | _REFUSED)
    return f"kafka.{found}" if found is not None and f"kafka.{found}" != name else None


def _topic(topic: str | None, topics: TopicRule) -> str | None:
    if topic is not None and (why := topics.refusal(topic)):
        allowed = f"Add {topic} to sink.topics.allowed, or correct the option topic"
        own = "Set the option topic to an output topic of this sink's own"
        raise InvalidOption(f"topic={topic!r} {why}", allowed if "sink.topics.allowed" in why else own)
    return topic


def _guarantee(value: str, batch: bool) -> Guarantee:
    known = [g.value for g in Guarantee]
    if value.lower() not in known:
        raise InvalidOption(f"sink.guarantee={value!r} is not a guarantee", f"Use one of {', '.join(known)}")
    guarantee = Guarantee(value.lower())
    if batch and guarantee is not Guarantee.EXACTLY_ONCE:
        raise InvalidOption(
            f"sink.guarantee={value} cannot be combined with write.id, which promises that rows are written once",
            "Remove sink.guarantee",
        )
    return guarantee


def _progress_topic(options: Mapping[str, str], guarantee: Guarantee, batch: bool) -> str:
    name = options.get("sink.progress.topic", "")
    if not name:
        return ""
    if batch or guarantee is not Guarantee.EXACTLY_ONCE:
        other = "write.id" if batch else f"sink.guarantee={guarantee.value}"
        raise InvalidOption(
            f"sink.progress.topic={name} cannot be combined with {other}: it names the whole batches of a stream",
            "Remove sink.progress.topic",
        )
    taken = name in (options.get("topic"), options.get("sink.dead.letter.topic"))
    if why := "is an output topic" if taken else ANY_TOPIC.refusal(name):
        raise InvalidOption(
            f"sink.progress.topic={name!r} {why}",
            "Name another topic, which the sink creates and other sinks may share",
        )
    return name


def _trace(options: Mapping[str, str], guarantee: Guarantee) -> bool:
    asked = _boolean("sink.trace", options.get("sink.trace", "false"))
    if asked and guarantee is not Guarantee.EXACTLY_ONCE:
        raise InvalidOption(
            f"sink.trace=true cannot be combined with sink.guarantee={guarantee.value}: a trace shows the steps of a "
            "decision",
            "Remove sink.trace",
        )
    return asked


def _adopt(value: str) -> tuple[str, ...]:
    words = tuple(w.strip() for w in value.split(",") if w.strip())
    if wrong := [w for w in words if not _ADOPTED.fullmatch(w)]:
        raise InvalidOption(
            f"sink.adopt={wrong[0]} does not name anything to adopt",
            "Remove sink.adopt: if the start needs a value, EO-REWOUND, EO-TOPIC-RECREATED or EO-INPUT-RECREATED names "
            "it",
        )
    return words


def _accept_lost(value: str | None) -> str | None:
    if value is not None and not _DECIDED.fullmatch(value):
        raise InvalidOption(
            f"sink.accept.lost={value} does not name a decision",
            "Remove sink.accept.lost: if the start needs a value, EO-EXPIRED names it",
        )
    return value


def _check_write(options: Mapping[str, str]) -> None:
    write_id = options.get("write.id", "")
    if not write_id or len(write_id) > LONGEST_WRITE_ID:
        raise InvalidOption(
            "write.id is missing" if not write_id else f"write.id is longer than {LONGEST_WRITE_ID} characters",
            "Name what this write contains, with the same name at every attempt, such as the partition: "
            '.option("write.id", "orders/2026-01-31")',
        )


def _timeout(options: Mapping[str, str]) -> int | None:
    if "kafka.transaction.timeout.ms" not in options:
        return None
    timeout = _number("kafka.transaction.timeout.ms", options["kafka.transaction.timeout.ms"])
    if timeout < SHORTEST_TRANSACTION_TIMEOUT_MS:
        raise InvalidTransactionTimeout(
            f"kafka.transaction.timeout.ms={timeout} is below what a batch needs to be flushed, decided and completed",
            f"Set kafka.transaction.timeout.ms to at least {SHORTEST_TRANSACTION_TIMEOUT_MS}, or remove the option: "
            f"the default is {DEFAULT_TRANSACTION_TIMEOUT_MS}",
        )
    return timeout


def _client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the producer's settings, as given; refuse those that it has not, and those that the sink fixes."""
    known = producer_options.JAVA - producer_options.FOREIGN_LOGIN
    client: dict[str, str] = {}
    for option, value in options.items():
        name = option.removeprefix("kafka.")
        if name == option or name in kafka_connection.OPTIONS or name == "transaction.timeout.ms":
            continue
        allowed = producer_options.FIXED.get(name)
        if allowed is not None and value.lower() in allowed:
            continue
        if allowed is not None or name not in known:
            shown = f"={value}" if name in ("acks", "enable.idempotence") else ""  # any other value may be a secret
            raise InvalidOption(f"this sink cannot honour kafka.{name}{shown}", _way_out(name))
        if name in _NUMBERS:
            _number(option, value)
        if name == "compression.type" and value not in _CODECS:
            raise InvalidOption(f"{option}={value!r} is no codec of Kafka", f"Set {option} to {', '.join(_CODECS)}")
        client[name] = value
    return client


def _way_out(name: str) -> str:
    if name in ("transactional.id", "enable.idempotence", "acks"):
        return "Remove the option: the sink sets what exactly-once needs"
    if name == "allow.auto.create.topics":
        return "Remove the option: the sink creates no output topic; create it with the number of partitions you want"
    if name in producer_options.FOREIGN_LOGIN:
        return (
            "Remove the option: the driver's clients are not Java's and cannot use it; docs/reference.md lists the "
            "options of the connection"
        )
    if name in ("key.serializer", "value.serializer"):
        return "Remove the option: the sink writes keys and values as the columns hold them, as Spark's sink does"
    return f"{'Remove the option' if name in _REFUSED else 'Correct its name, or remove the option'}. {_LISTED}"


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidOption(f"{name}={value!r} is neither true nor false", f"Set {name} to true or false")
    return value.lower() == "true"


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidOption(f"{name}={value!r} is not a whole number", f"Set {name} to a whole number") from None

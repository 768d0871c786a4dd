"""Kafka for ops: the connection as typed fields, topics, and transactional producers made on demand.

A resource never keeps a client as state: librdkafka survives neither pickling nor fork, and each transactional id has
one writer. A resource holds configuration, and secrets as references to environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Producer
from dagster import ConfigurableResource, EnvVar
from kafka.errors import for_code
from pydantic import Field

from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerUnreachable,
    ExactlyOnceError,
    InvalidOption,
    InvalidRecord,
    InvalidTransactionTimeout,
    NotAuthorized,
    PrepareFailed,
    UnknownTopic,
)
from exactly_once.kafka import new_topic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import VARIABLES, Connection
from exactly_once.kafka.errors import Cause, cause_of, shown
from exactly_once.kafka.new_topic import CLUSTERS_DEFAULT, NewTopic
from exactly_once.protocol.topics import ANY_TOPIC

#: Milliseconds until the brokers abort a transaction: long enough for some ten thousand records on a slow network; a
#: feeder that dies blocks readers of its topic at most this long, or until it starts again.
TRANSACTION_TIMEOUT_MS = 60_000

#: Seconds for each step that waits for the brokers: initialise, commit, abort. Above librdkafka's own retries, below
#: the timeout.
STEP_BUDGET_S = 30.0

#: The consequence of whatever fails before the commit: the block's exception aborts its transaction.
_ROLLED_BACK = "Nothing of the open transaction is visible"


class KafkaResource(ConfigurableResource):
    """Base of the resources that reach a Kafka cluster: servers and security, given once for all clients."""

    bootstrap_servers: str = Field(description="host:port of the brokers, separated by commas.")
    security_protocol: str = Field(default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.")
    sasl_mechanism: str | None = Field(
        default=None, description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."
    )
    sasl_username: str | None = Field(default=None, description="User name for SASL.")
    sasl_password: str | None = Field(default=None, description='Password for SASL: EnvVar("...").')
    sasl_jaas_config: str | None = Field(default=None, description="Instead: a login module.")
    sasl_kerberos_service_name: str | None = Field(default=None, description="For GSSAPI.")
    sasl_oauthbearer_token_endpoint_url: str | None = Field(default=None, description="URL of the token endpoint.")
    sasl_oauthbearer_client_id: str | None = Field(default=None, description="Client id for the token endpoint.")
    sasl_oauthbearer_client_secret: str | None = Field(
        default=None, description='Secret of that client: EnvVar("...").'
    )
    sasl_oauthbearer_scope: str | None = Field(default=None, description="The scope of the token.")
    sasl_oauthbearer_token_provider: str | None = Field(
        default=None,
        description="Instead of an endpoint: module:function of a function that returns a token and its expiry time.",
    )
    sasl_login_callback_handler_class: str | None = Field(
        default=None, description="With a token provider: the Java class that does the same for Spark's source."
    )
    ssl_ca_location: str | None = Field(default=None, description="PEM file of the certificates to trust.")
    ssl_identity_location: str | None = Field(default=None, description="PEM file: the client's chain and private key.")
    ssl_key_password: str | None = Field(default=None, description='Password of the private key: EnvVar("...").')

    @classmethod
    def from_environment(cls) -> Self:
        """Return all fields as references to the environment variables that the command line also reads.

        Refers only to variables that are set now, and always to ``KAFKA_BOOTSTRAP_SERVERS``, which every run needs.
        Dagster looks up their values when a run starts, and the UI shows only their names.
        """
        fields = {
            _field(name): EnvVar(name)
            for name in VARIABLES
            if name == "KAFKA_BOOTSTRAP_SERVERS" or os.environ.get(name)
        }
        return cls(**fields)

    def cluster_id(self) -> str:
        """Return the id of the cluster, under which state that belongs to one cluster (a checkpoint) is kept.

        Raises
        ------
        BrokerUnreachable
            No broker answered in time.
        """
        with Admin(self.connection(), STEP_BUDGET_S) as admin:
            return admin.cluster_id()

    def connection(self) -> Connection:
        """Return the connection in the form that every client of the project accepts.

        Raises
        ------
        InvalidOption
            A field has a value that not every client supports; or ``bootstrap_servers`` is empty: Dagster checks only
            that an environment variable is set.
        """
        if not self.bootstrap_servers.strip():
            raise InvalidOption(
                "the resource kafka has no brokers: KAFKA_BOOTSTRAP_SERVERS is empty in the environment of this "
                "Dagster process",
                "Set KAFKA_BOOTSTRAP_SERVERS to the brokers' host:port, separated by commas, where Dagster is started, "
                "and start Dagster again",
                "Nothing was started",
            )
        pem = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "PEM"}
        options = {f"kafka.{option}": getattr(self, _field(name)) for name, option in VARIABLES.items()}
        return Connection.from_options({**pem, **{k: v for k, v in options.items() if v is not None}})


def _field(variable: str) -> str:
    """Return the field that an environment variable sets."""
    return variable.removeprefix("KAFKA_").lower()


class KafkaTransactionalProducerFactory(KafkaResource):
    """The connection to a Kafka cluster. It makes topics, and transactional producers for ops.

    A read_committed reader gets all records of a transaction, or none: an exception in its block aborts it.
    """

    @contextmanager
    def producer(
        self, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> Iterator[TransactionalProducer]:
        """Yield a producer that owns ``transactional_id`` until the block ends.

        ```python
        import dagster as dg
        from dagster_exactly_once import KafkaTransactionalProducerFactory


        @dg.op
        def feed(kafka: KafkaTransactionalProducerFactory) -> None:
            with kafka.producer("orders-feed") as producer:
                with producer.transaction():
                    producer.send("orders", value=b"42", key=b"o-17")
        ```

        On entry the brokers fence every earlier producer of that id, and abort its open transaction (or finish a commit
        that was under way). After that, nothing more of the earlier producers can become visible.

        Parameters
        ----------
        timeout_ms : int
            transaction.timeout.ms: the brokers abort a transaction that is open for longer.

        Raises
        ------
        BrokerUnreachable
            The brokers did not answer in time.
        NotAuthorized
            The principal cannot log in, or lacks WRITE on the transactional id.
        InvalidTransactionTimeout
            ``timeout_ms`` is above the brokers' transaction.max.timeout.ms.
        """
        producer = TransactionalProducer(self.connection(), transactional_id, timeout_ms)
        try:
            yield producer
        finally:
            producer.close()

    def create_topics(
        self,
        partitions: Mapping[str, int],
        configs: Mapping[str, str] | None = None,
        wished: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create the topics that do not exist yet, with the brokers' default replication.

        Parameters
        ----------
        wished : mapping, optional
            Settings that are left out, with a warning (``EO-WARN-LOG``), where the brokers refuse them.

        Returns
        -------
        list of str
            The names of the created topics. Existing topics are left as they are.

        Raises
        ------
        BrokerRefused
            With the brokers' own sentence.
        NotAuthorized, BrokerUnreachable
        """
        with Admin(self.connection(), STEP_BUDGET_S) as admin:
            created = []
            for topic, count in partitions.items():
                try:
                    admin.topic_partitions([topic])
                except UnknownTopic:
                    wanted = NewTopic(topic, f"the topic {topic}", count, CLUSTERS_DEFAULT, configs or {}, wished or {})
                    new_topic.warn_left_out(topic, new_topic.create(admin, wanted))
                    created.append(topic)
            for topic in created:  # the answer to a creation comes before every broker knows the topic and leads it
                for _ in Deadline(STEP_BUDGET_S).tries():
                    with suppress(UnknownTopic):
                        admin.watermarks(topic)
                        break
            return created


class TransactionalProducer:
    """The writer of one transactional id, for one thread; :class:`KafkaTransactionalProducerFactory` makes it.

    It sends within :meth:`transaction`, one at a time. Each step that waits for the brokers takes at most 30 s.

    Parameters
    ----------
    timeout_ms : int
        Milliseconds after which the brokers abort a transaction that is still open.

    Raises
    ------
    BrokerUnreachable, InvalidTransactionTimeout, NotAuthorized
        As :meth:`KafkaTransactionalProducerFactory.producer`.
    """

    def __init__(self, connection: Connection, transactional_id: str, timeout_ms: int):
        self.transactional_id = transactional_id
        self._in_transaction = False
        self._producer = Producer(
            {
                **connection.librdkafka(),
                "client.id": transactional_id,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "partitioner": "murmur2_random",  # as the Java clients: a key goes where they would send it
                "linger.ms": 20,
                "log_level": 2,
            }
        )
        try:
            self._producer.init_transactions(STEP_BUDGET_S)
        except KafkaException as e:
            raise self._named(e) from e

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all records of the block visible at its end, or none: any exception aborts.

        Raises
        ------
        PrepareFailed
            A record was not delivered, or another producer took over the transactional id. Nothing of the block is
            visible.
        BrokerUnreachable
            No answer came in time. After a commit without an answer, only the topic shows whether it happened.
        """
        try:
            self._producer.begin_transaction()
            self._in_transaction = True
            yield
            self._commit()
        except KafkaException as e:
            fatal = self._abort()  # it says why a producer is dead for which every other call only says that it is
            raise self._named(fatal if fatal and e.args[0].code() == KafkaError._FATAL else e) from e
        except BaseException:
            self._abort()
            raise

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        """Queue one record of the open transaction; its delivery is checked by the commit.

        ``timestamp_ms`` 0 means now.

        Raises
        ------
        InvalidRecord
            Kafka allows no such topic, or it is a sink's commit log or one of Kafka's own.
        """
        if why := ANY_TOPIC.refusal(topic):
            raise InvalidRecord(
                f"transactional id {self.transactional_id!r}: a record (key {shown(key)}) is for the topic "
                f"{shown(topic)}, which {why}",
                "Send the record to another topic",
                _ROLLED_BACK,
            )
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers or [], timestamp=timestamp_ms)  # type: ignore[arg-type]
                return
            except BufferError:  # the queue is full: let the brokers take some
                self._producer.poll(0.05)

    def close(self) -> None:
        """Abort the open transaction and drop the producer. Does nothing the second time."""
        self._abort()

    def _commit(self) -> None:
        deadline = Deadline(STEP_BUDGET_S)
        while True:
            try:
                self._producer.commit_transaction(max(deadline.left, 0.1))
                self._in_transaction = False
                return
            except KafkaException as e:
                if not e.args[0].retriable() or deadline.over:
                    raise

    def _abort(self) -> KafkaException | None:
        if not self._in_transaction:
            return None
        self._in_transaction = False
        try:
            self._producer.abort_transaction(STEP_BUDGET_S)
        except KafkaException as e:
            # Fenced or cut off: the broker aborts it at the next init of the id, or when it times out.
            self._producer.purge()
            return e
        return None

    def _named(self, e: KafkaException) -> ExactlyOnceError:
        what = f"transactional id {self.transactional_id!r}: {e.args[0].str()}"
        match _cause_of(e.args[0]):
            case Cause.TIMEOUT:
                return InvalidTransactionTimeout(
                    what, "Use a transaction timeout below the brokers' transaction.max.timeout.ms"
                )
            case Cause.DENIED:
                return NotAuthorized(
                    what, "Grant WRITE on the topic and on the transactional id, or correct the credentials"
                )
            case Cause.SILENT:
                return BrokerUnreachable(
                    what, "Run exactly-once doctor to see which broker does not answer, and why; then start again"
                )
            case Cause.FENCED:
                return PrepareFailed(
                    f"another producer took over the transactional id {self.transactional_id!r}",
                    "Leave the newer producer running; start this step again only if the newer producer is gone",
                    _ROLLED_BACK,
                )
        return PrepareFailed(what, "Start the step again", _ROLLED_BACK)


def _cause_of(error: KafkaError) -> Cause:
    """Return the cause of librdkafka's error: its codes above 0 are the protocol's, and of its own ones all but these
    may pass.
    """
    if error.code() == KafkaError._AUTHENTICATION:
        return Cause.DENIED
    if error.code() == KafkaError._FENCED:
        return Cause.FENCED
    if error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return Cause.NO_TOPIC
    return cause_of(for_code(error.code())(error.str()) if error.code() > 0 else ConnectionError(error.str()))

"""Refuse a start when Kafka is unfit for it: its version, settings, rights, topics, timeouts; warn of lost input."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress

from exactly_once.checkpoint import begins_of, repair_command
from exactly_once.commitlog.commit_log import LOG_TRANSACTION_TIMEOUT_MS
from exactly_once.errors import ExactlyOnceError, InvalidOption, InvalidTransactionTimeout, TopicRecreated
from exactly_once.kafka.admin import START_S, STATIC_S, Admin
from exactly_once.kafka.cluster_info import UNCLEAN_ELECTION, may_elect_uncleanly
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.protocol.input_topics import advice, check_inputs, gone, shown, standing_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision
from exactly_once.protocol.topics import recreated
from exactly_once.txn.coordinators import end_txn_version

log = logging.getLogger(__name__)

#: Right that a dead letter topic adds: the sink compares each row with the settings of its topic.
_SETTINGS = ("DESCRIBE_CONFIGS",)


def check_cluster(
    options: SinkOptions, admin: Admin, begun: Awaitable[Mapping[str, int]] | None = None
) -> tuple[int, int, int]:
    """Check what the cluster must offer: the topic, recent enough brokers, room for the timeout. Return the EndTxn
    version; transaction.timeout.ms: the user's, or the default within the brokers' maximum; and this maximum. Raise
    InvalidOption, UnknownTopic, BrokerTooOld or InvalidTransactionTimeout.

    ``begun`` is what :func:`~exactly_once.txn.coordinators.begin_features` has returned. Without it, an answer of the
    start that came before will do.
    """
    version = end_txn_version(admin, begun, 0.0 if begun is not None else START_S)
    if options.topic is not None:
        rights = ("WRITE", *_SETTINGS) if options.dead_letters else ("WRITE",)
        admin.topic_partitions([options.topic], rights, START_S)
    if options.dead_letters is not None:
        _check_dead_letters(options.dead_letters.topic, admin)
    try:
        return version, *_timeout(options, admin, STATIC_S)
    except InvalidTransactionTimeout:  # the brokers may have been started with another limit since
        return version, *_timeout(options, admin, 0.0)


def _timeout(options: SinkOptions, admin: Admin, old_s: float) -> tuple[int, int]:
    longest = admin.longest_transaction_ms(old_s) or DEFAULT_TRANSACTION_TIMEOUT_MS
    return timeout_within(options.timeout_ms, longest), longest


def timeout_within(wanted: int | None, longest: int) -> int:
    """Return transaction.timeout.ms of the parts: ``wanted``, or the default, if the brokers' maximum allows it; raise
    InvalidTransactionTimeout.
    """
    if longest < LOG_TRANSACTION_TIMEOUT_MS:  # checked first: no value of the option helps
        raise InvalidTransactionTimeout(
            f"the brokers' transaction.max.timeout.ms={longest} is below the {LOG_TRANSACTION_TIMEOUT_MS} that the "
            "commit log needs, whatever kafka.transaction.timeout.ms is",
            "Set transaction.max.timeout.ms on the brokers to "
            f"{max(LOG_TRANSACTION_TIMEOUT_MS, wanted or DEFAULT_TRANSACTION_TIMEOUT_MS)}",
        )
    if wanted is not None and wanted > longest:
        raise InvalidTransactionTimeout(
            f"kafka.transaction.timeout.ms={wanted} is above the brokers' transaction.max.timeout.ms={longest}",
            f"Lower kafka.transaction.timeout.ms to {longest}, or raise transaction.max.timeout.ms on the brokers",
        )
    return wanted if wanted is not None else min(DEFAULT_TRANSACTION_TIMEOUT_MS, longest)


def _check_dead_letters(topic: str, admin: Admin) -> None:
    admin.check_rights(topic, ("WRITE", *_SETTINGS))
    admin.topic_partitions([topic])
    check_dead_letter_topic(topic, admin.topic_config(topic))


def check_dead_letter_topic(topic: str, config: Mapping[str, str]) -> None:
    """Make sure that the topic takes whatever row comes: a compacted one refuses those without a key, and forgets all
    but the last row of each other key. Raise InvalidOption.
    """
    if "compact" in config.get("cleanup.policy", ""):
        raise InvalidOption(
            f"sink.dead.letter.topic={topic} is compacted: it would keep one dead letter for each key, and refuses "
            "those without one",
            f"Set cleanup.policy=delete on the topic {topic}, or name another one",
        )


def check_topics(
    ids_of: Callable[[list[str]], Mapping[str, str]],
    sink_id: str,
    last: Decision | None,
    topics: Collection[str],
    adopts: Callable[[str], bool],
    inputs: Collection[str] = (),
    undone: Decision | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Make sure that no topic was recreated since the last decision. Return the brokers' ids of ``topics``, which the
    sink writes to, and of ``inputs``, which the query reads: ``ids_of`` says those of topics that exist.

    Raise TopicRecreated or InputRecreated, unless the user ``adopts`` the new topic with this id. ``undone`` is the
    last decision, if it is not completed: its topics count too.
    """
    written = {*topics, *(undone.topics if undone else ())}
    ids = ids_of(sorted({*written, *inputs}))
    read = {topic: ids[topic] for topic in inputs if topic in ids}
    check_inputs(sink_id, last, read, adopts)
    now = {topic: ids[topic] for topic in written & ids.keys()}
    for topic, topic_id in recreated(last.topic_ids if last else {}, now).items():
        if not adopts(topic_id):
            raise _recreated(topic, topic_id, undone if undone and topic in undone.topics else None)
    return {topic: ids[topic] for topic in topics if topic in ids}, read


def input_topics(options: SinkOptions, batch: Batch) -> list[str]:
    """Return the topics of the sink's cluster that ``batch`` reads, as far as anybody says."""
    return sorted(kafka_offsets(batch.sources)) if options.input_offsets else []


def _recreated(topic: str, topic_id: str, undone: Decision | None) -> TopicRecreated:
    what = f"topic {topic!r} was deleted and recreated: the records that earlier batches wrote to it are gone"
    more, safe = "", None
    if undone is not None:
        batch = f"write {undone.write_id!r}" if undone.write_id else f"batch {undone.batch_id}"
        what += f", and nothing of {batch}, which is decided and not completed, is in the new topic"
        more = f", which writes {batch} again"
        safe = f"The decided {batch} waits: the start that goes on writes its rows once, or stops with EO-EXPIRED"
    return TopicRecreated(
        what,
        "If this was intended and the stream should continue into the new topic, set the option "
        f"sink.adopt={topic_id} for one start{more}; to write everything again, start with a new checkpoint and a new "
        "sink.id",
        safe,
    )


def warn_of_elections(sink_id: str, admin: Admin, topics: Iterable[str]) -> None:
    """Say in one line which of ``topics`` may lose what is committed, as far as this principal may read settings.
    Never raises: a start does not fail for a warning.
    """
    found: list[str] = []
    with suppress(ExactlyOnceError):
        configs = admin.ask(lambda: admin.topic_configs(sorted(topics), [UNCLEAN_ELECTION]))
        found = [t for t in sorted(configs) if may_elect_uncleanly(configs[t])]
    if found:
        log.warning(
            "sink %s: EO-WARN-UNCLEAN %s=true on %s: a broker without the newest records may become leader, and then "
            "no sink keeps exactly-once; set it to false, and min.insync.replicas to 2 or more",
            sink_id,
            UNCLEAN_ELECTION,
            ", ".join(found),
        )


def warn_of_lost_input(options: SinkOptions, batch: Batch, admin: Admin, state: LogState) -> None:
    """Say what the commit log, in this state, knows of ``batch`` if records of its Kafka input are gone, as far as this
    principal may ask. Never raises: what becomes of the batch, Spark decides.
    """
    ends = kafka_offsets(batch.sources) if options.input_offsets else {}
    if not ends:
        return
    with suppress(ExactlyOnceError):
        sizes = admin.sizes(sorted(ends), START_S)  # the claim has just asked for their ids
        earliest = admin.earliest((t, p) for t, its in ends.items() for p in its if p < sizes.get(t, 0))
        if not (lost := gone(begins_of(options.checkpoint, batch.batch_id), ends, earliest)):
            return
        mine = [d.batch_id for d in state.decisions if d.query_id == batch.query_id]
        unproven = [d.batch_id for d in state.open_decisions if d.query_id == batch.query_id]
        standing = standing_of(batch.batch_id, mine, unproven)
        what, way_out = advice(batch.batch_id, standing, repair_command(options.checkpoint, options.sink_id))
        log.warning(
            'sink %s: EO-WARN-INPUT the input of batch %d is gone, or some of it%s. Spark may stop with "Some data may '
            'have been lost". The commit log says: %s. %s',
            options.sink_id,
            batch.batch_id,
            f"; what is left begins at {at}" if (at := shown(lost)) else "",
            what,
            way_out,
        )

"""What can be wrong with a sink that has run: by operators, by other programs, by brokers. Each damages one
:class:`~testkit.whole_sinks.WholeSink`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from confluent_kafka import TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.digest import RowDigest
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.names import commit_log_topic, offsets_group
from exactly_once.protocol.records import Claim, Completed, Decision
from testkit import broker as brokers
from testkit.part_ids import part_id
from testkit.whole_sinks import PARTITIONS, Row, WholeSink

Damage = Callable[[WholeSink], None]


def handles(d: Decision, *changed: object) -> Decision:
    """Return the decision with other handles."""
    return replace(d, handles=changed)  # type: ignore[arg-type]


def moved(rows: list[Row], partition: int) -> list[Row]:
    return [(key, value, partition) for key, value, _ in rows]


def own(sink: WholeSink, part: int = 9, slot: int = 3) -> str:
    """Return an id in the sink's namespace that it has not used."""
    return part_id(sink.sink_id, slot, part, "0.0")


def servers(sink: WholeSink) -> str:
    return sink.connection.bootstrap_servers


def nothing(sink: WholeSink) -> None:
    """Leave it as it is."""


def half_of_every_partition(sink: WholeSink) -> None:
    sink.delete_records(0.5)


def half_of_partition_0(sink: WholeSink) -> None:
    sink.delete_records(0.5, 0)


def half_of_partition_2(sink: WholeSink) -> None:
    sink.delete_records(0.5, 2)


def a_record_copied(sink: WholeSink) -> None:
    sink.write(sink.rows[0, 0][:1])


def a_record_copied_in_a_transaction(sink: WholeSink) -> None:
    sink.write(sink.rows[0, 0][:1], brokers.fresh_name("other"))


def a_part_copied_in_a_transaction(sink: WholeSink) -> None:
    sink.write(sink.rows[4, 0], brokers.fresh_name("other"))


def a_part_copied_to_another_partition(sink: WholeSink) -> None:
    sink.write(moved(sink.rows[4, 0], 1), brokers.fresh_name("other"))


def a_part_copied_without_a_transaction(sink: WholeSink) -> None:
    sink.write(sink.rows[4, 0])


def a_part_again_under_its_own_id(sink: WholeSink) -> None:
    sink.write(sink.rows[4, 0], part_id(sink.sink_id, 1, 0, "4.0"))


def an_old_part_under_an_unused_id(sink: WholeSink) -> None:
    sink.write(sink.rows[0, 0], part_id(sink.sink_id, 1, 77, "0.0"))


def a_record_again_under_an_id_of_the_sink(sink: WholeSink) -> None:
    sink.write(sink.rows[1, 0][:1], own(sink))


def the_last_decision_gone(sink: WholeSink) -> None:
    sink.tombstone("decision/4")


def a_middle_decision_gone(sink: WholeSink) -> None:
    sink.tombstone("decision/1")


def the_first_decision_gone(sink: WholeSink) -> None:
    sink.tombstone("decision/0")


def all_decisions_gone(sink: WholeSink) -> None:
    sink.tombstone(*sink.keys("decision"))


def the_last_decision_one_handle_less(sink: WholeSink) -> None:
    last = sink.decisions[-1]
    sink.decide_again(handles(last, *last.handles[:-1]))


def every_decision_one_handle_less(sink: WholeSink) -> None:
    sink.decide_again(*(handles(d, *d.handles[:-1]) for d in sink.decisions))


def a_handle_one_record_less(sink: WholeSink) -> None:
    last = sink.decisions[-1]
    first = last.transactions[0]
    sink.decide_again(handles(last, replace(first, records=first.records - 1), *last.handles[1:]))


def no_digests(sink: WholeSink) -> None:
    last = sink.decisions[-1]
    sink.decide_again(handles(last, *(replace(h, digest="") for h in last.transactions)))


def the_last_decision_without_handles(sink: WholeSink) -> None:
    sink.decide_again(replace(sink.decisions[-1], handles=(), topics=(), topic_ids={}))


def totals_in_place_of_handles(sink: WholeSink) -> None:
    state = sink.log.read(Deadline(30), whole=True)
    last = sink.decisions[-1]
    sink.decide_again(last.without_handles(state.decided_ms[last.query_id, last.batch_id]))


def all_deleted_and_written_again(sink: WholeSink) -> None:
    rows = sink.visible()
    sink.delete_records(1.0)
    sink.write(rows)


def the_topic_made_again_one_record_less(sink: WholeSink) -> None:
    rows = sink.visible()
    the_topic_made_again(sink)
    sink.write(rows[1:])


def the_commit_log_deleted(sink: WholeSink) -> None:
    brokers.delete_topic(servers(sink), commit_log_topic(sink.sink_id))


def every_record_of_the_log_gone(sink: WholeSink) -> None:
    sink.tombstone(*sink.keys())


def handles_of_two_batches_exchanged(sink: WholeSink) -> None:
    before, last = sink.decisions[-2:]
    sink.decide_again(handles(before, *last.handles), handles(last, *before.handles))


def compacted_and_a_copy_under_an_id_of_the_sink(sink: WholeSink) -> None:
    brokers.change_topic(servers(sink), sink.topic, "cleanup.policy", "compact")
    sink.write(sink.rows[1, 0][:1], own(sink))


def all_deleted(sink: WholeSink) -> None:
    sink.delete_records(1.0)


def a_middle_decision_emptied(sink: WholeSink) -> None:
    empty: dict[int, dict[str, object]] = {1: {"handles": (), "topics": (), "topic_ids": {}}}
    sink.decide_again(*(replace(d, **empty.get(d.batch_id, {})) for d in sink.decisions))  # type: ignore[arg-type]


def rows_in_a_topic_that_no_decision_names(sink: WholeSink) -> None:
    elsewhere = brokers.create_topic(servers(sink), partitions=1)
    sink.write(moved(sink.rows[2, 0][:20], 0), part_id(sink.sink_id, 1, 0, "4.0"), topic=elsewhere)


def a_foreign_transaction_stays_open(sink: WholeSink) -> None:
    sink.write([(b"x", b"y", 0)], brokers.fresh_name("other"), commit=None)


def all_decisions_and_marks_and_the_group_gone(sink: WholeSink) -> None:
    sink.tombstone(*sink.keys("decision", "completed"))
    sink.delete_group()


def the_last_mark_gone(sink: WholeSink) -> None:
    sink.tombstone("completed/4")


def the_first_decision_gone_and_a_part_of_it_again(sink: WholeSink) -> None:
    sink.tombstone("decision/0")
    sink.write(sink.rows[0, 0], part_id(sink.sink_id, 1, 0, "0.0"))


# -- further ones


def the_topic_made_again(sink: WholeSink) -> None:
    brokers.delete_topic(servers(sink), sink.topic)
    brokers.create_topics(servers(sink), {sink.topic: PARTITIONS})


def the_topic_gone(sink: WholeSink) -> None:
    brokers.delete_topic(servers(sink), sink.topic)


def the_topic_made_again_behind_a_decision(sink: WholeSink) -> None:
    """As when the driver dies between the last decision and its commit."""
    the_topic_made_again(sink)
    sink.tombstone("completed/4")


def a_later_loss_behind_what_retention_took(sink: WholeSink) -> None:
    """Batch 4 names a transaction that is not there, and retention has come to one partition of batches 0 to 2."""
    sink.delete_records(0.5, 1)
    last = sink.decisions[-1]
    first = last.transactions[0]
    sink.decide_again(handles(last, replace(first, producer_id=first.producer_id + 10_000_000), *last.handles[1:]))


def a_part_copied_among_more_rows(sink: WholeSink) -> None:
    sink.write([*sink.rows[4, 0], (b"k", b"more", 0)], brokers.fresh_name("other"))


def a_part_decided_in_two_batches(sink: WholeSink) -> None:
    before, last = sink.decisions[-2:]
    sink.decide_again(handles(last, *last.handles, before.handles[0]))


def another_digest(sink: WholeSink) -> None:
    last = sink.decisions[-1]
    other = RowDigest()
    other.add(b"other")
    first = replace(last.transactions[0], digest=other.text)
    sink.decide_again(replace(last, handles=(first, *last.handles[1:]), rewritten=("kafka/7",)))


def a_part_named_twice_by_attempt(sink: WholeSink) -> None:
    """No repair is in the decision, and two of its transactions have one number."""
    sink.add_batch(0, 1, 1, rewritten=())


def the_group_set_back(sink: WholeSink) -> None:
    brokers.commit_offsets(sink.connection, offsets_group(sink.sink_id), [TopicPartition(sink.input, 0, 3)])


def the_log_cut_at_its_end(sink: WholeSink) -> None:
    """Decision and mark of the last batch are gone, as after an election of a broker that lacks them."""
    sink.tombstone("decision/4", "completed/4")


def the_same_input_decided_by_another_query(sink: WholeSink) -> None:
    """As after sink.takeover of a checkpoint that is gone: its second batch reads what batch 3 had read."""
    taken_over(sink, 400, 450)


def taken_over_and_begun_anywhere(sink: WholeSink) -> None:
    """Its first batch goes past all that was read, and only its checkpoint says where it began: at the beginning."""
    taken_over(sink, 700)


def taken_over(sink: WholeSink, *ends: int) -> None:
    """Let another query, ``r``, decide batches without records that end there."""
    sink.log.claim(lambda state: Claim(2, "r", 0, "stream", "elsewhere", 1, "/c"), Deadline(30))
    sink.query_id, sink.texts = "r", {n: sink.offsets(end) for n, end in enumerate(ends)}
    for batch, text in sink.texts.items():
        sink.decide_again(Decision("r", batch, 2, (), digest_of(text), 5, 0, offsets=text))
        sink.log.append(Completed("r", batch, 2, 0), Deadline(30))


def the_checkpoint_two_batches_behind(sink: WholeSink) -> None:
    del sink.texts[3], sink.texts[4]


def the_checkpoint_one_batch_behind(sink: WholeSink) -> None:
    """Spark has not planned what is decided: it would plan the batch anew."""
    del sink.texts[4]


def another_history_of_the_checkpoint(sink: WholeSink) -> None:
    sink.texts[4] = sink.offsets(610)


def the_checkpoint_of_another_query(sink: WholeSink) -> None:
    sink.query_id = "other"


def an_open_part_of_the_sink_that_is_decided_by_nobody(sink: WholeSink) -> None:
    sink.write(moved(sink.rows[2, 0][:2], 0), own(sink, slot=1), commit=None)


def aborted_attempts(sink: WholeSink) -> None:
    """As every sink has: no damage."""
    sink.write(sink.rows[4, 0], own(sink, slot=1), commit=False)
    sink.write(sink.rows[4, 0], brokers.fresh_name("other"), commit=False)


def a_correct_repair(sink: WholeSink) -> None:
    """Write a part that was lost again, under the number of another one: no damage."""
    sink.add_batch(0, 1, 1, rewritten=("kafka/2",))


def a_repair_that_may_have_doubled(sink: WholeSink) -> None:
    """Write a part again with the rows of the one whose number it has."""
    sink.add_batch(0, 1, 1, rewritten=("kafka/2",), alike=True)


def more_parts_again_than_were_lost(sink: WholeSink) -> None:
    """One part was lost, and the decision names two parts too many."""
    sink.add_batch(0, 0, 1, 1, rewritten=("kafka/2",))

"""The sum of a stream's records: each decision carries it on, so that no restart and no compaction loses count."""

from dataclasses import replace

from exactly_once.protocol.counting import MOST_TOPICS, OTHER, counted
from exactly_once.protocol.encoding import decode, encode, headers_of
from exactly_once.protocol.records import Count, Decision, OffsetRange, PreparedTransaction


def decision(batch_id, records=10, query="q", topics=("out",), **more):
    written = {(topic, 0): OffsetRange(0, records // len(topics)) for topic in topics}
    handle = PreparedTransaction("eo:s:1:0:0.0", 1, 0, 0, records, written=written)
    return Decision(query, batch_id, 1, (handle,), "digest", 5, 1_000 + batch_id, topics=topics, **more)


def chained(decisions):
    """The decisions as a driver writes them, each behind those before it."""
    found = []
    for d in decisions:
        found.append(replace(d, counted=counted([*found, d])))
    return found


def test_nothing_is_counted_before_the_first_decision():
    assert counted([]) is None


def test_the_sum_goes_on_where_the_log_no_longer_has_the_batches_before():
    """The log keeps 64 batches: a sum over these alone would stay about the same for ever."""
    kept = chained([decision(n) for n in range(200)])[-64:]
    assert counted(kept) == Count({"out": 2_000}, 1_000)
    assert counted([*kept, decision(200)]) == Count({"out": 2_010}, 1_000)


def test_a_decision_that_another_process_reads_has_the_sum_of_the_one_who_decided():
    (last,) = chained([decision(0, 30, topics=("a", "b", "c"))])
    read = decode(encode(last), headers_of(last))
    assert counted([read]) == Count({"a": 10, "b": 10, "c": 10}, 1_000)


def test_the_log_of_an_earlier_version_counts_from_its_oldest_batch_in_a_row():
    """It says since when: a total that silently begins in the middle would be taken for all."""
    old = [decision(n) for n in (3, 5, 6)]
    assert counted([*old, decision(7)]) == Count({"out": 30}, 1_005)


def test_a_gap_below_a_sum_is_not_bridged():
    """An earlier version decided batch 4 in between, and the log has lost it: the old sum lacks its records."""
    (known,) = chained([decision(3)])
    assert counted([known, decision(5)]) == Count({"out": 10}, 1_005)


def test_a_new_query_on_the_same_sink_continues_the_sum():
    """The topics keep what the query before wrote."""
    before = chained([decision(0), decision(1)])
    assert counted([*before, decision(0, query="other")]) == Count({"out": 30}, 1_000)


def test_a_batch_write_is_no_batch_of_the_stream():
    """A backfill writes the past; its own assets count it."""
    assert counted([*chained([decision(0)]), decision(0, 99, query="write:w")]) == Count({"out": 10}, 1_000)


def test_what_no_task_told_by_topic_is_counted_all_the_same():
    """An output beside Kafka, or a handle of an earlier version: only the sum of the topics is known."""
    untold = decision(0, 20, topics=("a", "b"))
    untold = replace(untold, handles=tuple(replace(h, written={}) for h in untold.handles))
    assert counted([untold]) == Count({OTHER: 20}, 1_000)
    assert counted([replace(untold, topics=("a",))]) == Count({"a": 20}, 1_000)


def test_topics_from_data_do_not_make_the_decisions_grow_for_ever():
    found = chained([decision(n, topics=(f"t{n}",)) for n in range(MOST_TOPICS + 20)])[-1].counted
    assert len(found.records) == MOST_TOPICS + 1 and found.records[OTHER] == 200
    assert sum(found.records.values()) == 10 * (MOST_TOPICS + 20)

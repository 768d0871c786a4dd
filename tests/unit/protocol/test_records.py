"""The commit log's records: what is written is read back, what is not understood is refused, keys are bounded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exactly_once.errors import CommitLogDamaged
from exactly_once.protocol.encoding import FORMAT, Headers, decode, encode, headers_of
from exactly_once.protocol.records import (
    ACCEPTED,
    COMMITTED,
    KAFKA,
    KEPT_DECISIONS,
    WRITE,
    Aborted,
    Claim,
    Completed,
    Count,
    Decision,
    Place,
    PreparedPart,
    PreparedTransaction,
    Record,
    Retired,
    Tally,
    in_order,
    is_own_key,
    key_of,
)

HANDLES = (
    PreparedTransaction("eo:job:1:0:0.0", 4_000_000_000_000, 32_766, 0, 10_000, 1_234_567),
    PreparedTransaction("eo:job:1:1:2.3", 0, 0, 1, 1),
)
CLAIM = Claim(7, "8f3c", 1_700_000_000_000, "stream", "host-1", 4711, "s3://bucket/checkpoints/ä b")
DECISION = Decision("8f3c", 12, 7, HANDLES, "ab" * 32, 5, 1_700_000_000_001, "run", ("a", "b"))
COMPLETED = Completed("8f3c", 12, 7, 1_700_000_000_002)
WRITTEN = replace(DECISION, query_id=f"{WRITE}orders/2026-01-31", batch_id=0, began_ms=1_699_999_999_000)

RECORDS: dict[str, Record] = {
    "claim": CLAIM,
    "claim with its operator": replace(CLAIM, operator="dagster/prod-ä/0a1b", machine="0123456789abcdef"),
    "claim with a topic for readers": replace(CLAIM, progress="x" * 249),
    "claim of a recovery of a sink without query": replace(CLAIM, query_id=None, purpose="recovery", checkpoint=""),
    "decision": DECISION,
    "decision over several outputs": replace(
        DECISION,
        handles=(*HANDLES, PreparedPart("files", "eo:job:1:7:0:0.0:files", 0, 10, "d", {"path": "p", "bytes": 3})),
    ),
    "decision of an empty batch": replace(DECISION, handles=(), topics=(), run_id=""),
    "decision of a thousand parts": replace(DECISION, handles=HANDLES[:1] * 1000),
    "decision of a batch write": WRITTEN,
    "completed": COMPLETED,
    "completed without its lost parts": replace(COMPLETED, how=ACCEPTED),
    "completed with its durations": replace(COMPLETED, prepare_ms=300, decide_ms=9, complete_ms=4),
    "decision with its offsets file": replace(DECISION, offsets='v1\n{"batchWatermarkMs":0}\n{"in":{"0":7}}'),
    "decision without its handles": replace(DECISION, handles=(), totals={"kafka": [2, 10_001, 1_234_568]}),
    "decision with dead letters": replace(DECISION, handles=(replace(HANDLES[0], form="row", dead=3), HANDLES[1])),
    "decision with dead letters without its handles": replace(DECISION, handles=(), totals={"kafka": [2, 9, 9, 3]}),
    "decision with its sum": replace(DECISION, counted=Count({"a": 10_001, "": 3}, 1_700_000_000_000)),
    "decision with the ids of its input topics": replace(DECISION, input_ids={"in": "8f3c", "in.2": "9a"}),
    "aborted": Aborted("8f3c", 12, "ab" * 32, 7, "run-1", 1_700_000_000_003, 650_000, 630_000, 2),
    "tally": Tally(7, 1, 2, 3),
    "retired": Retired(7, "job-v2", "8f3c", 12, {"in": {"0": 7, "11": 0}, "other": {}}, 1_700_000_000_004),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_is_read_back_as_it_was_written(record: Record) -> None:
    """Equal to the last field: an append that got no answer looks for its own record by equality before it writes it
    again, and a handle that changed on the way would end another transaction, or none."""
    assert decode(encode(record), headers_of(record)) == record


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_an_older_version_finds_no_field_that_it_does_not_know(record: Record) -> None:
    """It refuses an unknown field (EO-LOG): during an upgrade, one new driver would stop every observer of its sink,
    and after it, nobody could return to the version before."""
    known = {
        "claim": {"token", "query_id", "claimed_ms", "purpose", "host", "pid", "checkpoint", "pid_started"},
        "completed": {"query_id", "batch_id", "token", "completed_ms", "prepare_ms", "decide_ms", "complete_ms"},
        "tally": {"token", "completed", "aborted", "drained", "rewritten"},
        "decision": {
            *("query_id", "batch_id", "token", "handles", "offsets_digest", "end_txn_version", "decided_ms", "run_id"),
            *("topics", "began_ms", "rewritten", "topic_ids", "offsets", "totals"),
        },
    }
    body = json.loads(encode(record))
    assert body.pop("format") == 6
    fields = known.get(body.pop("kind"))
    assert fields is None or set(body) == fields


def test_a_claim_of_an_older_version_has_no_operator() -> None:
    """An upgrade beside a running driver: its claim has no headers, and must stay readable."""
    claim = replace(CLAIM, operator="dagster/prod/0a1b", machine="0123456789abcdef")
    for headers in (None, {}, {"traceparent": b"00-1"}, {"operator": None}):
        assert decode(encode(claim), headers) == CLAIM


def test_headers_that_are_no_text_do_not_make_the_log_unreadable() -> None:
    """Information for people must never stop a stream."""
    found = decode(encode(CLAIM), {"operator": b"\xff\xfe", "machine": b"m"})
    assert isinstance(found, Claim)
    assert (found.token, found.machine) == (7, "m") and "\ufffd" in found.operator


@pytest.mark.parametrize("header", [b"eo.other.commit-log", b"__consumer_offsets", b"a b", b"\xff", b"x" * 250, None])
def test_a_claim_names_no_topic_for_readers_that_a_sink_may_not_write(header: bytes | None) -> None:
    """A forged header: the next recovery, which may write to other logs, would write a record into one."""
    assert decode(encode(CLAIM), {"progress": header}) == CLAIM


#: Values of a header that a decision takes for none.
NO_HEADERS: dict[str, list[bytes | str | None]] = {
    "counted": [b'{"records":{"a":1}}', b'{"records":{"a":-1},"since_ms":1}'],
    "input_ids": [b'{"in":1}', b'{"no topic":"id"}'],
    "ended": [b'{"a":{"x":1}}', b'{"a b":{}}'],
}


@pytest.mark.parametrize("name", NO_HEADERS)
def test_a_header_of_a_decision_that_is_none_is_no_error_and_no_word(name: str) -> None:
    """Whoever may write to the topic may have written it, and older versions have none: what is only information must
    never stop a stream, and must not pass for a word (of a stream that has dropped no topic, say: duplicates).
    """
    for header in (*NO_HEADERS[name], None, b"", b"{", b"[]", b"\xff", b"[" * 9_999, "text"):
        assert decode(encode(DECISION), {name: header}) == DECISION, header


def test_only_what_an_older_version_may_miss_is_in_headers() -> None:
    """Guards against decisions that grow by what they do not need."""
    named = [name for name, record in RECORDS.items() if headers_of(record)]
    assert sorted(named) == [
        "claim with a topic for readers",
        "claim with its operator",
        "completed without its lost parts",
        "decision with its sum",
        "decision with the ids of its input topics",
    ]


@pytest.mark.parametrize("headers", [None, {}, {"how": None}, {"how": b"\xff"}, {"how": b"committed"}, {"how": b"x"}])
def test_a_completed_mark_of_an_older_version_says_that_the_batch_was_committed(headers: Headers | None) -> None:
    """An upgrade must not turn every batch of the log into one with given-up parts."""
    assert decode(encode(COMPLETED), headers) == COMPLETED and COMPLETED.how == COMMITTED


def test_a_claim_names_its_operator_where_it_has_one() -> None:
    """Whoever reads "process 1 on worker-0" in a container's log does not know whom to ask."""
    claim = replace(CLAIM, operator="dagster/prod/0a1b")
    assert claim.title == "claim 7 (stream on host-1, driver 4711, operated by dagster/prod/0a1b)"
    assert claim.process == "driver 4711 on host-1 (operated by dagster/prod/0a1b)"
    assert (CLAIM.title, CLAIM.process) == ("claim 7 (stream on host-1, driver 4711)", "driver 4711 on host-1")


def test_a_decision_counts_the_records_of_all_its_parts() -> None:
    """Invariant 9: what is reported is what was acknowledged."""
    assert DECISION.records == 10_001
    assert replace(DECISION, handles=()).records == 0


def test_a_decision_of_a_thousand_parts_fits_the_logs_message_size() -> None:
    """Else a large cluster cannot decide: the limit is 8 MiB, promised for 50,000 parts."""
    assert len(encode(replace(DECISION, handles=HANDLES[:1] * 1000))) * 50 < 8 * 1024 * 1024


@pytest.mark.parametrize("record", [CLAIM, DECISION, COMPLETED])
def test_a_record_of_a_newer_version_is_refused(record: Record) -> None:
    """An older package that half understands the log would sweep what a newer one decided."""
    newer = {**json.loads(encode(record)), "format": FORMAT + 1, "field_of_the_future": 1}
    with pytest.raises(CommitLogDamaged, match=r"EO-LOG: .*newer version.*Upgrade the package"):
        decode(json.dumps(newer).encode())


def test_a_log_of_the_first_format_is_read() -> None:
    """An upgrade that cannot read its own past would have to start anew: every batch of it a duplicate."""
    claim = (
        b'{"format":1,"kind":"claim","token":7,"query_id":"8f3c","claimed_ms":1,"purpose":"stream","host":"h","pid":1,'
        b'"checkpoint":"/c"}'
    )
    done = b'{"format":1,"kind":"completed","query_id":"8f3c","batch_id":12,"token":7,"completed_ms":2}'
    assert decode(claim) == Claim(7, "8f3c", 1, "stream", "h", 1, "/c")
    assert decode(done) == Completed("8f3c", 12, 7, 2)


def test_a_decision_of_the_fourth_format_is_read() -> None:
    """Until then Kafka's handles stood beside those of other outputs. An upgrade between decision and commit must find
    both."""
    body = (
        '{"format":4,"kind":"decision","query_id":"8f3c","batch_id":12,"token":7,"handles":[["eo:job:7:0:0.0",11,2,0,50,'
        '900,"d0",["out",1,17]]],"offsets_digest":"d","end_txn_version":5,"decided_ms":3,"run_id":"","topics":["out"],'
        '"began_ms":1,"rewritten":[],"topic_ids":{"out":"t"},"offsets":"","totals":{},"others":[{"participant":'
        '"warehouse","name":"eo:job:l:7:12:0:0.0:warehouse","part":0,"records":50,"digest":"d0","data":{"gid":"g"}}]}'
    )
    found = decode(body.encode())
    assert isinstance(found, Decision)
    assert found.handles == (
        PreparedTransaction("eo:job:7:0:0.0", 11, 2, 0, 50, 900, "d0", Place("out", 1, 17)),
        PreparedPart("warehouse", "eo:job:l:7:12:0:0.0:warehouse", 0, 50, "d0", {"gid": "g"}),
    )
    assert [h.end_txn_version for h in found.parts_of(KAFKA)] == [5]
    assert decode(encode(found)) == found


def test_the_handles_of_several_outputs_are_read_back_in_their_order() -> None:
    """An append that got no answer looks for its own record by equality: in another order it
    would be decided twice."""
    parts = [PreparedPart(output, f"{output}-{n}", n, 1) for n in range(3) for output in ("warehouse", "files")]
    decision = replace(DECISION, handles=in_order([*parts, *HANDLES]))
    assert decode(encode(decision)) == decision


def test_a_batch_write_is_told_from_a_batch_by_its_id() -> None:
    """The id is the user's word; a Spark query's id is a UUID and can never be taken for one."""
    assert (WRITTEN.write_id, DECISION.write_id) == ("orders/2026-01-31", "")


def test_the_tally_adds_up() -> None:
    """Replays and sweeps are shown as running totals."""
    assert Tally(1).plus(2, completed=1, drained=1).plus(3, aborted=4) == Tally(3, 1, 4, 1)


def without(name: str) -> bytes:
    body = json.loads(encode(DECISION))
    del body[name]
    return json.dumps(body).encode()


GARBAGE = {
    "a tombstone": b"",
    "bytes": b"\x00\xff\xfe",
    "text": b"hello",
    "null": b"null",
    "a number": b"7",
    "a list": b"[]",
    "an empty object": b"{}",
    "no kind": without("kind"),
    "no format": without("format"),
    "no handles": without("handles"),
    "no batch": without("batch_id"),
    "an unknown kind": json.dumps({"format": FORMAT, "kind": "abort"}).encode(),
    "an unknown field": json.dumps({**json.loads(encode(COMPLETED)), "more": 1}).encode(),
    "a handle too short": json.dumps({**json.loads(encode(DECISION)), "handles": [["eo:job:1:0:0.0", 1]]}).encode(),
    "a format that is no number": json.dumps({**json.loads(encode(COMPLETED)), "format": "1"}).encode(),
    "cut off": encode(DECISION)[:-5],
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_what_no_sink_wrote_is_refused_and_never_skipped(value: bytes) -> None:
    """A decision that is skipped because it could not be read is a lost batch, or a duplicated one."""
    with pytest.raises(CommitLogDamaged, match=r"EO-LOG: .*which other program .*commit log"):
        decode(value)


def test_compaction_keys_are_bounded() -> None:
    """Else the log, and with it the time of every claim, grows forever (invariant 8)."""
    keys = {key_of(CLAIM)}
    for batch_id in range(10_000):
        keys |= {key_of(replace(DECISION, batch_id=batch_id)), key_of(replace(COMPLETED, batch_id=batch_id))}
    assert len(keys) == 1 + 2 * KEPT_DECISIONS


def test_records_of_a_kind_that_must_survive_each_other_have_keys_of_their_own() -> None:
    """A completed mark that compaction puts in the place of its decision makes the batch look undecided: a
    duplicate."""
    near = range(1_000, 1_000 + KEPT_DECISIONS)
    keys = [key_of(CLAIM), *(key_of(replace(r, batch_id=n)) for r in (DECISION, COMPLETED) for n in near)]
    keys += [key_of(Tally(1)), *(key_of(replace(r, query_id=WRITTEN.query_id)) for r in (DECISION, COMPLETED))]
    assert len(set(keys)) == len(keys)


def test_every_batch_write_keeps_its_decision() -> None:
    """Compaction that forgets one lets a second write with its id duplicate it, a year later."""
    writes = [replace(WRITTEN, query_id=f"{WRITE}{n}") for n in range(1000)]
    assert len({key_of(w) for w in writes}) == 1000


def test_the_handles_of_very_many_parts_are_sorted_by_participant() -> None:
    """It happens between the decision and the commits, while readers wait; dev/benchmarks/commit.py times it."""
    parts = tuple(replace(DECISION.handles[0], part=n) for n in range(50_000))
    decision = replace(DECISION, handles=parts)
    found = decision.by_participant
    assert found[KAFKA] == parts and list(found) == [KAFKA]


def test_a_decision_without_its_handles_says_how_much_it_was() -> None:
    """Invariant 9: inspection, metrics and checks count a completed write as before."""
    kept = DECISION.without_handles(5)
    assert (kept.handles, kept.transactions) == ((), ())
    assert (kept.records, kept.part_count, kept.decided_ms) == (DECISION.records, DECISION.part_count, 5)
    assert kept.totals == {"kafka": [2, 10_001, sum(h.bytes for h in HANDLES)]}
    assert key_of(kept) == key_of(DECISION)
    assert decode(encode(kept)) == kept
    assert len(encode(DECISION.without_handles(5))) < len(encode(replace(DECISION, handles=HANDLES[:1] * 10)))


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_sinks_own_keys_are_known(record: Record) -> None:
    """A person is told to delete a stray record by its key, and never one of these."""
    assert is_own_key(key_of(record))
    assert not is_own_key("my-key")


def test_code_from_before_retirements_takes_the_key_of_one_for_its_own() -> None:
    """Duplicate: such code offers to drop a record under a key that it does not know, and the old sink starts again."""
    assert key_of(RECORDS["retired"]).partition("/")[0] in ("claim", "decision", "completed", "aborted", "tally")
    assert key_of(RECORDS["retired"]) != key_of(CLAIM)


def test_a_batch_without_kafka_has_the_records_of_its_other_outputs_once() -> None:
    """Guards against a sink with files alone that counts no record, and one with two outputs that counts each twice."""
    parts = tuple(PreparedPart(output, f"{output}-{n}", n, 10) for output in ("files", "warehouse") for n in range(3))
    decision = replace(DECISION, handles=parts)
    assert (decision.records, decision.part_count) == (30, 3)
    assert decision.counts == {"files": (3, 30), "warehouse": (3, 30)}
    kept = decision.without_handles(5)
    assert (kept.records, kept.part_count, kept.counts) == (30, 3, decision.counts)
    assert replace(DECISION, handles=()).records == 0

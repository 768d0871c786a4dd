"""Names: a sink's ids are its own, and there are never more of them than slots x parts x variants."""

from __future__ import annotations

import re

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.protocol.names import (
    LONGEST_OPERATOR,
    SLOTS,
    VARIANTS,
    PartId,
    check_operator,
    check_sink_id,
    commit_log_id,
    commit_log_topic,
    namespace,
    older_slots,
    slot_of,
)
from testkit.part_ids import attempt_of, part_id

#: Sink ids that are prefixes of one another, or look like one another's parts.
NEIGHBOURS = ("job", "job.1", "job-1", "job_1", "job1", "job10", "jo", "job.0", "1", "log", "eo")


@pytest.mark.parametrize("sink", NEIGHBOURS)
def test_a_name_that_extends_anothers_name_is_foreign(sink: str) -> None:
    """Else the sweep of sink "job" aborts what sink "job.1" has prepared, and decided rows of it are lost."""
    parsed = PartId.parse(part_id(sink, 3, 0, "0.0"))
    assert parsed is not None and parsed.sink_id == sink
    for other in NEIGHBOURS:
        for theirs in (part_id(other, 3, 0, "0.0"), commit_log_id(other)):
            assert theirs.startswith(namespace(sink)) is (sink == other)


@pytest.mark.parametrize(
    ("token", "part", "attempt"), [(1, 0, "0.0"), (15, 7, "3.2"), (16, 199, "0.3"), (12345, 1, "12.1")]
)
def test_a_part_id_says_what_it_was_made_of(token: int, part: int, attempt: str) -> None:
    """Else the sweep takes an id for one of another claim, and aborts what it must not."""
    assert PartId.parse(part_id("orders", token, part, attempt)) == ("orders", slot_of(token), part, attempt)


@pytest.mark.parametrize(
    "foreign",
    [
        commit_log_id("job"),
        "eo:job:1:0",
        "eo:job:1:0:0.0:9",
        "eo:job:1:0:0",
        "eo:job:x:0:0.0",
        "eo:job:-1:0:0.0",
        "eo::1:0:0.0",
        " eo:job:1:0:0.0",
        "eo:job:1:0:0.0\n",
        "eo.job.1.0.0.0",
        "my-eo:job:1:0:0.0",
        "",
    ],
)
def test_an_id_that_is_no_parts_id_is_nobodys(foreign: str) -> None:
    """Else the sweep aborts the commit log's own transaction, which may be a decision, or a stranger's."""
    assert PartId.parse(foreign) is None


def test_two_sinks_never_share_an_id_or_a_log() -> None:
    """Else two queries fence each other, or read each other's decisions and skip rows."""
    ids = [part_id(s, t, p, "0.0") for s in NEIGHBOURS for t in range(SLOTS) for p in range(12)]
    ids += [commit_log_id(s) for s in NEIGHBOURS]
    topics = [commit_log_topic(s) for s in NEIGHBOURS]
    assert len(set(ids)) == len(ids)
    assert len(set(topics)) == len(topics)


def test_the_id_pool_does_not_grow_with_claims_and_batches() -> None:
    """Else a stream that runs for months fills the brokers' memory with ids: Flink's FLINK-34554 (invariant 8)."""
    parts, batches = 4, 10_000
    ids = {
        part_id("job", token, part, attempt_of(0, token * parts + part))
        for token in range(1, batches + 1)
        for part in range(parts)
    }
    assert len(ids) <= SLOTS * parts * VARIANTS


def test_the_id_pool_does_not_grow_with_batches_under_one_claim() -> None:
    """The usual case: one claim, and Spark's task attempt ids count up forever (invariant 8)."""
    ids = {part_id("job", 7, part, attempt_of(0, batch * 3 + part)) for batch in range(10_000) for part in range(3)}
    assert len(ids) <= 3 * VARIANTS


def test_attempts_of_a_part_have_ids_of_their_own() -> None:
    """Else the retry's InitProducerId aborts the first attempt's prepared transaction, which may be the decided one."""
    attempts = [attempt_of(n, 41 + 7 * n) for n in range(4)]
    assert len({part_id("job", 1, 0, a) for a in attempts}) == 4
    assert attempt_of(0, 41) != attempt_of(0, 42), "a stage that is run again counts from attempt 0 again"


def test_a_sweep_never_touches_its_own_slot_nor_those_of_the_next_claims() -> None:
    """Else a driver that was superseded inside its sweep aborts what its successors prepared and decided."""
    for token in (*range(1, 4 * SLOTS), 10**9):
        swept = older_slots(token, SLOTS)
        assert slot_of(token) not in swept
        assert not swept & {slot_of(token + k) for k in range(1, SLOTS // 2)}


@pytest.mark.parametrize("token", [SLOTS, SLOTS + 1, 3 * SLOTS - 1])
def test_a_sweep_reaches_the_claims_just_before_its_own(token: int) -> None:
    """Else what a killed driver left open blocks read_committed readers until its timeout."""
    assert older_slots(token, SLOTS) == {slot_of(token - k) for k in range(1, SLOTS // 2 + 1)}


def test_drivers_of_successive_claims_never_share_a_slot() -> None:
    """A driver that was superseded may still breathe; its ids come round only after SLOTS further claims."""
    for token in range(1, 2 * SLOTS):
        assert slot_of(token) not in {slot_of(token + k) for k in range(1, SLOTS)}


@pytest.mark.parametrize("good", ["a", "9", "flight-delays", "A.b_c-9", "x" * 150])
def test_a_sink_id_that_can_name_a_topic_is_taken(good: str) -> None:
    """And its commit log's name stays within Kafka's 249 characters."""
    assert check_sink_id(good) == good
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", commit_log_topic(good))


@pytest.mark.parametrize("bad", ["", " ", "a b", "a:b", "a/b", "é", "-a", ".a", "_a", "a\n", "x" * 151, "a*", "\u0661"])
def test_a_sink_id_with_anything_else_is_refused_with_its_name(bad: str) -> None:
    """Above all ``:``, which would make one sink's namespace a prefix of another's."""
    with pytest.raises(InvalidOption, match=r"EO-OPTION: sink\.id .*valid sink id.*1 to 150 letters") as refusal:
        check_sink_id(bad)
    assert repr(bad) in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("", ""),
        ("  ", ""),
        (" dagster/prod/0a1b\n", "dagster/prod/0a1b"),
        ("Zoë's laptop", "Zoë's laptop"),
        ("x" * LONGEST_OPERATOR, "x" * LONGEST_OPERATOR),
    ],
)
def test_an_operator_is_any_short_line_of_text(text: str, operator: str) -> None:
    """A stream must not fail to start for what is only said to people."""
    assert check_operator(text) == operator


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x" * (LONGEST_OPERATOR + 1), "sink.operator has 201 characters"),
        ("prod\nEO-FENCED: all is well", "sink.operator contains '\\n'"),
        ("prod\x1b[2J", "sink.operator contains '\\x1b'"),
        ("prod\udc80", "sink.operator contains '\\udc80'"),
    ],
)
def test_an_operator_that_would_garble_a_message_is_refused(text: str, what: str) -> None:
    """It is shown in errors, in Spark's log and on terminals, and a phrase that names it has to be typed out."""
    with pytest.raises(InvalidOption, match=re.escape(what)) as refusal:
        check_operator(text)
    assert "at most 200 printable characters" in refusal.value.way_out

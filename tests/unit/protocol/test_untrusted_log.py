"""The commit log as untrusted input: whatever is in it, decoding gives a valid record or EO-LOG, in bounded memory."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exactly_once.errors import CommitLogDamaged
from exactly_once.outputs import postgres
from exactly_once.outputs.files.names import file_of
from exactly_once.protocol.encoding import FORMAT, LARGEST_RECORD_BYTES, decode, encode
from exactly_once.protocol.log_state import fold
from exactly_once.protocol.names import LONGEST_OPERATOR, PartId, PartName
from exactly_once.protocol.records import Claim, Decision, Entry, PreparedPart, PreparedTransaction, Tally, key_of
from exactly_once.protocol.untrusted import check_own
from tests.unit.protocol.test_records import CLAIM, DECISION, RECORDS

#: Of the mutator. What a seed found is a case below. FUZZ_SEED=7 tries another one, FUZZ_ROUNDS=100000 more of each.
SEEDS = (int(seed),) if (seed := os.environ.get("FUZZ_SEED")) else (1, 2, 3)
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "150"))

#: What may stand where something else belongs.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**70,
    -(2**70),
    1.5,
    float("nan"),
    float("inf"),
    "",
    "7",
    "../../etc/passwd",
    "eo:job:1:0:0.0'; DROP TABLE x; --",
    "\ud800",
    "\x1b[2J",
    "x" * 100_000,
    [],
    [[]],
    {},
    {"a": {"b": []}},
    {"": ""},
    ["eo:job:1:0:0.0", 1, 2, 3, 4, 5, "6", ["t", 0, -1]],
)


def mutated(body: Any, chance: random.Random) -> Any:
    """``body`` with one thing in it replaced, removed, moved or doubled, at any depth."""
    if isinstance(body, dict) and body and chance.random() < 0.9:
        name = chance.choice(list(body))
        changed = dict(body)
        match chance.randrange(6):
            case 0:
                del changed[name]
            case 1:
                changed[chance.choice(["more", "handles", "others", "kind", "format", "totals"])] = changed[name]
            case 2:
                changed[name] = chance.choice(VALUES)
            case _:
                changed[name] = mutated(body[name], chance)
        return changed
    if isinstance(body, list) and body and chance.random() < 0.9:
        at = chance.randrange(len(body))
        match chance.randrange(6):
            case 0:
                return body[:at] + body[at + 1 :]
            case 1:
                return [*body, body[at]]
            case 2:
                return [*body[:at], chance.choice(VALUES), *body[at + 1 :]]
            case _:
                return [*body[:at], mutated(body[at], chance), *body[at + 1 :]]
    return chance.choice(VALUES)


def torn(text: bytes, chance: random.Random) -> bytes:
    """``text`` with some bytes changed, cut or doubled."""
    at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    middle = (chance.randbytes(3), text[at:to] * 2, b'"', b"[", b"}", b"\\ud8")[chance.randrange(6)]
    return text[:at] + middle + text[to:]


def assert_valid_or_refused(value: bytes) -> None:
    """Every use that is made of what comes out works."""
    try:
        record = decode(value)
    except CommitLogDamaged as e:
        assert len(str(e)) < 2_000
        return
    assert decode(encode(record)) == record
    key_of(record).encode()
    state = fold([Entry(record, 0, 0)])
    for decision in state.open_decisions:
        assert decision.records >= 0 and decision.part_count >= 0
        assert f"{decision.title('s')} {decision.consent} {decision.by_participant}"
        for handle in decision.transactions:
            assert 0 <= handle.producer_id < 2**63 and 0 <= handle.epoch < 2**15
            handle.transactional_id.encode()
    if isinstance(record, Claim):
        assert f"{record.title} {record.process}".encode()
    try:
        check_own(record, "job")
    except ValueError:
        return


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [n for n in RECORDS if "thousand" not in n])
def test_a_record_with_something_wrong_in_it_is_valid_or_refused(name: str, seed: int) -> None:
    """Wedge: a TypeError in place of EO-LOG is a stream that nobody knows how to start again."""
    chance = random.Random(f"{seed} {name}")
    whole = encode(RECORDS[name])
    for _ in range(ROUNDS):
        body = json.loads(whole)
        for _ in range(chance.randrange(1, 4)):
            body = mutated(body, chance)
        assert_valid_or_refused(json.dumps(body).encode())
        assert_valid_or_refused(torn(whole, chance))


def changed(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.update({name: value})


def handle(at: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["handles"]["kafka"][0][at] = value

    return change


#: What was taken for a record once, or ended in an error of another kind.
FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "a batch that is text": changed("batch_id", "12"),
    "a batch that is true": changed("batch_id", True),
    "a negative token": changed("token", -1),
    "a token beyond 64 bits": changed("token", 2**70),
    "a query that is a list": changed("query_id", ["8f3c"]),
    "topics that are text": changed("topics", "out"),
    "a topic that no broker takes": changed("topics", ["../x"]),
    "a topic longer than a broker takes": changed("topics", ["x" * 250]),
    "totals without records": changed("totals", {"kafka": [1]}),
    "totals that are text": changed("totals", {"kafka": "12"}),
    "topic ids that are a list": changed("topic_ids", [1]),
    "a version of EndTxn beyond 16 bits": changed("end_txn_version", 2**15),
    "a time that is no number": changed("decided_ms", float("nan")),
    "half a character": changed("query_id", "\ud800"),
    "control characters": changed("run_id", "\x1b[2J"),
    "text of 100 KB": changed("query_id", "x" * 100_000),
    "handles that are a number": changed("handles", 7),
    "handles of nobody": changed("handles", {"kafka": 7}),
    "handles that are text": changed("handles", ["eo:job:1:0:0.0"]),
    "an id that is a number": handle(0, 7),
    "a producer id that is text": handle(1, "1"),
    "a producer id beyond 64 bits": handle(1, 2**63),
    "an epoch beyond 16 bits": handle(2, 2**15),
    "a part beyond 32 bits": handle(3, 2**31),
    "a negative number of records": handle(4, -1),
    "a place of one thing": handle(7, ["out"]),
    "a place at no offset": handle(7, ["out", 0, -1]),
    "a place that is text": handle(7, "out"),
    "data with a list in it": changed("handles", {"files": [["eo:job:1:0:0:0.0", 0, 1, "d", {"file": ["x"]}]]}),
    "data that is text": changed("handles", {"files": [["eo:job:1:0:0:0.0", 0, 1, "d", "x"]]}),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_field_of_the_wrong_kind_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    """Corruption: what passes here goes into requests to brokers, statements and names of files."""
    body = json.loads(encode(DECISION))
    change(body)
    with pytest.raises(CommitLogDamaged, match="EO-LOG"):
        decode(json.dumps(body).encode())


BODIES = {
    "lists 100,000 deep": b"[" * 100_000,
    "objects 100,000 deep": b'{"a":' * 100_000,
    "a list 100,000 deep in a field": encode(Tally(1)).replace(b'"completed":0', b'"completed":' + b"[" * 100_000),
    "a number of a million digits": encode(Tally(1)).replace(b'"completed":0', b'"completed":' + b"9" * 1_000_000),
    "a field twice": encode(Tally(1)).replace(b'"completed":0', b'"completed":0,"completed":1'),
    "infinity": encode(Tally(1)).replace(b'"completed":0', b'"completed":1e999'),
    "UTF-16": encode(Tally(1)).decode().encode("utf-16"),
    "half a character in bytes": encode(CLAIM).replace(b"host-1", b"\xed\xa0\x80"),
    "a kind of a megabyte": b'{"format":6,"kind":"' + b"x" * 1_000_000 + b'"}',
    "a field's name of a megabyte": encode(Tally(1)).replace(b'"completed"', b'"' + b"x" * 1_000_000 + b'"'),
    "format zero": encode(Tally(1)).replace(b'"format":6', b'"format":0'),
    "format true": encode(Tally(1)).replace(b'"format":6', b'"format":true'),
}


@pytest.mark.parametrize("value", BODIES.values(), ids=BODIES)
def test_text_that_is_no_record_is_refused_in_a_short_sentence(value: bytes) -> None:
    """Outage: RecursionError, or an error of a megabyte in every log and in every notice."""
    with pytest.raises(CommitLogDamaged, match="EO-LOG") as refused:
        decode(value)
    assert len(str(refused.value)) < 1_500
    assert refused.value.__context__ is None, "a log of garbage is not kept alive by its errors"


def test_more_bytes_than_a_sink_writes_are_refused_unread() -> None:
    """Outage: the parser's lists and texts take thirty times the memory of a record."""
    with pytest.raises(CommitLogDamaged, match=f"{LARGEST_RECORD_BYTES + 1} bytes"):
        decode(b"[" * (LARGEST_RECORD_BYTES + 1))


@pytest.mark.parametrize("piece", [b"[]", b'{"a":1}', b"1.5", b'"\xc3\xa4"'])
def test_a_record_takes_a_bounded_multiple_of_its_size(piece: bytes) -> None:
    """Outage: a driver that one record of a few megabytes takes out of memory."""
    value = b'{"format":6,"kind":"tally","token":[' + b",".join([piece] * 100_000) + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(CommitLogDamaged):
            decode(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(value)


def test_a_header_of_a_megabyte_is_cut_and_shows_no_control_characters() -> None:
    """Information for people must neither stop a stream nor rewrite the terminal that shows it."""
    claim = decode(encode(CLAIM), {"operator": b"\x1b[2J" + b"x" * 1_000_000})
    assert isinstance(claim, Claim)
    assert claim.operator.startswith("\ufffd[2J") and len(claim.operator) == LONGEST_OPERATOR


# -- whose part it is --------------------------------------------------------------------------------------------------

FOREIGN = {
    "another application's id": PreparedTransaction("payments-7", 1, 0, 0, 1),
    "another sink's id": PreparedTransaction("eo:jobs:1:0:0.0", 1, 0, 0, 1),
    "the id of the log": PreparedTransaction("eo:job:log", 1, 0, 0, 1),
    "the id of another part": PreparedTransaction("eo:job:1:3:0.0", 1, 0, 0, 1),
    "an id with other digits": PreparedTransaction("eo:job:\u0661:0:0.0", 1, 0, 0, 1),
    "an id and a statement": PreparedTransaction("eo:job:1:0:0.0'; --", 1, 0, 0, 1),
    "another sink's name": PreparedPart("files", "eo:jobs:1:7:0:0.0:files", 0, 1),
    "a path for a name": PreparedPart("files", "eo:../../etc:1:7:0:0.0", 0, 1),
    "a name of another output": PreparedPart("files", "eo:job:1:7:0:0.0:warehouse", 0, 1),
    "a name of 5,000 digits": PreparedPart("files", f"eo:job:{'1' * 5_000}:7:0:0.0", 0, 1),
    "a gid that is no name": PreparedPart("warehouse", "foreign-gid", 0, 1),
    "Kafka's part as another output's": PreparedPart("kafka", "eo:job:1:7:0:0.0:kafka", 0, 1),
}


@pytest.mark.parametrize("part", FOREIGN.values(), ids=FOREIGN)
def test_a_decision_that_names_what_is_not_the_sinks_is_refused(part: PreparedTransaction | PreparedPart) -> None:
    """Corruption: a recovery would end a foreign application's transaction, with the sink's rights."""
    with pytest.raises(ValueError, match="is not part 0 of sink 'job'"):
        check_own(replace(DECISION, handles=(part,)), "job")


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_every_record_that_a_sink_writes_is_its_own(record: Any) -> None:
    """Wedge: a sink that refuses its own decisions."""
    if isinstance(record, Decision):
        record = replace(record, handles=tuple(h for h in record.handles if h.part == 0))
    check_own(record, "job")


@pytest.mark.parametrize("text", [f"eo:s:{'1' * 5_000}:0:0.0", f"eo:s:1:{'1' * 5_000}:0.0", "eo:s:\u0661:0:0.0"])
def test_an_id_with_thousands_of_digits_is_nobodys(text: str) -> None:
    """Outage: anybody who may use an id that begins like the sink's ends each of its sweeps with a ValueError."""
    assert PartId.parse(text) is None
    assert PartName.parse(text) is None


def test_the_format_is_the_one_that_these_tests_forge() -> None:
    """The forged texts above hold its number."""
    assert FORMAT == 6


@pytest.mark.parametrize("check", [file_of, lambda handle: postgres._check([handle])])
def test_a_forged_handle_of_an_output_leads_to_the_command_that_undoes_it(
    check: Callable[[PreparedPart], object],
) -> None:
    """A dead sink id: "find out what other than the sink writes to its commit log", and nothing of the way back."""
    part = PreparedPart("files", "eo:orders:aaaaaaaaaa:1:0:0:0.0:files", 0, 1, "d", {"file": "../x"})
    with pytest.raises(CommitLogDamaged, match=r"exactly-once log orders .*decision.*undoes it"):
        check(part)

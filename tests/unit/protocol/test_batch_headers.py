"""The headers by which a record names its batch, pure: what they are, and how a reader tells them from the row's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.digest import RowDigest
from exactly_once.participants.kafka.digest_scope import PLAIN, add_read, batches_in, is_computable, place_of
from exactly_once.protocol.batch_headers import BATCH, SINK, own_headers, pair_of
from exactly_once.protocol.dead_letters import CODE

OURS = list(pair_of("orders", 41))
FORGED = [(SINK, b"another"), (BATCH, b"7")]


def test_the_headers_are_text() -> None:
    """Guards against names or a number that a reader of another language cannot read."""
    assert OURS == [("__exactly_once.sink", b"orders"), ("__exactly_once.batch", b"41")]


@pytest.mark.parametrize(
    ("own", "behind"),
    [
        pytest.param([], OURS, id="none"),
        pytest.param([("h", b"1"), ("h", None)], OURS, id="some"),
        pytest.param(FORGED, OURS, id="those of another sink, whose record this was"),
        pytest.param([("h", b"1")], [], id="of a sink without the option"),
        pytest.param([(BATCH, b"7"), (SINK, b"another")], [], id="in another order"),
        pytest.param([(BATCH, b"7")], [], id="one alone"),
        pytest.param([*FORGED, ("h", None)], [], id="not the last ones"),
    ],
)
def test_only_the_last_two_headers_are_the_sinks(own: list[Any], behind: list[Any]) -> None:
    """Guards against a header of the row that is taken for the sink's word, and is left out of the digest."""
    assert own_headers([*own, *behind]) == (own, tuple(behind))
    assert own_headers(None) == ((), ())


def record(headers: list[Any], value: bytes | None = b"v") -> Any:
    return SimpleNamespace(key=b"k", value=value, headers=headers, timestamp=99)


def digest_of(form: str, topic: str, *records: Any) -> str:
    digest = RowDigest()
    add_read(digest, form, topic, 5, records)
    return digest.text


ROWS = [[], [("h", b"1"), ("h", None)], FORGED, [*FORGED, ("h", b"")]]


@pytest.mark.parametrize("own", ROWS, ids=["none", "some", "forged", "forged and more"])
@pytest.mark.parametrize("place", ["row", "row+partition", "row+timestamp", "row+partition+timestamp", "topic"])
def test_the_digest_is_that_of_the_row_whatever_headers_it_has(place: str, own: list[Any]) -> None:
    """Guards against a lost part whose rows are not known again when the option has changed, against a part that verify
    calls corrupt, and against a forged pair that hides a change.
    """
    as_made = digest_of(place, "t", record(own))
    assert digest_of(f"{place}+batch", "t", record([*own, *OURS])) == as_made
    assert digest_of(f"{place}+batch+dead:dead", "t", record([*own, *OURS])) == as_made
    assert digest_of(place, "t", record([*own, *OURS])) != as_made, "without the word, all headers are the row's"
    if own:
        assert digest_of(f"{place}+batch", "t", record([*own[:-1], *OURS])) != as_made


def test_of_keys_and_values_alone_the_digest_is_the_same_with_the_headers_and_without() -> None:
    """Guards against a replay that cannot go on after the option was changed."""
    for form in (f"{PLAIN}+batch", f"{PLAIN}+batch+dead:dead"):
        assert digest_of(form, "t", record(OURS)) == digest_of(PLAIN, "t", record([]))


def test_a_dead_letter_has_no_second_pair() -> None:
    """Guards against headers of a rejected row that are taken for the sink's."""
    row = RowDigest()
    row.add(b"t", b"k", b"v", place_of(-1, FORGED, 0))
    said = [(CODE, b"EO-RECORD"), ("__exactly_once.errors.output.topic", b"t")]
    assert digest_of("row+batch+dead:dead", "dead", record([*FORGED, *said])) == row.text


@pytest.mark.parametrize("form", ["plain+batch", "row+partition+batch", "plain+batch+dead:dead"])
def test_the_pairs_of_a_part_are_all_that_its_records_have(form: str) -> None:
    """Guards against a record of another batch, or of none, that passes unseen because the digest leaves it out."""
    found = batches_in([form], "t", [record(OURS), record([("h", b"1"), *OURS]), record(FORGED), record([])])
    assert found == {tuple(OURS), tuple(FORGED), ()}
    assert batches_in(["plain", "row", "row+dead:dead"], "t", [record(OURS), record([])]) == set()
    assert batches_in([f"{form.partition('+dead')[0]}+dead:dead"], "dead", [record(FORGED)]) == set()


def test_a_scope_that_only_a_newer_version_knows_cannot_be_computed() -> None:
    """Guards against a false corruption after a downgrade: an unknown word may change what the digest covers."""
    known = ["plain", "row", "row+partition", "row+timestamp", "row+partition+timestamp", "topic", "topic+timestamp"]
    for scope in known:
        for words in ("", "+batch", "+batch+dead:a.b-c", "+dead:d"):
            assert is_computable(scope + words), scope + words
    unknown = ["", "mixed", "mixed+batch", "plain+new", "row+new+batch", "row+batch+partition", "row+batch+dead:", "ro"]
    assert not [scope for scope in unknown if is_computable(scope)]

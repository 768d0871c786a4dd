"""Input of the batch in flight that is gone: what is missing in the output, and what to do."""

from __future__ import annotations

import pytest

from exactly_once.protocol.input_topics import COMMITTED, DECIDED, UNDECIDED, advice, gone, standing_of


@pytest.mark.parametrize(
    ("earliest", "expected"),
    [
        pytest.param({}, {}, id="nobody says"),
        pytest.param({("in", 0): 10, ("in", 1): 0}, {}, id="all is there"),
        pytest.param({("in", 0): 11, ("in", 1): 0}, {"in": {0: 11}}, id="its beginning is gone"),
        pytest.param({("in", 0): 900, ("in", 1): 5}, {"in": {0: 900}}, id="of a partition that it does not read"),
    ],
)
def test_input_is_gone_where_the_oldest_record_comes_after_the_batch_begins(
    earliest: dict[tuple[str, int], int], expected: dict[str, dict[int, int]]
) -> None:
    """Guards against a warning of a partition of which the batch reads nothing, and against none."""
    assert gone({"in": {0: 10, 1: 5}}, {"in": {0: 20, 1: 5}}, earliest) == expected


def test_nothing_is_called_gone_of_a_batch_of_which_nothing_says_where_it_begins() -> None:
    """Guards against a warning at each start, where retention has done its work and a file of the checkpoint is away:
    the partition begins behind offset 0, and the batch behind that.
    """
    assert gone({}, {"in": {0: 20}}, {("in", 0): 11}) == {}


@pytest.mark.parametrize(
    ("decided", "unproven", "standing", "says"),
    [
        pytest.param((6, 7), (), COMMITTED, "--write-commit --apply", id="committed"),
        pytest.param((6, 7), (7,), DECIDED, "sink.accept.lost", id="with parts that were rolled back"),
        pytest.param((6,), (), UNDECIDED, "the records that are gone were never written", id="undecided"),
    ],
)
def test_what_is_lost_with_the_input_depends_on_the_commit_log(
    decided: tuple[int, ...], unproven: tuple[int, ...], standing: str, says: str
) -> None:
    """Mishap: one advice for all, to write everything again under a new sink id, where nothing was missing; and "the
    output is correct" where rows were lost.
    """
    assert standing_of(7, decided, unproven) == standing
    what, way_out = advice(7, standing, "exactly-once checkpoint repair /c --sink s")
    assert "batch 7" in what and says in f"{what}. {way_out}"

"""Which part of the input is the newest, and what is counted of the input before it."""

from __future__ import annotations

import numpy as np
import pytest

from exactly_once.tools.verify.by_origin import counts as c
from exactly_once.tools.verify.by_origin.counts import Counts, Memory
from exactly_once.tools.verify.by_origin.origin import PerInput
from exactly_once.tools.verify.expected import newest_window

P, Q = ("in", 0), ("in", 1)


@pytest.mark.parametrize(
    ("ends", "began", "last", "first", "since", "batches", "cut"),
    [
        pytest.param([(2, 30), (1, 20), (0, 10)], 0, 25, 10, 10, (1, 2), "", id="the newest whole batches"),
        pytest.param([(2, 30), (1, 20), (0, 10)], 0, 99, 0, 0, (0, 2), "", id="all there is"),
        pytest.param([(0, 50)], 40, 99, 40, 40, (0, 0), "", id="from where the stream began"),
        pytest.param([(1, 50), (0, 10)], 0, 5, 45, 10, (1, 1), "alone is longer", id="a batch above the limit"),
        pytest.param([(9, 50), (8, 40)], 0, 99, 40, 40, (9, 9), "batch 8 began", id="older batches are forgotten"),
        pytest.param([(9, 50)], 0, 99, 50, 50, (9, 9), "batch 9 began", id="only one batch is left"),
    ],
)
def test_the_window_is_the_newest_that_fits_and_says_when_it_is_smaller(ends, began, last, first, since, batches, cut):
    """A sample that is smaller than a person asked for, and does not say so, is taken for proof of more."""
    window = newest_window(((n, {P: end}) for n, end in ends), {P: began}, last)
    assert (window.first, window.since) == ({P: first}, {P: since})
    assert (window.batches, window.offsets, window.last) == (batches, ends[0][1] - first, last)
    assert cut in window.cut and bool(cut) == bool(window.cut)


def test_a_stream_without_a_batch_has_an_empty_window():
    window = newest_window(iter(()), {P: 7}, 10)
    assert (window.first, window.offsets) == ({P: 7}, 0) and window.cut


def test_a_partition_that_was_added_later_is_compared_from_its_first_offset():
    """Loss: input of a partition that was added goes unread, and nobody asks for it."""
    window = newest_window(iter([(1, {P: 20, Q: 5}), (0, {P: 10})]), {P: 0}, 99)
    assert window.first == {P: 0, Q: 0} and window.offsets == 25


def test_input_before_the_window_is_not_read_and_need_not_be_there_but_only_once(monkeypatch):
    """A check of the newest part that read all the input would take hours; an older record that is there twice is a
    duplicate all the same.
    """
    monkeypatch.setattr(c, "BLOCK", 4)
    asked = []

    def kinds(start, stop):
        asked.append((start, stop))
        return np.full(stop - start, c.RECORD, np.uint8)

    counted = Counts(0, 16, 16, PerInput(), False, kinds, Memory(), wanted=10)
    offsets = np.array([1, 1, 9, 9, 11, 12, 13, 14, 15], np.int64)
    assert np.flatnonzero(counted.add(offsets) == c.DUPLICATE).tolist() == [1, 3]
    assert [(o.tolist(), n) for o, n in counted.missing()] == [([10], 1)]
    assert asked == [(10, 12), (12, 16)] and counted.records == 6

"""A query that has lost a source of the batch that Spark runs again."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from exactly_once.errors import CheckpointUnusable, UnsupportedMode
from exactly_once.protocol.named_sources import NamedSources
from exactly_once.protocol.planning import Batch
from exactly_once.spark.modes import check_sources

NAMED = Batch("q", 7, "", named=NamedSources(names=frozenset({"orders", "refunds"})))


@pytest.mark.parametrize(
    ("batch", "sources"),
    [
        pytest.param(NAMED, ["refunds", "orders"], id="all are there"),
        pytest.param(NAMED, ["refunds", "orders", "more"], id="one more"),
        pytest.param(Batch("q", 7, ""), ["orders"], id="Spark counts the sources"),
        pytest.param(Batch("q", 7, ""), None, id="Spark has no names"),
    ],
)
def test_a_query_with_every_source_of_the_batch_runs_it(batch: Batch, sources: Collection[str] | None) -> None:
    """Mishap: a healthy stream that is not started any more."""
    check_sources(batch, sources)


@pytest.mark.parametrize("sources", [["orders"], []])
def test_a_query_that_lacks_a_source_of_the_batch_is_refused(sources: list[str]) -> None:
    """Loss, in silence: Spark writes the batch without the records of that source, and counts them as read."""
    with pytest.raises(CheckpointUnusable, match=r"no source .*refunds any more, .*batch 7 .*caught_up"):
        check_sources(NAMED, sources)


def test_named_sources_that_spark_does_not_tell_are_refused() -> None:
    """Loss, in silence: nobody could tell that a source of the batch in flight was dropped."""
    with pytest.raises(UnsupportedMode, match=r"not say which ones.*leave the names"):
        check_sources(NAMED, None)

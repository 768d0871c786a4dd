"""The batch that Spark is about to write, as the checkpoint says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exactly_once import checkpoint
from exactly_once.checkpoint import batch_in_flight
from exactly_once.errors import CheckpointUnusable
from exactly_once.protocol.planning import Batch
from tests.unit.ops.test_checkpoint_repair import QUERY, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Batch 6 is in flight."""
    return Site(tmp_path).ran(6, marked=5)


@pytest.fixture
def finished(site: Site) -> Batch:
    return Batch(QUERY, 5, "digest of 5")


def test_behind_a_finished_batch_only_the_file_of_the_next_one_is_read(
    site: Site, finished: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store each look takes as long as a batch: two listings, and three files that say what is known."""
    whole = batch_in_flight(str(site.root))
    read: list[str] = []
    content = checkpoint._Reader._content

    def noted(reader: Any, name: str) -> bytes:
        read.append(name)
        return content(reader, name)

    monkeypatch.setattr(checkpoint._Reader, "_content", noted)
    monkeypatch.delattr(checkpoint._Reader, "_numbers")
    assert batch_in_flight(str(site.root), after=finished) == whole
    assert read == ["offsets/6"]


def test_a_batch_that_does_not_follow_the_finished_one_is_looked_for(site: Site) -> None:
    """A batch that Spark runs again has its own number, not the next one."""
    assert batch_in_flight(str(site.root), after=Batch(QUERY, 6, "")).batch_id == 6


def test_a_torn_plan_behind_a_finished_batch_is_refused(site: Site, finished: Batch) -> None:
    """Its digest would be that of half a plan: a replay of the whole one would count as another batch."""
    site.write("offsets/6", 'v1\n{"batchTimestampMs":1}\n{"topic":{')
    with pytest.raises(CheckpointUnusable, match="offsets/6 is torn"):
        batch_in_flight(str(site.root), "sink", finished)

"""The batch that Spark is about to write, as the checkpoint says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exactly_once import checkpoint
from exactly_once.checkpoint import batch_in_flight
from exactly_once.errors import CheckpointUnusable
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.planning import Batch
from tests.unit.ops.test_checkpoint_repair import QUERY, Site, offsets
from tests.unit.ops.test_named_sources import FIRST, SECOND, text, write


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Batch 6 is in flight."""
    return Site(tmp_path).ran(6, marked=5)


@pytest.fixture
def finished(site: Site) -> Batch:
    return Batch(QUERY, 5, "digest of 5")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read; folders are not listed."""
    names: list[str] = []
    content = checkpoint._Reader._content

    def noted(reader: Any, name: str) -> bytes:
        names.append(name)
        return content(reader, name)

    monkeypatch.setattr(checkpoint._Reader, "_content", noted)
    monkeypatch.delattr(checkpoint._Reader, "_numbers")
    return names


def test_behind_a_finished_batch_only_the_file_of_the_next_one_is_read(
    site: Site, finished: Batch, read: list[str]
) -> None:
    """On an object store each look takes as long as a batch: two listings, and three files that say what is known."""
    batch = batch_in_flight(str(site.root), after=finished)
    assert (batch.query_id, batch.batch_id, batch.offsets) == (QUERY, 6, offsets(6))
    assert batch.offsets_digest == digest_of(offsets(6)) and read == ["offsets/6"]


def test_the_plan_before_is_not_read_again_to_compare_the_names_of_sources(tmp_path: Path, read: list[str]) -> None:
    """The finished batch has the text of its plan."""
    location = write(tmp_path, FIRST, SECOND, committed=0)
    batch = batch_in_flight(location, after=Batch(QUERY, 0, digest_of(text(FIRST)), offsets=text(FIRST)))
    assert batch.named is not None and not batch.named.joined
    assert [name for name in read if name.startswith("offsets")] == ["offsets/1"]


def test_a_batch_that_does_not_follow_the_finished_one_is_looked_for(site: Site) -> None:
    """A batch that Spark runs again has its own number, not the next one."""
    assert batch_in_flight(str(site.root), after=Batch(QUERY, 6, "")).batch_id == 6


def test_a_torn_plan_behind_a_finished_batch_is_refused(site: Site, finished: Batch) -> None:
    """Its digest would be that of half a plan: a replay of the whole one would count as another batch."""
    site.write("offsets/6", 'v1\n{"batchTimestampMs":1}\n{"topic":{')
    with pytest.raises(CheckpointUnusable, match="offsets/6 is torn"):
        batch_in_flight(str(site.root), "sink", finished)

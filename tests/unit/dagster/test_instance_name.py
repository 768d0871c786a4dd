"""The name of a Dagster instance in claims."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_exactly_once.private import instance_id


def test_an_instance_that_has_a_name_keeps_it_when_its_storage_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mishap: after a restored database, each running stream looks as if another team operated it."""
    with dg.DagsterInstance.ephemeral() as before, dg.DagsterInstance.ephemeral() as after:
        assert instance_id(before) != instance_id(after)
        monkeypatch.setenv("EXACTLY_ONCE_INSTANCE", "shop")
        assert instance_id(before) == instance_id(after) == "shop"

"""An instance of Dagster's for tests that need one."""

import dagster as dg
import pytest


@pytest.fixture(scope="module")
def storage():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def instance(storage):
    """An instance without runs; making a new one for each test takes longer."""
    storage.wipe()
    return storage

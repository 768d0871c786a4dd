"""Real Dagster, real broker: a cluster and an instance for each module, as the jobs' topics have fixed names."""

import dagster as dg
import pytest

from testkit import broker as brokers
from testkit.site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with brokers.running_broker(tmp_path_factory.mktemp("cluster")) as broker:
        yield Site(tmp_path_factory.mktemp("site"), broker.bootstrap_servers)


@pytest.fixture(scope="module")
def storage():
    with dg.instance_for_test() as found:
        yield found


@pytest.fixture
def instance(storage):
    """An instance without runs; making a new one for each test takes seconds."""
    for run in storage.get_runs():
        storage.delete_run(run.run_id)
    return storage

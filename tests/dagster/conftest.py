"""Real Dagster, real broker: a cluster and an instance for each module, as the jobs' topics have fixed names."""

import pytest

from testkit import broker as brokers
from testkit.site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with brokers.running_broker(tmp_path_factory.mktemp("cluster")) as broker:
        yield Site(tmp_path_factory.mktemp("site"), broker.bootstrap_servers)

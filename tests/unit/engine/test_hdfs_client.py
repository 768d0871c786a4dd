"""The client of hdfs-native in a process that starts others."""

import pytest

from exactly_once import location
from exactly_once.hdfs import hdfs


def test_fsspec_keeps_no_client_that_a_forked_child_would_end() -> None:
    """Wedge: PySpark forks to start its JVM; fsspec then drops the clients that it keeps, and the end of hdfs-native's
    waits in the child for threads that a fork does not copy.
    """
    pytest.importorskip("hdfs_native")
    client = hdfs(location.read("hdfs://127.0.0.1:1/checkpoint")).handler.fs
    assert client is hdfs(location.read("hdfs://127.0.0.1:1/other")).handler.fs
    assert list(type(client)._cache) == []

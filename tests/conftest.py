"""Fixtures of all tests: one real broker and one Spark driver for the whole session, and the end of the broker's log
beside a failure.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as support
from testkit import spark_archive
from testkit.fixtures import bench, driver, kafka_input, warm  # noqa: F401
from testkit.postgres import own_postgres, postgres  # noqa: F401
from testkit.scheduling import FewDrivers

if TYPE_CHECKING:
    from xdist.remote import Producer

    from exactly_once.kafka.connection import Connection

_started: list[EmbeddedBroker] = []

#: CI runs the long tests only while they fit into its hour: none is begun after this many seconds.
_BUDGET_S = float(os.environ.get("TEST_BUDGET_S", "inf"))
_began = time.monotonic()
_OVER = "s that CI has for these tests are over"

#: A number that moves the order of the test files: CI counts it up by the day, so that the files which do not fit into
#: its hour are others each time.
_ROTATION = os.environ.get("TEST_ROTATION", "")

#: The folders of the tests without a broker.
_COMPUTING = tuple(Path(__file__).parent / name for name in ("unit", "lint", "model"))

spark_archive.use()
# For every JVM that tests start: none lives long enough for code that is compiled well.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# A background job inherits an ignored SIGINT. Dagster gives SIGTERM the handler of SIGINT, so every broker that is
# started after a job would ignore it, and be killed 20 s later.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()  # until all is imported, there is no garbage
    try:
        return (yield)
    finally:
        gc.freeze()  # seven thousand tests and their packages stay: no later collection looks at them again
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() - _began > _BUDGET_S:
        pytest.skip(f"the {_BUDGET_S:.0f} {_OVER}; make test-long runs all of them")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Make the cases of a test that its mark ``quick`` does not name long ones."""
    quick = item.get_closest_marker("quick")
    case = item.name.partition("[")[2].removesuffix("]")
    if quick is not None and case not in quick.args:
        item.add_marker("long")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = list(dict.fromkeys(item.path for item in items))
    # evenly: tests with brokers mostly wait, and those without them use the cores meanwhile
    computing = [path for path in files if any(path.is_relative_to(folder) for folder in _COMPUTING)]
    waiting = [path for path in files if path not in set(computing)]
    place = {}
    for some in (waiting, computing):
        first = int(_ROTATION or 0) % max(1, len(some))
        place |= {path: (n / len(some), path) for n, path in enumerate(some[first:] + some[:first])}
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FewDrivers | None:
    return FewDrivers(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    left_out = Counter(report.nodeid.partition("::")[0] for report in skipped if _OVER in str(report.longrepr))
    if left_out:
        terminalreporter.section("left out, as the time was over")
        for path, count in sorted(left_out.items()):
            terminalreporter.write_line(f"{path}: {count}")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The broker all tests share: they keep apart by topics, sink ids and groups of their own (``fresh_name``).

    A test that kills, stops or configures a broker starts its own (``own_broker``).
    """
    with support.running_broker(tmp_path_factory.mktemp("broker")) as running:
        _started.append(running)
        yield running


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EmbeddedBroker]]:
    """Start a broker for this test alone: ``own_broker(nodes=3, properties={...})``. Stopped when the test ends."""
    own: list[EmbeddedBroker] = []

    def start(*, nodes: int = 1, properties: dict[str, str] | None = None) -> EmbeddedBroker:
        started = support.test_broker(tmp_path_factory.mktemp("own-broker"), nodes=nodes, properties=properties)
        own.append(started)
        _started.append(started)
        return started.start()

    yield start
    for started in own:
        started.kill()  # its folder is not used again, and three nodes take 6 s to stop in order
        started.stop()
        _started.remove(started)


@pytest.fixture(scope="session")
def bootstrap_servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture(scope="session")
def connection(broker: EmbeddedBroker) -> Connection:
    """The engine's own description of the shared broker."""
    from exactly_once.kafka.connection import Connection

    return Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A fresh topic with four partitions on the shared broker."""
    return support.create_topic(broker.bootstrap_servers, partitions=4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for running in _started:
            report.sections.append(("end of the broker's log", running.log_tail()))
    return report

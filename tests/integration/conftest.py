"""Which of the conformance suite's tests are long."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The conformance suite's crash tests start some ten processes each; what Kafka does when a process is killed, the
    tests in tests/faults show as well.
    """
    for item in items:
        if "killed_anywhere" in item.name or ("TestKafka::" in item.nodeid and "killed" in item.name):
            item.add_marker(pytest.mark.long)

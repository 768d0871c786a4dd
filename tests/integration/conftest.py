"""Drivers and streams of the integration tests."""

import pytest

from tests.support.fixtures import bench, driver, kafka_input, warm  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The conformance suite's crash tests start some ten processes each."""
    for item in items:
        if "killed_anywhere" in item.name:
            item.add_marker(pytest.mark.long)

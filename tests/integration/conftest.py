"""Which of the conformance suite's tests are long."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The conformance suite's crash tests start some ten processes each."""
    for item in items:
        if "killed_anywhere" in item.name:
            item.add_marker(pytest.mark.long)

"""Drivers and streams of the integration tests."""

from tests.support.fixtures import bench, driver, kafka_input, warm  # noqa: F401

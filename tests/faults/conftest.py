"""Drivers and streams of the fault tests."""

from tests.support.fixtures import bench, driver, kafka_input, warm  # noqa: F401

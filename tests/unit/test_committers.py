"""The committers that a process of Spark's keeps: several streams of a driver share it."""

from exactly_once.coordinator.weaker import DeliveryCommitter
from exactly_once.options import SinkOptions
from exactly_once.spark import driver


def options(name: str) -> SinkOptions:
    return SinkOptions.parse(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "topic": "t",
            "sink.id": name,
            "checkpointLocation": "/c",
            "sink.guarantee": "at_least_once",
        }
    )


def test_a_process_keeps_the_committers_that_it_used_last(monkeypatch):
    """With fifty streams in a driver, each of its processes would keep connections and threads for all of them."""
    closed: list[object] = []
    monkeypatch.setattr(driver, "_committers", {})
    monkeypatch.setattr(DeliveryCommitter, "close", lambda self: closed.append(self))
    first = driver.committer(options("s0"))
    others = [driver.committer(options(f"s{n}")) for n in range(1, driver.KEPT)]
    assert driver.committer(options("s0")) is first and not closed
    driver.committer(options("one-more"))
    assert closed == others[:1] and driver.committer(options("s0")) is first

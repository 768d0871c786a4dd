"""Where Spark puts a checkpoint: what follows of what the session's JVM, or its settings, say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once import location as locations
from exactly_once.errors import CheckpointUnusable
from exactly_once.spark import location
from exactly_once.spark.location import check_place, located


def connect(**settings: str) -> Any:
    """A session of Spark Connect, as far as it is asked."""
    return SimpleNamespace(
        conf=SimpleNamespace(get=lambda name, default: settings.get(name.rpartition(".")[2], default))
    )


@pytest.mark.parametrize(
    ("text", "found", "placed"),
    [
        ("/data/chk/", "file:/data/chk", "/data/chk"),
        ("chk", "file:/jvm/chk", "/jvm/chk"),
        ("/data/a b#2", "s3a://box/data/a b#2", "s3a://box/data/a b#2"),
        ("hdfs:///chk", "hdfs://nn:8020/chk", "hdfs://nn:8020/chk"),
        ("/Volumes/main/chk", "dbfs:/Volumes/main/chk", "dbfs:/Volumes/main/chk"),
        ("/chk", "dbfs:/chk", "dbfs:/chk"),
        ("/chk", "maprfs:/chk", "maprfs:/chk"),
    ],
)
def test_a_location_is_that_of_the_session(text: str, found: str, placed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: the sink looks on the local disk for what Spark has put on the default file system."""
    monkeypatch.setattr(location, "_qualified", lambda spark, said: found)
    monkeypatch.setattr(location, "has_jvm", lambda spark: True)
    given = {"checkpointLocation": text, "topic": text}
    assert located(given, connect()) == {"checkpointLocation": placed, "topic": text}


@pytest.mark.parametrize("text", ["file:/data/chk", "file:///data/chk", "s3a://box/chk", "hdfs://nn/chk", "gs://b"])
def test_a_location_that_names_its_file_system_is_left_alone(text: str) -> None:
    """Outage: a file system whose client cannot start now is asked for nothing."""
    assert located({"checkpointLocation": text}, connect(defaultFS="s3a://other")) == {"checkpointLocation": text}


def test_a_process_without_a_session_leaves_a_location_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: the command line, and the child process of a JVM, have nobody to ask."""
    monkeypatch.setattr(location, "_session", lambda: None)
    assert located({"checkpointLocation": "/data/chk"}) == {"checkpointLocation": "/data/chk"}


def test_spark_connect_is_asked_for_its_setting() -> None:
    """Outage: check refuses on Spark Connect what the start takes, since the server alone knows the file system."""
    for default, placed in (("s3a://box/", "s3a://box/chk#1"), ("file:///", "/chk#1"), ("", "/chk#1")):
        assert located({"checkpointLocation": "/chk#1"}, connect(defaultFS=default)) == {"checkpointLocation": placed}
    assert located({"checkpointLocation": "chk"}, connect(defaultFS="s3a://box")) == {"checkpointLocation": "chk"}


def test_a_stream_whose_sensors_would_look_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: Dagster's sensors have no session, and read a checkpoint that is not the stream's."""
    monkeypatch.setattr(location, "_qualified", lambda spark, said: str(locations.Location("hdfs", "nn", said)))
    monkeypatch.setattr(location, "has_jvm", lambda spark: True)
    monkeypatch.setattr(location, "check_scheme", lambda spark, at: None)
    with pytest.raises(CheckpointUnusable, match="location as hdfs://nn/data/chk"):
        check_place(connect(), "/data/chk")
    check_place(connect(), "hdfs:///data/chk")
    check_place(connect(), "file:/data/chk")
    monkeypatch.setattr(location, "_qualified", lambda spark, said: f"dbfs:{said}")
    check_place(connect(), "/Volumes/main/chk")
    with pytest.raises(CheckpointUnusable, match="location as dbfs:/chk"):
        check_place(connect(), "/chk")


@pytest.mark.parametrize("text", ["C:\\data", "file://data/chk"])
def test_a_text_that_names_no_folder_is_refused_before_anything_begins(text: str) -> None:
    """Outage: check passes, and the first batch ends with an error of a class of Java's."""
    with pytest.raises(CheckpointUnusable, match="EO-CHECKPOINT"):
        located({"checkpointLocation": text}, connect())
    with pytest.raises(CheckpointUnusable, match="EO-CHECKPOINT"):
        check_place(connect(), text)

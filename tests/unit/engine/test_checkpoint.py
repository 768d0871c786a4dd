"""A Spark checkpoint, read without Spark: folders written by hand as Spark 4.2 writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from exactly_once.checkpoint import (
    LONGEST_KEPT_OFFSETS,
    Checkpoint,
    batch_in_flight,
    file_system,
    first_offsets,
    listed,
    read_checkpoint,
    same_location,
)
from exactly_once.errors import CheckpointUnusable, ExactlyOnceError, UnsupportedMode
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.tools.operation.repair.files import read_files

QUERY = "6f1b9a2e-0000-4000-8000-1234567890ab"


def offsets(end: int, *, started_ms: int = 1_700_000_000_000, conf: dict[str, str] | None = None) -> str:
    """``offsets/N``: version, watermark and clock and settings, one line for each source."""
    head = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": started_ms,
        "conf": conf or {"spark.sql.shuffle.partitions": "4"},
    }
    return "\n".join(["v1", json.dumps(head), json.dumps({"flights": {"0": end, "1": end + 1}})])


def write(root: Path, planned: int, committed: int, *, query: str = QUERY) -> Path:
    """A checkpoint with the batches 0 to ``planned`` of which those to ``committed`` went through."""
    for folder in ("offsets", "commits", "sources", "state"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text(json.dumps({"id": query}))
    (root / "sources" / "0").mkdir(exist_ok=True)
    (root / "sources" / "0" / "0").write_bytes(b'\0v1\n{"flights":{"0":0,"1":0}}')
    for n in range(planned + 1):
        (root / "offsets" / str(n)).write_text(offsets(n * 100, started_ms=1_700_000_000_000 + n))
    for n in range(committed + 1):
        (root / "commits" / str(n)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return root


@pytest.mark.parametrize(
    ("planned", "committed", "in_flight"),
    [(-1, -1, None), (0, -1, 0), (0, 0, None), (7, 6, 7), (7, 7, None), (12, 9, 12)],
)
def test_the_batch_in_flight_is_planned_and_not_committed(
    tmp_path: Path, planned: int, committed: int, in_flight: int | None
) -> None:
    """The wrong batch is compared with the wrong decision: rows drained that were never written, or written twice."""
    c = read_checkpoint(str(write(tmp_path, planned, committed)))
    assert (c.query_id, c.in_flight) == (QUERY, in_flight)
    assert c.last_offsets == (planned if planned >= 0 else None)
    assert c.last_commit == (committed if committed >= 0 else None)


def test_what_an_observer_wants_to_know_of_the_last_batch(tmp_path: Path) -> None:
    """Lag and age in Dagster come from here, without a Spark (invariant 9)."""
    c = read_checkpoint(str(write(tmp_path, 3, 2)))
    assert c.batch_started_ms == 1_700_000_000_003
    assert [json.loads(s) for s in c.source_offsets] == [{"flights": {"0": 300, "1": 301}}]


def test_ten_comes_after_nine(tmp_path: Path) -> None:
    """Names sort otherwise: "9" after "10"."""
    assert read_checkpoint(str(write(tmp_path, 10, 9))).last_offsets == 10


def test_leftovers_are_no_batches(tmp_path: Path) -> None:
    """A driver that was killed leaves temporary files and checksums; a batch that never was must not be planned."""
    root = write(tmp_path, 2, 1)
    for folder in ("offsets", "commits"):
        for name in (".3.crc", ".3.0a1b.tmp", ".9.tmp.crc", "3.tmp", "3.crc", "_SUCCESS", "99.delta", "-5", ""):
            (root / folder / name).write_text("garbage") if name else None
        (root / folder / "purged").mkdir()
    c = read_checkpoint(str(root))
    assert (c.last_offsets, c.last_commit, c.in_flight) == (2, 1, 2)


def test_a_checkpoint_that_spark_has_purged_is_read(tmp_path: Path) -> None:
    """Spark keeps the last 100 batches; the oldest file is not batch 0."""
    root = write(tmp_path, 9, 8)
    for n in range(5):
        (root / "offsets" / str(n)).unlink()
        (root / "commits" / str(n)).unlink()
    assert read_checkpoint(str(root)).in_flight == 9


@pytest.mark.parametrize(
    "form", ["{path}", "{path}/", "file:{path}", "file:{path}/", "file://{path}", "file://{path}//"]
)
def test_every_way_to_write_a_local_folder_is_the_same_folder(tmp_path: Path, form: str) -> None:
    """Spark itself writes file:/path; a location that is not found looks like a new query."""
    root = write(tmp_path / "c", 1, 0)
    assert batch_in_flight(form.format(path=root)) == batch_in_flight(str(root))


@pytest.mark.parametrize(
    "name",
    [
        *("with space", "ä-ö", "a:b", "a%20b", "date=2024-01-01", "file:x", "orders#2", "a?b", "a[1]", "{env}", "100%"),
        *("a+b", "a*b", "a&b;c", "'q'\"", "$x", "~", "\\", "..."),
    ],
)
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}/"])
def test_a_folder_of_any_name_is_read(tmp_path: Path, name: str, form: str) -> None:
    """Outage: Spark writes to the folder, and the sink reads another one, of another query, or none."""
    write(tmp_path / "orders", 5, 5)
    location = form.format(write(tmp_path / name, 1, 0))
    assert batch_in_flight(location).batch_id == 1
    assert first_offsets(location) == {"flights": {0: 0, 1: 0}}
    assert [info.base_name for info in listed(location, "commits")] == ["0"]
    assert set(read_files(location).offsets) == {0, 1}
    assert same_location(location, str(tmp_path / name)) and not same_location(location, str(tmp_path / "orders"))


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("file://data/chk", "write file:///data/chk"),
        ("C:\\data", "behind C: it does not go on"),
        ("C:/data", "Unrecognized filesystem type"),
        ("s3a:/chk", "finds no bucket"),
        ("abfss://box@account.example/chk", "finds no bucket"),
        ("wasbs://box@account.blob.core.windows.net/chk", "Unrecognized filesystem type"),
        ("oss://bucket/chk", "Unrecognized filesystem type"),
    ],
)
def test_a_location_that_names_no_folder_is_refused_with_the_reason(location: str, says: str) -> None:
    """Outage: file://data/chk is /chk to one reader, and no file system's to Spark."""
    with pytest.raises(CheckpointUnusable, match=r"EO-CHECKPOINT: ") as refusal:
        read_checkpoint(location)
    assert says in refusal.value.what


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("gs://bucket/my chk#2?x=%20", ("gcs", "bucket/my chk#2?x=%20")),
        ("abfss://box@account.dfs.core.windows.net/my chk#2", ("abfs", "box/my chk#2")),
        ("hdfs://nn:8020/my chk#2?x=%20/", ("py::fsspec+hdfs", "/my chk#2?x=%20")),
        ("dbfs:/streams/my chk#2", ("local", "/dbfs/streams/my chk#2")),
        ("dbfs:///Volumes/main/chk/", ("local", "/Volumes/main/chk")),
    ],
)
def test_a_location_on_a_store_is_given_to_its_client_as_it_is_written(location: str, where: tuple[str, str]) -> None:
    """Outage: a client that decodes the path, or ends it at its #, reads another folder than Spark's."""
    files, path = file_system(location)
    assert (files.type_name, path) == where


@pytest.mark.parametrize(
    ("host", "account", "dfs", "blob"),
    [
        ("a.dfs.core.windows.net", "a", ".dfs.core.windows.net", ".blob.core.windows.net"),
        ("a.blob.core.windows.net", "a", ".dfs.core.windows.net", ".blob.core.windows.net"),
        ("a.dfs.core.chinacloudapi.cn", "a", ".dfs.core.chinacloudapi.cn", ".blob.core.chinacloudapi.cn"),
        ("a.dfs.core.usgovcloudapi.net", "a", ".dfs.core.usgovcloudapi.net", ".blob.core.usgovcloudapi.net"),
        ("a.z12.dfs.storage.azure.net", "a", ".z12.dfs.storage.azure.net", ".z12.blob.storage.azure.net"),
        ("onelake.dfs.fabric.microsoft.com", "onelake", ".dfs.fabric.microsoft.com", ".blob.fabric.microsoft.com"),
        (
            "eu-onelake.dfs.fabric.microsoft.com",
            "eu-onelake",
            ".dfs.fabric.microsoft.com",
            ".blob.fabric.microsoft.com",
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["abfs", "abfss"])
def test_an_account_of_any_of_azures_clouds_is_asked_in_its_cloud(
    scheme: str, host: str, account: str, dfs: str, blob: str
) -> None:
    """Outage: pyarrow's own reader of addresses takes the container for the account, and asks another cloud."""
    files, path = file_system(f"{scheme}://box@{host}/my chk#2/")
    assert path == "box/my chk#2"
    _, (made, *_) = files.__reduce__()
    assert (made["account_name"], made["dfs_storage_authority"], made["blob_storage_authority"]) == (account, dfs, blob)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_every_name_of_hadoops_for_s3_is_pyarrows(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: pyarrow knows one name for S3, Hadoop three."""
    asked: list[str] = []

    class Store:
        @staticmethod
        def from_uri(uri: str) -> tuple[object, str]:
            asked.append(uri)
            return object(), "bucket"

    monkeypatch.setattr(pafs, "FileSystem", Store)
    assert (file_system(f"{scheme}://bucket/my chk#2")[1], asked) == ("bucket/my chk#2", ["s3://bucket"])


def test_a_location_where_nothing_is_yet_is_a_new_checkpoint(tmp_path: Path) -> None:
    """An observer that looks before the first start must not fail."""
    missing = str(tmp_path / "none")
    assert read_checkpoint(missing) == Checkpoint(missing)
    (tmp_path / "empty").mkdir()
    assert read_checkpoint(str(tmp_path / "empty")).query_id is None


def test_a_query_that_runs_without_a_checkpoint_here_is_refused(tmp_path: Path) -> None:
    """The driver's Python sees another disk, or HDFS was meant: writing would have no history to be checked against."""
    with pytest.raises(CheckpointUnusable, match=r"no checkpoint at .*the query is running") as refused:
        batch_in_flight(str(tmp_path / "none"))
    assert "on this host's disk" in refused.value.what and "fs.defaultFS" in refused.value.way_out
    with pytest.raises(CheckpointUnusable) as refused:
        batch_in_flight(f"file:{tmp_path}/none")
    assert "fs.defaultFS" not in refused.value.way_out


@pytest.mark.parametrize(("planned", "committed"), [(-1, -1), (0, 0), (5, 5)])
def test_continuous_and_real_time_mode_have_no_batch_in_flight_and_are_refused(
    tmp_path: Path, planned: int, committed: int
) -> None:
    """In continuous mode Spark calls no write() at all and loses every row without a word."""
    with pytest.raises(UnsupportedMode, match=r"EO-MODE: .*continuous or real-time.*Use trigger\(processingTime"):
        batch_in_flight(str(write(tmp_path, planned, committed)))


@pytest.mark.parametrize("location", ["nfs://host/c", "s4://bucket/c", "s3://"])
def test_a_location_that_python_cannot_read_is_refused_with_what_can_be(location: str) -> None:
    """Spark may know file systems that pyarrow does not."""
    with pytest.raises(CheckpointUnusable) as refusal:
        read_checkpoint(location)
    assert location in refusal.value.what
    assert "file, hdfs, s3, gs, abfs" in refusal.value.way_out


@pytest.mark.parametrize("location", ["hdfs://", "hdfs://name:8020", "hdfs://name:port/c"])
def test_a_location_that_is_no_place_on_hdfs_is_refused_with_the_form_of_one(location: str) -> None:
    """A path that is forgotten must not be read as the root of the file system."""
    with pytest.raises(CheckpointUnusable, match=r"is not a path .*HDFS.*hdfs://HOST:PORT/PATH"):
        read_checkpoint(location)


@pytest.mark.parametrize("look", [read_checkpoint, first_offsets, read_files])
def test_a_process_without_a_client_for_hdfs_says_so_and_names_two(
    look: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's own error is each of a hundred places where a library is not: nobody finds the way out in it."""
    monkeypatch.setattr("exactly_once.hdfs._native", lambda _: None)
    for name in ("ARROW_LIBHDFS_DIR", "HADOOP_HOME", "JAVA_HOME", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CheckpointUnusable) as refusal:
        look("hdfs://name:8020/streams/clicks")
    said = str(refusal.value)
    assert said.startswith("EO-CHECKPOINT: ") and "no client for HDFS" in said and len(said) < 700
    assert all(
        word in said
        for word in ("hdfs://name:8020/streams/clicks", "pyspark-kafka-exactly-once[hdfs]", "HADOOP_HOME", "CLASSPATH")
    )


@pytest.mark.parametrize("look", [read_checkpoint, first_offsets, read_files])
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Connection refused (os error 111)", "EO-CHECKPOINT-AWAY"),
        ("[Errno 255] HDFS list directory failed. Detail: [errno 255] Unknown error 255", "EO-CHECKPOINT-AWAY"),
        ('DataTransferError("All DataNodes failed: [DatanodeInfoProto { id: ... }]")', "EO-CHECKPOINT-AWAY"),
        ('RPCError("org.apache.hadoop.ipc.StandbyException", "Operation category READ")', "EO-CHECKPOINT-AWAY"),
        ("failed to lookup address information: Name or service not known", "EO-CHECKPOINT"),
        ("Permission denied: user=alice", "EO-CHECKPOINT"),
        ('RPCError("org.apache.hadoop.security.AccessControlException", "denied")', "EO-CHECKPOINT"),
    ],
)
def test_hdfs_that_does_not_answer_heals_by_a_restart_and_a_wrong_name_does_not(
    look: Callable[[str], object], said: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name node that restarts at night must wake nobody; a location that is wrong must not be tried for hours."""

    def fails(location: str) -> None:
        raise (RuntimeError if "Error(" in said else OSError)(said)  # hdfs-native's own errors are of the first kind

    monkeypatch.setattr("exactly_once.hdfs.hdfs", fails)
    with pytest.raises(ExactlyOnceError) as refusal:
        look("hdfs://name:8020/streams/clicks")
    assert refusal.value.code == code and said.split("Detail")[0] in str(refusal.value)
    assert refusal.value.restart_heals == (code == "EO-CHECKPOINT-AWAY") and "hdfs dfs -ls" in refusal.value.way_out


S3_SAYS = "When listing objects under key 'c/offsets/' in bucket 'b': AWS Error {} during ListObjectsV2 operation: {}"


@pytest.mark.parametrize("look", [read_checkpoint, first_offsets, read_files])
@pytest.mark.parametrize("location", ["s3://bucket/c", "s3a://bucket/c"])
@pytest.mark.parametrize(
    ("error", "details", "code"),
    [
        ("NETWORK_CONNECTION", "curlCode: 7, Could not connect to server", "EO-CHECKPOINT-AWAY"),
        ("NETWORK_CONNECTION", "curlCode: 28, Timeout was reached", "EO-CHECKPOINT-AWAY"),
        ("NETWORK_CONNECTION", "curlCode: 56, Failure when receiving data from the peer", "EO-CHECKPOINT-AWAY"),
        ("SLOW_DOWN", "m", "EO-CHECKPOINT-AWAY"),
        ("SERVICE_UNAVAILABLE", "m", "EO-CHECKPOINT-AWAY"),
        ("INTERNAL_FAILURE", "m", "EO-CHECKPOINT-AWAY"),
        ("REQUEST_TIMEOUT", "m", "EO-CHECKPOINT-AWAY"),
        ("UNKNOWN (HTTP status 503)", "No response body.", "EO-CHECKPOINT-AWAY"),
        ("NETWORK_CONNECTION", "curlCode: 6, Could not resolve hostname", "EO-CHECKPOINT"),
        ("NETWORK_CONNECTION", "curlCode: 60, SSL peer certificate was not OK", "EO-CHECKPOINT"),
        ("ACCESS_DENIED", "m", "EO-CHECKPOINT"),
        ("NO_SUCH_BUCKET", "m", "EO-CHECKPOINT"),
        ("UNKNOWN (HTTP status 400)", "Unable to parse ExceptionName: ExpiredToken", "EO-CHECKPOINT"),
    ],
)
def test_s3_that_does_not_answer_heals_by_a_restart_and_what_it_refuses_does_not(
    error: str,
    details: str,
    code: str,
    location: str,
    look: Callable[[str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is away at night must wake nobody; credentials that are wrong must not be tried for hours."""

    class Store:
        def get_file_info(self, _: object) -> None:
            raise OSError(S3_SAYS.format(error, details))

    for module in ("exactly_once.checkpoint", "exactly_once.tools.operation.repair.files"):
        monkeypatch.setattr(f"{module}.file_system", lambda _: (Store(), "bucket/c"))
    with pytest.raises(ExactlyOnceError) as refusal:
        look(location)
    assert refusal.value.code == code and error in str(refusal.value)
    assert refusal.value.restart_heals == (code == "EO-CHECKPOINT-AWAY")


BROKEN = {
    "metadata is empty": ("metadata", ""),
    "metadata is no JSON": ("metadata", "v1\nx"),
    "metadata has no id": ("metadata", "{}"),
    "metadata is a list": ("metadata", "[]"),
    "metadata is binary": ("metadata", b"\xff\x00"),
    "offsets are empty": ("offsets/1", ""),
    "offsets are cut off": ("offsets/1", "v1"),
    "offsets' head is no JSON": ("offsets/1", "v1\n{\n{}"),
    "offsets' head is a list": ("offsets/1", "v1\n[]\n{}"),
    "offsets are binary": ("offsets/1", b"v1\n\xff\n"),
}


@pytest.mark.parametrize(("name", "content"), BROKEN.values(), ids=BROKEN)
def test_a_broken_checkpoint_is_refused_with_its_location(tmp_path: Path, name: str, content: str | bytes) -> None:
    """A torn write on an object store: a Python traceback without a code helps nobody at 3 a.m."""
    root = write(tmp_path, 1, 0)
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointUnusable) as refusal:
        batch_in_flight(str(root))
    assert str(root) in refusal.value.what


# -- the input's offsets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], {}),
        (['{"flights":{"0":100,"1":101}}'], {"flights": {0: 100, 1: 101}}),
        (['{"a":{"0":1}}', '{"b":{"0":2}}'], {"a": {0: 1}, "b": {0: 2}}),
        (['{"a":{"0":5,"1":1}}', '{"a":{"0":3}}'], {"a": {0: 3, 1: 1}}),
        (['{"logOffset":7}'], {}),
        (["12"], {}),
        (["-"], {}),
        (['{"a":7}', '{"b":{"0":2}}'], {"b": {0: 2}}),
        (['["a"]', "null", "", '{"a":{"x":1}}'], {}),
    ],
)
def test_only_kafkas_offsets_are_taken_from_a_batch(lines: list[str], expected: dict[str, dict[int, int]]) -> None:
    """They are committed for lag tools; another source's numbers there, or an exception, would stop the stream."""
    assert kafka_offsets(lines) == expected


# -- the digest -----------------------------------------------------------------------------------------------------


def digest(root: Path, text: str) -> str:
    (root / "offsets" / "1").write_text(text)
    return batch_in_flight(str(root)).offsets_digest


def test_the_digest_is_that_of_the_input_alone(tmp_path: Path) -> None:
    """Settings and clock may differ when Spark writes offsets/N again; a digest that changed would refuse a healthy
    stream."""
    root = write(tmp_path, 1, 0)
    same = {
        digest(root, offsets(100)),
        digest(root, offsets(100, started_ms=5)),
        digest(root, offsets(100, conf={"spark.sql.shuffle.partitions": "200", "more": "x"})),
        digest(root, offsets(100) + "\n"),
    }
    assert len(same) == 1


@pytest.mark.parametrize("odd", ["\x85", "\u2028"])
def test_an_odd_character_in_the_settings_does_not_shift_the_lines(tmp_path: Path, odd: str) -> None:
    """Only a line feed ends a line of Spark's; Python's splitlines() knows ten more."""
    root = write(tmp_path, 1, 0)
    head = f'{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{"app":"a{odd}b"}}}}'
    source = '{"flights":{"0":100,"1":101}}'
    assert digest(root, f"v1\n{head}\n{source}") == digest(root, f"v1\n{{}}\n{source}")


def test_another_input_is_another_digest(tmp_path: Path) -> None:
    """Invariant 7: a replay that reads other rows must not be drained as if it were the decided one."""
    root = write(tmp_path, 1, 0)
    texts = [offsets(100), offsets(101), offsets(100) + '\n{"other":{"0":1}}', "v1\n{}\n-", "v1\n{}\n-\n-"]
    assert len({digest(root, t) for t in texts}) == len(texts)


def test_a_decision_is_given_the_text_to_keep_unless_it_is_too_long(tmp_path: Path) -> None:
    """The way back for a torn offsets/N; and a decision beyond the log's longest record could never be written."""
    root = write(tmp_path, 1, 0)
    assert batch_in_flight(str(root)).offsets == offsets(100, started_ms=1_700_000_000_001)
    long = offsets(100, conf={"x": "ä" * (LONGEST_KEPT_OFFSETS // 2)})
    (root / "offsets" / "1").write_text(long)
    batch = batch_in_flight(str(root))
    assert batch.offsets == "" and batch.sources == tuple(long.split("\n")[2:])


@pytest.mark.parametrize("begin", [None, 'v1\n{"positions":{"0":0}}', "v1\n17"])
def test_offsets_in_kafkas_shape_of_another_source_are_no_topics(tmp_path: Path, begin: str | None) -> None:
    """Mishap: each decision waited seconds for a topic that is none, and lag tools got its numbers."""
    root = write(tmp_path, 1, 0)
    (root / "offsets" / "1").write_text(offsets(100) + '\n{"positions":{"0":5}}')
    if begin is not None:
        (root / "sources" / "1").mkdir()
        (root / "sources" / "1" / "0").write_text(begin)
    batch = batch_in_flight(str(root))
    assert kafka_offsets(batch.sources) == {"flights": {0: 100, 1: 101}}
    assert batch.offsets.endswith('{"positions":{"0":5}}')


def test_an_empty_object_in_the_offsets_of_a_source_is_no_topic() -> None:
    """Outage: StopIteration at each decision of a source that has nothing yet, so that none was ever made."""
    assert kafka_offsets(['{"shards":{}}', '{"t":{"0":7},"u":{}}']) == {"t": {0: 7}}


def test_the_batch_is_named_by_query_number_and_digest(tmp_path: Path) -> None:
    """The three that a decision is compared with."""
    batch = batch_in_flight(str(write(tmp_path, 4, 3)))
    assert (batch.query_id, batch.batch_id, len(batch.offsets_digest)) == (QUERY, 4, 64)

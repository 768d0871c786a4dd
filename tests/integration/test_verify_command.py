"""``exactly-once verify`` with ``--files`` and ``--postgres``, on a real broker, folder and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.postgres import PostgresParticipant
from exactly_once.participant import Participant, PartName
from exactly_once.protocol.records import PreparedPart
from exactly_once.tools.cli import main
from exactly_once.tools.verify.by_log.judge import OTHER_OUTPUT
from testkit import broker as brokers
from testkit import oracle
from testkit.made_sink import MadeSink, rows
from testkit.planted_outputs import LOG, ROWS
from testkit.postgres import PostgresServer
from testkit.processes import until

#: Runs the command; its exit code and its document.
Verified = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def sink(connection: Connection, topic: str) -> MadeSink:
    made = MadeSink(connection, topic)
    made.claim()
    return made


@pytest.fixture
def verified(sink: MadeSink, capsys: pytest.CaptureFixture[str]) -> Verified:
    def run(*flags: str) -> tuple[int, dict[str, Any]]:
        servers = sink.connection.bootstrap_servers
        code = main(["--bootstrap-servers", servers, "verify", sink.sink_id, "--json", "--settle", "0", *flags])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.long
def test_a_sink_that_has_never_run_is_refused_and_not_called_clean(
    connection: Connection, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A false "clean": a wrong sink id, or the wrong cluster, looks like a sink without anomalies."""
    servers, unused = connection.bootstrap_servers, brokers.fresh_name("unused")
    command = ["--bootstrap-servers", servers, "verify", unused, "--settle", "0"]
    origin = ["--checkpoint", str(tmp_path / "none"), "--origin", "key"]
    for more in ([], ["--files", f"archive={tmp_path}"], origin, [*origin, "--input", "in"]):
        assert main([*command, *more]) == 2
        said = capsys.readouterr()
        assert "EO-OPTION: " in said.err and f"claimed a sink {unused!r} on this cluster" in said.err
        assert "exactly-once transactions list" in said.err and said.out == ""


@pytest.mark.long
def test_a_sink_without_a_batch_has_nothing_to_prove_and_says_so(
    sink: MadeSink, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A false "clean", or an error that sends an operator to look for a mistake, over a stream that has just begun: it
    has claimed the sink, and its first batch is prepared and not decided.
    """
    archive = FileParticipant("archive", str(tmp_path / "archive"))
    archive.check(sink.sink_id, ROWS)
    prepare(sink, archive, 0)
    under_way = sink.write(0, rows(0, 0))
    source = brokers.create_topic(sink.connection.bootstrap_servers)
    command = ["--bootstrap-servers", sink.connection.bootstrap_servers, "verify", sink.sink_id, "--settle", "0"]
    none = ["--checkpoint", str(tmp_path / "none"), "--origin", "key"]
    begun = ["--checkpoint", str(begun_checkpoint(tmp_path, source)), "--origin", "key"]
    others = ["--files", f"archive={archive.url}"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "has decided no batch" in said.out and "No anomalies" not in said.out, said.out
    sink.end([under_way], commit=False)
    with Admin(sink.connection) as admin:
        until("the markers", lambda: oracle.held_back(admin, [sink.topic]) == {}, 20)
    for more in ([], others, none, [*none, "--input", source], begun, [*begun, "--topic", sink.topic]):
        assert main([*command, *more]) == 0, more
        said = capsys.readouterr()
        assert "Nothing to prove yet" in said.out and f"sink {sink.sink_id} has decided no batch" in said.out, more
        assert "after its first batch" in said.out and "No anomalies" not in said.out and said.err == ""


def begun_checkpoint(folder: Path, source: str) -> Path:
    """The checkpoint of a stream whose first batch is planned."""
    made = folder / "begun"
    for name, text in {
        "metadata": '{"id":"q"}',
        "sources/0/0": f'\0v1\n{{"{source}":{{"0":0}}}}',
        "offsets/0": f'v1\n{{"batchTimestampMs":5}}\n{{"{source}":{{"0":3}}}}',
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


def prepare(sink: MadeSink, output: Participant[Any], batch: int) -> PreparedPart:
    """Three rows, in one part of the output."""
    writer = output.begin(PartName(sink.sink_id, sink.token, batch, 0, "0.0", LOG, output.name))
    made = [{"id": batch * 10 + n, "word": f"w{n}"} for n in range(3)]
    writer.write(pa.RecordBatch.from_pylist(made, schema=ROWS))
    handle = writer.pre_commit()
    assert isinstance(handle, PreparedPart)
    return handle


def test_the_command_proves_the_outputs_that_it_is_given_and_names_what_is_broken_in_them(
    sink: MadeSink, verified: Verified, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Guards against flags that are accepted and do nothing: what is broken in an output must fail the command, and
    what it was not told of must not count as proven.
    """
    postgres.sql("DROP TABLE IF EXISTS commanded")
    postgres.sql("CREATE TABLE commanded (id int8, word text)")
    archive = FileParticipant("archive", str(tmp_path / "archive"))
    warehouse = PostgresParticipant("warehouse", postgres.dsn(), "commanded")
    for output in (archive, warehouse):
        output.check(sink.sink_id, ROWS)
    for batch in range(2):
        kafka = sink.write(0, rows(batch, 0))
        others = {output: prepare(sink, output, batch) for output in (archive, warehouse)}
        sink.decide(batch, [kafka, *others.values()])  # type: ignore[list-item]
        sink.end([kafka])
        for output, handle in others.items():
            assert list(output.commit([handle])) == []
        sink.complete(batch)

    code, report = verified()
    assert code == 0 and report["unproven"] == {OTHER_OUTPUT: 4} and report["proven"]["parts"] == 2
    flags = ["--files", f"archive={archive.url}", "--postgres", f"warehouse={postgres.dsn()},commanded"]
    code, report = verified(*flags)
    assert code == 0, report
    assert report["proven"] == {"batches": 2, "parts": 6, "records": 2 * (4 + 3 + 3)} and report["unproven"] == {}
    code, report = verified(*flags, "--batches", "1")
    assert code == 0 and report["proven"]["parts"] == 3 and report["first_batch"] == "batch 1"

    postgres.sql("DELETE FROM commanded WHERE id = 10")
    next(Path(archive.url).glob("batch=00000000000000000000-*/*")).unlink()
    code, report = verified(*flags)
    assert code == 1
    assert report["anomalies"] == {"lost": 2, "split sink": 1, "outcome lie": 1}
    what = [f["what"] for f in report["findings"]]
    assert any("in warehouse is decided" in said and "2 of its 3 rows" in said for said in what)
    assert any("visible in warehouse, kafka" in said and "archive shows nothing" in said for said in what)

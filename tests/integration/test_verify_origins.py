"""Each anomaly that an origin shows, planted on a real broker: found by its name, with its places, and nothing else."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from confluent_kafka import Producer

from exactly_once.deadline import Deadline
from exactly_once.errors import InvalidOption
from exactly_once.tools.cli import main
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.tools.verify.by_origin import tails
from exactly_once.tools.verify.by_origin.comparison import NOT_EXACTLY, NOT_FAR, RETENTION, Question
from exactly_once.tools.verify.by_origin.origin import Origin, PerInput
from exactly_once.tools.verify.run import NO_LOG
from testkit import broker as brokers
from testkit import oracle
from testkit.fixtures import Bench, KafkaInput
from testkit.stream import Job, SparkDriver
from testkit.traced import Row, Traced
from testkit.traced import place as as_place

#: Of the command in a process of its own: a terminal that knows colours and moves of the cursor.
TERMINAL = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def stream(elsewhere, connection, tmp_path):
    made = Traced(connection, tmp_path)
    made.elsewhere = elsewhere
    return made


@pytest.fixture
def alone(connection, tmp_path):
    return Traced(connection, tmp_path)


look = Traced.compared


def found(result):
    return {f.anomaly.value: f for f in result.findings}


def only(result, *names):
    """The findings, which are these and no others."""
    by_name = found(result)
    assert sorted(by_name) == sorted(names), result.findings
    return [by_name[name] for name in names]


def place_of(stream, source):
    """Where the first committed output record of ``source`` is."""
    m = next(
        m for m in oracle.read(stream.connection, [stream.output]) if dict(m.headers).get("src") == source.encode()
    )
    return f"{m.topic}-{m.partition}@{m.offset}..{m.offset}"


def test_a_clean_stream_is_clean_with_aborts_markers_other_writers_and_a_batch_under_way(stream):
    """A checker that cries on a healthy stream is switched off before the day it is needed."""
    stream.batch()
    stream.feed(4, commit=False)  # aborted input is no input
    stream.write([Row(0, "k", f"{stream.input}-0-1")], end=False)  # a given-up attempt is no output
    Producer(stream.connection.librdkafka()).produce(stream.output, "other", "k")
    other = Producer(stream.connection.librdkafka())
    other.produce(stream.output, "another writer's", "k", partition=0)
    other.flush(30)
    stream.batch()
    late = stream.rows(stream.feed(4))
    stream.write(late[:2])
    stream.decide(complete=False)  # decided, and half of its transactions are committed
    result = look(stream)
    assert result.findings == () and result.unproven == {}
    counts = {"input": 20, "output": 23, "foreign": 1, "earlier": 0, "under way": 2, "sent again": 0}
    assert result.counts == counts


@pytest.mark.long
def test_lost_records_are_named_with_their_batch_which_is_torn(stream):
    stream.batch()
    rows = stream.rows(stream.feed(6))
    stream.write(rows[1:-1])
    batch = stream.decide()
    stream.batch()
    result = look(stream)
    lost = [f for f in result.findings if f.anomaly.value == "lost"]
    assert {f.anomaly.value for f in result.findings} == {"lost", "torn batch"}
    assert {f.batch for f in result.findings} == {batch}
    assert {p for f in lost for p in f.places} == {as_place(rows[0].source), as_place(rows[-1].source)}
    assert sum(f.records for f in lost) == 2
    assert found(result)["torn batch"].what.startswith("4 of the 6 input records")


@pytest.mark.long
def test_a_batch_that_is_lost_whole_is_lost_and_not_torn(stream):
    stream.batch()
    stream.feed(6, partition=1)
    batch = stream.decide()
    [lost] = only(look(stream), "lost")
    assert (lost.batch, lost.records, len(lost.places)) == (batch, 6, 6)


@pytest.mark.long
def test_a_batch_written_twice_is_a_duplicate_at_the_place_of_its_second_copy(stream):
    rows = stream.batch()
    marks = len(oracle.read(stream.connection, [stream.output]))
    stream.write(rows[3:4])
    [twice] = only(look(stream), "duplicate")
    again = [
        m for m in oracle.read(stream.connection, [stream.output]) if dict(m.headers)["src"] == rows[3].source.encode()
    ]
    last = max(again, key=lambda m: m.offset)
    assert len(again) == 2 and marks == 10 and (twice.batch, twice.records) == ("batch 0", 1)
    assert twice.places == (as_place(rows[3].source), f"{last.topic}-{last.partition}@{last.offset}..{last.offset}")


def test_records_that_came_from_nothing_are_phantoms(stream):
    """From a marker, from aborted input, from input that no batch has read, from a partition that there is not."""
    first = stream.batch()
    stream.feed(2, commit=False, partition=0)
    stream.batch()
    ends = [max(m.offset for m in stream.inputs() if m.partition == p) for p in (0, 1)]
    marker = max(int(r.source.rpartition("-")[2]) for r in first if f"{stream.input}-0-" in r.source) + 1
    sources = [f"{stream.input}-0-{marker}", f"{stream.input}-0-{marker + 1}", f"{stream.input}-1-{ends[1] + 50}",
               f"{stream.input}-7-0"]  # fmt: skip
    stream.write([Row(0, None, s) for s in sources])
    result = look(stream)
    assert {f.anomaly.value for f in result.findings} == {"phantom"}
    said = {f.what for f in result.findings}
    assert any("holds no record" in s for s in said) and any("aborted input records" in s for s in said)
    assert any("no decided batch" in s for s in said)
    places = {p for f in result.findings for p in f.places}
    assert {place_of(stream, s) for s in sources} <= places


def test_records_of_a_key_that_change_places_are_a_key_reorder(stream):
    records = stream.feed(20)
    rows = stream.rows(records)
    mine = [n for n, (p, _, key) in enumerate(records) if (p, key) == (0, "k0")]
    rows[mine[0]], rows[mine[1]] = rows[mine[1]], rows[mine[0]]
    stream.write(rows)
    stream.decide()
    [swapped] = only(look(stream), "key reorder")
    late, early = rows[mine[1]].source, rows[mine[0]].source
    assert swapped.records == 1 and swapped.places == (place_of(stream, late), as_place(late), as_place(early))
    assert look(stream, order="none").findings == ()
    assert found(look(stream, order="partition"))["key reorder"].records >= 1


@pytest.mark.long
@pytest.mark.parametrize("batches_before", [1, 0])
def test_records_behind_an_open_transaction_are_unseen_and_not_lost(stream, batches_before):
    """Unseen called lost, in an input partition of which readers have seen no output yet: somebody would write it
    again.
    """
    for _ in range(batches_before):
        stream.batch()
    foreign = stream.write([Row(0, "x", None), Row(1, "x", None), Row(2, "x", None)], end=None)
    rows = stream.rows(stream.feed(6))
    stream.write(rows)
    batch = stream.decide()
    result = look(stream)
    assert {f.anomaly.value for f in result.findings} == {"unseen"}
    assert {p for f in result.findings for p in f.places} == {as_place(r.source) for r in rows}
    assert {f.batch for f in result.findings} == {batch}
    foreign.abort_transaction(30)
    assert look(stream, settle_s=10).findings == ()


@pytest.mark.long
def test_records_in_a_transaction_that_nobody_ended_are_unseen_and_those_of_an_aborted_one_are_lost(stream):
    rows = stream.rows(stream.feed(6))
    open_ = stream.write(rows[:2], end=None)
    stream.write(rows[2:4])
    stream.write(rows[4:], end=False)
    stream.decide()
    result = look(stream)
    unseen = {p for f in result.findings if f.anomaly.value == "unseen" for p in f.places}
    lost = {p for f in result.findings if f.anomaly.value == "lost" for p in f.places}
    assert {as_place(r.source) for r in rows[:2]} <= unseen
    assert lost == {as_place(r.source) for r in rows[4:]}
    open_.abort_transaction(30)


def test_a_filter_loses_nothing_and_still_shows_duplicates(stream):
    records = stream.feed(10)
    rows = stream.rows(records)[::2]
    stream.write(rows)
    stream.write(rows[:1])
    stream.decide()
    result = look(stream, outputs=PerInput.parse("at-most-1"))
    only(result, "duplicate")
    assert result.unproven == {NOT_EXACTLY: 5}


@pytest.mark.long
def test_two_numbered_outputs_of_each_record_are_told_apart(stream):
    rows = [Row(r.partition, r.key, f"{r.source}#{k}") for r in stream.rows(stream.feed(6)) for k in (0, 1)]
    stream.write([*rows[:-1], rows[0]])
    stream.decide()
    result = look(stream, outputs=PerInput(2))
    by_name = found(result)
    assert set(by_name) == {"lost", "duplicate", "torn batch"}
    assert by_name["lost"].places == (as_place(rows[-1].source.partition("#")[0]),)
    assert by_name["duplicate"].places[0] == as_place(rows[0].source.partition("#")[0])


@pytest.mark.long
def test_input_that_retention_deleted_is_said_and_accuses_nobody(stream):
    """A missing output of input that is gone may be a loss, or a marker's offset: nothing tells."""
    rows = stream.rows(stream.feed(10, partition=0))
    stream.write(rows[2:])
    stream.decide()
    from kafka.structs import TopicPartition

    from exactly_once.kafka.admin import Admin

    with Admin(stream.connection) as admin:
        admin.client.delete_records({TopicPartition(stream.input, 0): 5})
    result = look(stream)
    assert result.findings == ()
    assert result.unproven == {RETENTION: 5}


@pytest.mark.long
def test_output_that_retention_deleted_is_said_and_accuses_nobody(stream):
    from kafka.structs import TopicPartition

    from exactly_once.kafka.admin import Admin

    stream.batch(20)
    stream.batch(20)
    with Admin(stream.connection) as admin:
        admin.client.delete_records({TopicPartition(stream.output, 0): 9})  # all of the first batch
    rows = stream.rows(stream.feed(4))
    stream.write(rows[1:])
    batch = stream.decide()
    result = look(stream)
    assert {(f.anomaly.value, f.batch) for f in result.findings} == {("lost", batch), ("torn batch", batch)}
    assert found(result)["lost"].places == (as_place(rows[0].source),)
    assert sum(result.unproven.values()) == 8


@pytest.fixture
def short_steps(monkeypatch):
    """Steps back of a few records, so that a small output has more of them than one."""
    monkeypatch.setattr(tails, "FIRST_STEP", 8)


@pytest.mark.long
def test_only_the_newest_batches_are_compared_and_only_their_outputs_read(stream, short_steps):
    """A check every ten minutes that read all of the input and the outputs would never end on a stream of a year; one
    that reads too little calls what it has not read lost.
    """
    for _ in range(4):
        stream.batch(40)
    rows = stream.batch(10)
    stream.batch(10)
    result = look(stream, last=30)
    assert result.findings == () and result.unproven == {} and result.window.batches == (4, 5)
    assert result.counts["input"] == 20 and 20 <= result.read < 130, "of 180"
    question, location = Question(Origin.parse("header:src")), str(stream.location)
    report = verify(
        stream.connection, VerifyParameters(stream.sink_id, checkpoint=location, origin=question, last=30, settle_s=0.5)
    )
    assert report.clean and report.window == "24 offsets, batches 4 to 5" and report.by_origin["input"] == 20
    stream.write(rows[:1])
    twice = look(stream, last=30)
    assert found(twice)["duplicate"].records == 1
    late = stream.rows(stream.feed(10))
    stream.write(late[1:])
    stream.decide()
    lost = found(look(stream, last=30))
    assert lost["lost"].places == (as_place(late[0].source),) and lost["torn batch"].batch == "batch 6"


@pytest.mark.long
def test_a_backfill_behind_the_newest_batches_does_not_hide_them_and_one_that_is_too_long_is_said(stream, short_steps):
    """Old records between the end and the window show nothing of where the window begins; and records that were not
    read are not lost.
    """
    before = stream.rows(stream.feed(60, partition=0))
    (stream.location / "sources/0/0").write_text(f'\0v1\n{{"{stream.input}":{{"0":61,"1":0}}}}')
    stream.batch(40)
    stream.batch(10)
    stream.write(before[:20])
    result = look(stream, last=12, backfilled=True)
    assert result.findings == () and result.unproven == {} and result.counts["input"] == 10
    for part in (before[20:40], before[40:]):
        stream.write(part)
    result = look(stream, last=12, backfilled=True)
    assert result.findings == () and result.unproven[NOT_FAR] > 0
    assert look(stream, last=1_000, backfilled=True).unproven == {}


@pytest.mark.long
def test_the_input_is_read_from_its_beginning_without_a_checkpoint(stream):
    rows = stream.rows(stream.feed(4))
    stream.write(rows[1:])
    stream.decide()
    result = look(stream, inputs=[stream.input], checkpoint=False)
    assert found(result)["lost"].places == (as_place(rows[0].source),)
    with pytest.raises(InvalidOption, match=f"nothing says where .*sink {stream.sink_id!r}"):
        look(stream, checkpoint=False)


@pytest.mark.long
def test_without_decisions_the_checkpoint_says_what_must_be_there(stream):
    """Duplicate: the weaker guarantees and other sinks have no commit log, and are judged all the same."""
    rows = stream.batch(4)
    stream.sink_id = brokers.fresh_name("never-used")
    stream.write(rows[:1])
    [twice] = only(look(stream), "duplicate")
    assert twice.records == 1


@pytest.mark.long
def test_a_sink_without_a_commit_log_is_proven_by_origin_alone_when_its_output_is_named(stream):
    """Wedge: each healthy stream of a weaker guarantee was reported as "checkpoint ahead", for want of decisions."""
    stream.batch(4)
    question = Question(Origin.parse("header:src"))
    more = {"checkpoint": str(stream.location), "settle_s": 0.5}
    unused = brokers.fresh_name("never-used")
    report = verify(stream.connection, VerifyParameters(unused, origin=question, topics=[stream.output], **more))
    assert report.clean and report.by_origin["output"] == 4
    assert report.unproven == {NO_LOG: 1}
    assert verify(stream.connection, VerifyParameters(unused, **more)).counts == {"checkpoint ahead": 1}, (
        "its log may be gone"
    )


def test_a_wrong_origin_is_refused_with_a_place_to_look_at(stream):
    """Loss of trust: each record would be called lost, and each a stranger's."""
    stream.batch()
    with pytest.raises(InvalidOption, match=rf"by header:nope \({stream.output}-\d@\d+, for one"):
        look(stream, origin="header:nope")


def test_a_record_that_cannot_be_read_is_named(stream):
    stream.batch()
    stream.write([Row(2, "k", "not an origin")])
    result = look(stream)
    [said] = result.unproven
    assert result.findings == () and f"{stream.output}-2@" in said and "'not an origin'" in said


@pytest.mark.long
def test_other_writers_can_be_refused(stream):
    stream.batch()
    stream.write([Row(2, "k", None)])
    [phantom] = only(look(stream, refuse_foreign=True), "phantom")
    assert phantom.records == 1 and phantom.places[0].startswith(f"{stream.output}-2@")


@pytest.mark.long
def test_input_from_before_the_stream_is_a_backfills_only_where_there_is_one(stream):
    before = stream.rows(stream.feed(2, partition=0))
    (stream.location / "sources/0/0").write_text(f'\0v1\n{{"{stream.input}":{{"0":3,"1":0}}}}')
    stream.batch()
    stream.write(before)
    phantoms = look(stream).findings
    assert {f.anomaly.value for f in phantoms} == {"phantom"} and sum(f.records for f in phantoms) == 2
    assert all("stream's first offset" in f.what for f in phantoms)
    result = look(stream, backfilled=True)
    assert result.findings == () and result.counts["earlier"] == 2


@pytest.mark.long
def test_a_stream_that_goes_on_is_clean_at_every_look(stream):
    """A checker that needs a stream to stop would never be run."""
    stream.batch(50)
    over = threading.Event()

    def go_on():
        while not over.is_set():
            stream.batch(50)

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(go_on)
        try:
            looks = []
            for _ in Deadline(60).tries():
                looks.append(look(stream))
                if len(looks) >= 5 and looks[0].counts["input"] < looks[-1].counts["input"]:
                    break
        finally:
            over.set()
        going.result(30)
    assert [r.findings for r in looks] == [()] * len(looks)
    assert looks[0].counts["input"] < looks[-1].counts["input"]
    assert all(r.counts["input"] + r.counts["under way"] == r.counts["output"] for r in looks)


@pytest.mark.long
def test_progress_rises_to_its_end_in_both_steps_of_a_clean_verification(alone):
    """A bar that jumps back or stops short of its end: whoever waits for an hour takes it for hung, and stops it."""
    stream = alone
    for _ in range(3):
        stream.batch(60)
        stream.feed(5, commit=False)
    stream.decide()
    told = []
    question = Question(Origin.parse("header:src"))
    report = verify(
        stream.connection,
        VerifyParameters(stream.sink_id, checkpoint=str(stream.location), origin=question),
        on_progress=told.append,
    )
    assert report.clean and report.by_origin["output"] == 180
    assert list(dict.fromkeys(p.step for p in told)) == ["output", "origins"]
    for step in ("output", "origins"):
        done, of = [p.done for p in told if p.step == step], {p.of for p in told if p.step == step}
        assert done == sorted(done) and of == {done[-1]} and done[-1] > 0, told
    assert len([p for p in told if p.step == "origins"]) > 2  # each partition of output and input tells


def in_a_terminal(command):
    """What the command prints, with a terminal as its standard error: exit code, output, what the terminal got."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    shown = []
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, text=True, env=TERMINAL)
    os.close(its)

    def take():
        with suppress(OSError):  # what Linux answers when nobody writes any more
            while some := os.read(mine, 65_536):
                shown.append(some)

    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        out, _ = started.communicate(timeout=120)
        taking.result(30)
    os.close(mine)
    return started.returncode, out, b"".join(shown).decode()


@pytest.mark.long
def test_the_command_shows_its_bar_on_a_terminal_and_nowhere_else(alone):
    """An hour without a sign of life; or a log file, or the document of ``--json``, full of a bar."""
    stream = alone
    stream.batch(60)
    servers = stream.connection.bootstrap_servers
    command = [sys.executable, "-m", "exactly_once.tools.cli", "--bootstrap-servers", servers, "verify", stream.sink_id]
    command += ["--checkpoint", str(stream.location), "--origin", "header:src"]
    code, out, shown = in_a_terminal([*command, "--json"])
    assert code == 0 and json.loads(out)["by_origin"]["output"] == 60
    assert "origins" in shown and "100%" in shown and "\u2501" in shown, shown
    quiet = subprocess.run(command, capture_output=True, text=True, timeout=120, env=TERMINAL)
    assert quiet.returncode == 0 and "No anomalies in" in quiet.stdout
    assert "\u2501" not in quiet.stdout + quiet.stderr and "\x1b" not in quiet.stdout + quiet.stderr
    assert quiet.stderr == ""


@pytest.mark.long
def test_a_stream_of_spark_is_clean_while_it_runs_and_its_lost_record_is_named(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says of a stream of Spark's, between its batches and after them, what a person can act on."""
    select = ["concat_ws('-', topic, partition, offset) AS key", "value"]
    job = Job(**{**asdict(bench.job), "source": kafka_input.source(30), "select": select}).until_stopped()
    command = ["--bootstrap-servers", bench.connection.bootstrap_servers, "verify", bench.sink_id, "--json",
               "--checkpoint", str(bench.checkpoint), "--origin", "key"]  # fmt: skip

    def verified(*more: str) -> tuple[int, dict[str, Any]]:
        code = main([*command, *more])
        return code, json.loads(capsys.readouterr().out)

    kafka_input.fill(batches=2, rows=40)
    run = warm.start(job)
    run.await_commit(0)
    looks = []
    for _ in range(3):
        kafka_input.fill(batches=1, rows=40)
        looks.append(verified())
    run.stop()()
    run.end()
    looks.append(verified())
    assert [code for code, _ in looks] == [0] * 4, looks
    assert looks[0][1]["by_origin"]["input"] <= looks[-1][1]["by_origin"]["input"]

    copy = next(m for m in oracle.read(bench.connection, [bench.topic]))
    other = Producer(bench.connection.librdkafka())
    other.produce(bench.topic, copy.value, copy.key, partition=0)
    other.flush(30)
    code, report = verified("--order", "none")
    assert code == 1 and report["anomalies"] == {"duplicate": 1}
    assert as_place(copy.key) in report["findings"][0]["places"]

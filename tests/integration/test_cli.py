"""The command line against real brokers: what is open is listed, explained, ended, recovered; or refused."""

import os
import shlex
import socket
import subprocess
import sys

import psutil
import pytest

from exactly_once.kafka.connection import Connection
from testkit import broker as brokers
from testkit import oracle
from testkit.dead_sink import DEAD, DeadSink
from testkit.hanging import UNVERIFIED, leave_hanging
from testkit.one_diagnosis import OFFSETS, write


@pytest.fixture
def living(connection, topic):
    """Its owner is this process."""
    return DeadSink(connection, topic, socket.gethostname(), os.getpid(), psutil.Process().create_time())


@pytest.mark.long
def test_a_list_shows_what_is_open_and_that_nobody_works_on_it(run, sink):
    decided, undecided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    code, out, _ = run("transactions", "list", "--sink", sink.sink_id)
    words = (decided, undecided, "undecided", "gone", "HEALTH-IN-DOUBT", "HEALTH-STALE-TRANSACTIONS")
    assert code == 1 and all(word in out for word in words)
    code, found, _ = run("transactions", "list", "--sink", sink.sink_id, "--json")
    assert code == 1 and len(found["trouble"]) == len(found["diagnoses"]) == 2
    assert [t["verdict"] for t in found["sinks"][0]["open"]] == ["decided", "undecided"]
    assert found["idle"] is None and found["hanging"] is None
    code, found, _ = run("transactions", "list", "--all", "--json")  # every sink of the cluster
    assert sink.sink_id in {s["sink_id"] for s in found["sinks"]}
    assert f"eo:{sink.sink_id}:log" in {d["transactional_id"] for d in found["idle"]}


def test_a_sink_that_works_is_no_trouble(run, living):
    """Mishap: an alert for every batch that is being written."""
    living.open_part(0)
    code, found, _ = run("transactions", "list", "--sink", living.sink_id, "--json")
    assert code == 0 and found["trouble"] == [] and found["sinks"][0]["owner"]["alive"] is True


@pytest.mark.long
def test_the_commands_of_an_explanation_work_as_they_are_printed(run, sink):
    """Mishap: advice that is refused when it is followed."""
    decided, undecided = sink.open_part(0, records=2), sink.open_part(1)
    sink.decide(decided, records=2)
    code, out, _ = run("transactions", "explain", decided)
    assert code == 0 and "batch 0" in out and "2 records" in out and f"{sink.topic}-0 (2 offsets)" in out
    for transactional_id, verb in ((decided, "commit"), (undecided, "abort")):
        _, found, _ = run("transactions", "explain", transactional_id, "--json")
        program, *arguments = shlex.split(found["options"][0]["command"])
        assert program == "exactly-once" and arguments[1] == verb
        assert run(*arguments)[0] == 0
    assert sink.visible() == ["part 0", "part 0"]
    oracle.assert_settled(sink.connection, sink.sink_id, [sink.topic])
    code, found, _ = run("transactions", "explain", decided, "--json")
    assert code == 0 and found["transaction"] is None and found["options"] == []


def test_what_breaks_the_guarantee_is_refused_until_its_consequence_is_typed_out(run, sink):
    """Duplicate and loss: by a hand that was too quick."""
    decided, undecided = sink.open_part(0), sink.open_part(1, records=3)
    sink.decide(decided)
    for verb, transactional_id, phrase, done in (
        ("commit", undecided, f"duplicate 3 records of {sink.topic}", "committed"),
        ("abort", decided, "roll back batch 0, 1 record; the next start writes them again", "aborted"),
    ):
        for wrong in ([], ["--force", "yes"]):
            code, out, err = run("transactions", verb, transactional_id, *wrong)
            assert code == 1 and out == "" and err.startswith("EO-REFUSED: ") and f"--force '{phrase}'" in err
        assert sink.visible() == ([] if verb == "commit" else ["part 1"] * 3)
        code, found, _ = run("transactions", verb, transactional_id, "--force", phrase, "--json")
        assert code == 0 and found[done] == transactional_id and found["forced"] == phrase
    assert sink.visible() == ["part 1"] * 3


def test_a_recovery_brings_the_sink_to_rest_and_a_dry_run_changes_nothing(run, sink):
    decided, undecided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    code, found, _ = run("recover", sink.sink_id, "--dry-run", "--json")
    assert code == 0 and (found["would_complete"], found["would_abort"]) == (["batch 0"], [undecided])
    assert run("recover", sink.sink_id, "--dry-run")[0] == 0
    assert sink.read().owner.token == 1 and sink.visible() == []
    code, out, _ = run("recover", sink.sink_id)
    assert code == 0 and "batch 0" in out and undecided in out and "Nothing of the sink" in out
    assert sink.visible() == ["part 0"]
    oracle.assert_settled(sink.connection, sink.sink_id, [sink.topic])
    code, found, _ = run("recover", sink.sink_id, "--json")  # twice is harmless
    assert code == 0 and found["clean"] and found["completed_batches"] == []
    assert run("transactions", "list", "--sink", sink.sink_id)[0] == 0


def test_a_driver_that_lives_is_not_fenced_by_accident(run, living):
    """Mishap: a person who looked at the wrong sink stops a healthy stream."""
    undecided = living.open_part(0)
    phrase = f"fence the driver {os.getpid()} on {socket.gethostname()}"
    for command in (["recover", living.sink_id], ["transactions", "abort", undecided]):
        code, _, err = run(*command)
        assert code == 1 and "is alive" in err and phrase in err
    code, found, _ = run("recover", living.sink_id, "--dry-run", "--json")
    assert code == 1 and found["force"] == phrase
    assert living.read().owner.token == 1
    assert run("recover", living.sink_id, "--force", phrase)[0] == 0
    assert living.read().owner.purpose == "recovery"


def test_a_checkpoint_is_compared_with_the_commit_log(run, sink, tmp_path):
    sink.decide(sink.open_part(0))
    files = {"metadata": '{"id":"q"}', "offsets/0": OFFSETS}
    write(tmp_path, files)
    code, found, _ = run("checkpoint", "inspect", str(tmp_path), "--sink", sink.sink_id, "--json")
    assert code == 0 and found["progress"]["state"] == "in doubt" and found["progress"]["last_decided"] == 0
    (tmp_path / "metadata").write_text('{"id":"other"}')
    code, out, _ = run("checkpoint", "inspect", str(tmp_path), "--sink", sink.sink_id)
    assert code == 1 and "foreign" in out


def test_a_checkpoint_whose_commit_log_was_deleted_is_in_trouble(run, bootstrap_servers, tmp_path):
    """Duplicates: "settled", of a stream whose decisions nobody knows any more."""
    write(tmp_path, {"metadata": '{"id":"q"}', "offsets/0": OFFSETS, "commits/0": "v1\n{}"})
    command = "checkpoint", "inspect", str(tmp_path), "--sink", brokers.fresh_name("gone")
    code, found, _ = run(*command, "--json")
    assert code == 1 and [d["code"] for d in found["diagnoses"]] == ["HEALTH-CHECKPOINT-AHEAD"]
    write(tmp_path, {"offsets/1": OFFSETS})
    code, out, _ = run(*command)  # as after a typing error in the sink
    assert code == 1 and "batch 1" in out and "failOnDataLoss" not in out


def test_a_transaction_of_another_application_is_explained_with_what_it_holds_back(run, sink):
    """Outage: "Blocks: no readers", of the very transaction that they wait for."""
    producer = brokers.open_transaction(sink.connection, "other-app")
    producer.produce(sink.topic, b"x", partition=0)
    producer.flush(10)
    code, found, _ = run("transactions", "explain", "other-app", "--json")
    assert code == 0 and found["transaction"]["verdict"] == "foreign" and found["options"] == []
    assert [(b["topic"], b["partition"]) for b in found["blocks"]] == [(sink.topic, 0)]
    assert "claimed" not in found["owner"]
    producer.abort_transaction(10)
    assert run("transactions", "explain", "other-app", "--json")[1]["blocks"] == []


@pytest.mark.long
def test_a_hanging_transaction_is_listed_and_a_foreign_one_is_ended_only_by_who_says_so(run, own_broker, monkeypatch):
    """Mishap: readers that wait forever. Loss: somebody else's records."""
    connection = Connection(own_broker(properties=UNVERIFIED).bootstrap_servers)
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=4)
    sink = DeadSink(connection, topic, socket.gethostname(), DEAD)
    sink.decide(sink.open_part(0))
    leave_hanging(connection, topic, 1, f"eo:{sink.sink_id}:1:7:0.0")
    foreign = leave_hanging(connection, topic, 2, "flights-feed")
    leave_hanging(connection, topic, 3)

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    code, found, _ = run("transactions", "list", "--hanging", "--json")
    assert code == 1
    assert {h["name"]: h["owner"] for h in found["hanging"]} == {
        f"{topic}-1@0": "ours",
        f"{topic}-2@0": "foreign",
        f"{topic}-3@0": "unknown",
    }
    assert "flights-feed" in run("transactions", "list", "--hanging")[1]
    code, _, err = run("transactions", "abort", "--hanging", f"{topic}-2@0")
    phrase = f"lose up to 1 record of foreign producer {foreign} on {topic}-2"
    assert code == 1 and err.startswith("EO-REFUSED: ") and phrase in err
    for wrong in (f"{topic}-2@9", "foo", f"{topic}@9"):
        code, _, err = run("transactions", "abort", "--hanging", wrong)
        assert code == 1 and "names are topic-partition@start_offset" in err
    assert run("transactions", "abort", "--hanging", f"{topic}-2@0", "--force", phrase)[0] == 0
    assert run("transactions", "abort", "--hanging", f"{topic}-1@0")[0] == 0  # ours, and not decided
    code, found, _ = run("transactions", "list", "--hanging", "--json")
    assert [h["name"] for h in found["hanging"]] == [f"{topic}-3@0"]


def test_the_command_is_a_process_with_tables_for_a_pipe(bootstrap_servers, sink):
    name = sink.open_part(0)
    command = [sys.executable, "-m", "exactly_once.tools.cli", "transactions", "list", "--sink", sink.sink_id]
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert f"  {name}" in lines and f"    writes to {sink.topic}-0" in lines, lines
    table = lines[: next(n for n, line in enumerate(lines) if line.startswith("! HEALTH-"))]
    assert all(len(line) <= 80 for line in table if not line.startswith("Sink") and name not in line), lines


@pytest.mark.parametrize(
    "command",
    [
        ("recover", "no-such-sink"),
        ("recover", "no-such-sink", "--dry-run"),
        ("log", "no-such-sink"),
        ("transactions", "list", "--sink", "no-such-sink"),
    ],
    ids=" ".join,
)
def test_a_sink_that_nobody_ever_claimed_is_an_error(run, command):
    """A typo in a runbook that passes: the real sink stays as it is."""
    code, _, said = run(*command)
    assert code == 2 and "EO-OPTION: " in said and "sink 'no-such-sink' has no claim" in said


def test_an_id_that_nobody_knows_is_an_error(run, sink):
    """A typo that was answered with "its own client or its timeout ends it"."""
    for name in ("nope", f"eo:{sink.sink_id}:1:99:0.0"):
        code, _, said = run("transactions", "explain", name)
        assert code == 2 and f"knows the transactional id {name!r}" in said


@pytest.mark.long
def test_readers_behind_another_sink_are_told_which(run, sink, connection):
    """The wrong team is woken: "another application" was a sink of the same team."""
    sink.decide(sink.open_part(0), placed=True)
    run("recover", sink.sink_id)
    other = DeadSink(connection, sink.topic, socket.gethostname(), DEAD)
    other.open_part(0)
    _, out, _ = run("transactions", "list", "--sink", sink.sink_id)
    assert f"open transaction of sink {other.sink_id}" in " ".join(out.split())
    assert f"Sink {sink.sink_id}: none open." in out

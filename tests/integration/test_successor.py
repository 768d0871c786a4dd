"""A sink is retired for its successor on a real broker, without Spark: once, whoever is killed or starts meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import exactly_once
from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.coordinator.claim import claim_for_stream
from exactly_once.coordinator.recover import recover
from exactly_once.coordinator.session import Session
from exactly_once.coordinator.start import check
from exactly_once.deadline import Deadline
from exactly_once.errors import Fenced, SinkRetired
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Completed, Decision
from exactly_once.tools.operation.rules import Refused
from testkit import broker as brokers
from testkit.commands import Run, held_at
from testkit.dead_sink import DEAD, DeadSink
from testkit.successor import retire


class Old(DeadSink):
    """A sink of a dead driver that has decided and completed batch 0, of an input topic with two partitions."""

    def __init__(self, connection: Connection, topic: str, checkpoint: Path):
        super().__init__(connection, topic, socket.gethostname(), DEAD)
        self.input = brokers.create_topic(connection.bootstrap_servers, partitions=2)
        self.checkpoint, self.new_id = checkpoint, f"{self.sink_id}-v2"
        self.decide_batch(0)
        self.log.append(Completed("q", 0, 1, 0), Deadline(30))
        self.write("metadata", json.dumps({"id": "q"}))
        self.write("offsets/0", self.text(0))
        self.write("commits/0", "v1\n{}")

    def text(self, batch: int) -> str:
        ends = json.dumps({self.input: {"0": 10 * batch + 7, "1": 10 * batch + 5}})
        return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{ends}'

    def decide_batch(self, batch: int) -> None:
        text = self.text(batch)
        self.log.append(Decision("q", batch, 1, (), digest_of(text), 5, 0, offsets=text), Deadline(30))

    def write(self, name: str, text: str) -> None:
        (self.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / name).write_text(text)

    def begins(self, batch: int = 0) -> dict[str, dict[str, int]]:
        """Where a successor after this batch begins."""
        return {self.input: {"0": 10 * batch + 7, "1": 10 * batch + 5}}

    def arguments(self, *more: str) -> list[str]:
        return ["successor", self.sink_id, self.new_id, "--checkpoint", str(self.checkpoint), *more]

    def retire(self) -> Mapping[str, Any]:
        return retire(self.connection, self.sink_id, self.new_id, checkpoint=str(self.checkpoint))

    def options(self, checkpoint: Path) -> dict[str, str]:
        """The options of a stream of the old sink."""
        return {
            **self.connection.spark(),
            "sink.id": self.sink_id,
            "topic": self.topic,
            "checkpointLocation": str(checkpoint),
        }


@pytest.fixture
def old(connection: Connection, topic: str, tmp_path: Path) -> Old:
    return Old(connection, topic, tmp_path / "checkpoint")


def test_a_dry_run_says_where_the_successor_would_begin_and_changes_nothing(run: Run, old: Old) -> None:
    """Outage: somebody only wanted to look, and the stream cannot start any more."""
    code, found, _ = run(*old.arguments("--dry-run", "--json"))
    assert code == 0 and not found["retired"] and found["refused"] is None
    assert json.loads(found["starting_offsets"]) == old.begins()
    state = old.read()
    assert state.retired is None and state.owner is not None and state.owner.token == 1


@pytest.mark.long
def test_the_command_retires_once_and_says_the_same_a_second_time(run: Run, old: Old, tmp_path: Path) -> None:
    """Mishap: who lost the output of the first call would have to guess where the new query begins."""
    file = tmp_path / "begin.json"
    code, out, _ = run(*old.arguments("--write", str(file)))
    assert code == 0 and "retired for good" in out and json.loads(out.splitlines()[-1]) == old.begins()
    assert json.loads(file.read_text()) == old.begins()
    first = old.read()
    code, found, _ = run(*old.arguments("--json"))
    assert code == 0 and found["retired"] and json.loads(found["starting_offsets"]) == old.begins()
    assert old.read() == first and first.retired is not None and first.retired.token == 2
    code, out, err = run("successor", old.sink_id, f"{old.new_id}-other")
    assert code == 1 and err.startswith("EO-REFUSED: ") and old.new_id in err
    code, out, _ = run("transactions", "list", "--sink", old.sink_id)
    assert code == 0 and f"retired, {old.new_id} continues after batch 0" in out
    code, out, _ = run("log", old.sink_id)
    assert code == 0 and f"retirement: {old.new_id} continues after batch 0 of q" in out


def test_every_start_of_a_retired_sink_is_refused_by_the_name_of_its_successor(old: Old, tmp_path: Path) -> None:
    """Duplicate: the old job is started again by its scheduler, on its checkpoint or on another one."""
    old.retire()
    for checkpoint in (old.checkpoint, tmp_path / "another", tmp_path):
        with pytest.raises(SinkRetired, match=f"sink '{old.new_id}' continues after its batch 0"):
            check(old.options(checkpoint))
    options = SinkOptions.parse(old.options(old.checkpoint))
    with Session.of(options) as session, pytest.raises(SinkRetired):
        claim_for_stream(session, options, Batch("q", 1, "digest"))
    at_least_once = SinkOptions.parse({**old.options(old.checkpoint), "sink.guarantee": "at_least_once"})
    with Session.of(at_least_once) as session, pytest.raises(SinkRetired):
        claim_for_stream(session, at_least_once, Batch("q", 1, "digest"), adopts_all=True)
    assert old.read().retired is not None
    # what is left open may still be ended
    assert recover(old.connection, old.sink_id).clean and old.read().retired is not None


@pytest.mark.long
def test_a_driver_that_read_the_log_before_the_retirement_cannot_claim_after_it(
    old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicate: it started at the same moment, and saw a sink that is not retired."""
    options = SinkOptions.parse(old.options(old.checkpoint))
    with Session.of(options) as session:
        before = session.log.read(Deadline(30))
        old.retire()
        monkeypatch.setattr(session.log, "read", lambda deadline: before)
        with pytest.raises(SinkRetired):
            claim_for_stream(session, options, Batch("q", 1, "digest"))
    state = old.read()
    assert state.owner is not None and (state.owner.token, state.owner.purpose) == (2, "recovery")


def test_a_driver_that_was_paused_before_the_retirement_cannot_decide_after_it(old: Old) -> None:
    """Duplicate: a virtual machine wakes up, and decides the batch that the successor has written."""
    old.retire()
    with pytest.raises(Fenced):
        old.decide_batch(1)
    assert [d.batch_id for d in old.read().decisions] == [0]


@pytest.mark.long
def test_an_open_batch_and_a_living_driver_are_refused_with_the_way_out(run: Run, old: Old) -> None:
    """Loss and duplicate: a successor of an undecided batch, or of one whose commits are not proven."""
    undecided = old.open_part(0)
    code, _, err = run(*old.arguments())
    assert code == 1 and undecided in err and f"exactly-once recover {old.sink_id}" in err
    code, out, _ = run(*old.arguments("--dry-run"))
    assert code == 1 and "cannot be retired now" in out and json.loads(out.splitlines()[-1]) == old.begins()
    assert run("recover", old.sink_id)[0] == 0
    found = old.retire()
    assert found["batch_id"] == 0 and old.visible() == []


@pytest.mark.long
def test_a_decided_batch_is_completed_before_its_sink_is_retired(old: Old) -> None:
    """Loss: the rows of a decided batch are in no output, and the successor begins after them."""
    old.decide_batch(1)
    with pytest.raises(Refused, match=rf"batch 1 of sink {old.sink_id!r} is decided .*not proven"):
        old.retire()
    recover(old.connection, old.sink_id)
    assert json.loads(old.retire()["starting_offsets"]) == old.begins(1)


@pytest.mark.long
def test_state_and_a_checkpoint_that_is_gone_need_the_name_of_the_query(run: Run, old: Old) -> None:
    """Loss: open windows that are in no output."""
    old.write("state/0/0/1.delta", "x")
    code, _, err = run(*old.arguments())
    assert code == 1 and "keeps state" in err and "(at a terminal: --loses-state) to q" in err
    code, _, err = run("successor", old.sink_id, old.new_id)  # the claim names /c
    assert code == 1 and "nobody can tell whether" in err
    assert old.read().retired is None
    assert run(*old.arguments("--loses-state", "q"))[0] == 0 and old.read().retired is not None


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "retired"), [pytest.param("retiring", False, marks=pytest.mark.long), ("retired", True)]
)
def test_a_command_that_is_killed_is_called_again(
    point: str, retired: bool, run: Run, old: Old, tmp_path: Path
) -> None:
    """Loss or duplicate: kill -9 between the claim, the retirement and the output."""
    with held_at(point, tmp_path, old.connection.bootstrap_servers, old.arguments("--json")) as killed:
        killed.kill()
        assert killed.communicate()[0] == ""
    assert (old.read().retired is not None) is retired
    code, found, _ = run(*old.arguments("--json"))
    assert code == 0 and json.loads(found["starting_offsets"]) == old.begins()
    state = old.read()
    assert state.retired is not None and state.retired.token == (2 if retired else 3)


@pytest.mark.long
def test_a_driver_that_claims_while_the_sink_is_being_retired_keeps_it(old: Old, tmp_path: Path) -> None:
    """Outage: a stream that somebody has started again is fenced for good, without a word."""
    with held_at("retiring", tmp_path, old.connection.bootstrap_servers, old.arguments()) as command:
        options = SinkOptions.parse(old.options(old.checkpoint))
        with Session.of(options) as session:
            token = claim_for_stream(session, options, Batch("q", 1, "digest")).token
        (tmp_path / "retiring.reached").unlink()
        _, said = command.communicate(timeout=60)
    assert command.returncode == 1 and "EO-REFUSED" in said and f"claim {token}" in said
    assert old.read().retired is None


def test_the_new_query_gets_its_offsets_from_the_old_log_and_later_from_its_own_checkpoint(
    old: Old, tmp_path: Path
) -> None:
    """Loss: a program that begins before the old sink is retired, or that asks again when the old log is gone."""
    options = {**old.options(tmp_path / "new"), "sink.id": old.new_id}
    with pytest.raises(Refused, match=f"run exactly-once successor {old.sink_id} {old.new_id}"):
        exactly_once.starting_offsets(options, old.sink_id)
    assert json.loads(exactly_once.starting_offsets(options, old.sink_id, beside=True)) == old.begins()
    old.retire()
    brokers.grow_topic(old.connection.bootstrap_servers, old.input, 3)
    grown = {old.input: {**old.begins()[old.input], "2": -2}}
    assert json.loads(exactly_once.starting_offsets(options, old.sink_id)) == grown
    other = brokers.create_topic(old.connection.bootstrap_servers, partitions=1)
    both = json.loads(exactly_once.starting_offsets(options, old.sink_id, old.input, other))
    assert both == {**grown, other: {"0": -2}}
    with pytest.raises(Refused, match="retired already"):
        exactly_once.starting_offsets({**options, "sink.id": "somebody-else"}, old.sink_id)
    begun = tmp_path / "new" / "sources" / "0" / "0"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"\0v1\n" + json.dumps({old.input: {"0": 1}}).encode())
    assert json.loads(exactly_once.starting_offsets(options, "gone")) == {old.input: {"0": 1}}


def test_a_query_that_has_read_along_takes_over_only_after_the_old_sink_is_retired(old: Old, tmp_path: Path) -> None:
    """Duplicate: started with the old topic while the old stream may still write to it."""
    options = {**old.options(tmp_path / "new"), "sink.id": old.new_id}
    begun = tmp_path / "new" / "sources" / "0" / "0"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"\0v1\n" + json.dumps(old.begins()).encode())
    assert json.loads(exactly_once.starting_offsets(options, old.sink_id, beside=True)) == old.begins()
    with pytest.raises(Refused, match=f"sink '{old.sink_id}' is not retired"):
        exactly_once.starting_offsets(options, old.sink_id)
    old.retire()
    assert json.loads(exactly_once.starting_offsets(options, old.sink_id)) == old.begins()
    with pytest.raises(Refused, match="retired already"):
        exactly_once.starting_offsets({**options, "sink.id": "somebody-else"}, old.sink_id)


@pytest.mark.long
def test_a_retirement_can_be_undone_by_its_typed_consequence_alone(run: Run, old: Old) -> None:
    """Duplicate: undone by a slip, the old stream writes what its successor has written."""
    old.retire()
    code, found, _ = run("log", old.sink_id, "--json")
    [offset] = [r["offset"] for r in found["records"] if r["record"].startswith("retirement")]
    code, _, err = run("log", old.sink_id, "--undo", str(offset))
    assert code == 1 and "forget retirement" in err
    phrase = err.partition("--force '")[2].partition("'")[0]
    assert run("log", old.sink_id, "--undo", str(offset), "--force", phrase)[0] == 0
    assert CommitLog(old.connection, old.sink_id).read(Deadline(30)).retired is None

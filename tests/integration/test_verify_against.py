"""A new version of a stream beside the old one, on a real broker: what the two make of the same input, by content."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from exactly_once.error_headers import CODE, PREFIX, RESENT
from exactly_once.kafka.admin import Admin
from exactly_once.tools.cli import main
from exactly_once.tools.verify.by_origin import tails
from exactly_once.tools.verify.by_origin.against import FEWER
from testkit import oracle
from testkit.broker import create_topic
from testkit.stream import Job
from testkit.traced import Row, Traced, place
from tests.faults.test_successor import ORIGIN, new_job, old_job

#: Rows that the changed rule keeps: all but five.
FEW = "value NOT RLIKE '-0-[0-4]$'"


class Two:
    """The old stream, the new one over the same input, and the command that compares them."""

    def __init__(self, connection, folder, capsys):
        self.connection, self._capsys = connection, capsys
        self.old = Traced(connection, folder / "old")
        self.new = Traced(connection, folder / "new", of=self.old.input)

    def feed(self, count: int) -> list[Row]:
        """New input; returns the row that a stream makes of each."""
        return [row._replace(value=f"made of {row.source}") for row in self.old.rows(self.old.feed(count))]

    def batch(self, count: int = 10) -> list[Row]:
        """A batch in both, the same."""
        rows = self.feed(count)
        for stream in (self.old, self.new):
            stream.write(rows)
            stream.decide()
        return rows

    def begin_new_at(self, offsets: dict[str, int]) -> None:
        (self.new.location / "sources/0/0").write_text(f"\0v1\n{json.dumps({self.new.input: offsets})}")

    def verified(self, *more: str) -> tuple[int, dict[str, Any]]:
        command = ["--bootstrap-servers", self.connection.bootstrap_servers, "verify", self.new.sink_id, "--json"]
        command += ["--checkpoint", str(self.new.location), "--origin", "header:src", "--against", self.old.sink_id]
        code = main([*command, "--order", "none", "--settle", "0.5", *more])
        said = self._capsys.readouterr()
        return code, json.loads(said.out or said.err)


@pytest.fixture
def two(connection, tmp_path, capsys):
    return Two(connection, tmp_path, capsys)


def short(value: str) -> str:
    return f"'{value[:40]}'{'...' if len(value) > 40 else ''}"


def findings(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for f in report["findings"]:
        found.setdefault(f["anomaly"], []).append(f)
    return found


@pytest.mark.long
def test_the_same_records_in_other_places_and_another_order_are_the_same(two):
    """A comparison that cries on another number of partitions, or on batches that end elsewhere, is no proof."""
    two.batch()
    rows = two.feed(12)
    two.old.write(rows)
    two.old.decide()
    two.new.write([row._replace(partition=0) for row in reversed(rows[:7])], end=True)
    two.new.write([row._replace(partition=1) for row in rows[7:]])
    two.new.write(rows[:5], end=False)
    two.new.decide()
    code, report = two.verified()
    assert code == 0 and report["findings"] == [] and report["unproven"] == {}, report
    assert report["against"] == {
        "sink_id": two.old.sink_id, "input": 22, "same": 22, "differs": 0, "only old": 0, "only new": 0,
    }  # fmt: skip


@pytest.mark.long
def test_what_only_one_of_the_two_has_read_so_far_counts_as_neither(two):
    """Input from before the new stream's first record, and what one has decided ahead of the other, in either way."""
    for _ in range(2):
        two.old.write(two.feed(6))
        two.old.decide()
    begin = {str(p): 1 + max(m.offset for m in two.old.inputs() if m.partition == p) for p in (0, 1)}
    two.begin_new_at({p: o + 1 for p, o in begin.items()})  # behind the marker
    assert two.verified("--outputs-per-input", "any")[1]["against"] == {"sink_id": two.old.sink_id}
    two.batch(8)
    ahead = two.feed(4)
    two.old.write(ahead)
    two.old.decide()
    code, report = two.verified()
    assert code == 0 and report["against"]["input"] == report["against"]["same"] == 8
    two.new.write(ahead)
    two.new.decide()
    last = two.feed(4)
    two.new.write(last)
    two.new.decide()
    code, report = two.verified()
    assert code == 0 and report["against"]["same"] == 12


def test_each_way_to_differ_is_named_with_its_input_record_and_what_is_different(two):
    """A changed rule, a loss and an addition look the same in a count of records."""
    two.batch()
    rows = two.feed(12)
    two.old.write(rows[1:])
    two.old.decide()
    changed = {2: rows[2]._replace(value="x" * 50 + "new"), 3: rows[3]._replace(key="other"), 4: rows[4]}
    made = [changed.get(n, row) for n, row in enumerate(rows) if n != 5]
    two.new.write([*made, rows[6]])
    two.new.decide()
    code, report = two.verified()
    found = findings(report)
    assert code == 1 and set(found) == {"differs", "only old", "only new", "lost", "torn batch", "duplicate"}
    counts = {name: report["against"][name] for name in ("input", "same", "differs", "only old", "only new")}
    assert counts == {"input": 22, "same": 17, "differs": 3, "only old": 1, "only new": 1}
    places = {name: {p for f in found[name] for p in f["places"]} for name in found}
    assert places["differs"] == {place(rows[n].source) for n in (2, 3, 6)}
    assert places["only old"] == {place(rows[5].source)} and places["only new"] == {place(rows[0].source)}
    shown = {e for name in ("differs", "only old", "only new") for f in found[name] for e in f["examples"]}
    assert shown == {
        f"{place(rows[2].source)}: value: old {short(rows[2].value)}, new {short('x' * 50)}",
        f"{place(rows[3].source)}: key: old '{rows[3].key}', new 'other'",
        f"{place(rows[6].source)}: old 1 record, new 2",
        f"{place(rows[5].source)}: value {short(rows[5].value)}",
        f"{place(rows[0].source)}: value {short(rows[0].value)}",
    }


@pytest.mark.long
def test_an_output_that_retention_removed_accuses_nobody(two):
    """Loss that is none: the old topic keeps a week, and the new one began yesterday."""
    two.batch(20)
    two.batch(20)
    with Admin(two.connection) as admin:
        admin.client.delete_records({TopicPartition(two.old.output, 0): 9})  # all of the first batch
    rows = two.feed(4)
    two.new.write(rows)
    two.new.decide()
    two.old.write(rows[1:])
    two.old.decide()
    code, report = two.verified()
    assert code == 1 and report["against"]["only new"] == 1 and report["unproven"] == {FEWER: 8}
    assert findings(report)["only new"][0]["places"] == [place(rows[0].source)]


@pytest.mark.long
def test_an_output_behind_the_open_transaction_of_somebody_else_accuses_nobody(two):
    """Loss that is none: readers of the old topic wait, and those of the new one do not."""
    two.batch()
    foreign = two.old.write([Row(0, "x", None), Row(1, "x", None), Row(2, "x", None)], end=None)
    two.batch(6)
    code, report = two.verified()
    assert code == 0 and report["against"]["same"] == 10 and report["unproven"] == {FEWER: 6}
    foreign.abort_transaction(30)
    assert two.verified("--settle", "10")[1]["against"]["same"] == 16


@pytest.mark.long
def test_a_dead_letter_that_was_sent_again_is_what_it_was_repaired_to(two):
    """Wrong alarm: a second output of the old sink, which nobody can take back. Loss: its repair hides that the new
    one has the row among its dead letters still.
    """
    rows = two.feed(8)
    dead = {of: create_topic(two.connection.bootstrap_servers) for of in (two.old, two.new)}
    two.old.write(rows[4:])
    two.new.write([rows[0], *rows[4:]])
    for of, letters in ((two.old, rows[:4]), (two.new, rows[1:4])):
        said = ((CODE, b"EO-RECORD"), (f"{PREFIX}sink", of.sink_id.encode()))
        of.write([row._replace(partition=0, headers=said) for row in letters], topic=dead[of])
        of.topics += (dead[of],)
        of.decide()
    offsets = {of: [m.offset for m in oracle.read(two.connection, [dead[of]])] for of in dead}

    def repaired(of, letter, row, **changed):
        return row._replace(headers=((RESENT, f"{dead[of]}-0-{offsets[of][letter]}".encode()),), **changed)

    code, report = two.verified()
    assert code == 1 and (report["against"]["same"], report["against"]["differs"]) == (7, 1), report
    two.old.write([repaired(two.old, n, rows[n]) for n in (0, 1, 3)])
    two.new.write([repaired(two.new, 2, rows[3], value="by another rule")])
    code, report = two.verified()
    assert code == 1 and (report["against"]["same"], report["against"]["differs"]) == (6, 2), report
    shown = [example for f in findings(report)["differs"] for example in f["examples"]]
    assert sorted(e.partition(": ")[0] for e in shown) == sorted(place(rows[n].source) for n in (1, 3))
    assert any(f"old {short(rows[3].value)}, new 'by another rule'" in e for e in shown), shown
    assert any("headers: " in e for e in shown), shown


@pytest.mark.long
def test_only_the_newest_batches_of_the_common_input_are_compared_and_read(two, monkeypatch):
    """A check every ten minutes that read both outputs whole would never end; and a stream that is behind must be
    compared where it is.
    """
    monkeypatch.setattr(tails, "FIRST_STEP", 8)
    for _ in range(4):
        two.batch(40)
    rows = two.batch(10)
    for _ in range(2):  # which the new one has not read yet
        two.old.write(two.feed(40))
        two.old.decide()
    code, report = two.verified("--last", "20")
    assert code == 0 and report["against"]["same"] == 10, report
    whole = two.verified()[1]
    assert whole["against"]["same"] == 170 and report["read"] < whole["read"] - 200
    two.new.write([rows[0]])
    assert two.verified("--last", "20", "--outputs-per-input", "any")[1]["against"]["differs"] == 1


@pytest.mark.long
def test_what_cannot_be_compared_is_refused_with_the_way_out(two):
    """Loss of trust: each record would be called new, or the same since it was compared with itself."""
    two.batch()
    code, said = two.verified("--topic", two.old.output, "--outputs-per-input", "any")
    assert code == 2 and "both write to" in said["error"]["what"] and "--topic" in said["error"]["way_out"]
    code, said = two.verified("--against", "never-used")
    assert code == 2 and "claimed a sink 'never-used'" in said["error"]["what"]
    nameless = Traced(two.connection, two.old.location.parent / "nameless", of=two.old.input)
    nameless.write([Row(0, "k", None)])
    nameless.decide()
    code, said = two.verified("--against", nameless.sink_id)
    assert code == 2 and f"none of the 1 output records of sink '{nameless.sink_id}'" in said["error"]["what"]


@pytest.mark.long
def test_a_new_version_of_a_stream_of_spark_is_compared_by_what_it_makes_of_the_input(
    connection, bench, kafka_input, warm, tmp_path, capsys
):
    """Two real streams: equal; then a rule that is changed for some rows, and rows that only the old one has."""
    shadow = create_topic(connection.bootstrap_servers, f"{bench.topic}-shadow", partitions=2)
    blue = replace(old_job(bench, kafka_input), select=["key", "value", ORIGIN])
    kafka_input.fill(1, 100)
    warm.complete(blue)
    green = replace(new_job(bench, kafka_input, tmp_path / "green", beside=shadow), select=["key", "value", ORIGIN])
    command = ["--bootstrap-servers", connection.bootstrap_servers, "verify", f"{bench.sink_id}-v2"]
    command += ["--checkpoint", str(tmp_path / "green"), "--origin", "header:src", "--against", bench.sink_id]
    command += ["--order", "none", "--outputs-per-input", "at-most-1", "--settle", "5"]

    def verified(job: Job) -> tuple[int, dict[str, Any]]:
        """Both read the next input, the new one by this job."""
        kafka_input.add_uneven(30, 10, 20, 20)
        warm.complete(blue)
        warm.complete(job)
        code = main([*command, "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, report = verified(green)
    assert code == 0 and report["against"]["same"] == 80, report
    changed = replace(green, select=["key", "if(value LIKE '%-1-%', 'new', value) AS value", ORIGIN])
    code, report = verified(replace(changed, transform="testkit.transforms:where", arguments={"condition": FEW}))
    assert code == 1 and (report["against"]["differs"], report["against"]["only old"]) == (10, 5), report
    assert set(report["anomalies"]) == {"differs", "only old"}
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "value: old 'uneven-" in said and ", new 'new'" in said and "differs" in said

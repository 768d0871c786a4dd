"""What a start checks may change under a stream that runs: the next batch is refused before its decision, as the next
start is; and when it is set right, the stream goes on with each record once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.errors import CommitLogDamaged, InvalidOption, StoreRefused
from exactly_once.protocol.names import commit_log_topic
from testkit.broker import change_topic, create_topic
from testkit.fixtures import Bench
from testkit.stream import Job, SparkDriver


def assert_refused(bench: Bench, job: Job, warm: SparkDriver, code: str, change: Callable[[], object]) -> None:
    """``change`` something between two batches: the second one and the next start end with the code, and the first
    one alone is visible.
    """
    run = bench.begin(warm, job)
    change()
    bench.input.add()

    ended = run.end()

    assert ended.code == code and "The batch is not decided" in str(ended.failure), ended.failure
    warm.run(job).with_code(code)
    assert bench.decided_batches() == [0]
    bench.assert_exactly(bench.input.expected(slice(0, 1)))


@pytest.mark.quick("log-cleanup.policy-compact-delete-CommitLogDamaged")
@pytest.mark.parametrize(
    ("topic", "setting", "right", "wrong", "refused"),
    [
        ("log", "cleanup.policy", "compact", "delete", CommitLogDamaged),
        ("log", "message.timestamp.type", "LogAppendTime", "CreateTime", CommitLogDamaged),
        ("told", "cleanup.policy", "compact", "delete", InvalidOption),
        ("dead", "cleanup.policy", "delete", "compact", InvalidOption),
    ],
)
def test_a_setting_of_a_topic_that_changes_under_a_stream_is_refused_before_the_next_decision(
    topic: str,
    setting: str,
    right: str,
    wrong: str,
    refused: type[CommitLogDamaged] | type[InvalidOption],
    bench: Bench,
    warm: SparkDriver,
) -> None:
    """Guards against decisions, progress or letters that the brokers delete below a stream that runs for weeks."""
    servers = bench.connection.bootstrap_servers
    names = {"log": commit_log_topic(bench.sink_id), "told": f"{bench.sink_id}-told", "dead": f"{bench.sink_id}-dead"}
    create_topic(servers, names["dead"], 1)
    job = bench.job.having(sink_progress_topic=names["told"], sink_dead_letter_topic=names["dead"])

    assert_refused(bench, job, warm, refused.code, lambda: change_topic(servers, names[topic], setting, wrong))

    change_topic(servers, names[topic], setting, right)
    bench.complete_exactly_once(warm, job, batches=0)


@pytest.mark.long
def test_a_constraint_that_a_table_gets_under_a_stream_is_refused_before_the_next_decision(
    bench: Bench, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against rows in a table that each of its other writers would have refused."""
    deltalake, pa = pytest.importorskip("deltalake", reason="needs the extra delta"), pytest.importorskip("pyarrow")
    columns = pa.schema([("key", pa.string()), ("value", pa.string())])
    lake = deltalake.DeltaTable.create(str(tmp_path / "lake"), deltalake.Schema.from_arrow(columns))
    of = {"class": "exactly_once.outputs.delta:DeltaParticipant", "name": "lake", "url": str(tmp_path / "lake")}
    job = replace(bench.job, participants=[of])

    def constrain() -> None:
        lake.update_incremental()
        lake.alter.add_constraint({"few": "value < 'b1'"})

    def in_table() -> list[tuple[str, str]]:
        rows = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().to_pylist()
        return sorted((row["key"], row["value"]) for row in rows)

    assert_refused(bench, job, warm, StoreRefused.code, constrain)

    assert in_table() == sorted(bench.input.expected(slice(0, 1)))
    lake.update_incremental()
    lake.alter.drop_constraint("few")
    bench.complete_exactly_once(warm, job, batches=0)
    assert in_table() == sorted(bench.input.expected())

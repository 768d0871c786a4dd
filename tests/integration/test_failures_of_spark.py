"""What Dagster says of failures that a real Spark raises over a checkpoint: each has its code, and a way out that harms
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.runs.failures import NOWHERE, Failure, diagnose, transform_failed
from dagster_exactly_once.runs.own_exception import Raised
from dagster_exactly_once.streaming.observer import StreamObserver
from exactly_once.kafka.connection import Connection
from exactly_once.spark import split
from testkit.fixtures import Bench
from testkit.stateful_oracle import Windows
from testkit.stream import Job, SparkDriver
from testkit.upgrades import FORMAT_2, NO_OTHERS, ROCKS, Upgraded, passed, stateful


def diagnosed(stream: Upgraded, driver: SparkDriver, job: Job | None = None) -> Failure:
    """Start the stream, or ``job`` in its place, and diagnose its failure as the op of Dagster does."""
    bench: Bench = stream.bench
    observer = StreamObserver(bench.connection, bench.sink_id, [], str(bench.checkpoint), CheckpointReader(root=""))
    failure = stream.start(driver, job or stream.job).end().failure
    assert failure is not None
    raised = RuntimeError(f"[STREAM_FAILED] Query [id = q] terminated with exception: {failure}")
    return diagnose(raised, observer.place("orders_stream"))


@pytest.mark.long
@pytest.mark.parametrize("folder", ["offsets", "commits"])
def test_a_checkpoint_of_a_newer_spark_names_the_spark_to_start_with(
    folder: str, connection: Connection, tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: a person who goes back to the older Spark reads that the sink may have a bug."""
    stream = passed(connection, tmp_path)
    stream.complete(warm)
    file = stream.bench.checkpoint / folder / "0"
    file.write_text(file.read_text().replace("v1\n", "v9\n", 1))
    (file.parent / ".0.crc").unlink()
    stream.add_batch()
    said = diagnosed(stream, warm)
    assert said.code == "SPARK-CHECKPOINT-NEWER" and not said.heals


@pytest.mark.long
def test_a_state_format_that_is_not_set_again_is_named_and_setting_it_is_enough(
    connection: Connection, tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: a copy of the checkpoint is put back, or a new one begun with another sink id, which writes all input
    again.
    """
    stream = stateful(connection, tmp_path, "windows", Windows(), conf=ROCKS | FORMAT_2)
    stream.complete(warm, 2)
    stream.conf = dict(NO_OTHERS)
    stream.add_batch()
    said = diagnosed(stream, warm)
    assert said.code == "SPARK-STATE-FORMAT" and "checkpointFormatVersion=2" in said.remedy
    stream.conf |= FORMAT_2
    stream.complete(warm)
    stream.assert_clean()


@pytest.mark.parametrize("column", sorted({*split._ORIGINAL} - {"key", "value"}))
def test_a_column_that_attempt_took_away_is_named_where_it_is(column: str, warm: SparkDriver) -> None:
    """Mishap: a page promises the column, and the run fails with "Did you mean `key`, `parsed`, `tried`, `value`"."""
    row = f"'string(id) key', 'string(id) value', 'cast(null AS {split._ORIGINAL[column]}) {column}'"
    code = f"import exactly_once\nrows = exactly_once.attempt(spark.range(1).selectExpr({row}), 'a int')"
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN") as failed:
        warm.ask("evaluate", code=code, result=f"rows.select('{column}')")
    assert transform_failed(Raised(str(failed.value)), NOWHERE).way_out.startswith(f"Use tried.{column}:")
    found = warm.ask("evaluate", code=code, result=f"rows.selectExpr('tried.{column}').columns")
    assert found == [column]


@pytest.mark.quick("decided")
@pytest.mark.parametrize("decided", [True, False], ids=["decided", "undecided"])
def test_what_a_failing_query_says_of_its_batch_is_what_the_commit_log_says(
    decided: bool, bench: Bench, warm: SparkDriver
) -> None:
    """Mishap: the rows of a decided batch are in the output, the diagnosis says that nothing was written, and somebody
    writes them by hand.
    """
    stream = Upgraded("orders", bench, bench.input.add, bench.input.expected)
    stream.complete(warm)
    if decided:
        bench.checkpoint.joinpath("commits/0").unlink()  # as a driver leaves it that was killed behind its decision
        bench.checkpoint.joinpath("commits/.0.crc").unlink()
    else:
        stream.add_batch()
    said = diagnosed(
        stream,
        warm,
        replace(stream.job, select=["split(value, '[|]')[0] key", "string(raise_error('sold out')) value"]),
    )
    assert said.code == "EO-TRANSFORM", said
    says = ("decided batch 0" in said.sentence, "Nothing of batch 1 was written" in said.sentence)
    assert says == (decided, not decided), said
    stream.complete(warm, 0)
    stream.assert_clean()

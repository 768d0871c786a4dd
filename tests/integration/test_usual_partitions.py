"""A part's transaction begins before its first row, with the partitions that its rows went to in the last batches: what
becomes of rows that go elsewhere.
"""

from __future__ import annotations

import pytest

from testkit import oracle
from testkit.fixtures import Bench
from testkit.stream import Row, SparkDriver

#: Batches until the partitions of each part are its usual ones.
USUAL = 3


def rows(batch: int, keys: list[str]) -> list[Row]:
    return [(key, f"b{batch}-{key}-{n}") for key in keys for n in range(3)]


@pytest.mark.parametrize("many", [1, 300], ids=["few rows", "more than wait for each other"])
def test_rows_that_go_to_other_partitions_than_before_are_written_once(
    many: int, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a batch that is never decided: its coordinator names a partition to which no record went; and
    against records in a transaction whose coordinator does not know of them.
    """
    usual = [f"u{n}" for n in range(12)]
    parts = [[usual] * 4] * USUAL
    parts += [[usual[:1], ["other"], [*usual, *(f"o{n}" for n in range(9))], usual], [usual] * 4, [["one"]] * 4]
    run = warm.start(bench.job.until_stopped())
    for number, keys in enumerate(parts):
        bench.input.add_rows(
            [rows(number, [f"{p}.{key}" for key in some for _ in range(many)]) for p, some in enumerate(keys)]
        )
        run.await_commit(number)
    run.stop()()
    oracle.assert_settled(bench.connection, bench.sink_id, [bench.topic])
    assert sorted(bench.visible()) == sorted(bench.input.expected())
    attempts = {h.transactional_id.split(":")[-1].split(".")[0] for d in bench.log().decisions for h in d.transactions}
    assert attempts == {"0"}  # Spark repeated no task

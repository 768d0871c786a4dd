"""The lab's tables: another process writes to them and maintains them, and the lab names what that one lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from deltalake import DeltaTable

from faultlab.tables import Tables, others_rows
from testkit.processes import until

#: For the imports of the other process, and some of its rounds, on a busy machine.
PATIENCE_S = 60.0


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path / "tables", seed=71)  # which maintains both tables in its first round
    yield made
    made.close()


def has_done(tables: Tables, step: str) -> bool:
    return all(step in [done for done, _ in tables.steps(table.name)] for table in tables.both)


@pytest.mark.long
def test_another_process_appends_and_maintains_and_what_it_loses_is_named(tables: Tables) -> None:
    """Guards against rounds that claim another writer and have none, and against a sink that takes others' rows away:
    the lab would compare its own rows alone.
    """
    until("maintenance of both tables", lambda: has_done(tables, "maintained"), PATIENCE_S)
    for table in tables.both:
        table.append(pa.table([["k1"], ["ours"]], names=["key", "value"]))
    tables.rest()
    assert tables.rows() == {"lake": [("k1", "ours")], "ice": [("k1", "ours")]}
    assert [found for found in tables.wrong().values() if found] == [], tables.wrong()
    assert str(tables).count(" times maintained") == 2

    one, *_ = next(values for step, values in tables.steps("lake") if step == "appended")
    DeltaTable(str(tables.lake.location)).delete(f"value = '{one}'")
    again, *_ = next(values for step, values in tables.steps("ice") if step == "appended")
    tables.ice.append(others_rows([again, "nobody's"]))
    assert {anomaly: found for anomaly, found in tables.wrong().items() if found} == {
        "lake: another's lost": [one],
        "ice: another's duplicate": [again],
        "ice: another's phantom": ["nobody's"],
    }


def test_a_writer_that_has_ended_by_itself_is_named(tables: Tables) -> None:
    """Guards against a round whose other writer died at its first conflict."""
    tables.close()
    assert [said for what, said in tables.wrong().items() if "other writer" in what] == [["with -9"]]

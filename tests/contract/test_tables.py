"""What deltalake and pyiceberg do when another writer was faster, on which the tables' outputs lean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="this environment has no deltalake")
pytest.importorskip("pyiceberg", reason="this environment has no pyiceberg")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException

TEN = pa.table({"n": pa.array(range(10), pa.int64())})


@pytest.fixture
def place(tmp_path: Path) -> str:
    write_deltalake(str(tmp_path / "t"), TEN.slice(0, 0))
    return str(tmp_path / "t")


def append(table: str | DeltaTable, *versions: tuple[str, int], retries: int | None = None) -> None:
    proofs = [Transaction(app, version) for app, version in versions]
    how = CommitProperties(app_transactions=proofs, max_commit_retries=retries)
    write_deltalake(table, TEN, mode="append", commit_properties=how)


def count(place: str) -> int:
    return DeltaTable(place).to_pyarrow_table().num_rows


def test_a_transaction_identifier_of_delta_is_no_watermark(place: str) -> None:
    """Duplicate: a batch that is written again with its version is there twice, and a smaller one sets it back."""
    for version, rows in ((5, 10), (5, 20), (3, 30)):
        append(place, ("app", version))
        assert (count(place), DeltaTable(place).transaction_version("app")) == (rows, version)


def test_a_stale_handle_of_delta_conflicts_over_its_own_identifier_and_else_goes_on(place: str) -> None:
    """Duplicate: the sink lets deltalake repeat no commit, since it would go on above one that holds the proof."""
    stale = [DeltaTable(place) for _ in range(3)]
    append(place, ("app", 1))
    with pytest.raises(CommitFailedError, match="Concurrent transaction failed"):
        append(stale[0], ("app", 2))
    append(stale[1], ("other", 1))
    assert count(place) == 20
    with pytest.raises(CommitFailedError):
        append(stale[2], ("third", 1), retries=0)
    assert count(place) == 20


def test_an_append_of_no_rows_is_a_version_of_delta(place: str) -> None:
    """Mishap: versions count commits, not batches with rows."""
    before = DeltaTable(place).version()
    write_deltalake(place, TEN.slice(0, 0), mode="append")
    assert DeltaTable(place).version() == before + 1


def test_only_a_full_vacuum_deletes_files_that_no_commit_names_and_none_whose_name_begins_with_an_underscore(
    place: str,
) -> None:
    """Loss: a part that is prepared lies in the table's folder, and no commit names it yet."""
    append(place)
    staged = [Path(place) / name for name in ("staged.parquet", "_staged.parquet")]
    for path in staged:
        path.write_bytes(b"x")

    def vacuum(**how: Any) -> list[bool]:
        DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False, **how)
        return [path.exists() for path in staged]

    assert vacuum() == [True, True] and vacuum(full=True) == [False, True]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = load_catalog("c", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    made.create_namespace("s")
    made.create_table("s.t", TEN.schema)
    return made


def test_an_append_through_a_stale_handle_of_pyiceberg_is_repeated_above_the_other_one(catalog: Catalog) -> None:
    """Duplicate: two writers that both found a batch missing both append it; the sink takes the retries away."""
    first, stale = (catalog.load_table("s.t") for _ in range(2))
    first.append(TEN)
    stale.append(TEN)
    assert catalog.load_table("s.t").scan().count() == 20


def test_without_retries_a_stale_handle_of_pyiceberg_raises(catalog: Catalog) -> None:
    """Duplicate: the sink sets this property in its copy of the table's metadata alone."""
    first, stale = (catalog.load_table("s.t") for _ in range(2))
    once = {**stale.metadata.properties, "commit.retry.num-retries": "0"}
    stale.metadata = stale.metadata.model_copy(update={"properties": once})
    first.append(TEN)
    with pytest.raises(CommitFailedException):
        stale.append(TEN)
    assert catalog.load_table("s.t").scan().count() == 10

"""The resources of streams, from the folders that a code location names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_exactly_once import exactly_once_resources


@pytest.mark.parametrize(
    ("named", "root"),
    [
        ("checkpoints", "{here}/checkpoints"),
        ("/data/checkpoints", "/data/checkpoints"),
        ("s3://bucket/checkpoints", "s3://bucket/checkpoints"),
        ("file:/data/checkpoints", "file:/data/checkpoints"),
    ],
)
def test_a_claim_names_a_checkpoint_that_a_repair_finds_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, root: str
) -> None:
    """Wedge: the claim says ``checkpoints/<cluster>/<sink>``, and who repairs it works in another folder."""
    monkeypatch.chdir(tmp_path)
    made = exactly_once_resources(work_dir="spark", checkpoints=named)
    assert made["checkpoints"].root == root.format(here=tmp_path)

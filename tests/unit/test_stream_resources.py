"""The resources of streams, from the folders that a code location names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_exactly_once import exactly_once_definitions, exactly_once_resources
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.errors import InvalidOption


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


def test_an_empty_variable_is_said_by_its_name_when_the_code_location_loads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Mishap: the code location is green, and every sensor skips for ever over an option that Dagster does not have."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "")
    exactly_once_definitions(resources=exactly_once_resources(work_dir="spark", checkpoints="checkpoints"))
    assert "KAFKA_BOOTSTRAP_SERVERS is empty: the resource kafka has no brokers" in caplog.text
    with pytest.raises(InvalidOption, match="KAFKA_BOOTSTRAP_SERVERS is empty in the environment of this Dagster"):
        KafkaTransactionalProducerFactory(bootstrap_servers="").connection()

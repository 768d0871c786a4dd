"""Delta Lake and Iceberg as participants: the conformance suite on local disk, read by the formats' own readers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.conformance.output import Output
from tests.integration.test_table_outputs import Delta, Iceberg

pytestmark = pytest.mark.long  # make test has the kills around the commit in test_table_outputs.py


class TestDelta(Delta, ParticipantConformance):
    """What is left is found by looking into the folder."""

    schema = Output.schema

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path
        self.create()


class TestIceberg(Iceberg, ParticipantConformance):
    """The catalogue is SQLite."""

    schema = Output.schema
    place = TestDelta.place

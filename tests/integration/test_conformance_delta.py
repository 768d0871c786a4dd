"""Delta Lake as a participant: the conformance suite on local disk, and what is special about such a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")

from deltalake import DeltaTable, Schema

from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.delta import DeltaParticipant

pytestmark = pytest.mark.long  # make test has the kills around the commit in test_table_outputs.py


class TestDelta(ParticipantConformance):
    """Read by deltalake's own reader; what is left is found by looking into the folder."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "orders"
        DeltaTable.create(str(self.root), Schema.from_arrow(self.schema))

    def participant(self) -> DeltaParticipant:
        return DeltaParticipant("delta", str(self.root))

    def visible(self) -> list[dict[str, Any]]:
        return list(DeltaTable(str(self.root)).to_pyarrow_table().select(self.schema.names).to_pylist())

    def leftovers(self) -> set[str]:
        named = {Path(uri).name for uri in DeltaTable(str(self.root)).file_uris()}
        found = {p.name for folder in ("_exactly_once", "data") for p in self.root.glob(f"{folder}/*")} - named
        return {name.removesuffix(".parquet").replace("=", ":") for name in found}

    def foreign(self) -> set[str]:
        (self.root / "_exactly_once" / "notes.txt").write_text("a person's")
        (self.root / "_exactly_once" / "eo=orders_1=1=7=0.parquet").write_text("no attempt: not a name of ours")
        return {"notes.txt", "eo:orders_1:1:7:0"}

    def lose(self, handle: Any) -> None:
        (path,) = self.root.glob(f"data/{handle.name.replace(':', '=')}.parquet")
        path.unlink()

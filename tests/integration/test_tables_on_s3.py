"""Tables on an S3 server: the conformance suite for both formats. `make test-s3` brings the server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from deltalake import DeltaTable, Schema
from pyarrow import fs
from pyiceberg.catalog import load_catalog

from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.delta import DeltaParticipant
from exactly_once.outputs.iceberg import IcebergParticipant
from testkit.s3 import BUCKET, S3

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TEST_S3"), reason="needs an S3 server, which make test-s3 brings"),
]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as running:
        yield running


class OnS3(ParticipantConformance):
    """What both formats share: a folder of the bucket, looked into with Arrow's own client of S3."""

    __test__ = False
    crashes = 3  # the lines are those of the suites on local disk; here they meet another store
    folder: str

    @pytest.fixture(autouse=True)
    def place(self, s3: S3, tmp_path: Path) -> None:
        self.endpoint = s3.endpoint
        self.fs = fs.S3FileSystem(endpoint_override=s3.endpoint.removeprefix("http://"), scheme="http")
        self.folder = f"{BUCKET}/tables-{uuid.uuid4().hex}"
        self.make(tmp_path)

    def make(self, local: Path) -> None:
        raise NotImplementedError

    def named(self) -> set[str]:
        """The names of the files that the table has."""
        raise NotImplementedError

    def leftovers(self) -> set[str]:
        selected = (fs.FileSelector(f"{self.folder}/{f}", allow_not_found=True) for f in ("_exactly_once", "data"))
        found = {one.base_name for each in selected for one in self.fs.get_file_info(each)} - self.named()
        return {name.removesuffix(".parquet").replace("=", ":") for name in found}

    def lose(self, handle: Any) -> None:
        self.fs.delete_file(f"{self.folder}/data/{handle.name.replace(':', '=')}.parquet")


class TestDeltaOnS3(OnS3):
    """The log is written by conditional puts. deltalake takes a URI, and this package a location as Spark reads it."""

    __test__ = True

    def make(self, local: Path) -> None:
        self.options = {"AWS_ALLOW_HTTP": "true"}
        self.folder += " orders#2?x"
        DeltaTable.create(f"s3://{quote(self.folder)}", Schema.from_arrow(self.schema), storage_options=self.options)

    def participant(self) -> DeltaParticipant:
        return DeltaParticipant("delta", f"s3://{self.folder}", self.options)

    def table(self) -> DeltaTable:
        return DeltaTable(f"s3://{quote(self.folder)}", storage_options=self.options)

    def named(self) -> set[str]:
        return {uri.rpartition("/")[2] for uri in self.table().file_uris()}

    def visible(self) -> list[dict[str, Any]]:
        return list(self.table().to_pyarrow_table().select(self.schema.names).to_pylist())


class TestIcebergOnS3(OnS3):
    """The catalogue is SQLite, the rest is in the bucket."""

    __test__ = True

    def make(self, local: Path) -> None:
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{local}/catalog.db",
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
        }
        self.catalog = load_catalog("lab", **self.properties)
        self.catalog.create_namespace("shop")
        self.catalog.create_table("shop.orders", self.schema, location=f"s3://{self.folder}")

    def participant(self) -> IcebergParticipant:
        return IcebergParticipant("iceberg", "shop.orders", "lab", self.properties)

    def named(self) -> set[str]:
        tasks = self.catalog.load_table("shop.orders").scan().plan_files()
        return {task.file.file_path.rpartition("/")[2] for task in tasks}

    def visible(self) -> list[dict[str, Any]]:
        return list(self.catalog.load_table("shop.orders").scan().to_arrow().select(self.schema.names).to_pylist())

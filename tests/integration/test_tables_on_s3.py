"""Tables on an S3 server: the conformance suite for both formats. `make test-s3` brings the server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from deltalake import DeltaTable, Schema
from pyarrow import fs

from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.conformance.output import Output
from exactly_once.outputs.delta import DeltaParticipant
from testkit.s3 import BUCKET, S3
from tests.integration.test_table_outputs import Delta, Iceberg, TableOutput

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TEST_S3"), reason="needs an S3 server, which make test-s3 brings"),
]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as running:
        yield running


class OnS3(TableOutput, ParticipantConformance):
    """What both formats share: a folder of the bucket, looked into with Arrow's own client of S3."""

    __test__ = False
    schema = Output.schema
    crashes = 3  # the lines are those of the suites on local disk; here they meet another store

    @pytest.fixture(autouse=True)
    def place(self, s3: S3, tmp_path: Path) -> None:
        self.endpoint, self.root = s3.endpoint, tmp_path
        self.fs = fs.S3FileSystem(endpoint_override=s3.endpoint.removeprefix("http://"), scheme="http")
        self.folder = f"{BUCKET}/tables-{uuid.uuid4().hex}"
        self.make()

    def make(self) -> None:
        raise NotImplementedError

    def foreign(self) -> set[str]:
        return set()

    def leftovers(self) -> set[str]:
        selected = (fs.FileSelector(f"{self.folder}/{f}", allow_not_found=True) for f in ("_exactly_once", "data"))
        return self.unnamed({one.base_name for each in selected for one in self.fs.get_file_info(each)})

    def lose(self, handle: Any) -> None:
        self.fs.delete_file(f"{self.folder}/data/{self.file(handle).name}")


class TestDeltaOnS3(OnS3, Delta):
    """The log is written by conditional puts. deltalake takes a URI, and this package a location as Spark reads it."""

    __test__ = True
    options: ClassVar[dict[str, str]] = {"AWS_ALLOW_HTTP": "true"}

    def make(self) -> None:
        self.folder += " orders#2?x"
        DeltaTable.create(f"s3://{quote(self.folder)}", Schema.from_arrow(self.schema), storage_options=self.options)

    def participant(self, **more: Any) -> DeltaParticipant:
        return DeltaParticipant("lake", f"s3://{self.folder}", self.options, **more)

    def table(self) -> DeltaTable:
        return DeltaTable(f"s3://{quote(self.folder)}", storage_options=self.options)


class TestIcebergOnS3(OnS3, Iceberg):
    """The catalogue is SQLite, the rest is in the bucket."""

    __test__ = True

    @property
    def properties(self) -> dict[str, str]:
        uri = f"sqlite:///{self.root}/catalog.db"
        return {"type": "sql", "uri": uri, "s3.endpoint": self.endpoint, "s3.region": "us-east-1"}

    def make(self) -> None:
        self.catalog.create_table("shop.orders", self.schema, location=f"s3://{self.folder}")

"""A real schema registry: Apicurio Registry, which speaks Confluent's REST API, as a Java process of its own; a door
before it that wants a password and counts; and what a stream does to encode its rows.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from exactly_once.sparkenv import jars
from exactly_once.sparkenv.java import find_java
from exactly_once_local.ports import free_port
from testkit.http_server import Answer, Asked, HttpServer
from testkit.processes import until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: The last release that runs on Java 17, from Maven Central. The digest is of its archive.
_VERSION = "3.0.9"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="registry" revision="1"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{_VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""

_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""  # one archive is wanted, not what its POM and that one's parents say; not every mirror has these

#: Where Apicurio has Confluent's API.
PATH = "/apis/ccompat/v7"

USER, PASSWORD = "stream", "opensesame-7f"


class RegistryProcess:
    """An Apicurio Registry on a free port, with its content in ``folder``: it survives :meth:`kill9`."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{PATH}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RegistryProcess:
        """Start it and wait until it answers."""
        runner = next(_installed().glob("*-runner.jar"))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    find_java().executable,
                    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
                    f"-Djava.io.tmpdir={self._folder}",
                    *("-jar", str(runner)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={
                    **os.environ,
                    "QUARKUS_HTTP_HOST": "127.0.0.1",
                    "QUARKUS_HTTP_PORT": str(self.port),
                    "APICURIO_STORAGE_KIND": "sql",
                    "APICURIO_STORAGE_SQL_KIND": "h2",
                    # without a delay: what it has answered survives a kill
                    "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{self._folder / 'content'};WRITE_DELAY=0",
                },
            )
        until("the schema registry to answer", self._answers, 90, every_s=0.1)
        return self

    def kill9(self) -> None:
        """Kill it as when its machine goes."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def register(self, subject: str, schema: str, schema_type: str = "AVRO") -> int:
        """Register a version, with another client than the sink's; its id."""
        body = {"schema": schema, "schemaType": schema_type}
        return int(self._ask("POST", f"/subjects/{quote(subject)}/versions", body)["id"])

    def require(self, subject: str, compatibility: str) -> None:
        """Set the compatibility rule of a subject."""
        self._ask("PUT", f"/config/{quote(subject)}", {"compatibility": compatibility})

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject; none when it is unknown."""
        try:
            return list(self._ask("GET", f"/subjects/{quote(subject)}/versions"))
        except urllib.error.HTTPError as e:
            if e.code == 404:
                return []
            raise

    def schema(self, subject: str) -> str:
        """Return the text of the latest version of a subject."""
        return str(self._ask("GET", f"/subjects/{quote(subject)}/versions/latest")["schema"])

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the schema registry ended\n{(self._folder / 'log').read_text()[-3000:]}")
        try:
            self._ask("GET", "/subjects")
        except OSError:
            return False
        return True


class Door(HttpServer):
    """A proxy before a registry, as companies have: it lets in who knows the password, and notes what was asked."""

    def __init__(self, registry: RegistryProcess):
        self.asked: list[str] = []
        self._behind = registry.port
        super().__init__(self._pass)
        self.url += PATH

    def _pass(self, asked: Asked) -> Answer:
        self.asked.append(f"{asked.method} {asked.path}")
        given = asked.headers.get("Authorization", "")
        if given != "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode():
            # the worst that a server can do: it repeats what it was given
            told = base64.b64decode(given.removeprefix("Basic ")).decode()
            return _answer(401, json.dumps({"error_code": 401, "message": f"no entry for {told}"}).encode())
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=30)
        try:
            headers = {n: asked.headers[n] for n in ("Content-Type", "Accept") if n in asked.headers}
            connection.request(asked.method, asked.path, asked.body or None, headers)
            answer = connection.getresponse()
            return _answer(answer.status, answer.read())
        finally:
            connection.close()


def _answer(status: int, body: bytes) -> Answer:
    return Answer(status, body, {"Content-Type": "application/vnd.schemaregistry.v1+json"})


@contextlib.contextmanager
def running(folder: Path) -> Iterator[RegistryProcess]:
    """Yield a registry for some tests; nothing of it stays."""
    registry = RegistryProcess(folder)
    try:
        yield registry.start()
    finally:
        registry.kill9()


#: A download of 100 MB that breaks off is no failure of the sink.
_DOWNLOADS = 3


def _installed() -> Path:
    """Return the unpacked archive; downloaded once into the cache folder, by the Ivy that brings the other jars."""
    cache = jars.cache_folder()
    target = cache / "test-registry" / _SHA256[:16]
    with jars.locked(cache / "test-registry.lock", lambda line: None):
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(prefix="retrieving-registry-", dir=cache) as name:
            staging = Path(name)
            (staging / "ivy.xml").write_text(_IVY)
            settings = staging / "ivysettings.xml"
            settings.write_text(_SETTINGS)
            command = [
                find_java().executable,
                *("-XX:-UsePerfData", f"-Djava.io.tmpdir={staging}", f"-Divy.default.ivy.user.dir={staging}"),
                *("-jar", str(jars._ivy_jar()), "-ivy", str(staging / "ivy.xml"), "-cache", str(staging / "cache")),
                *("-settings", os.environ.get("EXACTLY_ONCE_IVY_SETTINGS") or str(settings), "-types", "tar.gz"),
                *("-retrieve", f"{staging}/[artifact]-[revision].[ext]"),
            ]
            archive = staging / f"apicurio-registry-app-{_VERSION}.tar.gz"
            for _ in range(_DOWNLOADS):
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                if archive.is_file():
                    break
            assert archive.is_file(), f"{archive.name} cannot be had from Maven Central:\n{done.stdout[-3000:]}"
            assert jars._sha256(archive) == _SHA256, f"{archive.name} is not what was pinned"
            with tarfile.open(archive) as tar:
                tar.extractall(staging / "unpacked", filter="data")
            target.parent.mkdir(exist_ok=True)
            shutil.move(staging / "unpacked", target)
    return target


# -- what a user's stream does; loaded by drivers and workers by name -------------------------------------------------


def avro(df: DataFrame, schemas: dict[str, str]) -> DataFrame:
    """Encode columns of JSON text in Avro, each after its schema, without any framing; null stays null."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import io

        import fastavro

        def encoder(schema: str) -> Callable[[str], bytes]:
            parsed = fastavro.parse_schema(json.loads(schema))

            def encoded(text: str) -> bytes:
                out = io.BytesIO()
                fastavro.schemaless_writer(out, parsed, json.loads(text))
                return out.getvalue()

            return encoded

        yield from _mapped(batches, {column: encoder(schema) for column, schema in schemas.items()})

    return df.mapInArrow(rows, _with_binary(df, schemas))


def protobuf(df: DataFrame, message: str, columns: list[str]) -> DataFrame:
    """Encode columns of JSON text as a Protobuf message of :data:`DELAYS`, without any framing; null stays null."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from google.protobuf import json_format

        kind = message_type(message)

        def encoded(text: str) -> bytes:
            return bytes(json_format.Parse(text, kind()).SerializeToString())

        yield from _mapped(batches, dict.fromkeys(columns, encoded))

    return df.mapInArrow(rows, _with_binary(df, columns))


#: A file of two messages; the streams' rows are in the second one, the first one's reader must not get them.
DELAYS = """syntax = "proto3";
package tests;

message Airport {
  string name = 1;
}

message Delay {
  string carrier = 1;
  int32 minutes = 2;
}
"""


def message_type(name: str) -> Any:
    """Return the Python class of a message of :data:`DELAYS`, without protoc."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    text, whole = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_INT32
    file = descriptor_pb2.FileDescriptorProto(name="delays.proto", package="tests", syntax="proto3")
    for message, fields in {"Airport": {"name": text}, "Delay": {"carrier": text, "minutes": whole}}.items():
        added = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            added.field.add(
                name=field, number=number, type=kind, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tests.{name}"))


def compiled_message(text: str, name: str) -> Any:
    """Return the Python class of a message of a ``.proto`` file, as protoc reads it."""
    import grpc_tools
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    with tempfile.TemporaryDirectory(prefix="proto-") as folder:
        (Path(folder) / "file.proto").write_text(text, encoding="utf-8")
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}", "--include_imports"]
        subprocess.run([*command, f"--descriptor_set_out={folder}/out", "file.proto"], check=True, timeout=60)
        files = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "out").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _mapped(batches: Iterator[pa.RecordBatch], encoders: dict[str, Callable[[str], bytes]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for name, encoded in encoders.items():
            column = [None if text is None else encoded(text) for text in batch.column(name).to_pylist()]
            batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array(column, pa.binary()))
        yield batch


def _with_binary(df: DataFrame, columns: Collection[str]) -> Any:
    from pyspark.sql.types import BinaryType, StructField, StructType

    return StructType([StructField(f.name, BinaryType() if f.name in columns else f.dataType) for f in df.schema])

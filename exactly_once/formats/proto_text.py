"""The text of a .proto file, as Google's own compiler reads it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from exactly_once.errors import ExactlyOnceError, InvalidOption, InvalidSchema
from exactly_once.formats.spark_type import package_missing

#: A file of some hundred messages takes well below a second.
TIMEOUT_S = 60.0

_FILE = "schema.proto"

#: What protoc says about a file, which is not all that comes with it on stderr.
_ERROR = re.compile(r"^\S+\.proto:(?!.*: warning: ).*$", re.MULTILINE)


def message(text: str, indexes: tuple[int, ...]) -> Any:
    """Return the descriptor of a message.

    Parameters
    ----------
    text : str
        It may import what comes with protoc, such as google/protobuf/timestamp.proto.
    indexes : tuple of int
        As in Confluent's wire format: the number of the message in the file, then of those inside it. The entries of
        maps, which protoc makes messages of, are not counted, for they are not in the text.

    Raises
    ------
    InvalidSchema
        protoc refuses the text, or there is no such message.
    InvalidOption
        protoc is not installed.
    """
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        importlib.import_module("grpc_tools")
    except ImportError as e:
        raise package_missing("PROTOBUF", e) from e
    files = FileDescriptorSet.FromString(compiled(text)).file
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(_name(files[-1], indexes))


def proto_of(message: Any) -> Any:
    """Return the DescriptorProto of a message, which also has what is reserved."""
    from google.protobuf.descriptor_pb2 import DescriptorProto

    found = DescriptorProto()
    message.CopyToProto(found)
    return found


def _name(file: Any, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message that ``indexes`` choose."""
    inside, parts = file.message_type, [file.package] if file.package else []
    for index in indexes:
        written = [m for m in inside if not m.options.map_entry]
        if not written and indexes == (0,):
            raise InvalidSchema("the Protobuf schema has no message", "Add the message to the Protobuf schema")
        if index >= len(written):
            raise InvalidSchema(
                f"the Protobuf schema has no message {','.join(map(str, indexes))}: there are {len(written)} in "
                f"{'.'.join(parts) or 'the file'}, counted from 0",
                "Correct the option *.schema.message.indexes",
            )
        parts.append(written[index].name)
        inside = written[index].nested_type
    return ".".join(parts)


@lru_cache(maxsize=8)
def compiled(text: str) -> bytes:
    """Return a FileDescriptorSet with the file last, behind what it imports.

    Raises
    ------
    InvalidSchema
        With the first error of protoc.
    InvalidOption
        protoc does not run.
    """
    with tempfile.TemporaryDirectory(prefix="exactly-once-") as folder:
        (Path(folder) / _FILE).write_text(text, encoding="utf-8")
        # a process of its own: protoc writes its errors past Python, to the file descriptor of stderr
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        command += ["--descriptor_set_out=set", _FILE]
        path = os.pathsep.join(p for p in sys.path if p)  # what this process can import, it can
        try:
            ended = subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise InvalidSchema(
                f"protoc did not compile the Protobuf schema within {TIMEOUT_S:g} s",
                "Make the Protobuf schema smaller, or start the query when the driver is less busy",
            ) from None
        if ended.returncode:
            raise _refusal(ended.stderr.decode(errors="replace"))
        return (Path(folder) / "set").read_bytes()


def _refusal(stderr: str) -> ExactlyOnceError:
    """Return the error with what protoc says first about the file; without such, it is not the file's fault."""
    if found := _ERROR.search(stderr):
        return InvalidSchema(
            f"the text is not a valid Protobuf schema ({found[0][:400]})",
            "Correct the Protobuf schema; what it imports must be in its own text, except google/protobuf/*.proto",
        )
    last = (stderr.strip().splitlines() or ["it says nothing"])[-1][:400]
    return InvalidOption(
        f"protoc does not run on the driver ({last})",
        f"Install pyspark-kafka-exactly-once[formats] for the Python {sys.executable}",
    )

"""The bytes that a task puts before keys and values, and the plans by which it encodes them: the add-on
:mod:`exactly_once.formats` makes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The type of a column as Spark's JSON has it: a name of a simple type, or a dict with ``type`` struct, array or map.
SparkType = str | dict[str, Any]

#: One step of a plan.
Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Encoding:
    """The facts that a task needs to encode a column, which java/exactlyonce/encode/Encoding.java reads: the format,
    its plan (:func:`exactly_once.formats.plan`), and the ``spare`` plan of JSON text for a row that the schema refuses,
    on its way to the dead letter topic.
    """

    format: str
    plan: Node
    spare: Node


@dataclass(frozen=True, slots=True)
class Framing:
    """The bytes before every key and value (magic byte, schema id and, for Protobuf, which message), and how to encode
    the columns that are not bytes already. Travels to the tasks with their instructions.
    """

    key: bytes = b""
    value: bytes = b""
    encodings: Mapping[str, Encoding] = field(default_factory=dict)

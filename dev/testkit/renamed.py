"""Jars of Spark's Kafka connector as a vendor ships them: with Kafka's packages under another name."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

#: The jars that name Kafka's classes.
_NAMING = ("kafka-clients", "spark-sql-kafka", "spark-token-provider")

#: Size of each kind of constant in a class file but texts (JVM specification, 4.4).
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_TEXT, _OF_TWO_PLACES = 1, (5, 6)


def renamed(jars: list[str], folder: Path) -> list[str]:
    """Return ``jars``, with ``kafkashaded.`` in front of ``org.apache.kafka`` where they have or name it: copies of
    them in ``folder``.
    """
    return [_jar(Path(jar), folder) if any(name in jar for name in _NAMING) else jar for jar in jars]


def _jar(path: Path, folder: Path) -> str:
    target = folder / path.name
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if name.endswith("/"):
                continue
            data, to = old.read(name), name
            if name.startswith("org/apache/kafka/"):
                to = f"kafkashaded/{name}"
            is_class = name.endswith(".class") and not name.startswith("META-INF/versions")
            new.writestr(to, _class(data) if is_class else data)
    return str(target)


def _class(data: bytes) -> bytes:
    """Rename the package in the constants of a class file."""
    [count] = struct.unpack(">H", data[8:10])
    out, at, constant = bytearray(data[:10]), 10, 1
    while constant < count:
        kind = data[at]
        if kind == _TEXT:
            [size] = struct.unpack(">H", data[at + 1 : at + 3])
            text = data[at + 3 : at + 3 + size]
            for separator in (b"/", b"."):
                package = separator.join((b"org", b"apache", b"kafka", b""))
                text = text.replace(package, b"kafkashaded" + separator + package)
            out += bytes([_TEXT]) + struct.pack(">H", len(text)) + text
            at += 3 + size
        else:
            out += data[at : at + 1 + _SIZES[kind]]
            at += 1 + _SIZES[kind]
        constant += 2 if kind in _OF_TWO_PLACES else 1
    return bytes(out + data[at:])

"""The codecs of record batches, as Kafka's own clients write them and its Java reader expects them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import lz4.frame
import pyarrow as pa

#: The number of each codec in a batch's attributes.
NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

#: What compression.<codec>.level may be, and is by default, in Kafka.
LEVELS = {"gzip": (1, 9, -1), "lz4": (1, 17, 9), "zstd": (-131072, 22, 3)}

#: Of zlib: its largest window, in the format of gzip.
_GZIP = 16 + zlib.MAX_WBITS

#: What begins a stream of snappy-java: its magic bytes, its version, and the oldest one that can read it.
_XERIAL = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")

#: How much snappy-java puts into one block.
_XERIAL_BLOCK = 32 * 1024

#: The levels of LZ4's high compressor in the library; Kafka's default is the fast one, which is its 0.
_LZ4_FAST, _LZ4_HIGH = 0, (3, 12)

#: Whatever has a buffer.
Bytes: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Codec:
    """How records are compressed.

    Parameters
    ----------
    name : str
        As in ``compression.type``: none, gzip, snappy, lz4 or zstd.
    level : int, optional
        As in ``compression.<name>.level``. Default: Kafka's own.

    Raises
    ------
    ValueError
        There is no such codec or level; the message names what there is.
    """

    name: str = "none"
    level: int | None = None

    def __post_init__(self) -> None:
        if self.name not in NUMBERS:
            raise ValueError(f"there is no codec {self.name}, only {', '.join(NUMBERS)}")
        if self.level is None:
            return
        if self.name not in LEVELS:
            raise ValueError(f"{self.name} has no levels")
        lowest, highest, default = LEVELS[self.name]
        if not lowest <= self.level <= highest and self.level != default:
            raise ValueError(f"{self.name} has levels from {lowest} to {highest}, not {self.level}")

    @property
    def number(self) -> int:
        """What the batch's attributes say."""
        return NUMBERS[self.name]

    def compress(self, records: pa.Buffer) -> Bytes:
        """Return the records compressed, or as they are."""
        level = self.level if self.level is not None else LEVELS.get(self.name, (0, 0, 0))[2]
        match self.name:
            case "gzip":
                return zlib.compress(records, level, _GZIP)
            case "snappy":
                return _snappy(records)
            case "lz4":
                return _lz4(records, level)
            case "zstd":
                return _whole(pa.Codec("zstd", compression_level=level), records)
        return records


def _lz4(records: pa.Buffer, level: int) -> bytes:
    """One frame of independent blocks: Kafka's Java reader takes no linked ones, and no checksum of the content."""
    lowest, highest = _LZ4_HIGH
    packed: bytes = lz4.frame.compress(
        records,
        compression_level=_LZ4_FAST if level == LEVELS["lz4"][2] else min(max(level, lowest), highest),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return packed


def _snappy(records: pa.Buffer) -> bytes:
    """The stream of snappy-java, which Kafka's clients expect: blocks with their lengths before them."""
    codec, blocks = pa.Codec("snappy"), [_XERIAL]
    for start in range(0, records.size, _XERIAL_BLOCK):
        block = _whole(codec, records.slice(start, min(_XERIAL_BLOCK, records.size - start)))
        blocks += [len(block).to_bytes(4, "big"), block]
    return b"".join(blocks)


def _whole(codec: Any, records: pa.Buffer) -> bytes:
    packed: bytes = codec.compress(records, asbytes=True)
    return packed

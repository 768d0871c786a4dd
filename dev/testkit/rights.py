"""The table of rights in docs/reference.md, and what to grant for its rows."""

from __future__ import annotations

import re
from typing import NamedTuple

from testkit.authorizing import Right
from testkit.stream import ROOT

#: By the first words of a row's resource: the client's name of its kind.
_KINDS = {
    "transactional ids": "TRANSACTIONAL_ID",
    "topic": "TOPIC",
    "group": "GROUP",
    "cluster": "BROKER",
}


class Row(NamedTuple):
    """One right of the reference's table, and what is without it."""

    operation: str
    on: str
    roles: frozenset[str]
    without: str

    @property
    def needed(self) -> bool:
        """True when nothing works without it."""
        return self.without.startswith("`EO-DENIED`") or self.without.startswith("the client's")

    def implies(self, other: Row) -> bool:
        """Return whether the brokers take this right for ``other`` too.

        They take WRITE and READ for DESCRIBE, and all ids for a prefix.
        """
        all_ids = self.on.endswith("(`*`)") and other.on.startswith("transactional ids")
        enough = ("DESCRIBE", "READ", "WRITE") if other.operation == "DESCRIBE" else (other.operation,)
        return self.operation in enough and (self.on == other.on or all_ids)


def table(*roles: str) -> list[Row]:
    """Return the reference's table of rights; with ``roles``, those of one of them."""
    section = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").split("\n## Rights\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    rows = [Row(operation.strip(), on, frozenset(who.split(", ")), rest.strip()) for operation, on, who, rest in lines]
    return [row for row in rows if not roles or row.roles & {role.partition(" with ")[0] for role in roles}]


def granted(sink_id: str, output: str, rows: list[Row]) -> list[Right]:
    """Return the rows of the table, for this sink."""
    rights = []
    for row in rows:
        kind = next(k for k in sorted(_KINDS, key=len, reverse=True) if row.on.startswith(k))
        rights.append(Right(row.operation, _KINDS[kind], named(row, sink_id, output), "prefix" in row.on))
    return rights


def named(row: Row, sink_id: str, output: str) -> str:
    """Return the resource of a row."""
    name = re.search(r"`([^`]+)`", row.on)
    if name:
        return name[1].replace("<sink id>", sink_id)
    others = {"cluster": "kafka-cluster", "group: the reader's own": "readers", "topic: each input": input_of(output)}
    return others.get(row.on, output)


def input_of(output: str) -> str:
    """Return the topic that a stream into ``output`` reads."""
    return f"{output}.in"

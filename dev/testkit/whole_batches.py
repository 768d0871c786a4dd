"""The recipes of docs/whole-batches.md, as they stand there, on a sink of a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer

from exactly_once.kafka.connection import Connection
from testkit import broker as brokers
from testkit import oracle
from testkit.pages import blocks
from testkit.stream import ROOT, SparkDriver

RECIPES = ("python", "spark", "sql")

#: What the page calls the brokers, the output, the sink and the topic of its record.
PLACEHOLDERS = ("broker:9092", "orders_out", "'orders'", "'progress'")


def code(file: str) -> str:
    """Return the page's block of this name."""
    page = (ROOT / "docs" / "whole-batches.md").read_text(encoding="utf-8")
    [found] = [block.text for block in blocks(page) if block.file == file]
    return found


@dataclass
class Recipes:
    """Each reads the values of a sink's whole batches."""

    connection: Connection
    topic: str
    sink_id: str
    progress_topic: str
    driver: SparkDriver | None = None

    @property
    def _servers(self) -> str:
        return self.connection.bootstrap_servers

    def told(self) -> dict[str, Any]:
        """Return the sink's last record."""
        found = [m.value for m in oracle.read(self.connection, [self.progress_topic]) if m.key == self.sink_id]
        last: dict[str, Any] = json.loads(found[-1] or "")
        return last

    def all_of_them(self) -> dict[str, list[str]]:
        """Return what each of :data:`RECIPES` reads from the beginning."""
        return {"python": self.python(), "spark": self.spark(), "sql": self.sql()}

    def python(self, consumer: Consumer | None = None) -> list[str]:
        """Return what has become whole since the group of ``consumer`` was here; all of it for a new group."""
        page: dict[str, Any] = {}
        exec(code("whole_batches.py"), page)
        mine = consumer or page["reader"](self._servers, brokers.fresh_name("group"))
        ends = page["ends_of"](mine, self.topic, self.sink_id, self.progress_topic)
        records = page["new_records"](mine, self.topic, ends)
        page["done"](mine, self.topic, ends)
        return sorted(record.value().decode() for record in records)

    def consumer(self, kind: type[Consumer] = Consumer) -> Consumer:
        """Return the page's consumer, in a group of its own."""
        page: dict[str, Any] = {}
        exec(code("whole_batches.py"), page)
        page["Consumer"] = kind
        made: Consumer = page["reader"](self._servers, brokers.fresh_name("group"))
        return made

    def spark(self, since: dict[str, int] | None = None) -> list[str]:
        """Return what came behind ``since``."""
        names = f"{self._servers!r}, {self.topic!r}"
        read = f"whole_batches(spark, {names}, ends, {since!r}).selectExpr('string(value)')"
        found = f"ends = ends_of(spark, {names}, {self.sink_id!r}, {self.progress_topic!r})"
        return self._in_driver(found, f"[row[0] for row in {read}.collect()] if ends else []")

    @contextmanager
    def following(self) -> Iterator[Callable[[], list[int]]]:
        """Start the stream that reads whenever batches have become whole; what comes back says how many records it
        read each time.
        """
        names = f"{self._servers!r}, {self.topic!r}"
        load = f"""
counts = []
def load():
    ends = ends_of(spark, {names}, {self.sink_id!r}, {self.progress_topic!r})
    counts.append(whole_batches(spark, {names}, ends).count() if ends else 0)
query = follow(spark, {self._servers!r}, {self.progress_topic!r}, load)
"""
        self._in_driver(load, "[]")
        try:
            yield lambda: self._in_driver("", "counts")
        finally:
            self._in_driver("query.stop()", "[]")

    def sql(self) -> list[str]:
        """Return what the view has."""
        text = code("whole_batches.sql")
        for placeholder, name in zip(
            PLACEHOLDERS, (self._servers, self.topic, f"'{self.sink_id}'", f"'{self.progress_topic}'"), strict=True
        ):
            assert placeholder in text
            text = text.replace(placeholder, name)
        statements = [s for s in text.split(";") if s.strip()]
        rows = "spark.sql('SELECT string(value) FROM orders_whole').collect()"
        return self._in_driver(f"for one in {statements!r}: spark.sql(one)", f"[row[0] for row in {rows}]")

    def _in_driver(self, statements: str, result: str) -> list[Any]:
        assert self.driver is not None
        page = code("whole_batches_in_spark.py")
        return sorted(self.driver.ask("evaluate", code=f"{page}\n{statements}", result=result))

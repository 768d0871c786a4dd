"""The reports of a run to Dagster: observations of its outputs, and materializations of complete windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from dagster_exactly_once.declare.complete import Complete, closed, window_of
from dagster_exactly_once.declare.outputs import COLUMNS, LINEAGE
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.recovery.windows import first_noted, note_first
from dagster_exactly_once.resources.spark import driver_pid
from dagster_exactly_once.runs.process import tag_driver
from dagster_exactly_once.sensors.observation import input_lags
from dagster_exactly_once.streaming.windows import BATCHES_SHOWN, ReportWindow
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.words import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Metadata = dict[str, dg.MetadataValue | dg.TableSchema | dg.TableColumnLineage | int | float]

#: The most windows of one report: a replay closes a year of hours within minutes, and Dagster stores each as an event.
MOST_WINDOWS = 200

#: The entry that Dagster shows on the asset's page: of the newest materialization that has it, else of the newest
#: observation. So only observations have it, which every report makes.
ROW_COUNT = "dagster/row_count"


class Reports:
    """The reports of a run to Dagster, window by window."""

    def __init__(self, context: dg.AssetExecutionContext, stream: Stream):
        self._context, self._stream = context, stream
        self._key = dg.AssetKey(stream.completed)
        self._reported: Collection[str] | None = None
        self._first, self._from_start = "", False
        self._spark_ui: str | None = None
        self._shown = False

    def linked(self, start: Callable[[SparkSession], StreamingQuery]) -> Callable[[SparkSession], StreamingQuery]:
        """Return ``start``, after it has read the driver and its UI, which only the session's own thread may ask."""

        def tagged(session: SparkSession) -> StreamingQuery:
            self._spark_ui = session.sparkContext.uiWebUrl
            tag_driver(self._context.instance, self._context.run.run_id, driver_pid(session))
            return start(session)

        return tagged

    def tell(self, window: ReportWindow) -> None:
        """Observe the outputs: a materialization would tell assets downstream that their data is complete. The first
        report has the columns of all outputs.
        """
        self._say(window)
        totals = dict(zip((spec.key for spec in self._stream.outputs), _totals(self._stream, window), strict=True))
        found: dict[dg.AssetKey, Metadata] = {}
        if window.batches:
            link: Metadata = {"spark_ui": dg.MetadataValue.url(self._spark_ui)} if self._spark_ui else {}
            found = {key: {**m, **link} for key, m in self._numbers(window).items()}
        else:
            first = self._stream.outputs[0].key
            found[first] = {**window.plots(0), **totals[first]}
        for key, columns in {} if self._shown else self.columns.items():
            found[key] = {**totals.get(key, {}), **found.get(key, {}), **columns}
        for key, metadata in found.items():
            self._context.log_event(dg.AssetObservation(key, metadata=metadata))
        self._shown = True
        for observed in input_lags(self._stream.spec, window.lags, time.time()):
            self._context.log_event(observed)
        self.complete(window)

    @cached_property
    def columns(self) -> dict[dg.AssetKey, Metadata]:
        """The columns of the outputs and what they are made from, as declared; else those that a table has."""
        found: dict[dg.AssetKey, Metadata] = {
            spec.key: {name: spec.metadata[name] for name in (COLUMNS, LINEAGE) if name in spec.metadata}
            for spec in self._stream.assets
        }
        for table in (table for table in self._stream.tables if COLUMNS not in found[table.spec.key]):
            key = table.spec.key
            with _of_table(self._context, key, "columns"):
                schema = table.columns()
                found[key] |= {} if schema is None else {COLUMNS: schema}
        return {key: columns for key, columns in found.items() if columns}

    def last(self, window: ReportWindow, run: Mapping[str, int | float]) -> Iterator[dg.MaterializeResult]:
        """Report the last window of a run that has ended as the op's results, with the figures of the whole ``run``."""
        self.complete(window)
        self._say(window)
        for key, metadata in self._numbers(window).items():
            if (rows := metadata.pop(ROW_COUNT, None)) is not None:
                self._context.log_event(dg.AssetObservation(key, metadata={ROW_COUNT: rows}))
            yield dg.MaterializeResult(asset_key=key, metadata={**metadata, **run, **self.columns.get(key, {})})

    def _say(self, window: ReportWindow) -> None:
        topics = self._stream.topics
        counts = zip(topics[1:], window.records_of(topics)[1:], strict=True)
        self._context.log.info("; ".join([window.sentence(), *(f"{count:,} to {topic}" for topic, count in counts)]))
        if window.late:
            self._context.log.warning(
                f"The stream dropped {plural(window.late, 'row')} that arrived after the watermark had passed, because "
                "input partitions are further apart than the watermark's delay. Raise the delay. To write the dropped "
                "rows, start the stream again under a new sink id."
            )

    def _numbers(self, window: ReportWindow) -> dict[dg.AssetKey, Metadata]:
        """Return the numbers to plot of each topic and of each table, which gets the rows of all topics."""
        found = _of_topics(self._stream, window)
        for table in self._stream.tables:
            found[table.spec.key] = dict(window.plots(window.records))
            with _of_table(self._context, table.spec.key, "number of rows"):
                rows = table.row_count()
                found[table.spec.key] |= {} if rows is None else {ROW_COUNT: rows}
        return found

    def complete(self, window: ReportWindow) -> None:
        """Materialize the windows of event time that the watermark has passed, if the stream declares any."""
        windows = self._stream.complete
        # its own progress: it may wait beside an older run whose batches are in the window too
        self._from_start |= any(b.batch_id == 0 and b.batch_ms is not None for b in window.batches)
        if windows is None or (window.event_ms is None and window.watermark_ms is None):
            return
        if self._reported is None:
            self._reported = self._context.instance.get_materialized_partitions(self._key)
            self._first = first_noted(self._context.instance, self._key)
            self._from_start |= bool(self._first)
        if not self._reported:
            self._note_first(windows, window)
        if window.watermark_ms is None:
            return
        first = self._first or window_of(windows, window.watermark_ms)
        for name in closed(windows, self._reported, first, window.watermark_ms, MOST_WINDOWS):
            self._context.log_event(dg.AssetMaterialization(self._key, partition=name))
            self._reported = (name,)

    def _note_first(self, windows: Complete, window: ReportWindow) -> None:
        """Note the window of the oldest event for the runs to come, where the reports cover all batches so far."""
        if window.event_ms is None:
            return
        oldest = window_of(windows, window.event_ms)
        if not self._first or oldest < self._first:
            self._first = oldest
            if self._from_start:
                self._context.log_event(note_first(self._key, oldest, self._stream.spec.job))


def _of_topics(stream: Stream, window: ReportWindow) -> dict[dg.AssetKey, Metadata]:
    """Return, for each topic, the numbers to plot and the table of batches."""
    rows = [
        dg.TableRecord(
            {
                "batch": b.batch_id,
                **{name: _text(getattr(b, name)) for name in ("records", "transactions", "batch_ms", "commit_ms")},
            }
        )
        for b in window.batches[-BATCHES_SHOWN:]
    ]
    table: Metadata = {"newest_batches": dg.MetadataValue.table(rows)} if rows else {}
    counts, totals = window.records_of(stream.topics), _totals(stream, window)
    found: dict[dg.AssetKey, Metadata] = {
        spec.key: {**window.plots(count), **total, **table}
        for spec, count, total in zip(stream.outputs, counts, totals, strict=True)
    }
    late: Metadata = {"late_rows": window.late} if stream.state_partitions is not None else {}
    found[stream.outputs[0].key] |= {**late, **window.observed}
    return found


@contextmanager
def _of_table(context: dg.AssetExecutionContext, key: dg.AssetKey, what: str) -> Iterator[None]:
    """Log why a table does not answer: if that goes on, the stream itself fails."""
    try:
        yield
    except ExactlyOnceError as error:
        context.log.warning(f"The {what} of {key.to_user_string()} could not be read: {error}")


def _totals(stream: Stream, window: ReportWindow) -> list[Metadata]:
    """Return, for each output, the records since the stream's first start."""
    totals = window.totals_of(stream.topics)
    if totals is None or window.counted is None:
        return [{} for _ in stream.outputs]
    since = dg.MetadataValue.timestamp(window.counted.since_ms / 1000)
    return [{"records_total": total, "records_total_since": since, ROW_COUNT: total} for total in totals]


def _text(number: int | None) -> str:
    return "" if number is None else str(number)

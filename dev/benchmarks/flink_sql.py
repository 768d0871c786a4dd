"""The workloads as Flink SQL: the same columns, filters and windows as in :mod:`benchmarks.workloads`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.common import PRODUCER
from benchmarks.workloads import JSON, LEAST_AMOUNT, PASS, Q0, Q5
from dagster_exactly_once.resources.spark import TUNED_SOURCE

#: Below the brokers' maximum of 15 minutes; the connector's default of an hour is refused.
TRANSACTION_TIMEOUT_MS = 600_000

_BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP_LTZ(3)"
_COUNTS = """
  SELECT auction, COUNT(*) AS num, window_start, window_end
  FROM TABLE(HOP(TABLE source, DESCRIPTOR(`dateTime`), INTERVAL '2' SECONDS, INTERVAL '10' SECONDS))
  GROUP BY auction, window_start, window_end"""
_RANKED = f"""
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY num DESC, auction DESC) AS place
  FROM ({_COUNTS})"""


@dataclass(frozen=True)
class Statement:
    """Columns of the source and the sink beside the key ``k``, the query, and the format of the values."""

    source: str
    sink: str
    query: str
    format: str = "json"


STATEMENTS: Mapping[str, Statement] = {
    PASS: Statement("v BYTES", "v BYTES", "SELECT k, v FROM source", "raw"),
    JSON: Statement(
        "id BIGINT, amount INT, currency STRING, note STRING",
        "id BIGINT, amount INT, currency STRING",
        f"SELECT k, id, amount, currency FROM source WHERE amount >= {LEAST_AMOUNT}",
    ),
    Q0: Statement(
        f"{_BID}, extra STRING",
        "auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP_LTZ(3), extra STRING",
        "SELECT k, auction, bidder, price, `dateTime`, extra FROM source",
    ),
    Q5: Statement(
        f"{_BID}, extra STRING, WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '1' SECOND",
        "auction BIGINT, num BIGINT, window_end TIMESTAMP(3)",
        f"SELECT CAST(CAST(auction AS STRING) AS BYTES), auction, num, window_end FROM ({_RANKED}) WHERE place <= 1",
    ),
}


def script(
    workload: str, bootstrap_servers: str, source: str, out: str, guarantee: str, run: str, endless: bool = False
) -> str:
    """Return the SQL client's file for one job, which ends at the present end of ``source``.

    Parameters
    ----------
    guarantee : str
        The connector's: ``exactly-once`` or ``at-least-once``.
    run : str
        Names the job and its transactional ids.
    endless : bool
        The job ends when somebody cancels it; the client ends when it runs.
    """
    chosen = STATEMENTS[workload]
    shared = {
        "connector": "kafka",
        "properties.bootstrap.servers": bootstrap_servers,
        "key.format": "raw",
        "key.fields": "k",
        "value.format": chosen.format,
        "value.fields-include": "EXCEPT_KEY",
        **({"value.json.timestamp-format.standard": "ISO-8601"} if chosen.format == "json" else {}),
    }
    reading = {
        **shared,
        "topic": source,
        "properties.group.id": run,
        "scan.startup.mode": "earliest-offset",
        **({} if endless else {"scan.bounded.mode": "latest-offset"}),
        **{f"properties.{n.removeprefix('kafka.')}": v for n, v in TUNED_SOURCE.items() if n.startswith("kafka.")},
    }
    writing = {
        **shared,
        "topic": out,
        "sink.delivery-guarantee": guarantee,
        **({"sink.transactional-id-prefix": run} if guarantee == "exactly-once" else {}),
        "properties.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
        **{f"properties.{n.removeprefix('kafka.')}": v for n, v in PRODUCER.items()},
    }
    settings = {"table.dml-sync": str(not endless).lower(), "table.local-time-zone": "UTC", "pipeline.name": run}
    return "\n".join(
        [
            *(f"SET '{name}' = '{value}';" for name, value in settings.items()),
            f"CREATE TABLE source (k BYTES, {chosen.source}) WITH ({_options(reading)});",
            f"CREATE TABLE sink (k BYTES, {chosen.sink}) WITH ({_options(writing)});",
            f"INSERT INTO sink {chosen.query};\n",
        ]
    )


def _options(values: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in values.items())

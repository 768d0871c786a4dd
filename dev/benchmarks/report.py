"""``python -m benchmarks.report FILE``: a table for the README and a plot, from the JSON lines of a run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import draw
from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS
from benchmarks.results import read

#: Other systems are compared with this one.
BASE = OURS

Line = Mapping[str, Any]


def main() -> None:
    """Read the file that the first argument names; write the table and the plot beside it."""
    path = Path(sys.argv[1])
    write(read(path), path)


def write(lines: Sequence[Line], path: Path) -> None:
    """Print the tables, and write them and the plot beside ``path``, with the endings ``.md`` and ``.svg``."""
    text = markdown(lines)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nRaw figures: {path}; the tables: {path.with_suffix('.md')}")
    if rates := median_rates(lines):
        path.with_suffix(".svg").write_text(draw(rates), encoding="utf-8")
        print(f"The plot: {path.with_suffix('.svg')}")


def markdown(lines: Sequence[Line]) -> str:
    """Return every table for which there are lines."""
    tables = [
        _throughput(_of(lines, "compare")),
        _by(_of(lines, "sizes"), "record_bytes", "bytes of a record"),
        _by(_of(lines, "partitions"), "partitions_out", "output partitions"),
        _latency([line for line in lines if line["kind"] == "latency"]),
        _interval([line for line in lines if line["kind"] == "interval"]),
        _torn([line for line in lines if line["kind"] == "torn"]),
        _commit([line for line in lines if line["kind"] == "commit"]),
        _conditions(lines),
    ]
    return "\n".join(table for table in tables if table)


def median_rates(lines: Sequence[Line]) -> dict[str, dict[str, float]]:
    """Return by workload and system the median rate in records a second."""
    rates: dict[str, dict[str, float]] = {}
    for (workload, system), some in _groups(_of(lines, "compare"), "workload", "system").items():
        rates.setdefault(workload, {})[system] = statistics.median(rate(line) for line in some)
    return rates


def rate(line: Line) -> float:
    """Return the rate of a run without its start; of the whole run when its output became visible in one step."""
    return float(line["steady_rate"] or line["rate"])


def processor_us(line: Line) -> float:
    """Return the processor time of a record in the same part of the run."""
    return float((line["steady_processor_us"] or line["processor_us"])["all"])


def ratio(theirs: Iterable[Line], ours: Iterable[Line]) -> tuple[float, float, float] | None:
    """Return the median of the ratios of ``theirs`` to ``ours`` round by round, the smallest and the largest; None when
    no round has both.
    """
    base = {line["round"]: rate(line) for line in ours}
    pairs = [rate(line) / base[line["round"]] for line in theirs if line["round"] in base]
    return (statistics.median(pairs), min(pairs), max(pairs)) if pairs else None


def _throughput(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    rows = []
    groups = _groups(lines, "workload", "system")
    for (workload, system), some in groups.items():
        compared = ratio(some, groups.get((workload, BASE), []))
        rows.append(
            (
                workload,
                system,
                f"{statistics.median(map(rate, some)):,.0f}",
                "1" if system == BASE else _spread(compared),
                f"{statistics.median(map(processor_us, some)):.2f}",
                _memory(some),
            )
        )
    head = ("workload", "system", "records a second", f"ratio to {BASE}", "processor µs a record", "peak memory, MiB")
    return _table(f"Throughput, medians of {_rounds(lines)} rounds in turn", head, rows)


def _by(lines: Sequence[Line], field: str, name: str) -> str:
    """Rates of each system by one condition."""
    if not lines:
        return ""
    systems = list(dict.fromkeys(line["system"] for line in lines))
    groups = _groups(lines, field, "system")
    rows = []
    for value in dict.fromkeys(line[field] for line in lines):
        cells = []
        for system in systems:
            some = groups.get((value, system), [])
            compared = "" if system == BASE else f"; {_spread(ratio(some, groups.get((value, BASE), [])))}"
            cells.append(f"{statistics.median(map(rate, some)):,.0f}{compared}" if some else "-")
        rows.append((f"{value:,}", *cells))
    title = f"Records a second by {name}; ratio to {BASE}"
    return _table(f"{title}, medians of {_rounds(lines)} rounds", (name, *systems), rows)


def _latency(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    systems = [s for s in (OURS, AT_LEAST_ONCE, SPARKS) if any(line["system"] == s for line in lines)]
    rows = []
    for (share, offered), some in _groups(lines, "share", "offered_rate").items():
        cells = []
        for system in systems:
            of = [line for line in some if line["system"] == system]
            p = [statistics.median(line[q] for line in of) for q in ("p50_ms", "p95_ms", "p99_ms")] if of else []
            cells.append(", ".join(f"{ms:.0f}" for ms in p) or "-")
        rows.append((f"{share:.0%}", f"{offered:,}", *cells))
    head = ("load", "records a second", *systems)
    return _table("Time until a record is visible, ms: p50, p95, p99", head, rows)


def _interval(lines: Sequence[Line]) -> str:
    rows = []
    for (system, every_s), of in _groups(lines, "system", "interval_s").items():
        p = [statistics.median(line[q] for line in of) for q in ("p50_ms", "p95_ms", "p99_ms")]
        rows.append((f"{every_s:g}", system, *(f"{ms:.0f}" for ms in p)))
    title = "Time until a record is visible with a commit every so many seconds, ms"
    return _table(title, ("commit every, s", "system", "p50", "p95", "p99"), rows) if rows else ""


def _torn(lines: Sequence[Line]) -> str:
    rows = []
    for (system,), some in _groups(lines, "system").items():
        least, most = (statistics.median(line[f] for line in some) for f in ("least_ms", "most_ms"))
        largest = max(line["largest_ms"] for line in some)
        records = statistics.median(line["batch_records"] for line in some)
        rows.append((system, f"{records:,.0f}", f"{least:.0f} to {most:.0f}", f"{largest:.0f}"))
    head = ("system", "records of a batch", "median, between", "largest, at most")
    return _table("Time in which a reader sees a part of a batch, ms", head, rows) if rows else ""


def _commit(lines: Sequence[Line]) -> str:
    rows = [
        (
            f"{line['brokers']}",
            f"{line['parts']:,}",
            f"{line['alive_ms'] + line['leaders_ms'] + line['decide_ms']:.0f}",
            f"{line['end_ms'] + line['mark_ms']:.0f}",
        )
        for line in lines
    ]
    return _table("One commit, ms", ("brokers", "parts", "until the decision", "after it"), rows) if rows else ""


def _conditions(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    c = lines[-1]["conditions"]
    versions = [f"Spark {c['spark']}", f"Kafka {c['kafka']}", f"Spark's Kafka connector {c['connector']}"]
    if c["flink"]:
        versions.append(f"Flink {c['flink']} (connector {c['flink_connector']})")
    if c["quix"]:
        versions.append(f"Quix Streams {c['quix']}")
    return (
        f"{c['machine']}, {c['cores']} cores, {c['memory_gib']} GiB; {', '.join(versions)}; Java {c['java']}, "
        f"Python {c['python']}; {c['brokers']} broker, {c['compression']}; {c['started']}.\n"
    )


def _of(lines: Sequence[Line], measurement: str) -> list[Line]:
    return [line for line in lines if line["kind"] == "throughput" and line["measurement"] == measurement]


def _groups(lines: Iterable[Line], *fields: str) -> dict[tuple[Any, ...], list[Line]]:
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault(tuple(line[f] for f in fields), []).append(line)
    return groups


def _rounds(lines: Sequence[Line]) -> int:
    return len({line["round"] for line in lines})


def _memory(some: Sequence[Line]) -> str:
    """Return the median peak of each group of processes, and the sum, without the broker's, which all share."""
    groups = [g for g in some[0]["peak_mib"] if g != "broker"]
    each = {g: statistics.median(line["peak_mib"].get(g, 0.0) for line in some) for g in groups}
    return f"{sum(each.values()):,.0f} ({', '.join(f'{g} {mib:,.0f}' for g, mib in each.items())})"


def _spread(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"{title}:", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

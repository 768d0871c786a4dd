"""Whatever is removed, doubled or moved of a clean sink, the verdict names something or calls something unproven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import Inspection
from exactly_once.protocol.checksum import distribution_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Completed, Decision, OffsetRange, PreparedTransaction
from exactly_once.tools.diagnosis import SinkFacts, diagnose
from exactly_once.tools.verify import sink_findings
from exactly_once.tools.verify.by_log import balance
from exactly_once.tools.verify.by_log.balance import TOO_FEW, UNDECIDED, judge_balance, judge_log
from exactly_once.tools.verify.by_log.judge import OutputState, Verdict
from exactly_once.tools.verify.by_log.ledger import Ledger, Writer
from exactly_once.txn.scan import LogBatch
from testkit.part_ids import part_id
from testkit.read_back import QUERY, SINK, TOPIC, ReadBack, decided, log_of

#: Between two decisions; before the first one, so much is free in each partition, too.
APART_MS, FREE = 10_000, 100

#: A topic that no decision names.
ELSEWHERE = "elsewhere"


class Rows(ReadBack):
    """Remembers the rows of each batch of records."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[str]] = {}
        self._ends.update(dict.fromkeys(range(4), FREE))

    def write(self, writer: Writer, values: Sequence[str], partition: int = 0, **more: bool) -> int:
        first = super().write(writer, values, partition, **more)
        self.rows[id(self.batches[-1])] = list(values)
        return first

    def with_rows(self, batch: LogBatch, values: Sequence[str]) -> LogBatch:
        """The same batch of records at the same place, with other rows."""
        scratch = Rows()
        scratch.write((batch.producer_id, batch.epoch), values, batch.partition)
        made = scratch.batches[0]
        return replace(made, base_offset=batch.base_offset, last_offset=batch.last_offset)


@dataclass
class Sink:
    """All that a verification looks at."""

    out: Rows
    batches: list[LogBatch]
    decisions: list[Decision]
    commits: set[int]
    times: dict[int, int]
    ids: dict[int, str] = field(default_factory=dict)

    def copy(self) -> Sink:
        return Sink(self.out, [*self.batches], [*self.decisions], {*self.commits}, {**self.times}, {**self.ids})

    def verdict(self) -> Verdict:
        ms = {(d.query_id, d.batch_id): self.times.get(d.batch_id, 0) for d in self.decisions}
        marks = {(q, b): Completed(q, b, 1, at + 200) for (q, b), at in ms.items()}
        log = LogState(decisions=tuple(self.decisions), marks=marks, decided_ms=ms)
        ledger = Ledger.of_sink(self.decisions, self.ids)
        for batch in sorted(self.batches, key=lambda b: (b.where, b.base_offset)):
            ledger.add(batch)
        last = max(self.commits, default=None)
        lacks = last - min(self.commits) + 1 - len(self.commits) if last is not None else 0
        checkpoint = Checkpoint("/c", QUERY, last, last, commits_lack=lacks)
        found = judge_log(
            self.decisions, log, ledger, self.ids, OutputState(committed_by_spark=frozenset(self.commits))
        )
        judge_balance(checkpoint, log, found)
        facts = SinkFacts(Inspection("s", log=log), checkpoint=checkpoint, after=log)
        found.findings += sink_findings.findings(diagnose(facts))
        return found

    def of(self, writer: Writer) -> list[LogBatch]:
        return [b for b in self.batches if (b.producer_id, b.epoch) == writer]


def clean(count: int = 4, kept: int = 4, distribution: bool = True) -> Sink:
    """Batches of two parts, each over two partitions; the log keeps the decisions of the last ``kept``."""
    out, decisions, times = Rows(), [], {}
    for n in range(count):
        times[n] = APART_MS * (n + 1)
        parts = [out.part(n, p, attempt=f"{n}.{p}", at_ms=times[n] + 100) for p in (0, 1)]
        decisions.append(decided(n, *parts))
    if distribution:
        ledger = out.ledger(*decisions)
        decisions = [replace(d, handles=tuple(placed(h, ledger) for h in d.transactions)) for d in decisions]
    return Sink(out, out.batches, decisions[-kept:], {*range(count)}, times, out.ids)


def placed(handle: PreparedTransaction, ledger: Ledger) -> PreparedTransaction:
    spans = ledger.of((handle.producer_id, handle.epoch))
    return replace(handle, distribution=distribution_of({s.where: OffsetRange(s.first, s.records) for s in spans}))


def changes(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    """Every single thing that can be removed, doubled or moved."""
    yield from records(sink)
    yield from parts(sink)
    yield from whole_batches(sink)
    yield from partitions(sink)
    yield from topics(sink)
    yield from decisions_of(sink)
    yield from commit_files(sink)


def records(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    mine = {(h.producer_id, h.epoch) for d in sink.decisions for h in d.transactions}
    for i, b in enumerate(sink.batches):
        values = sink.out.rows.get(id(b))
        if values is None or (b.producer_id, b.epoch) not in mine:
            continue

        def shorter(s: Sink, i: int = i, values: list[str] = values) -> None:
            s.batches[i] = s.out.with_rows(s.batches[i], values[1:])

        def longer(s: Sink, i: int = i, values: list[str] = values) -> None:
            s.batches[i] = s.out.with_rows(s.batches[i], [*values, values[-1]])

        def moved(s: Sink, i: int = i, values: list[str] = values) -> None:
            writer, here = (s.batches[i].producer_id, s.batches[i].epoch), s.batches[i].partition
            j = next(j for j, o in enumerate(s.batches) if (o.producer_id, o.epoch) == writer and o.partition != here)
            theirs = s.out.rows[id(s.batches[j])]
            s.batches[i] = s.out.with_rows(s.batches[i], values[1:])
            s.batches[j] = s.out.with_rows(s.batches[j], [*theirs, values[0]])

        yield f"a record of {i} removed", shorter
        yield f"a record of {i} doubled", longer
        yield f"a record of {i} moved to the other partition", moved


def twin(s: Sink, writer: Writer, start: int | None = None, partition: int | None = None) -> None:
    """Write the rows of a transaction again, in another one that is committed: behind all, or from ``start`` on."""
    other = 900 + len(s.ids), 3
    s.ids[other[0]] = part_id(SINK, 1, 0, "8.8")
    for b in s.of(writer):
        where = b.partition if partition is None else partition
        ends = [o.last_offset + 1 for o in s.batches if o.partition == where]
        at = max(ends, default=FREE) if start is None else start
        at = max(at, max((o.last_offset + 1 for o in s.of(other) if o.partition == where), default=0))
        if b.marker is None:
            made = s.out.with_rows(b, s.out.rows[id(b)])
            made = replace(made, producer_id=other[0], partition=where)
        else:
            made = replace(b, producer_id=other[0], partition=where)
            if start is not None:
                made = replace(made, timestamp_ms=APART_MS - 5_000)
        s.batches.append(replace(made, base_offset=at, last_offset=at + made.last_offset - made.base_offset))


def parts(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    first = sink.decisions[0].batch_id == 0
    for n, d in enumerate(sink.decisions):
        for k, h in enumerate(d.transactions):
            writer = h.producer_id, h.epoch
            rest = (*d.transactions[:k], *d.transactions[k + 1 :])
            name = f"part {h.part} of batch {d.batch_id}"

            def gone(s: Sink, writer: Writer = writer) -> None:
                s.batches = [b for b in s.batches if (b.producer_id, b.epoch) != writer]

            def left_open(s: Sink, writer: Writer = writer) -> None:
                s.batches = [b for b in s.batches if (b.producer_id, b.epoch) != writer or b.marker is None]

            def rolled_back(s: Sink, writer: Writer = writer) -> None:
                s.batches = [
                    replace(b, marker=False) if (b.producer_id, b.epoch) == writer and b.marker else
                    replace(b, hidden=True) if (b.producer_id, b.epoch) == writer else b
                    for b in s.batches
                ]  # fmt: skip

            def unnamed(s: Sink, n: int = n, rest: tuple = rest) -> None:
                s.decisions[n] = replace(s.decisions[n], handles=rest)

            def named_twice(s: Sink, n: int = n, h=h) -> None:
                s.decisions[n] = replace(s.decisions[n], handles=(*s.decisions[n].handles, h))

            yield f"{name} removed", gone
            yield f"the markers of {name} removed", left_open
            yield f"{name} aborted", rolled_back
            yield f"{name} removed from its decision", unnamed
            yield f"{name} twice in its decision", named_twice
            yield f"{name} written again behind all", lambda s, w=writer: twin(s, w)
            yield f"{name} written again in another partition", lambda s, w=writer: twin(s, w, partition=3)
            if first:  # else it stands before the range that the report names
                yield f"{name} written again before all", lambda s, w=writer: twin(s, w, 0)
            for m in range(len(sink.decisions)):
                if m != n:

                    def elsewhere(s: Sink, n: int = n, m: int = m, h=h, rest: tuple = rest) -> None:
                        s.decisions[n] = replace(s.decisions[n], handles=rest)
                        s.decisions[m] = replace(s.decisions[m], handles=(*s.decisions[m].handles, h))

                    yield f"{name} moved to the decision of batch {sink.decisions[m].batch_id}", elsewhere


def whole_batches(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    for n, d in enumerate(sink.decisions):
        writers = [(h.producer_id, h.epoch) for h in d.transactions]

        def gone(s: Sink, writers: list[Writer] = writers) -> None:
            s.batches = [b for b in s.batches if (b.producer_id, b.epoch) not in writers]

        def without_trace(s: Sink, n: int = n, writers: list[Writer] = writers) -> None:
            s.batches = [b for b in s.batches if (b.producer_id, b.epoch) not in writers]
            del s.decisions[n]

        def again(s: Sink, writers: list[Writer] = writers) -> None:
            for writer in writers:
                twin(s, writer)

        def late(s: Sink, writers: list[Writer] = writers) -> None:
            s.batches = [
                replace(b, base_offset=b.base_offset + 10_000, last_offset=b.last_offset + 10_000)
                if (b.producer_id, b.epoch) in writers else b
                for b in s.batches
            ]  # fmt: skip

        yield f"batch {d.batch_id} removed", gone
        yield f"batch {d.batch_id} removed with its decision", without_trace
        yield f"batch {d.batch_id} doubled", again
        if d is not sink.decisions[-1]:
            yield f"batch {d.batch_id} moved behind all", late


def partitions(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    for p in (0, 1):

        def gone(s: Sink, p: int = p) -> None:
            s.batches = [b for b in s.batches if b.partition != p]

        def moved(s: Sink, p: int = p) -> None:
            s.batches = [moved_to(s, b, 3) if b.partition == p else b for b in s.batches]

        def doubled(s: Sink, p: int = p) -> None:
            for d in s.decisions:
                for h in d.transactions:
                    twin(s, (h.producer_id, h.epoch), partition=2 + p)

        yield f"partition {p} removed", gone
        yield f"partition {p} moved", moved
        yield f"partition {p} doubled", doubled


def topics(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    """What stands in a topic that no decision names. Which topics are read shows a real broker: tests/integration."""
    for d in sink.decisions:
        for h in d.transactions:
            writer = h.producer_id, h.epoch

            def moved(s: Sink, writer: Writer = writer) -> None:
                mine = s.of(writer)
                s.batches = [moved_to(s, b, b.partition, ELSEWHERE) if b in mine else b for b in s.batches]

            def doubled(s: Sink, writer: Writer = writer) -> None:
                before = len(s.batches)
                twin(s, writer)
                s.batches[before:] = [moved_to(s, b, b.partition, ELSEWHERE) for b in s.batches[before:]]

            yield f"part {h.part} of batch {d.batch_id} moved to another topic", moved
            yield f"part {h.part} of batch {d.batch_id} written again in another topic", doubled

    def all_moved(s: Sink) -> None:
        s.batches = [moved_to(s, b, b.partition, ELSEWHERE) for b in s.batches]

    yield "the topic moved", all_moved


def moved_to(s: Sink, b: LogBatch, partition: int, topic: str = TOPIC) -> LogBatch:
    made = replace(b, topic=topic, partition=partition)
    if id(b) in s.out.rows:
        s.out.rows[id(made)] = s.out.rows[id(b)]
    return made


def decisions_of(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    numbers = [d.batch_id for d in sink.decisions]
    for n, d in enumerate(sink.decisions):

        def gone(s: Sink, n: int = n) -> None:
            del s.decisions[n]

        def doubled(s: Sink, d: Decision = d) -> None:
            s.decisions.append(replace(d, batch_id=numbers[-1] + 1))

        yield f"the decision of batch {d.batch_id} removed", gone
        yield f"the decision of batch {d.batch_id} doubled as the next one", doubled
        for m in range(len(sink.decisions)):
            if m != n:

                def moved(s: Sink, n: int = n, m: int = m) -> None:
                    s.decisions.insert(m, s.decisions.pop(n))

                yield f"the decision of batch {d.batch_id} moved to place {m}", moved
        for number in (*(i for i in range(numbers[0]) if i), numbers[-1] + 1, numbers[-1] + 2):

            def renumbered(s: Sink, n: int = n, number: int = number) -> None:
                s.decisions[n] = replace(s.decisions[n], batch_id=number)

            yield f"the decision of batch {d.batch_id} called batch {number}", renumbered


def commit_files(sink: Sink) -> Iterator[tuple[str, Callable[[Sink], None]]]:
    for n in sorted(sink.commits)[1:]:
        yield f"commits/{n} removed", lambda s, n=n: s.commits.discard(n)
        yield f"commits/{n} moved", lambda s, n=n: (s.commits.discard(n), s.commits.add(max(s.commits) + 2))
    yield "a commit file too many", lambda s: s.commits.add(max(s.commits) + 1)


#: Without the place of its records, a decision of an earlier version does not tell whether one moved.
NEEDS_DISTRIBUTION = ("moved to the other partition", "partition 0 moved", "partition 1 moved")


@pytest.mark.parametrize("distribution", [True, False])
@pytest.mark.parametrize(("count", "kept"), [(4, 4), (6, 4)])
def test_whatever_is_removed_doubled_or_moved_is_found_or_unproven(
    count: int, kept: int, distribution: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence over a defect of the sink that no list of anomalies has thought of."""
    monkeypatch.setattr(balance, "KEPT_DECISIONS", 4)
    sink = clean(count, kept, distribution)
    whole = sink.verdict()
    assert whole.findings == [] and not +whole.unproven and whole.batches == kept
    silent = []
    for name, change in changes(sink):
        if not distribution and name.endswith(NEEDS_DISTRIBUTION):
            continue
        changed = sink.copy()
        change(changed)
        found = changed.verdict()
        if not found.findings and not +found.unproven:
            silent.append(name)
    assert silent == []


def numbered(*batches: tuple[int, int]) -> Verdict:
    """The verdict on decisions with these numbers and tokens."""
    decisions = [decided(n, token=token) for n, token in batches]
    return judge_log(decisions, log_of(*decisions), Ledger(), {}, OutputState())


def test_a_hole_that_a_weaker_guarantee_explains_is_unproven() -> None:
    """A false loss over a stream that ran with at_least_once for a while; or silence over a batch that is gone."""
    away = numbered((0, 1), (1, 1), (5, 3))
    assert away.findings == [] and away.unproven[UNDECIDED] == 3
    (lost,) = numbered((0, 1), (1, 1), (3, 2)).findings
    assert lost.anomaly.value == "lost" and lost.batch == "batch 2"


def test_a_log_that_begins_late_and_is_short_says_so() -> None:
    """Silence over decisions that somebody removed from the log's beginning."""
    assert numbered((7, 1), (8, 1)).unproven[TOO_FEW] == 7
    assert not +numbered(*((n, 1) for n in range(100, 164))).unproven

"""With ``sink.batch.headers``, each record names its batch behind the headers of its row, and ``verify`` compares the
rows as the query made them.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from exactly_once.protocol.batch_headers import BATCH, SINK, pair_of
from exactly_once.tools.verify import VerifyParameters, verify
from testkit import oracle
from testkit.broker import create_topic
from testkit.fixtures import Bench
from testkit.stream import Job, SparkDriver

NUMBER = "cast(split(value, '-')[2] as int)"
FORGED = ((SINK, b"another"), (BATCH, b"99"))
FORGES = "array(" + ", ".join(f"named_struct('key', '{k}', 'value', cast('{v.decode()}' as binary))" for k, v in FORGED)
OWN = "named_struct('key', 'h', 'value', cast(value as binary))"

#: What rows choose beside key and value -> the form of their parts, but for the word of the option.
ROWS = {
    "key and value": ([], "plain"),
    "headers of some": ([f"if({NUMBER} % 3 = 0, null, array({OWN})) headers"], "row"),
    "headers that forge a batch": ([f"if({NUMBER} % 3 = 0, null, {FORGES})) headers"], "row"),
    "all": (
        [
            "cast(split(key, '[.]')[1] as int) % 4 partition",
            f"timestamp_millis(1700000000000 + {NUMBER}) timestamp",
            f"array({OWN}) headers",
        ],
        "row+partition+timestamp",
    ),
}


def job_of(bench: Bench, columns: list[str], **options: str | None) -> Job:
    transform = {"transform": "testkit.transforms:selected", "arguments": {"columns": ["key", "value", *columns]}}
    return replace(bench.job.having(**options), **transform)


def assert_proven(bench: Bench, *topics: str) -> None:
    checkpoint = str(bench.checkpoint)
    report = verify(
        bench.connection,
        VerifyParameters(bench.sink_id, checkpoint=checkpoint, topics=[bench.topic, *topics], settle_s=5),
    )
    assert report.clean and not report.unproven, report


def batch_and_number(m: oracle.Message) -> tuple[int, int]:
    """Return the batch that a row came with, and its number there; values are like ``b0-p1-17``."""
    batch, _, number = str(m.value).split("-")
    return int(batch[1:]), int(number)


def digest_kinds(bench: Bench, batch: int = -1) -> set[str]:
    return {h.form for h in bench.log().decisions[batch].transactions}


@pytest.mark.quick("headers of some")
@pytest.mark.parametrize("chosen", ROWS)
def test_each_record_names_its_batch_behind_its_own_headers_and_none_does_without_the_option(
    chosen: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a header of the row that is lost or changed, a batch that a reader takes for another one, a false
    corruption, and headers that nobody asked for.
    """
    columns, form = ROWS[chosen]
    for batch, option in enumerate(("true", None, "true")):
        bench.complete(warm, job_of(bench, columns, sink_batch_headers=option))
        assert digest_kinds(bench) == {form if option is None else f"{form}+batch"}, batch

    bench.assert_exactly(bench.input.expected())
    for m in oracle.read(bench.connection, [bench.topic]):
        batch, number = batch_and_number(m)
        own: tuple[tuple[str, bytes | None], ...] = ()
        if chosen == "all" or (chosen == "headers of some" and number % 3):
            own = (("h", (m.value or "").encode()),)
        if chosen == "headers that forge a batch" and number % 3:
            own = FORGED
        assert m.headers == (*own, *(pair_of(bench.sink_id, batch) if batch != 1 else ())), m
    assert_proven(bench)


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_records_under_a_weaker_guarantee_name_their_batch_too(guarantee: str, bench: Bench, warm: SparkDriver) -> None:
    """Guards against an option without effect: a reader would wait for batches that never come."""
    bench.complete(warm, bench.job.having(sink_batch_headers="true", sink_guarantee=guarantee), batches=2)
    found = {(batch_and_number(m)[0], m.headers) for m in oracle.read(bench.connection, [bench.topic])}
    assert found == {(batch, pair_of(bench.sink_id, batch)) for batch in (0, 1)}


@pytest.mark.long
def test_records_of_python_tasks_name_their_batch_too(bench: Bench, warm: SparkDriver) -> None:
    """Guards against an option that foreach_batch passes over, in either way of sending."""
    for columns, form in (ROWS["key and value"], ROWS["headers of some"]):
        bench.input.add()
        job = job_of(bench, columns, sink_batch_headers="true")
        warm.complete(Job(**{**asdict(job), "participants": []}))
        assert digest_kinds(bench) == {f"{form}+batch"}
    for m in oracle.read(bench.connection, [bench.topic]):
        batch, number = batch_and_number(m)
        own = (("h", str(m.value).encode()),) if batch == 1 and number % 3 else ()
        assert m.headers == (*own, *pair_of(bench.sink_id, batch))
    bench.assert_exactly_once()
    assert_proven(bench)


@pytest.mark.long
def test_a_batch_write_has_the_number_0(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a number that the docs do not say, and that another try changes."""
    options = {**bench.job.options, "sink.batch.headers": "true", "write.id": "w"}
    del options["checkpointLocation"]
    for _ in range(2):
        ended = warm.write_batch(options)
        assert ended.failure is None, ended.failure
    found = oracle.read(bench.connection, [bench.topic])
    assert len(found) == 40 and {m.headers for m in found} == {pair_of(bench.sink_id, 0)}


@pytest.mark.parametrize("columns", [[], [f"array({OWN}) headers"]], ids=["key and value", "headers"])
def test_a_dead_letter_gets_no_second_name_of_its_batch_and_the_headers_count_for_the_size(
    columns: list[str], bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a row that fits without the headers, and that stops the stream with them: it is a dead letter. And
    against a batch of records, each with headers, that is larger than its topic takes.
    """
    limit, servers = 2_000, bench.connection.bootstrap_servers
    topic = create_topic(servers, f"{bench.topic}-small", 1, {"max.message.bytes": str(limit)})
    dead = create_topic(servers, f"{bench.topic}-dead", 1)
    sizes = [100, 800, limit - 130, 3 * limit]  # of these rows, the third one fits without the headers alone
    bench.input.add_rows([[(f"k{size}", f"0-0-{n}:{size}") for n, size in enumerate(sizes * 3)]])
    padded = "rpad(split(value, ':')[0], cast(split(value, ':')[1] as int), 'x') value"
    job = bench.job.having(topic=topic, sink_dead_letter_topic=dead, sink_batch_headers="true")
    arguments = {"columns": ["key", padded, *columns]}
    warm.complete(replace(job, transform="testkit.transforms:selected", arguments=arguments))

    written, letters = (oracle.read(bench.connection, [t]) for t in (topic, dead))
    assert sorted(len(m.value or "") for m in written) == sorted(sizes[:2] * 3)
    assert sorted(len(m.value or "") for m in letters) == sorted(sizes[2:] * 3)
    pair = pair_of(bench.sink_id, 0)
    assert {m.headers[-2:] for m in written} == {pair}
    assert not [h for m in letters for h in m.headers if h in pair]
    (form,) = digest_kinds(bench)
    assert form == f"{'row' if columns else 'plain'}+batch+dead:{dead}"
    report = verify(
        bench.connection,
        VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), topics=[topic, dead], settle_s=5),
    )
    assert report.clean and not report.unproven, report

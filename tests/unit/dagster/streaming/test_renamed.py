"""A stream under another name, by the runs of its code location and the commit logs of their sinks."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_SINK, TAG_STREAM
from dagster_exactly_once.streaming.renamed import check_not_renamed
from exactly_once.errors import NotAuthorized, SinkOwned
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Decision, PreparedTransaction, Retired

STREAM = StreamSpec(
    name="cleaned",
    job="cleaned_stream",
    op="stream_cleaned",
    sink_id="cleaned",
    sources=("orders",),
    outputs=("clean_orders",),
    asset="cleaned_transactions",
)


def wrote(topic: str = "clean_orders", source: str = "orders") -> LogState:
    """The log of a sink that wrote a topic from another one."""
    offsets = f'v1\n{{}}\n{{"{source}":{{"0":7}}}}'
    handle = PreparedTransaction("eo:clean:1:0:0.0", 1, 0, 0, 5, 50, "")
    return LogState(decisions=(Decision("q", 3, 1, (handle,), "", 5, 0, topics=(topic,), offsets=offsets),))


@pytest.fixture
def check() -> Callable[..., None]:
    """Looks at one earlier run, of the job clean_stream on the sink clean."""
    instance = dg.DagsterInstance.ephemeral()
    tags = {TAG_STREAM: "clean", TAG_SINK: "clean"}
    create_run_for_test(instance, job_name="clean_stream", status=dg.DagsterRunStatus.SUCCESS, tags=tags)
    run = create_run_for_test(instance, job_name="cleaned_stream", tags={TAG_STREAM: "cleaned"})

    def look(log: LogState | None, *jobs: str) -> None:
        def read(old: str) -> LogState:
            if log is None:
                raise NotAuthorized(f"this principal may not read the commit log of {old}", "Grant READ on it")
            return log

        check_not_renamed(instance, run, STREAM, "cleaned", {"cleaned_stream", *jobs}.__contains__, read)

    return look


def test_a_stream_whose_job_has_another_name_than_before_is_refused_before_it_writes_all_again(
    check: Callable[..., None],
) -> None:
    """Duplicates: the sink's id is by default the function's name, which people change without a thought."""
    with pytest.raises(SinkOwned, match="sink 'clean' has written clean_orders from orders") as refused:
        check(wrote())
    assert "sink_id='clean'" in refused.value.way_out and "start_from" in refused.value.way_out


@pytest.mark.parametrize(
    ("log", "jobs"),
    [
        (wrote(), ["clean_stream"]),
        (wrote(topic="others"), []),
        (wrote(source="refunds"), []),
        (LogState(), []),
        (None, []),
        (LogState(wrote().decisions, retired=Retired(2, "cleaned", "q", 3, {}, 0)), []),
    ],
    ids=[
        "its job is there",
        "another output",
        "another input",
        "it wrote nothing",
        "its log may not be read",
        "it has a successor",
    ],
)
def test_another_stream_is_not_taken_for_one_that_was_renamed(
    log: LogState | None, jobs: list[str], check: Callable[..., None]
) -> None:
    """Mishap: a new stream that does not start."""
    check(log, *jobs)

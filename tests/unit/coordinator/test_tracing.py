"""A trace of a batch: its steps in one piece, or nothing; and nothing of it in the way of the batch."""

from __future__ import annotations

import sys

import pytest

from exactly_once.coordinator.tracing import TimedStep, Trace, check_traces, trace_of
from exactly_once.errors import Expiring, ExtraMissing, InvalidOption
from exactly_once.options import SinkOptions
from testkit.collector import Collector
from testkit.processes import until

OPTIONS = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"}


def shape(steps: list[TimedStep]) -> list[tuple[str, str]]:
    """Each step with its parent."""
    return [(s.name, "" if s.parent is None else steps[s.parent].name) for s in steps]


@pytest.fixture
def sent() -> list[list[TimedStep]]:
    return []


@pytest.fixture
def trace(sent: list[list[TimedStep]]) -> Trace:
    return Trace(lambda steps: sent.append(list(steps)))


def run(trace: Trace) -> None:
    """Plan batch 3, behind a claim, and commit it."""
    with trace.planning("batch"):
        trace.say_of_batch("batch 3", batch=3)
        with trace.step("claim"):
            pass
    trace.written()
    with trace.step("decide"):
        trace.say(attempt=1)
    trace.say_of_batch(records=7)
    trace.end()


def test_a_batch_is_sent_whole_when_it_has_ended_and_once(trace: Trace, sent: list[list[TimedStep]]) -> None:
    """Guards against half a batch in a trace, from a driver that died."""
    with trace.planning("batch"):
        pass
    assert sent == []
    trace.end()
    run(trace)
    trace.end()
    assert [shape(steps) for steps in sent] == [
        [("batch", ""), ("plan", "batch"), ("write", "batch")],
        [("batch 3", ""), ("plan", "batch 3"), ("claim", "plan"), ("write", "batch 3"), ("decide", "batch 3")],
    ]
    batch, *steps = sent[1]
    assert batch.attributes == {"batch": 3, "records": 7} and steps[-1].attributes == {"attempt": 1}
    assert all(batch.started_ns <= s.started_ns <= s.ended_ns <= batch.ended_ns for s in steps)


def test_a_refused_batch_ends_with_its_plan_and_the_code_of_the_refusal(
    trace: Trace, sent: list[list[TimedStep]]
) -> None:
    with pytest.raises(Expiring), trace.planning("batch"), trace.step("claim"):
        raise Expiring("gone", "start again")
    [[batch, plan, claim]] = sent
    assert [s.error for s in (batch, plan, claim)] == ["EO-EXPIRING"] * 3
    with trace.step("late"):  # of no batch
        pass
    trace.end()
    assert len(sent) == 1


def test_a_batch_that_failed_stays_failed_when_its_abort_went_well(trace: Trace, sent: list[list[TimedStep]]) -> None:
    with trace.planning("batch"):
        pass
    trace.written()
    trace.fail(ValueError("x"))
    with trace.step("abort"):
        pass
    trace.end()
    [[batch, _, write, abort]] = sent
    assert (batch.error, write.error, abort.error) == ("ValueError", "", "")
    assert batch.ended_ns >= abort.ended_ns


def test_a_batch_that_never_ended_is_sent_before_the_next_one(trace: Trace, sent: list[list[TimedStep]]) -> None:
    for _ in range(2):
        with trace.planning("batch"):
            pass
    assert len(sent) == 1


def test_what_sends_may_fail_and_the_batch_does_not() -> None:
    def broken(steps: object) -> None:
        raise OSError("no collector")

    run(Trace(broken))


def test_a_sink_that_does_not_ask_keeps_nothing() -> None:
    """Guards against a cost for everyone."""
    off = trace_of(SinkOptions.parse(OPTIONS))
    run(off)
    assert off._steps == []


def test_a_missing_package_is_refused_by_the_name_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "exactly_once.coordinator.spans", None)
    check_traces(SinkOptions.parse(OPTIONS))
    with pytest.raises(ExtraMissing, match=r"\[traces\]"):
        check_traces(SinkOptions.parse({**OPTIONS, "sink.trace": "true"}))


def test_otlp_in_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from exactly_once.coordinator.spans import Spans

    Spans.of_process.cache_clear()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    with pytest.raises(InvalidOption, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"):
        check_traces(SinkOptions.parse({**OPTIONS, "sink.trace": "true"}))


def test_a_collector_gets_one_tree_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from exactly_once.coordinator.spans import Spans

    Spans.of_process.cache_clear()
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        run(trace_of(SinkOptions.parse({**OPTIONS, "sink.trace": "true", "sink.operator": "me"})))
        until("the spans", lambda: len(collector.spans) == 5)
    Spans.of_process.cache_clear()
    [batch] = collector.batches
    assert (batch.name, batch.service) == ("batch 3", "exactly-once-sink")
    assert batch.attributes == {
        "exactly_once.sink": "s",
        "exactly_once.operator": "me",
        "exactly_once.batch": 3,
        "exactly_once.records": 7,
    }
    assert collector.steps(batch) == ["plan", "write", "decide"]
    assert collector.steps(collector.step(batch, "plan")) == ["claim"]

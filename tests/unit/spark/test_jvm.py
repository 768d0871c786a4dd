"""What the JVM asks of the coordinators, without a broker: every answer is an answer."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.errors import Fenced, InvalidOption
from exactly_once.spark import serve
from exactly_once.spark.jvm import Coordinators

GOOD = {"kafka.bootstrap.servers": "127.0.0.1:1", "sink.id": "s", "topic": "t", "checkpointLocation": "/c"}
SCHEMA = StructType().add("value", StringType()).json()


def ask(border: Coordinators, call: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(border.call(json.dumps({"call": call, "run": "r", **more})))
    return answer


def plan(border: Coordinators, **more: Any) -> dict[str, Any]:
    return ask(border, "plan", **{"query": "q", "batch": 0, "options": GOOD, "schema": SCHEMA, "settings": {}, **more})


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"call": "check", "options": {}, "batch": False}, "EO-OPTION"),
        ({"call": "check", "options": {**GOOD, "kafka.acks": "1"}, "batch": False}, "EO-OPTION"),
        ({"call": "check", "options": GOOD, "batch": True}, "EO-OPTION"),
        ({"call": "check", "options": {**GOOD, "checkpointLocation": None}, "batch": False}, "EO-CHECKPOINT"),
        ({"call": "check", "options": GOOD, "batch": True, "mode": "overwrite"}, "EO-MODE"),
        ({"call": "commit", "run": "unknown", "batch": 1, "parts": []}, "EO-PROTOCOL"),
        ({"call": "nonsense"}, "EO-PROTOCOL"),
        ([], "EO-PROTOCOL"),
    ],
)
def test_a_refusal_is_an_answer_with_its_code_first(asked: Any, code: str) -> None:
    """Raised, it would reach the user as a Java exception around a Python traceback."""
    error = json.loads(Coordinators().call(json.dumps(asked)))["error"]
    assert error["code"] == code and error["text"].startswith(f"{code}: ")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"overwrite": True}, "EO-MODE"),
        ({"settings": {"spark.speculation": "true"}}, "EO-MODE"),
        ({"settings": {"spark.speculation": "true"}, "write": True}, "EO-MODE"),
        ({"settings": {"spark.sql.streaming.stopTimeout": "5s"}}, "EO-MODE"),
        ({"schema": StructType().add("other", StringType()).json()}, "EO-SCHEMA"),
    ],
)
def test_a_plan_is_refused_before_anything_connects(more: dict[str, Any], code: str) -> None:
    """Guards against a refusal that fences a driver which works."""
    assert plan(Coordinators(), **more)["error"]["code"] == code


@pytest.mark.parametrize("more", [{}, {"write": True}, {"call": "check"}, {"call": "check", "batch": True}], ids=str)
def test_a_key_store_that_the_jvm_cannot_read_is_refused_in_its_words(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a Python that reads the store once more, by a Java that this host may not have."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    kind = {"write.id": "w", "checkpointLocation": None} if "write" in more or more.get("batch") else {}
    store = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/t.jks"}
    asked = {"call": "plan", "query": "q", "schema": SCHEMA, "settings": {}, **more}
    said = {"what": "it is not there", "way_out": "Correct it"}
    error = ask(Coordinators(), **asked, options={**GOOD, **kind, **store}, pem=said)["error"]
    assert error["text"] == str(InvalidOption(**said))


def test_a_mistake_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a stream that ends with a Java trace."""
    errors = (Fenced("another driver", "Stop this one"), ValueError("a library's"), SystemExit(3))
    for error, code in zip(errors, ("EO-FENCED", "EO-INTERNAL", "EO-INTERNAL"), strict=True):

        def fail(*_: object, e: BaseException = error) -> None:
            raise e

        monkeypatch.setattr(Coordinator, "plan", fail)
        assert plan(Coordinators())["error"]["code"] == code


def test_an_end_and_an_abort_of_a_run_that_is_not_known_are_well() -> None:
    """A query may end before its first batch, and Java may say so twice."""
    border = Coordinators()
    assert ask(border, "close") == ask(border, "abort", batch=0, parts=[]) == {"ok": None}


def test_an_abort_that_fails_does_not_hide_why_the_batch_did(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would report the abort, and whoever is called would look for the wrong cause."""
    border = Coordinators()
    plan(border, schema="not JSON")  # the run is known from here on
    border._runs["r"].coordinator.ticket = object()  # type: ignore[assignment]
    for failure in (Fenced("another driver", "Stop this one"), OSError("disk")):

        def fail(*_: object, e: Exception = failure) -> None:
            raise e

        monkeypatch.setattr(Coordinator, "abort", fail)
        assert ask(border, "abort", batch=0, parts=[None]) == {"ok": None}
        assert str(failure) in caplog.text


def test_a_call_that_takes_long_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against twenty streams of a driver that commit one after the other."""
    slow, done = threading.Event(), threading.Event()

    class Slow(Coordinators):
        def call(self, request: str) -> str:
            if request == '"slow"':
                assert slow.wait(20)
            return request

    class Answers(io.StringIO):
        def flush(self) -> None:
            done.set() if self.getvalue().count("\n") == 2 else slow.set()

    monkeypatch.setattr(serve, "Coordinators", Slow)
    answers = Answers()
    serve.serve(['1 "slow"\n', '2 "fast"\n'], answers)
    assert done.wait(20) and answers.getvalue() == '2 "fast"\n1 "slow"\n'


@pytest.mark.long
def test_a_child_process_answers_by_number_and_ends_with_its_input() -> None:
    """Guards against answers that a library's output cuts in two, against a child that outlives its JVM, and against
    one that ends by the Ctrl-C by which spark-shell cancels a job.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "exactly_once.spark.serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        for number, options in ((7, GOOD), (8, {})):
            child.stdin.write(f"{number} {json.dumps({'call': 'check', 'options': options, 'batch': False})}\n")
        child.stdin.flush()
        answers = dict(child.stdout.readline().split(" ", 1) for _ in range(2))
        assert json.loads(answers["7"]) == {"ok": None}
        assert json.loads(answers["8"])["error"]["code"] == "EO-OPTION"
        child.send_signal(signal.SIGINT)
        child.stdin.write('9 {"call": "close", "run": "r"}\n')
        child.stdin.flush()
        assert child.stdout.readline() == '9 {"ok": null}\n'
        child.stdin.close()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()

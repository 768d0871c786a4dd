"""What a task does with one row of ``exactly_once.attempt``, without a session."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from exactly_once.error_headers import LONGEST_MESSAGE
from exactly_once.errors import sentence_in
from exactly_once.spark.split import _guarded


class NoText(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: BaseException) -> object:
    def function(value: bytes) -> bytes:
        raise error

    return function


def test_a_result_becomes_the_value_and_a_row_that_is_bad_already_is_not_tried() -> None:
    """Guards against text that is written in another encoding, and against a function that sees rejected rows."""
    tried = _guarded(lambda value: value.decode() + "ß" if value else None, Exception)
    assert tried(False, b"a") == ("aß".encode(), None, None)
    assert tried(False, bytearray(b"a"))[0] == "aß".encode()
    assert tried(False, None) == (None, None, None)
    assert _guarded(raising(ValueError()), Exception)(True, b"a") == (None, None, None)


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (KeyError("amount"), "KeyError", "'amount'"),
        (json.JSONDecodeError("Expecting value", "x", 0), "json.decoder.JSONDecodeError", "Expecting value: line 1"),
        (ValueError(), "ValueError", ""),
        (NoText(), f"{__name__}.NoText", "its text could not be made"),
        (ValueError("half a character: \ud800"), "ValueError", "half a character: \\ud800"),
        (ValueError("x" * 5_000), "ValueError", "x" * LONGEST_MESSAGE),
        (RecursionError("too deep"), "RecursionError", "too deep"),
    ],
)
def test_an_exception_becomes_the_reason(error: Exception, name: str, message: str) -> None:
    """Guards against a bad record whose exception fails the batch after all, by a text that no header can hold."""
    value, exception, said = _guarded(raising(error), Exception)(False, b"a")
    assert value is None and exception == name and said is not None and said.startswith(message)
    assert len(said.encode()) <= 10 * LONGEST_MESSAGE


def test_a_result_that_cannot_be_encoded_is_the_records_fault() -> None:
    """Guards against half a character in the input that stops the stream on the way out."""
    assert _guarded(lambda value: "\ud800", Exception)(False, b"a")[1] == "UnicodeEncodeError"


def test_what_is_not_to_be_caught_fails_the_batch() -> None:
    """Guards against a mistake in the function that sends a whole topic to the rejected ones."""
    with pytest.raises(NameError):
        _guarded(raising(NameError("n")), (KeyError, ValueError))(False, b"a")
    with pytest.raises(KeyboardInterrupt):
        _guarded(raising(KeyboardInterrupt()), Exception)(False, b"a")


def test_a_result_of_another_type_is_a_mistake_of_the_function_with_a_code() -> None:
    """Guards against a dict that Spark writes as null, for every record."""
    with pytest.raises(TypeError) as raised:
        _guarded(lambda value: {"a": 1}, Exception)(False, b"a")  # type: ignore[arg-type,return-value]
    assert re.match(r"EO-TRANSFORM: .*exactly_once\.attempt", sentence_in(str(raised.value)) or "")


def test_an_executor_needs_pyspark_alone(tmp_path: Path) -> None:
    """Guards against a function that no executor can load, since only the driver's host has this package."""
    pickled = tmp_path / "function"
    pickled.write_bytes(cloudpickle.dumps(_guarded(lambda value: value + b"!", (KeyError, ValueError))))
    code = (
        "import pickle, sys; sys.modules['exactly_once'] = None; "
        "print(pickle.load(open(sys.argv[1], 'rb'))(False, b'a'))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(pickled)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "(b'a!', None, None)", done.stderr

"""Errors: a stable code, what happened, what is safe, the way out; found again in any text."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from exactly_once.errors import (
    BatchTooLong,
    ExactlyOnceError,
    Fenced,
    InvalidOption,
    InvalidRecord,
    PrepareFailed,
    all_errors,
    code_in,
    sentence_in,
)

#: The public contract: people grep and alert by these. A code may be added; none may change or vanish.
CODES = {
    "EO-OPTION": "InvalidOption",
    "EO-SCHEMA": "InvalidSchema",
    "EO-MODE": "UnsupportedMode",
    "EO-SESSION-JAR": "SessionWithoutJar",
    "EO-CHECKPOINT": "CheckpointUnusable",
    "EO-REWOUND": "CheckpointRewound",
    "EO-SINK-OWNED": "SinkOwned",
    "EO-COORDINATOR": "CoordinatorGone",
    "EO-COORDINATOR-MISSING": "CoordinatorMissing",
    "EO-UNREACHABLE": "BrokerUnreachable",
    "EO-BROKER-OLD": "BrokerTooOld",
    "EO-TOPIC": "UnknownTopic",
    "EO-TIMEOUT": "InvalidTransactionTimeout",
    "EO-DENIED": "NotAuthorized",
    "EO-RECORD": "InvalidRecord",
    "EO-PREPARE": "PrepareFailed",
    "EO-TOPIC-LIMIT": "TopicLimitLowered",
    "EO-FENCED": "Fenced",
    "EO-EXPIRING": "Expiring",
    "EO-DECIDED": "AlreadyDecided",
    "EO-TOO-LONG": "BatchTooLong",
    "EO-UNFINISHED": "Unfinished",
    "EO-EXPIRED": "Expired",
    "EO-LOST": "Lost",
    "EO-PARTICIPANT": "ParticipantMissing",
    "EO-TOPIC-RECREATED": "TopicRecreated",
    "EO-INPUT-RECREATED": "InputRecreated",
    "EO-STORE": "StoreRefused",
    "EO-DATABASE": "DatabaseUnusable",
    "EO-EXTRA": "ExtraMissing",
    "EO-CONNECTOR": "ConnectorUnusable",
    "EO-REGISTRY": "RegistryUnreachable",
    "EO-LOG": "CommitLogDamaged",
    "EO-LOG-BLOCKED": "CommitLogBlocked",
    "EO-LOG-SIZE": "DecisionTooLarge",
    "EO-PROTOCOL": "ProtocolViolation",
}
HEALS = {
    "EO-UNREACHABLE",
    "EO-COORDINATOR",
    "EO-PREPARE",
    "EO-TOPIC-LIMIT",
    "EO-EXPIRING",
    "EO-DECIDED",
    "EO-UNFINISHED",
    "EO-LOST",
    "EO-REGISTRY",
    "EO-LOG-BLOCKED",
}
ALL = all_errors()


def test_the_codes_are_the_contract() -> None:
    """An alert that waits for EO-EXPIRED must not wake nobody because somebody renamed it."""
    assert CODES.items() <= {code: c.__name__ for code, c in ALL.items()}.items()


def test_every_code_that_java_raises_is_one_of_them() -> None:
    """Mishap: a task's failure is UNCLASSIFIED, and nobody restarts what a restart would heal."""
    sources = (Path(__file__).parents[3] / "java" / "exactlyonce").rglob("*.java")
    raised = {code for source in sources for code in re.findall(r'"(EO-[A-Z-]+)"', source.read_text(encoding="utf-8"))}
    assert {"EO-COORDINATOR", "EO-PREPARE", "EO-RECORD"} <= raised <= set(ALL)


def test_no_two_errors_share_a_code() -> None:
    """Else the reaction to one is taken for the other."""
    declared = ExactlyOnceError.__subclasses__()
    assert len({c.code for c in declared}) == len(declared)
    assert not [c for d in declared for c in d.__subclasses__()], "all_errors() finds direct subclasses only"


def test_only_what_a_restart_heals_is_restarted() -> None:
    """A supervisor that restarts EO-FENCED or EO-REWOUND fights a healthy driver, or hides what a person must
    decide."""
    assert {code for code, c in ALL.items() if c.restart_heals} & CODES.keys() == HEALS


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_a_message_has_its_code_first_and_three_sentences(kind: type[ExactlyOnceError]) -> None:
    """Spark turns the exception into text; the first word is all that is left of its type."""
    e = kind("the thing broke", "Do this")
    assert str(e) == f"{kind.code}: the thing broke. {kind.default_safe}. What to do: Do this."
    assert str(kind("a.", "b.", safe="c.")) == f"{kind.code}: a. c. What to do: b."


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_an_error_survives_the_way_between_processes(kind: type[ExactlyOnceError]) -> None:
    """Python tasks and Dagster's step processes pickle exceptions; one that cannot be loaded hides the real one."""
    e = kind("what", "way", safe="safe")
    again = pickle.loads(pickle.dumps(e))
    assert (type(again), str(again), again.what, again.safe, again.way_out) == (kind, str(e), "what", "safe", "way")


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_the_code_and_the_sentence_are_found_in_sparks_text(kind: type[ExactlyOnceError]) -> None:
    """[STREAM_FAILED] wraps a Python traceback; the person on call wants the one sentence in it."""
    e = kind("topic 'a' does not exist", "Create it")
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] "
        "An error occurred in the user provided function in foreach batch sink. Reason: "
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in commit\n'
        f"exactly_once.errors.{kind.__name__}: {e}\n SQLSTATE: 38000"
    )
    assert code_in(text) == kind.code
    assert sentence_in(text) == str(e)


RECORD = InvalidRecord("a row has no topic", "Fill the column 'topic'")
STAGE = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    "3.0 (TID 7) (10.0.0.7 executor 2): "
)


@pytest.mark.parametrize(
    "before",
    [
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: ",
        f"org.apache.spark.SparkException: {STAGE}exactlyonce.SinkException: ",
        f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {STAGE}exactlyonce.SinkException: ",
        "org.apache.spark.SparkException: Writing job aborted\n\tat a.B.c(B.scala:1)\nCaused by: "
        "exactlyonce.SinkException: ",
        "py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n: exactlyonce.SinkException: ",
        "Traceback (most recent call last):\n  x\npyspark.errors.exceptions.captured.IllegalArgumentException: ",
        "Traceback (most recent call last):\n  x\npyspark.errors.exceptions.connect.IllegalArgumentException: ",
        "(exactlyonce.SinkException) ",
    ],
)
def test_an_error_of_the_java_side_is_found_with_its_sentence(before: str) -> None:
    """Guards against a bad record that is restarted for ever, since nobody knows what failed."""
    at = "exactlyonce.write.PartWriter.write(PartWriter.java:7)"
    text = f"{before}{RECORD} SQLSTATE: XXKST\n\tat {at}\nDriver stacktrace:"
    assert code_in(text) == "EO-RECORD" and sentence_in(text) == str(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.RuntimeException: cannot parse 'exactlyonce.SinkException: EO-PREPARE: no broker'",
        "ValueError: exactlyonce.SinkException: EO-PREPARE: no broker",
        "PythonException: ValueError: (exactlyonce.SinkException) EO-PREPARE: no broker",
        *("", "no code", "EO-", "EO-WARN-TIMEOUT the batch", "EO-NONSENSE: x", "VIDEO-TOPIC: x", "eo-topic: x"),
        "PythonException: ValueError: cannot parse record b'EO-UNREACHABLE: no broker'",
        "ValueError: bad row\nEO-UNREACHABLE: no broker answered",
        "ValueError: log line: exactly_once.errors.BrokerUnreachable: EO-UNREACHABLE: no broker answered",
        "[USER_RAISED_EXCEPTION] EO-PREPARE: raised by hand",
    ],
)
def test_a_text_without_a_known_code_has_none(text: str) -> None:
    """A foreign error must not be classified as ours, above all not as one that a restart heals."""
    assert code_in(text) is None
    assert sentence_in(text) is None


def test_of_a_chain_the_exception_that_was_raised_in_the_end_counts() -> None:
    """A batch that is too long fails a request first: EO-PREPARE would be restarted for ever, EO-TOO-LONG needs a
    person.
    """
    first, last = PrepareFailed("no answer", "Wait"), BatchTooLong("twice too long", "Raise the timeout")
    chain = (
        f"exactly_once.errors.PrepareFailed: {first}\n\nThe above exception was the direct cause of the following "
        f"exception:\n\nTraceback (most recent call last):\nexactly_once.errors.BatchTooLong: {last}\n"
    )
    assert code_in(chain) == "EO-TOO-LONG"
    assert sentence_in(chain) == str(last)


def test_a_warnings_word_does_not_hide_the_errors_code() -> None:
    """Both stand in one log excerpt when a batch gets too slow and then fails."""
    fenced = f"exactly_once.errors.Fenced: {Fenced('claim 1 is superseded', 'Stop this driver')}"
    text = f"EO-WARN-TIMEOUT the batch used 60%\n{fenced}"
    assert code_in(text) == "EO-FENCED"


def test_a_cause_with_several_lines_does_not_cut_the_sentence_off() -> None:
    """Library errors end in line breaks (librdkafka's do); the way out behind them must still be found."""
    e = InvalidOption("the value is refused (outside allowed range 0..1\n)", "Lower it")
    found = sentence_in(f"Traceback:\nexactly_once.errors.InvalidOption: {e}\nmore")
    assert found is not None and found.endswith("Lower it.")


def test_an_error_has_no_control_characters() -> None:
    """Names come from the commit log and from brokers: a terminal would obey what somebody wrote there."""
    error = Fenced("owned by \x1b]0;pwned\x07host\x9b2J", "look\x1b[2J")
    assert str(error).isprintable() and "]0;pwned" in str(error)


def test_an_error_of_a_library_has_no_colours() -> None:
    """Libraries of tables colour their errors; in a log the codes stood around each word."""
    assert Fenced("no \x1b[1;31mcatalogue\x1b[0m here", "look").what == "no catalogue here"

"""Classifies a failure for a person: the code, the cause, what is safe, the remedy.

Spark turns an exception of the sink into text on its way through the JVM. The sink's messages begin with a stable code,
so the diagnosis finds them in the text; it recognises failures of Spark and its source by the names of Spark's errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import dagster as dg

from dagster_exactly_once.resources.checkpoints import Offsets
from dagster_exactly_once.runs.own_exception import Raised, raised_by, raised_in
from exactly_once.errors import ExactlyOnceError, TransformFailed, all_errors, sentence_in, way_out_in
from exactly_once.tools.diagnosis import Diagnosis, Severity

T = TypeVar("T")


@dataclass(frozen=True)
class Failure(Diagnosis):
    """The reason why a run failed.

    Its code is ``EO-...`` of the sink, ``SPARK-...`` for Spark and its source, ``UNCLASSIFIED`` for everything else;
    its sentence is what happened: for the sink's errors, the whole message with what is safe and the remedy.

    Attributes
    ----------
    unwanted : bool
        Whether a person had asked the run to end before it failed.
    """

    unwanted: bool = False

    @property
    def heals(self) -> bool:
        """True when starting again, unchanged, is the right reaction."""
        return self.severity is Severity.WARN

    @property
    def headline(self) -> str:
        """Code and cause; the sink's own messages begin with their code."""
        return self.sentence if self.sentence.startswith(self.code) else f"{self.code}: {self.sentence}"

    def as_metadata(self) -> dict[str, str | bool]:
        """Return what the failed step of a run keeps: :func:`~dagster_exactly_once.runs.history.classify` reads it."""
        return {
            "code": self.code,
            "cause": self.sentence,
            "way_out": self.remedy,
            "restart_heals": self.heals,
        }


def failure(code: str, cause: str, remedy: str = "", heals: bool = True, unwanted: bool = False) -> Failure:
    """Return why a run failed; one that a restart heals is a warning."""
    severity = Severity.WARN if heals else Severity.ERROR
    return Failure(code, severity, "the run", cause, remedy, unwanted=unwanted)


#: The number of partitions that a message names.
_NAMED = 4


@dataclass(frozen=True)
class FailurePlace:
    """The progress of a stream, or of a run beside it, when it fails: what to launch again, what it wrote, its input.

    Attributes
    ----------
    job : str
        What a person launches again; "" when nothing is known.
    batch : int or None
        The batch in flight.
    piece, again : str
        Of a run that is no stream: what it writes in place of a batch, and what a person does to repeat that.
    waiting : mapping
        Where its input begins, by topic and partition.
    without_input : callable
        Returns what is missing in the output if this input is gone, and what to do; "" when nobody can tell.
    decided : callable
        Returns whether the commit log has decided the batch; None when nobody can tell.
    state_ids : callable
        Returns whether the last batch that Spark committed names its files of state (state format 2).
    """

    job: str = ""
    batch: int | None = None
    waiting: Offsets = field(default_factory=dict)
    without_input: Callable[[], tuple[str, str]] = field(default=lambda: ("", ""))
    decided: Callable[[], bool | None] = field(default=lambda: None)
    state_ids: Callable[[], bool] = field(default=lambda: False)
    piece: str = ""
    again: str = ""

    @property
    def in_flight(self) -> str:
        """The batch or piece under way, in words; "" when that is not known."""
        return self.piece or (f"batch {self.batch}" if self.batch is not None else "")

    @property
    def input(self) -> str:
        """The first offsets of the input, as ``orders-0@4822, orders-1@4825``; "" when they are not known."""
        each = [f"{topic}-{p}@{at}" for topic, ends in sorted(self.waiting.items()) for p, at in sorted(ends.items())]
        more = f" and {len(each) - _NAMED} more partitions" if len(each) > _NAMED else ""
        return ", ".join(each[:_NAMED]) + more


#: The place of a stream of which nothing is known.
NOWHERE = FailurePlace()

#: Messages of Amazon's SDK when S3 did not answer. A host that it does not know, or a certificate, it names instead.
_S3_SILENT = ("Read timed out", "Connect to", "Connection reset", "The target server failed to respond", "Broken pipe")

#: The code of a batch whose input is gone; the commit log says what is lost with it.
INPUT_LOST = "SPARK-INPUT-LOST"

#: The code of a checkpoint of state format 2 whose setting is missing: Spark reads commits/N as of a newer one, or
#: looks for a file of state as format 1 names it.
STATE_FORMAT = "SPARK-STATE-FORMAT"
_FORMAT_2_COMMIT = re.compile(r"/commits/\d+\. .*encountered v2\b")
_FORMAT_1_FILE = re.compile(r"/\d+\.(?:changelog|delta|snapshot|zip) does not exist")

#: A column of the input that Spark does not find any more beside the column that ``exactly_once.attempt`` makes.
_MOVED = re.compile(
    r"\[UNRESOLVED_COLUMN\.WITH_SUGGESTION\][^`]*`(headers|topic|partition|offset|timestamp)`.*`tried`", re.DOTALL
)

#: Spark's names (in the text of the exception), code, remedy, and whether a restart heals. The first that matches
#: counts. A disk that is full or away comes before files that cannot be read; the state before other files: below it,
#: Spark names the torn file too.
_SPARK = (
    (
        ("No space left on device",),
        "SPARK-DISK-FULL",
        "Free space on the disks of the driver and its executors (the checkpoint, and Spark's local folders), and "
        "start again, unchanged",
        False,
    ),
    (
        ("KAFKA_DATA_LOSS", "KafkaIllegalStateException", "OffsetOutOfRangeException", "Cannot fetch offset"),
        INPUT_LOST,
        "The input topic no longer holds the records that the checkpoint continues from (retention, or the topic was "
        "recreated). Run exactly-once checkpoint inspect LOCATION --sink S, which says whether the output lacks any of "
        "them, and what to do",
        False,
    ),
    (
        ("UnknownTopicOrPartitionException",),
        "SPARK-INPUT-TOPIC",
        "Create the input topic, or correct its name",
        False,
    ),
    (
        (
            "SaslAuthenticationException",
            "TopicAuthorizationException",
            "GroupAuthorizationException",
            "SslAuthenticationException",
        ),
        "SPARK-DENIED",
        "Correct the credentials, or grant READ and DESCRIBE on the input topic",
        False,
    ),
    (
        (
            "failed on connection exception",
            "failed on socket timeout",
            "failed on socket exception",
            *(
                f"Failed on local exception: java.io.IOException: {reason}"
                for reason in ("Connection reset", "Broken pipe")
            ),
            "End of File Exception between local host",
            "No Route to Host from",
            "Name node is in safe mode",
            "StandbyException",
            "All datanodes",
            "could only be written to",
            "Could not obtain block",
            *(f"Unable to execute HTTP request: {reason}" for reason in _S3_SILENT),
            *("ApiCallTimeoutException:", "ApiCallAttemptTimeoutException:"),
            *(f"Service: S3, Status Code: {status}" for status in (500, 502, 503, 504)),
        ),
        "SPARK-CHECKPOINT-AWAY",
        "Wait until the checkpoint's HDFS answers and its name node has left safe mode, or its S3 answers, and start "
        "again, unchanged",
        True,
    ),
    (
        (
            *("Failed to construct kafka", "No resolvable bootstrap urls", "DisconnectException"),
            # with what ends the name: any trace of Amazon's SDK has TimeoutExceptionHandlingStage
            *("TimeoutException:", "TimeoutException\n"),
        ),
        "SPARK-UNREACHABLE",
        "Check the brokers and the network; start again, unchanged, once the brokers answer",
        True,
    ),
    (
        ("OutOfMemoryError",),
        "SPARK-MEMORY",
        "Give the driver more memory (resource spark, driver_memory) or make batches smaller (max_offsets_per_trigger)",
        False,
    ),
    (
        (),  # see _lacks_state_format
        STATE_FORMAT,
        "Set spark.sql.streaming.stateStore.checkpointFormatVersion=2 again (resource spark, conf), and start on Spark "
        "4.0 or newer: the state was written with it, and Spark does not remember it. Nothing is damaged: put "
        "back no copy",
        False,
    ),
    (
        ("INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION", "produced by a newer version of Spark"),
        "SPARK-CHECKPOINT-NEWER",
        "Start the stream with the Spark that wrote the checkpoint, or a newer one: this Spark cannot read it. Nothing "
        "is damaged",
        False,
    ),
    (
        ("CANNOT_LOAD_STATE_STORE", "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"),
        "SPARK-STATE-UNREADABLE",
        "Read the cause below CANNOT_LOAD_STATE_STORE in the compute log. If a disk was full or a file system did "
        "not answer, fix that and start again, unchanged. If a file below the checkpoint's state folder is torn or "
        "missing, no command repairs it: put back the newest whole copy of the checkpoint, all of its files, and "
        "start again. Without a copy, start with a new checkpoint and a new sink id",
        False,
    ),
    (
        (
            "Incomplete log file",
            "MALFORMED_LOG_FILE",
            "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
            "Checksum error",
            "No content to map due to end-of-input",
            "Unexpected end-of-input",
        ),
        "SPARK-CHECKPOINT-TORN",
        "A file of the checkpoint is torn. Do not delete anything by hand: run the job "
        "exactly_once_checkpoint_repair (a dry run first), or exactly-once checkpoint repair LOCATION --sink SINK. "
        "For a file below sources, which it does not repair, put back the newest whole copy of the checkpoint",
        False,
    ),
    (
        # the first of an empty file, which Spark's requirement does not name; the other of any text that is no JSON
        ("requirement failed\n=== Streaming Query", 'Expected e.g. {"topicA"'),
        "SPARK-SOURCE-OFFSETS",
        "If you wrote JSON into the option startingOffsets, correct it. Otherwise check the file sources/0/0 of the "
        "checkpoint, which Spark reads until the first batch is committed: if it is torn, put back the newest whole "
        "copy of the checkpoint, or delete this file and sources/0/.0.crc, and start again: Spark then asks for the "
        "first offsets again, by startingOffsets",
        False,
    ),
    (
        ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using"),
        "SPARK-TWO-DRIVERS",
        "Another driver is running on the same checkpoint: stop one of the two. If there is no other driver, a file of "
        "the checkpoint was deleted without its checksum: run the job exactly_once_checkpoint_repair",
        False,
    ),
    (
        ("Py4JNetworkError", "ConnectionRefusedError", "Answer from Java side is empty", "JAVA_GATEWAY_EXITED"),
        "SPARK-JVM-GONE",
        "Spark's JVM exited or was killed (out of memory?). Read the cause at the end of the compute log, then "
        "start again",
        True,
    ),
)


def diagnose(error: BaseException, place: FailurePlace = NOWHERE) -> Failure:
    """Classify ``error``, which ended a stream at ``place``; never raises."""
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, ExactlyOnceError):
            return failure(one.code, str(one), one.way_out, one.restart_heals)
    text = "\n".join(f"{type(one).__name__}: {one}" for one in chain)
    raised = raised_in(text)  # first: the text of a user's exception may quote an error of the sink
    if raised is not None:
        return diagnose(transform_failed(raised, place))
    sentence = sentence_in(str(error)) or next(filter(None, (sentence_in(str(one)) for one in chain)), None)
    if sentence is not None:
        code = sentence.split(":", 1)[0].strip()
        kind = all_errors().get(code)
        return failure(code, sentence, way_out_in(sentence), bool(kind and kind.restart_heals))
    for names, code, way_out, heals in _SPARK:
        if any(name in text for name in names) or (code == STATE_FORMAT and _lacks_state_format(text, place)):
            missing, advised = place.without_input() if code == INPUT_LOST else ("", "")
            cause = f"{first_line(text)} The commit log says: {missing}" if missing else first_line(text)
            return failure(code, cause, advised or way_out, heals)
    return failure(
        "UNCLASSIFIED",
        first_line(text),
        "Read the whole error in the compute log of the run. If it is a bug of the sink, report the error",
        False,
    )


def _lacks_state_format(text: str, place: FailurePlace) -> bool:
    return bool(_FORMAT_2_COMMIT.search(text) or (_FORMAT_1_FILE.search(text) and place.state_ids()))


def users_own(make: Callable[[], T], place: Callable[[], FailurePlace]) -> T:
    """Return what the user's own function makes; raise TransformFailed when it raises an exception of its own."""
    try:
        return make()
    except (ExactlyOnceError, dg.DagsterError):
        raise
    except Exception as error:
        raise transform_failed(raised_by(error), place(), built=False) from error


def transform_failed(raised: Raised, place: FailurePlace, built: bool = True) -> TransformFailed:
    """Return the error for an exception of the user's own function or expression, the exception first: over a batch, or
    before the query was ``built``.
    """
    batch = place.in_flight
    on = f", on {batch}" if batch and built else ""
    again = place.again or (f"launch {place.job} again" if place.job else "start the stream again")
    decided = place.decided()
    if decided and batch:
        safe = (
            f"The commit log has decided {batch}: its rows are in the output, or the next start commits them. That "
            "start runs the query over its input once more, and writes none of its rows: never write them by hand"
        )
    else:
        what = f"Nothing of {batch or 'the batch'} was written" if decided is False else "This run wrote nothing of it"
        safe = (
            f"{what}; the next start reads {f'the input from {place.input}' if place.input else 'the same input'} again"
        )
    repeats = f"which repeats {batch}" if batch else "which continues where it stopped"
    moved = _MOVED.search(raised.what)
    correct = f"Use tried.{moved[1]}: exactly_once.attempt has moved it" if moved else "Correct the function"
    return TransformFailed(
        f"{raised.sentence}{on}",
        f"{correct}, reload the code location and {again}, {repeats}. For a record that can never pass, see "
        "docs/one-bad-record.md",
        safe,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and its causes; of PySpark's exceptions, those in the JVM."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        # an abort that fails as well leaves "Writing job failed." as the message, and the reason below it
        current = current.__cause__ or getattr(current, "_cause", None) or current.__context__


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:500]


def as_failure(failure: Failure) -> dg.Failure:
    """Make the failure of an op. Dagster never retries it: the stream's restart strategy decides about restarts."""
    return dg.Failure(failure.headline, metadata=failure.as_metadata(), allow_retries=False)


@contextmanager
def classified() -> Iterator[None]:
    """Turn an error of this project inside the block into the failure of the op or asset around it.

    Other exceptions pass as they are.

    Raises
    ------
    dagster.Failure
        In place of an ExactlyOnceError, which is its cause. Its metadata are ``code``, ``cause``, ``way_out`` and
        ``restart_heals``, by which the sensors decide about a restart; Dagster itself does not retry the op.
    """
    try:
        yield
    except ExactlyOnceError as error:
        raise as_failure(diagnose(error)) from error

"""Every failure of a stream becomes a code, a cause and a way out, although Spark turns exceptions into text."""

from dataclasses import replace

import dagster as dg
import pytest

from dagster_exactly_once.runs import failures
from dagster_exactly_once.runs.failures import FailurePlace, diagnose, users_own
from dagster_exactly_once.runs.own_exception import raised_by
from exactly_once.errors import CheckpointRewound, Fenced, TransformFailed, all_errors

STATE = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."
LOCAL = "DestHost:destPort b:8020 , LocalHost:localPort a/127.0.0.1:0. Failed on local exception:"
S3A = "getFileStatus on s3a://b/c/commits: software.amazon.awssdk.core.exception.SdkClientException:"


class StreamingQueryException(Exception):
    """As PySpark raises it: the sink's sentence is inside the message."""


def as_spark_says(error):
    return StreamingQueryException(
        "[STREAM_FAILED] Query [id = d849c511, runId = c5e28c04] terminated with exception: "
        f"{error} SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: flight_delays"
    )


@pytest.mark.parametrize("kind", all_errors().values(), ids=lambda kind: kind.code)
def test_every_error_of_the_sink_is_recognised_in_spark_s_text(kind):
    found = diagnose(as_spark_says(kind("the thing broke", "Do this, then that")))
    assert (found.code, found.heals) == (kind.code, kind.restart_heals)
    assert found.sentence.startswith(f"{kind.code}: the thing broke.")
    assert found.remedy == "Do this, then that."
    assert found.headline == found.sentence


@pytest.mark.parametrize("safe", [None, "One thing is safe. Another is too"])
def test_a_way_out_of_several_sentences_is_kept_whole(safe):
    """The last sentence alone may tell a person to accept a loss that the first one would have avoided."""
    way_out = "Restore the file. If it is gone for good, set sink.adopt=q/7 for one start"
    error = CheckpointRewound("batch 7 is missing. So is batch 8", way_out, safe=safe)
    assert diagnose(as_spark_says(error)).remedy == f"{way_out}."


@pytest.mark.parametrize(
    ("code", "what", "way_out", "heals"),
    [
        ("EO-COORDINATOR", "the Python process that runs the sink's protocol does not answer", "Start the", True),
        ("EO-COORDINATOR-MISSING", "`python3 -m exactly_once.spark.serve` cannot be started", "Install", False),
    ],
)
def test_a_coordinator_that_is_gone_is_restarted_and_one_that_cannot_be_started_is_not(code, what, way_out, heals):
    """Mishaps: the process that runs the protocol is killed for its memory, and the stream waits for a person; or a
    Python without this package is started for ever.
    """
    said = f"{code}: {what}. The next start commits what is decided; nothing else is visible. What to do: {way_out}."
    found = diagnose(as_spark_says(said))
    assert (found.code, found.sentence, found.heals) == (code, said, heals)
    assert found.remedy.startswith(way_out)


def test_what_is_lost_with_the_input_is_what_the_commit_log_says():
    """Mishap: "start with a new sink id" for a batch that was committed, and all of its input written again."""
    lost = RuntimeError("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost")
    place = FailurePlace(without_input=lambda: ("batch 7 is committed", "Mark it"))
    found = diagnose(lost, place)
    assert found.sentence.endswith(" commit log says: batch 7 is committed") and found.remedy == "Mark it"
    assert "checkpoint inspect" in diagnose(lost).remedy
    assert "batch 7" not in diagnose(RuntimeError("java.lang.OutOfMemoryError: Java heap space"), place).sentence


def test_an_error_of_the_sink_that_is_still_an_object_keeps_its_words():
    found = diagnose(Fenced("claim 3 is superseded", "Stop this driver"))
    assert (found.code, found.remedy) == ("EO-FENCED", "Stop this driver")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost", "SPARK-INPUT-LOST"),
        ("org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been", "SPARK-INPUT-LOST"),
        (
            "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host",
            "SPARK-INPUT-TOPIC",
        ),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", "SPARK-TWO-DRIVERS"),
        ("Multiple streaming queries are concurrently using file:/c/commits.", "SPARK-TWO-DRIVERS"),
        ("Failed to read log file file:/c/commits/2. Incomplete log file in the", "SPARK-CHECKPOINT-TORN"),
        ("[MALFORMED_LOG_FILE] Log file was malformed: failed to read correct log version", "SPARK-CHECKPOINT-TORN"),
        ("requirement failed\n=== Streaming Query ===\nIdentifier: q", "SPARK-SOURCE-OFFSETS"),
        ('Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {"t-2', "SPARK-SOURCE-OFFSETS"),
        ("requirement failed: a batch must have a schema\n=== Streaming Query ===", "UNCLASSIFIED"),
        ("Call From a/127.0.0.1 to b:8020 failed on connection exception: java.net.Conn", "SPARK-CHECKPOINT-AWAY"),
        ("Call From a/127.0.0.1 to b:8020 failed on socket timeout exception: java.net.S", "SPARK-CHECKPOINT-AWAY"),
        ("Call From a/127.0.0.1 to b:8020 failed on socket exception: java.net.SocketExce", "SPARK-CHECKPOINT-AWAY"),
        (f"{LOCAL} java.io.IOException: Connection reset by peer; Host Details : local h", "SPARK-CHECKPOINT-AWAY"),
        (f"{LOCAL} java.io.IOException: AccessControlException: Client cannot authentica", "UNCLASSIFIED"),
        ('End of File Exception between local host is: "a/127.0.0.1"; destination host', "SPARK-CHECKPOINT-AWAY"),
        ("SafeModeException: Cannot create file /c/offsets/2. Name node is in safe mode.", "SPARK-CHECKPOINT-AWAY"),
        ("java.io.IOException: All datanodes [DatanodeInfo] are bad. Aborting...", "SPARK-CHECKPOINT-AWAY"),
        ("File /c/commits/.7.tmp could only be written to 0 of the 1 minReplication nodes.", "SPARK-CHECKPOINT-AWAY"),
        ("BlockMissingException: Could not obtain block: BP-1 file=/c/offsets/3", "SPARK-CHECKPOINT-AWAY"),
        (f"{S3A} Unable to execute HTTP request: Read timed out (SDK Attempt Count: 2)", "SPARK-CHECKPOINT-AWAY"),
        (f"{S3A} Unable to execute HTTP request: Connect to s3:443 [s3/::1] failed: Conn", "SPARK-CHECKPOINT-AWAY"),
        ("awssdk.core.exception.ApiCallTimeoutException: Client execution did not complete", "SPARK-CHECKPOINT-AWAY"),
        ("Please reduce your request rate. (Service: S3, Status Code: 503, Request ID: 1)", "SPARK-CHECKPOINT-AWAY"),
        (f"{S3A} Unable to execute HTTP request: s3.invalid (SDK Attempt Count: 2)", "UNCLASSIFIED"),
        (f"{S3A} unknown\n\tat software.amazon.awssdk.TimeoutExceptionHandlingStage.execute(1)", "UNCLASSIFIED"),
        (f"{S3A} Unable to execute HTTP request: PKIX path building failed", "UNCLASSIFIED"),
        ("The specified bucket does not exist (Service: S3, Status Code: 404, Request ID: 1)", "UNCLASSIFIED"),
        ("AccessDeniedException: Forbidden (Service: S3, Status Code: 403, Request ID: 1)", "UNCLASSIFIED"),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", "SPARK-DENIED"),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node", "SPARK-UNREACHABLE"),
        ("java.lang.OutOfMemoryError: Java heap space", "SPARK-MEMORY"),
        ("OSError: [Errno 28] No space left on device", "SPARK-DISK-FULL"),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] java.io.IOException: No space left on device", "SPARK-DISK-FULL"),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.", "SPARK-STATE-UNREADABLE"),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] An error occurred", "SPARK-STATE-UNREADABLE"),
        ("[CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED] Checksum verification failed", "SPARK-STATE-UNREADABLE"),
        (f"{STATE}\nChecksumException: Checksum error: file:/c/state/0/0/3.changelog at 0", "SPARK-STATE-UNREADABLE"),
        (f"{STATE}\nJsonEOFException: Unexpected end-of-input in c/state/0/0/3.zip", "SPARK-STATE-UNREADABLE"),
        (f"{STATE}\nCall From a to b:8020 failed on connection exception: java.net.Conn", "SPARK-CHECKPOINT-AWAY"),
        (f"{STATE}\njava.lang.OutOfMemoryError: Java heap space", "SPARK-MEMORY"),
        ("Failed to construct kafka consumer: SaslAuthenticationException: Authentication failed", "SPARK-DENIED"),
        ("Py4JNetworkError: Answer from Java side is empty", "SPARK-JVM-GONE"),
    ],
)
def test_failures_of_spark_and_its_source_have_codes_of_their_own(text, code):
    found = diagnose(StreamingQueryException(f"[STREAM_FAILED] ...: {text}"))
    assert found.code == code and found.remedy


def test_a_cause_further_down_is_found():
    try:
        try:
            raise OSError("java.lang.OutOfMemoryError: Java heap space")
        except OSError as e:
            raise RuntimeError("the query failed") from e
    except RuntimeError as error:
        assert diagnose(error).code == "SPARK-MEMORY"


class Captured(Exception):
    """As PySpark's exceptions are: the cause in the JVM is not the one of Python."""

    def __init__(self, text: str, cause: Exception | None = None):
        super().__init__(text)
        self._cause = cause


def test_the_cause_is_found_behind_an_abort_that_failed():
    """When an abort fails, Spark says "Writing job failed." and keeps why the batch did: a run that a restart heals
    would stay down as UNCLASSIFIED.
    """
    commit = Captured("EO-FENCED: another driver runs.")
    found = diagnose(Captured("Writing job failed.", Captured("SparkException: Writing job failed.", commit)))
    assert found.code == "EO-FENCED"


#: A file of this project's.
RUN = failures.__file__.replace("runs/failures.py", "streaming/run.py")

AT_147 = FailurePlace("price_orders_stream", 147, {"orders": {0: 4822, 1: 4825}}, decided=lambda: False)
OF_QUERY = """=== Streaming Query ===
Identifier: shop [id = 304ecef4, runId = c79ff192]
Current Committed Offsets: {KafkaV2[Subscribe[orders]]: {"orders":{"1":4825,"0":4822}}}
Current Available Offsets: {KafkaV2[Subscribe[orders]]: {"orders":{"1":4830,"0":4826}}}
"""
STREAM = "[STREAM_FAILED] Query [id = 304ecef4, runId = c79ff192] terminated with exception: "
WORKER = "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
PYSPARK = f"{PACKAGES}/pyspark/python/lib/pyspark.zip/pyspark"
SPARK_FRAME = f'  File "{PYSPARK}/worker.py", line 9, in x\n'

#: What PySpark 4.2 says of functions and expressions that fail -> the user's exception and its place.
OWN = {
    "a function": (
        f'{WORKER}  File "/app/shop.py", line 14, in price\n    return order["amount"]\n           ~~~~~^^^^^\n'
        "KeyError: 'amount'\n SQLSTATE: 38000 SQLSTATE: XXKST\n",
        "KeyError: 'amount', in price (shop.py, line 14)",
    ),
    "a text of several lines that quotes a code": (
        f'{WORKER}  File "/app/shop.py", line 16, in rows\n    raise ValueError(record)\n'
        "ValueError: bad row b'EO-UNREACHABLE: no broker'\nEO-UNREACHABLE: again\n SQLSTATE: 38000\n",
        "ValueError: bad row b'EO-UNREACHABLE: no broker', in rows (shop.py, line 16)",
    ),
    "a function below a package": (
        f'{WORKER}{SPARK_FRAME}  File "/app/shop.py", line 22, in f\n    return s.map(lambda x: str(1 // 0))\n'
        '  File "/opt/venv/lib/python3.11/site-packages/pandas/core/series.py", line 4719, in map\n    values = 1\n'
        '  File "pandas/_libs/lib.pyx", line 2999, in pandas._libs.lib.map_infer\n'
        "ZeroDivisionError: integer division or modulo by zero\n SQLSTATE: 38000\n",
        "ZeroDivisionError: integer division or modulo by zero, in f (shop.py, line 22)",
    ),
    "a function in an installed package, above a package that it calls": (
        f'{WORKER}{SPARK_FRAME}  File "{PACKAGES}/pandas/core/apply.py", line 7, in apply\n    f(x)\n'
        f'  File "{PACKAGES}/shop/pricing.py", line 14, in price\n    return Order(order)\n'
        f'  File "{PACKAGES}/pydantic/main.py", line 766, in __init__\n    validate()\n'
        f'  File "{PACKAGES}/numpy/core.py", line 2, in rint\n    raise\n'
        "KeyError: 'amount'\n SQLSTATE: 38000 SQLSTATE: XXKST\n",
        "KeyError: 'amount', in price (pricing.py, line 14)",
    ),
    "a function outside the packages, below one of them": (
        f'{WORKER}{SPARK_FRAME}  File "{PACKAGES}/tenacity/__init__.py", line 4, in wrapped\n    f(x)\n'
        '  File "/app/shop.py", line 14, in price\n    raise\nKeyError: 1\n SQLSTATE: 38000 SQLSTATE: XXKST\n',
        "KeyError: 1, in price (shop.py, line 14)",
    ),
    "Spark's own, of a distribution": (
        f'{WORKER}  File "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py", line 9, in x\n    raise\n'
        "ValueError: no place\n SQLSTATE: 38000 SQLSTATE: XXKST\n",
        "ValueError: no place",
    ),
    "a text whose first line is empty": (
        f'{WORKER}  File "/app/shop.py", line 16, in rows\n    raise ValueError(text)\n           ^^^^\n'
        "ValueError: \n\n  no amount\n  in the order\n SQLSTATE: 38000 SQLSTATE: XXKST\n",
        "ValueError: no amount, in rows (shop.py, line 16)",
    ),
    "a text that is empty": (
        f'{WORKER}  File "/app/shop.py", line 16, in rows\n    raise ValueError\nValueError\n SQLSTATE: 38000\n',
        "ValueError, in rows (shop.py, line 16)",
    ),
    "a call of another service, which is no outage of the brokers": (
        f'{WORKER}  File "/app/shop.py", line 3, in rate\n    connect()\n'
        '  File "/usr/lib/python3.11/socket.py", line 1, in connect\n    raise\n'
        "ConnectionRefusedError: [Errno 111] Connection refused\n SQLSTATE: 38000\n",
        "ConnectionRefusedError: [Errno 111] Connection refused, in rate (shop.py, line 3)",
    ),
    "a module that executors lack": (
        f"{WORKER}{SPARK_FRAME}    return cloudpickle.loads(obj, encoding=encoding)\n           ^^^^\n"
        "ModuleNotFoundError: No module named 'pandas'\n SQLSTATE: 38000\n",
        "ModuleNotFoundError: No module named 'pandas'",
    ),
    "a foreachBatch function": (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. "
        f'Reason: Traceback (most recent call last):\n{SPARK_FRAME}  File "/app/shop.py", line 20, in each\n'
        "    raise KeyError(1)\nKeyError: 1\n SQLSTATE: 39000 SQLSTATE: XXKST\n",
        "KeyError: 1, in each (shop.py, line 20)",
    ),
    "a function in Java": (
        "[FAILED_EXECUTE_UDF] User defined function (`price (Price)`: (BIGINT) => BIGINT) failed due to: "
        "java.lang.IllegalStateException: no amount: \n  in order 7. SQLSTATE: 39000 SQLSTATE: XXKST\n",
        "[FAILED_EXECUTE_UDF] User defined function (`price (Price)`: (BIGINT) => BIGINT) failed due to: "
        "java.lang.IllegalStateException: no amount: in order 7",
    ),
    "a cast": (
        '[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT". SQLSTATE: 22018\n'
        "== SQL (line 1, position 6) ==\ncast(amount as int)\n     ^^^^^^^^\n SQLSTATE: XXKST\n",
        '[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT", in cast(amount as int)',
    ),
    "a malformed record": (
        "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [null].\n"
        "Parse Mode: FAILFAST.  SQLSTATE: 22023 SQLSTATE: XXKST\n",
        "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [null]. "
        "Parse Mode: FAILFAST",
    ),
    "raise_error": (
        "[USER_RAISED_EXCEPTION] EO-PREPARE: mine SQLSTATE: P0001 SQLSTATE: XXKST\n",
        "[USER_RAISED_EXCEPTION] EO-PREPARE: mine",
    ),
}


@pytest.mark.parametrize("own", OWN)
def test_an_exception_of_the_user_s_own_comes_first_with_its_place_batch_and_input(own):
    """The most frequent failure of all: a message that is cut right before the user's own error, or a code that has the
    sensors restart the stream over the same record for ever.
    """
    text, said = OWN[own]
    found = diagnose(StreamingQueryException(f"{STREAM}{text}{OF_QUERY}"), AT_147)
    assert (found.code, found.heals) == ("EO-TRANSFORM", False)
    assert found.sentence.startswith(
        f"EO-TRANSFORM: {said}, on batch 147. Nothing of batch 147 was written; the next start reads the "
        "input from orders-0@4822, orders-1@4825 again. What to do: Correct the function, reload the code location and "
        "launch price_orders_stream again, which repeats batch 147."
    ), found.sentence


@pytest.mark.parametrize(
    ("decided", "safe"),
    [
        (True, "The commit log has decided batch 147: its rows are in the output, or the next start commits them."),
        (None, "This run wrote nothing of it; the next start reads the input from orders-0@4822"),
    ],
)
def test_what_is_said_of_the_rows_of_a_batch_is_what_the_commit_log_says(decided, safe):
    """A person who reads that nothing was written of a decided batch, and writes its rows again by hand."""
    text, said = OWN["a cast"]
    found = diagnose(StreamingQueryException(f"{STREAM}{text}{OF_QUERY}"), replace(AT_147, decided=lambda: decided))
    assert found.sentence.startswith(f"EO-TRANSFORM: {said}, on batch 147. {safe}"), found.sentence


#: What Spark 4.2 and Spark 4.0 say, and which file they mean.
NEWER = {
    "[INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION] UnsupportedLogVersion. The maximum supported log version is v2, but "
    "encountered v7.": "offsets/0",
    "UnsupportedLogVersion: maximum supported log version is v1, but encountered v2.": "offsets/12",
    "UnsupportedLogVersion. The maximum supported log version is v2, but encountered v9.": "commits/0",
}


@pytest.mark.parametrize("text", NEWER)
def test_a_checkpoint_of_a_newer_spark_has_a_code_of_its_own(text):
    log = f"Failed to read log file file:/c/{NEWER[text]}. {text} The log file was produced by a newer version of Spark"
    found = diagnose(StreamingQueryException(f"{STREAM}{log}"))
    assert found.code == "SPARK-CHECKPOINT-NEWER" and "wrote the checkpoint, " in found.remedy


@pytest.mark.parametrize(
    ("text", "ids", "code"),
    [
        ("Failed to read log file /c/commits/7. The maximum is v1, but encountered v2. You", False, "STATE-FORMAT"),
        ("[CANNOT_LOAD_STATE_STORE.X] of file:/c/state/0/1/1.changelog does not exist. If", True, "STATE-FORMAT"),
        ("[CANNOT_LOAD_STATE_STORE.X] of file:/c/state/0/1/1.changelog does not exist. If", False, "STATE-UNREADABLE"),
        ("[CANNOT_LOAD_STATE_STORE.X] /c/state/0/1/1_fb3100d1-9a0b.changelog does not exist", True, "STATE-UNREADABLE"),
    ],
)
def test_a_state_format_that_is_not_set_again_is_told_from_a_file_that_is_lost(text, ids, code):
    """A copy that is put back, or a new sink id that writes all input again, where a setting was missing."""
    found = diagnose(StreamingQueryException(f"{STREAM}{text}"), FailurePlace(state_ids=lambda: ids))
    assert found.code == f"SPARK-{code}"


def test_a_bug_of_the_sink_is_not_called_the_user_s(tmp_path):
    """A way out that sends a person into their own code over an error of this package's."""
    ours = failures.__file__.replace("dagster_exactly_once/runs/failures.py", "exactly_once/spark/columns.py")
    for file in (ours, "/opt/venv/lib/python3.11/site-packages/exactly_once/spark/columns.py"):
        frames = f'  File "{file}", line 9, in send\n    raise\n  File "/usr/lib/python3.11/json.py", line 1, in x\n'
        for below in ("", f'  File "{PACKAGES}/psycopg/cursor.py", line 1, in execute\n    raise\n'):
            text = f"{STREAM}{WORKER}{SPARK_FRAME}{frames}{below}TypeError: not ours\n SQLSTATE: 38000\n{OF_QUERY}"
            assert diagnose(StreamingQueryException(text)).code == "UNCLASSIFIED"


def test_the_function_that_builds_the_query_is_named_where_it_raised():
    """A misspelt column: Spark names it, and the line is the user's to find."""

    def price(events):
        return {}[events]

    with pytest.raises(KeyError) as raised:
        price("amuont")
    found = raised_by(raised.value)
    assert found.what == "KeyError: 'amuont'" and found.where.startswith("price (test_failures.py, line ")
    with pytest.raises(TransformFailed, match=r"KeyError: 'amuont', in price \(test_failures.py, line "):
        users_own(lambda: price("amuont"), FailurePlace)


@pytest.mark.parametrize(
    "error", [Fenced("the thing broke", "Wait"), dg.DagsterInvariantViolationError("it was asked to")]
)
def test_what_is_no_exception_of_the_user_s_own_passes_through_the_function(error):
    """Mishap: "correct the function" of a sink that somebody else has taken."""

    def raises():
        raise error

    with pytest.raises(type(error)) as raised:
        users_own(raises, FailurePlace)
    assert raised.value is error and users_own(lambda: 7, FailurePlace) == 7


def test_the_function_that_builds_the_query_is_named_where_a_package_holds_it():
    """An image installs the user's code beside Spark: without the line, a person searches the whole package."""
    frames = {}
    for file, calls in ((f"{PACKAGES}/shop/pricing.py", "raise ValueError('\\n  no amount')"), (RUN, "price()")):
        exec(compile(f"def price(): {calls}" if not frames else f"def made(): {calls}", file, "exec"), frames)
    try:
        frames["made"]()
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next  # the frame of this test
        found = raised_by(error)
    assert (found.what, found.where) == ("ValueError: no amount", "price (pricing.py, line 1)")


def test_the_rest_is_said_to_be_unclassified():
    found = diagnose(ZeroDivisionError("division by zero"))
    assert (found.code, found.sentence) == ("UNCLASSIFIED", "ZeroDivisionError: division by zero")
    assert found.headline == f"{found.code}: {found.sentence}"

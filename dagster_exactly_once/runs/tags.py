"""The tags on runs: how runs, sensors and recoveries tell each other what they do, by way of Dagster's storage.

docs/dagster.md has them in one table: who sets each, who reads it, and what may follow. A test holds the table against
the modules that use a tag.
"""

#: Begins the tags that a person need not see: Dagster finds runs by them, and its UI leaves out ``.dagster/``.
HIDDEN = ".dagster/exactly_once_"
#: Begins the three that a person sees.
SHOWN = "exactly_once/"

#: The stream that a run works for: on each run of its job, and on a run that Materialize started once it is at work.
TAG_STREAM = f"{SHOWN}stream"
#: Why a run was launched: a sentence.
TAG_CAUSE = f"{SHOWN}cause"
#: Which restart in a row a run is, or a recovery requests, for people: ``2 of 10``.
TAG_RESTART = f"{SHOWN}restart"
#: On each run of a stream: its job, sink, brokers and code location. dagster.yaml lets one run at a time begin for each
#: value. Materialize launches a run without it, which tags itself when it writes.
TAG_JOB = f"{HIDDEN}job"

#: Dagster's own tags on each run that writes: an instance with run_retries would repeat what no repetition heals, and
#: the restart strategy, or a person, decides on the rest.
NOT_RETRIED = {"dagster/max_retries": "0", "dagster/retry_on_asset_or_op_failure": "false"}
#: On a stream's run, which does not end: run monitoring takes 0 for no limit, whatever the instance's own is.
ENDLESS = {**NOT_RETRIED, "dagster/max_runtime": "0"}

#: On a run that works on a sink: the sink.
TAG_SINK = f"{HIDDEN}sink_id"
#: The Python process of a run; the process tags tell a live run from one whose process died.
TAG_PID = f"{HIDDEN}pid"
#: Spark's JVM, which the sink's claim names: the process of the run itself is Python.
TAG_DRIVER = f"{HIDDEN}driver"
TAG_HOST = f"{HIDDEN}host"
#: The process table of that host: containers and cloned machines may share a host name.
TAG_MACHINE = f"{HIDDEN}machine"
#: The run that the process tags were set for: Dagster copies all tags to a re-execution, whose process is another one.
TAG_SIGNED = f"{HIDDEN}signed"
#: On a run that is the stream's single writer: its own id.
TAG_WRITES = f"{HIDDEN}writes"

#: On every recovery that a sensor requests: its sink, and after "@" the code location. dagster.yaml lets one of them
#: run at a time for each value.
TAG_RECOVERS = f"{HIDDEN}recovers"
#: On a recovery and on the stream run that follows it: the run of the stream that failed. On a recovery it requests a
#: restart of the stream.
TAG_RESTART_OF = f"{HIDDEN}restart_of"
#: On the same two: restarts in a row, from 1.
TAG_ATTEMPT = f"{HIDDEN}attempt"
#: On a recovery that requests a restart: the stream starts no sooner, in seconds since the epoch.
TAG_NOT_BEFORE = f"{HIDDEN}not_before"
#: On a run of the stream that was requested together with a recovery of its sink: the run key of that recovery. Spark
#: starts beside it, the query after it.
TAG_BESIDE = f"{HIDDEN}beside"

#: On a long run that wants to be continued by a new one: its own id, and a number that counts its attempts.
TAG_ROTATES = f"{HIDDEN}rotates"
#: On the run that continues it: the long run. Spark starts beside that run, the query after it.
TAG_CONTINUES = f"{HIDDEN}continues"
#: On that run once its session is open: its own id.
TAG_READY = f"{HIDDEN}ready"
#: On a run that ended for the next one to continue.
TAG_ROTATED = f"{HIDDEN}rotated"

"""The tags on runs: how runs, sensors and recoveries tell each other what they do, by way of Dagster's storage.

docs/dagster.md has them in one table: who sets each, who reads it, and what may follow. A test holds the table against
the modules that use a tag.
"""

#: The prefix of tags that a person need not see: Dagster finds runs by them, and its UI leaves out ``.dagster/``.
HIDDEN = ".dagster/exactly_once_"
#: The prefix of the three that a person sees.
SHOWN = "exactly_once/"

#: The stream that a run works for: on each run of its job, and on a run that Materialize started once it is at work.
TAG_STREAM = f"{SHOWN}stream"
#: The sentence that says why a run was launched.
TAG_CAUSE = f"{SHOWN}cause"
#: The place of a restart in a row, for people, on the run or on the recovery that requests it: ``2 of 10``.
TAG_RESTART = f"{SHOWN}restart"
#: The job, sink, brokers and code location, on each run of a stream. dagster.yaml lets one run at a time begin for each
#: value. Materialize launches a run without it, which tags itself when it writes.
TAG_JOB = f"{HIDDEN}job"

#: Dagster's own tags on each run that writes: an instance with run_retries would repeat what no repetition heals, and
#: the restart strategy, or a person, decides on the rest.
NOT_RETRIED = {"dagster/max_retries": "0", "dagster/retry_on_asset_or_op_failure": "false"}
#: The tags of a stream's run, which does not end: run monitoring takes 0 for no limit, whatever the instance's own is.
ENDLESS = {**NOT_RETRIED, "dagster/max_runtime": "0"}

#: The sink that a run works on.
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
#: The run's own id, on a run that is the stream's single writer.
TAG_WRITES = f"{HIDDEN}writes"

#: The sink, and after "@" the code location, on every recovery that a sensor requests. dagster.yaml lets one of them
#: run at a time for each value.
TAG_RECOVERS = f"{HIDDEN}recovers"
#: The run of the stream that failed, on a recovery and on the stream run that follows it. On a recovery it requests a
#: restart of the stream.
TAG_RESTART_OF = f"{HIDDEN}restart_of"
#: The number of restarts in a row, from 1, on the same two.
TAG_ATTEMPT = f"{HIDDEN}attempt"
#: The time before which the stream does not start, in seconds since the epoch, on a recovery that requests a restart.
TAG_NOT_BEFORE = f"{HIDDEN}not_before"
#: The run key of a recovery, on the run of the stream that was requested together with it. Spark starts beside the
#: recovery, the query after it.
TAG_BESIDE = f"{HIDDEN}beside"

#: The run's own id and a number that counts its attempts, on a long run that wants to be continued by a new one.
TAG_ROTATES = f"{HIDDEN}rotates"
#: The long run, on the run that continues it. Spark starts beside the long run, the query after it.
TAG_CONTINUES = f"{HIDDEN}continues"
#: The run's own id, on the continuing run once its session is open.
TAG_READY = f"{HIDDEN}ready"
#: The mark of a run that ended for the next one to continue.
TAG_ROTATED = f"{HIDDEN}rotated"

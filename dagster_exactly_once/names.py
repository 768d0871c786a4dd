"""Names of what serves every stream of a code location: jobs and their ops, sensors, resources.

What stands in a list beside the user's own begins with ``exactly_once_``.
"""

#: Brings a sink to rest.
RECOVERY_JOB = "exactly_once_recovery"
#: The op of the recovery that takes its configuration.
RECOVERY_OP = "inspect"
#: Repairs a torn checkpoint.
REPAIR_JOB = "exactly_once_checkpoint_repair"
#: Ends hanging transactions.
HANGING_JOB = "exactly_once_end_hanging"
#: Retires the sink of an older version for good; there where a stream continues one.
SUCCESSOR_JOB = "exactly_once_successor"
#: Evaluates the checks of all streams, but verified, which has a job for each stream.
CHECKS_JOB = "exactly_once_stream_checks"

#: Two evaluations at the ten minutes of a stream that stands still, and a restart in between.
FRESHNESS_LIMIT_S = 900.0
#: The checks of a stream that is well: a day's evaluations fill one page of the runs.
CHECKS_EVERY_S = 3600.0

#: The sensors: how far the streams are, ...
PROGRESS_SENSOR = "exactly_once_checkpoint_progress"
#: ... what holds readers back for too long, ...
STALE_SENSOR = "exactly_once_stale_transactions"
#: ... what a failed run needs, ...
FAILURE_SENSOR = "exactly_once_run_failure"
#: ... and whether the processes of runs live, and which streams to start.
LIVENESS_SENSOR = "exactly_once_liveness"

#: The resource that passes on what the steps of a recovery find, within the run's process: a recovery must not depend
#: on the storage that the code location uses for its own data.
MEMORY = "exactly_once_memory"

#: The resource that tells people when a stream needs one.
NOTIFY = "exactly_once_notify"

#: The asset that shows all streams of the code location in one table.
ALL_STREAMS = "exactly_once_streams"
#: The group of that asset and of the streams' transactions, apart from the data.
MONITORING = "exactly_once"

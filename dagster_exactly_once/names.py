"""Names of what serves every stream of a code location: jobs and their ops, sensors, resources.

What stands in a list beside the user's own begins with ``exactly_once_``.
"""

#: The job that brings a sink to rest.
RECOVERY_JOB = "exactly_once_recovery"
#: The op of the recovery that takes its configuration.
RECOVERY_OP = "inspect"
#: The job that repairs a torn checkpoint.
REPAIR_JOB = "exactly_once_checkpoint_repair"
#: The job that ends hanging transactions.
HANGING_JOB = "exactly_once_end_hanging"
#: The job that retires the sink of an older version for good; there where a stream continues one.
SUCCESSOR_JOB = "exactly_once_successor"
#: The job that evaluates the checks of all streams, but verified, which has a job for each stream.
CHECKS_JOB = "exactly_once_stream_checks"

#: Seconds that input may wait: two evaluations at the ten minutes of a stream that stands still, and a restart in
#: between.
FRESHNESS_LIMIT_S = 900.0
#: Seconds between the evaluations of a stream that is well: a day of them fills one page of the runs.
CHECKS_EVERY_S = 3600.0

#: The sensor that observes how far the streams are.
PROGRESS_SENSOR = "exactly_once_checkpoint_progress"
#: The sensor that finds what holds readers back for too long.
STALE_SENSOR = "exactly_once_stale_transactions"
#: The sensor that requests what a failed run needs.
FAILURE_SENSOR = "exactly_once_run_failure"
#: The sensor that asks whether the processes of runs live, and starts streams.
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

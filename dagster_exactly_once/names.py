"""Names of the jobs that serve every stream of a code location, and of their ops."""

#: Brings a sink to rest.
RECOVERY_JOB = "recovery"
#: The op of the recovery that takes its configuration.
RECOVERY_OP = "inspect"
#: Repairs a torn checkpoint.
REPAIR_JOB = "checkpoint_repair"
#: The op of the repair that takes its configuration.
REPAIR_OP = "examine"
#: Ends hanging transactions.
HANGING_JOB = "end_hanging"
#: The op of that job that takes its configuration.
HANGING_OP = "search"
#: Evaluates the checks of all streams, but verified, which has a job for each stream.
CHECKS_JOB = "stream_checks"

#: A batch commits within seconds; the transactions' timeout is 15 minutes, after which a decided one would be lost.
#: A transaction that is under way for longer than this is stuck, and there is still time to recover the sink.
UNDER_WAY_POLICY_S = 300.0
#: Two evaluations at the checks' ten minutes, and a restart in between.
FRESHNESS_LIMIT_S = 900.0

#: The resource that passes on what the steps of a recovery find, within the run's process: a recovery must not depend
#: on the storage that the code location uses for its own data.
MEMORY = "exactly_once_memory"

#: The resource that tells people when a stream needs one.
NOTIFY = "exactly_once_notify"

#: The asset that shows all streams of the code location in one table.
ALL_STREAMS = "exactly_once_streams"

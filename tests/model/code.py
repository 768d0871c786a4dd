"""Maps each transition of the model to the function of the code that it stands for, and each rule to its keeper.

The one place to touch when a function moves or is renamed; a test resolves every name,
below ``exactly_once``; ``java:`` names a method of a class of the sink's jar.
"""

from __future__ import annotations

#: Transition -> functions.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "start": (
        "coordinator.micro_batch.Coordinator.plan",
        "coordinator.batch_write.WriteCoordinator.plan",
        "coordinator.recover.claim_sink",
        "coordinator.claim.claim_for_stream",
        "coordinator.claim.claim_for_write",
        "commitlog.commit_log.CommitLog._init",
    ),
    "claim": ("commitlog.commit_log.CommitLog.claim", "coordinator.claim.make_claim"),
    "recover": (
        "coordinator.resolve.complete_decided",
        "coordinator.complete.complete",
        "coordinator.recover.complete_decided",
    ),
    "mark": ("commitlog.commit_log.CommitLog.append", "protocol.records.Completed"),
    "sweep": (
        "coordinator.resolve.sweep_undecided",
        "participants.kafka.transactions.open_transactions",
        "coordinator.micro_batch.Coordinator._housekeeping",
    ),
    "abort": ("participants.kafka.transactions.sweep", "txn.coordinators.end_all"),
    "plan": ("coordinator.claim._replay", "protocol.planning.plan_batch", "coordinator.micro_batch.Coordinator.plan"),
    "rest": ("coordinator.recover.recover", "coordinator.recover.sweep_undecided"),
    "task asks": ("java:Cluster.checkInTime",),
    "init": ("java:Opening.opened",),
    "begin": ("java:PartWriter.open",),
    "begin again": ("java:PartWriter.beginAgain", "java:Opening.again"),
    "prepare": ("java:PartWriter.prepare",),
    "task fails": ("spark.jvm.Coordinators._abort",),
    "task retried": ("java:PartWriter.createWriter",),
    "look": ("participants.kafka.transactions.confirm", "commitlog.commit_log.CommitLog.own"),
    "decide": ("coordinator.decide.decide_and_complete", "commitlog.commit_log.CommitLog.append"),
    "complete": ("coordinator.complete.complete", "participants.kafka.transactions.commit_transactions"),
    "fenced": ("commitlog.commit_log.CommitLog.own", "errors.Fenced"),
    "commits/N": ("coordinator.micro_batch.Coordinator.commit", "coordinator.driver_state.DriverState.planned"),
    "stop": (
        "spark.jvm.Coordinators._abort",
        "coordinator.micro_batch.Coordinator.close",
        "spark.foreach_batch.ForeachBatch._abort",
    ),
    "abort batch": (
        "coordinator.micro_batch.Coordinator.abort",
        "coordinator.abort.abort_execution",
    ),
    "disown": ("protocol.records.Aborted", "coordinator.abort._mark_aborted"),
    "fence": ("participants.kafka.transactions.fence_idle", "txn.coordinators.initialise"),
    "abandon": ("coordinator.abort.abandon",),
    "retire": ("tools.operation.retire_sink.retire", "commitlog.commit_log.CommitLog.append"),
    "refuse": ("participants.kafka.checks.check_topics", "errors.TopicRecreated"),
    "ask leaders": ("coordinator.resolve.end_hanging", "txn.leaders.open_where_asked"),
    "heal": ("txn.hanging.end_left_open", "txn.coordinators.add_partitions"),
    "drain unread": ("coordinator.micro_batch.Coordinator.plan",),
    # the world
    "time-out": ("tools.operation.transactions.abort",),
    "late EndTxn": ("txn.coordinators.end_all",),
    "late write": ("commitlog.commit_log.CommitLog._write",),
    "foreign": ("commitlog.log_reader.blocked",),
    "records gone": ("protocol.checksum.mismatch",),
    "output made again": ("participants.kafka.checks.check_topics",),
    "input made again": ("participants.kafka.checks.check_topics",),
    "marker left out": ("txn.leaders.open_on",),
    "input gone": ("coordinator.micro_batch.Coordinator.plan",),
}

#: Rule -> what it says, and the functions that keep it.
RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "log_is_fenced": (
        "only the producer that was initialised last may write to the log",
        ("commitlog.commit_log.CommitLog._init", "protocol.names.commit_log_id"),
    ),
    "reads_behind_init": (
        "a write follows a read of the log behind the writer's own init, with no later claim in it",
        ("commitlog.commit_log.CommitLog.own", "commitlog.commit_log.CommitLog._init"),
    ),
    "reads_to_high_watermark": (
        "a read of the log counts only when nothing hides its end",
        ("commitlog.log_reader.read", "commitlog.commit_log.CommitLog._init_once"),
    ),
    "rechecks_decided": (
        "the state of the log behind which a decision is written says that the batch is not decided",
        ("protocol.planning.check_undecided", "commitlog.commit_log.CommitLog.append"),
    ),
    "drains_decided": ("a batch that is decided is not written again", ("protocol.planning.plan_batch",)),
    "ids_carry_slot": ("claims that may be alive at once share no id", ("protocol.names.slot_of",)),
    "own_past_only": (
        "a start completes decisions before its own claim, and sweeps slots of claims before it",
        ("protocol.log_state.LogState.open_before", "protocol.names.older_slots"),
    ),
    "sweeps_at_claim": ("a start aborts what older claims left open", ("coordinator.resolve.sweep_undecided",)),
    "sweep_spares_decided": ("the sweep spares what open decisions name", ("coordinator.resolve.sweep_undecided",)),
    "sweep_spares_exactly": (
        "it spares the decided transaction, not whatever has its id",
        ("coordinator.resolve.sweep_undecided", "participants.kafka.transactions.sweep"),
    ),
    "completes_at_claim": ("a start commits what is decided", ("coordinator.resolve.complete_decided",)),
    "proves_outcomes": ("a commit that did not happen is not taken for one", ("protocol.outcomes.read_answer",)),
    "asks_the_output": (
        "what EndTxn cannot tell, the output tells",
        ("txn.evidence.transaction_outcomes", "txn.evidence.read_outcome"),
    ),
    "waits_for_proof": (
        "a batch goes on only when every outcome is proven",
        ("participants.kafka.transactions.commit_transactions", "errors.Unfinished"),
    ),
    "replays_lost": (
        "what was decided and lost is written again",
        ("coordinator.claim._replay", "coordinator.micro_batch.Coordinator.plan"),
    ),
    "replays_only_lost": ("and nothing else of its batch", ("spark.tasks.PartOutputs", "java:Ticket.keeps")),
    "amends": ("the decision of a batch names all of its parts, also after a replay", ("coordinator.decide.amend",)),
    "leader_was_asked": (
        "a leader that knows no such transaction, or another one than its task wrote, forbids the decision",
        ("txn.leaders.mismatches", "protocol.checksum.mismatch"),
    ),
    "drops_what_was_sent": (
        "a decision that was sent beside the look is committed behind it, or ended before anything else is written",
        ("commitlog.commit_log.CommitLog.send", "commitlog.commit_log.CommitLog.own"),
    ),
    "abort_reads_log": ("abort() leaves alone what is decided", ("coordinator.micro_batch.Coordinator.abort",)),
    "abort_inits_first": (
        "abort() settles a decision that is under way before it looks",
        ("coordinator.micro_batch.Coordinator.abort", "commitlog.commit_log.CommitLog.own"),
    ),
    "abandons": ("a superseded driver ends what it prepared", ("coordinator.abort.abandon",)),
    "abandon_spares_decided": ("but not what it has decided", ("coordinator.abort.abandon",)),
    "abandon_sweeps_slot": ("and what its tasks did not report", ("coordinator.abort.abandon",)),
    "claims_after_failure": (
        "a run that follows a failed one has a claim of its own",
        ("coordinator.micro_batch.Coordinator.plan", "coordinator.driver_state.DriverState"),
    ),
    "late_task_asks": (
        "a task asks the log whether it is too late, before it begins and when it has begun",
        ("java:Cluster.checkInTime",),
    ),
    "asks_behind_begin": (
        "it asks again behind the beginning of its transaction, though its records may still be on their way",
        (
            "java:LateCheck.asked",
            "java:TransactionalProducer.isKnownToCoordinator",
        ),
    ),
    "aborted_before_sweep": (
        "the log says that a run has ended before its transactions are swept",
        ("coordinator.abort._mark_aborted",),
    ),
    "abort_fences_late": (
        "and nobody who has initialised an id of that run can begin with it afterwards",
        ("participants.kafka.transactions.fence_idle",),
    ),
    "late_task_knows_decided": (
        "a task whose batch is decided under its claim is too late",
        ("java:Cluster.checkInTime",),
    ),
    "sweeps_after_batch": (
        "a batch that went through leaves no attempt open",
        ("coordinator.micro_batch.Coordinator._housekeeping",),
    ),
    "reports_say_again": (
        "the report of a part says that Spark gave up an attempt of it",
        ("java:PartWriter.prepare", "coordinator.micro_batch.Coordinator._housekeeping"),
    ),
    "retired_is_refused": (
        "a start of a retired sink is refused, by the log behind its own init",
        ("protocol.takeover.check_not_retired", "coordinator.claim.check_stream"),
    ),
    "retires_as_owner": (
        "a retirement is written as a decision is: by the owner, behind a read of the log",
        ("commitlog.commit_log.CommitLog.own", "commitlog.commit_log.CommitLog.append"),
    ),
    "retires_at_rest": (
        "a sink with a decided part that is not proven committed is not retired",
        ("tools.operation.retire_sink.retire", "tools.operation.retire_sink._check_closed"),
    ),
    "refuses_new_topic": (
        "an output topic that was made again is written to only when a person has adopted it",
        ("participants.kafka.checks.check_topics", "coordinator.consent.Consent.adopts_topic"),
    ),
    "done_is_of_its_topic": (
        "EndTxn's answer proves something only of a topic that has the id of the decision: other parts are lost",
        ("participants.kafka.transactions.commit_transactions", "participants.kafka.topics.compare"),
    ),
    "silence_is_no_abort": (
        "records that retention took from the output do not tell that their transaction was aborted",
        ("txn.evidence.read_outcome",),
    ),
    "asks_leaders": (
        "a claim asks the leaders, too, and ends what coordinators no longer know",
        ("coordinator.resolve.end_hanging", "txn.leaders.open_where_asked"),
    ),
    "heals_after_decided": (
        "it does so when what is decided is resolved",
        ("coordinator.resolve.resolve",),
    ),
    "heals_older_only": ("and only with ids of older claims", ("protocol.names.older_slots",)),
    "heals_ended_only": (
        "and not with an id under which a transaction is open, or that an unresolved decision names",
        ("coordinator.resolve.end_hanging",),
    ),
    "heals_no_decided": (
        "what a decision names is not ended by an abort, whether or not it is completed",
        ("coordinator.resolve.to_commit",),
    ),
    "hanging_is_lost": (
        "a decided transaction that its coordinator has aborted is lost, although a leader holds it open",
        ("participants.kafka.transactions.commit_transactions", "txn.hanging.was_aborted"),
    ),
    "input_is_decided": (
        "a decision keeps the input topic's id, and a batch over another one is refused unless a person adopts it",
        ("participants.kafka.checks.check_topics", "protocol.input_topics.check_inputs"),
    ),
    "input_asked_behind_rows": (
        "the id is asked for when the rows are read: the same one in two decisions is that of all between them",
        ("participants.kafka.transactions.confirm",),
    ),
    "replays_same_input": ("a lost part is known by its rows", ("coordinator.claim._replay",)),
    "drains_without_input": (
        "a completed batch needs its input no more",
        ("coordinator.micro_batch.Coordinator.plan",),
    ),
    "leaves_others_losses": (
        "a loss of one batch write holds up no other",
        ("coordinator.claim._raise_own", "coordinator.claim._replay"),
    ),
}

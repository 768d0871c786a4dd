"""The sizes that are explored, and the counterexample that each rule leaves when it is switched off."""

from __future__ import annotations

from tests.model.properties import AFTER, HARM, LOST, OPEN, SUPERSEDED, TWICE, UNFINISHED
from tests.model.state import DRIVER, RECOVERY, SUCCESSOR, Faults, Scenario

SWEPT = f"a sweep {HARM}"
ZOMBIE = f"a task's InitProducerId {HARM}"
ABANDONED = f"a superseded driver {HARM}"

_TWO, _ONE_AND_RECOVERY = (DRIVER, DRIVER), (DRIVER, RECOVERY)
_ONE_BATCH, _TWO_BATCHES, _FOR_RECOVERY = ((1,), (1,)), ((1, 2), (1, 2)), ((1,), ())

SCENARIOS = {
    s.name: s
    for s in (
        Scenario("two batches of two parts", _TWO, _TWO_BATCHES, parts=2, long=True),
        Scenario("two parts", _TWO, _ONE_BATCH, parts=2),
        Scenario(
            "a time-out",
            _TWO,
            _ONE_BATCH,
            2,
            faults=Faults(timeouts=1),
            reaches=("a part written again",),
            long=True,
        ),
        Scenario(
            "time-outs one after the other",
            _TWO,
            _TWO_BATCHES,
            faults=Faults(timeouts=3),
            reaches=("a part written again",),
        ),
        Scenario(
            "two drivers and a recovery",
            (*_TWO, RECOVERY),
            (*_ONE_BATCH, ()),
            faults=Faults(timeouts=1),
            reaches=("a part written again",),
        ),
        Scenario("EndTxn without an answer", _TWO, _TWO_BATCHES, faults=Faults(timeouts=1, silences=1)),
        Scenario("a recovery without answers", _ONE_AND_RECOVERY, _FOR_RECOVERY, faults=Faults(timeouts=1, silences=2)),
        Scenario("a decision without an answer", _TWO, _TWO_BATCHES, faults=Faults(timeouts=1, log_silences=1)),
        Scenario("somebody else on the log", _TWO, _TWO_BATCHES, faults=Faults(foreign=1)),
        Scenario("stopped, and a recovery", _ONE_AND_RECOVERY, _FOR_RECOVERY, faults=Faults(stops=1, restarts=1)),
        Scenario("stopped, and started again", _TWO, _ONE_BATCH, faults=Faults(stops=1, restarts=1), long=True),
        Scenario("the topic made again", _TWO, _ONE_BATCH, faults=Faults(records=1)),
        Scenario("the topic of two parts made again", _TWO, _ONE_BATCH, parts=2, faults=Faults(records=1), long=True),
        Scenario("a task tried again", _TWO, _ONE_BATCH, faults=Faults(retries=1)),
        Scenario("a task tried again, and a recovery", _ONE_AND_RECOVERY, _FOR_RECOVERY, faults=Faults(retries=1)),
        Scenario("a stage run again", _TWO, _ONE_BATCH, faults=Faults(twins=1), tolerates=ZOMBIE, long=True),
        Scenario(
            "a stage run again, and a recovery",
            _ONE_AND_RECOVERY,
            _FOR_RECOVERY,
            faults=Faults(twins=1),
            tolerates=ZOMBIE,
        ),
        Scenario(
            "batch writes",
            _TWO,
            ((1,), (2,)),
            faults=Faults(timeouts=1),
            writes=True,
            reaches=("a batch through beside a loss",),
        ),
        Scenario(
            "taken over by another query",
            (*_TWO, RECOVERY),
            ((1, 2), (3,), ()),
            faults=Faults(timeouts=1),
            long=True,
        ),
        Scenario(
            "a time-out, and a restart",
            (DRIVER,),
            ((1,),),
            2,
            faults=Faults(timeouts=1, restarts=1),
            reaches=("a part written again",),
        ),
        Scenario(
            "retired",
            (DRIVER, SUCCESSOR),
            ((1, 2), ()),
            faults=Faults(timeouts=1, restarts=1),
            reaches=("a sink retired",),
        ),
        Scenario(
            "retired beside two drivers",
            (*_TWO, SUCCESSOR),
            (*_ONE_BATCH, ()),
            2,
            faults=Faults(timeouts=1),
            reaches=("a sink retired",),
            long=True,
        ),
        Scenario("three drivers", (DRIVER,) * 3, ((1,),) * 3, long=True),
        Scenario("three batches of two parts", _TWO, ((1, 2, 3),) * 2, 2, faults=Faults(timeouts=1), long=True),
        Scenario("three drivers, a time-out", (DRIVER,) * 3, ((1,),) * 3, faults=Faults(timeouts=1), long=True),
        Scenario("three drivers, somebody else", (DRIVER,) * 3, ((1,),) * 3, faults=Faults(foreign=1), long=True),
        Scenario(
            "three batch writes", (DRIVER,) * 3, ((1,), (2,), (1,)), faults=Faults(timeouts=1), writes=True, long=True
        ),
        Scenario(
            "everything at once",
            (*_TWO, RECOVERY),
            (*_ONE_BATCH, ()),
            faults=Faults(timeouts=1, silences=1, stops=1, foreign=1),
            long=True,
        ),
    )
}

#: Rules that are switched off, the size in which that shows, and the kind of violation that is found first.
COUNTEREXAMPLES = (
    (("log_is_fenced",), "time-outs one after the other", SUPERSEDED),
    (("reads_behind_init",), "time-outs one after the other", SUPERSEDED),
    (("reads_to_high_watermark",), "somebody else on the log", SUPERSEDED),
    (("drains_decided", "rechecks_decided"), "time-outs one after the other", TWICE),
    (("ids_carry_slot",), "stopped, and a recovery", ZOMBIE),
    (("own_past_only",), "time-outs one after the other", SWEPT),
    (("sweeps_at_claim",), "stopped, and a recovery", OPEN),
    (("sweep_spares_decided",), "a recovery without answers", SWEPT),
    (("sweep_spares_exactly",), "a stage run again, and a recovery", OPEN),
    (("completes_at_claim",), "time-outs one after the other", LOST),
    (("proves_outcomes",), "time-outs one after the other", LOST),
    (("asks_the_output",), "a stage run again", TWICE),
    (("waits_for_proof",), "EndTxn without an answer", LOST),
    (("replays_lost",), "time-outs one after the other", LOST),
    (("replays_only_lost",), "a time-out, and a restart", TWICE),
    (("amends",), "a time-out, and a restart", TWICE),
    (("leader_was_asked",), "the topic made again", LOST),
    (("abort_reads_log",), "EndTxn without an answer", SWEPT),
    (("abort_inits_first",), "a decision without an answer", SWEPT),
    (("abandons",), "stopped, and a recovery", OPEN),
    (("abandon_spares_decided",), "EndTxn without an answer", ABANDONED),
    (("abandon_sweeps_slot",), "stopped, and a recovery", OPEN),
    (("claims_after_failure",), "stopped, and started again", ZOMBIE),
    (("late_task_asks",), "stopped, and a recovery", OPEN),
    (("aborted_before_sweep",), "stopped, and a recovery", OPEN),
    (("abort_fences_late",), "stopped, and a recovery", OPEN),
    (("late_task_knows_decided",), "a task tried again, and a recovery", OPEN),
    (("sweeps_after_batch",), "a task tried again, and a recovery", OPEN),
    (("retired_is_refused",), "retired", AFTER),
    (("retires_as_owner",), "retired", AFTER),
    (("retires_at_rest",), "retired", UNFINISHED),
)

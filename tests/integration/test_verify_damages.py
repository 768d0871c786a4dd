"""``verify`` on sinks that somebody has damaged: what it answers on every record, and that nothing passes in silence.

The sinks are made side by side in the background; each test damages one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from exactly_once.tools.cli import main
from exactly_once.tools.verify import Report, VerifyParameters, verify
from exactly_once.tools.verify.by_log.balance import ALIKE, BEGINS_ANYWHERE, TOO_FEW
from exactly_once.tools.verify.by_log.judge import NO_DIGEST, NO_HANDLES, RECREATED, REMOVED, TOPIC_GONE
from exactly_once.tools.verify.report import OTHER_BATCHES, OTHERS, UNDECIDED, UNENDED
from exactly_once.tools.verify.run import SILENT, UNMARKED
from testkit import damages
from testkit.whole_sinks import WholeSink

#: Sinks that are made at once.
_AT_ONCE = 3


@dataclass(frozen=True)
class Case:
    """A damage, and the answer to it.

    Attributes
    ----------
    found : dict
        The anomalies, with their numbers.
    also : dict
        Those that only the checkpoint tells.
    right, wrong, not_judged, not_proven
        The four answers on the records, the last two by reason.
    unproven : dict
        Parts and batches, by reason.
    removed : dict
        Records that decisions count and that are not there, by reason.
    silent : bool
        True of what is no damage.
    """

    damage: damages.Damage
    found: dict[str, int] = field(default_factory=dict)
    also: dict[str, int] = field(default_factory=dict)
    right: int = 600
    wrong: int = 0
    not_judged: dict[str, int] = field(default_factory=dict)
    not_proven: dict[str, int] = field(default_factory=dict)
    unproven: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    silent: bool = False


AHEAD = {"checkpoint ahead": 1}
REWOUND = {"checkpoint rewound": 1}

CASES = [
    Case(damages.nothing, silent=True),
    Case(damages.aborted_attempts, silent=True),
    Case(damages.a_correct_repair, right=720, silent=True),
    # what retention takes
    Case(damages.half_of_every_partition, right=280, not_proven={REMOVED: 16}, unproven={REMOVED: 8},
         removed={REMOVED: 304}),
    Case(damages.half_of_partition_0, right=280, not_proven={REMOVED: 214}, unproven={REMOVED: 8},
         removed={REMOVED: 106}),
    Case(damages.half_of_partition_2, right=280, not_proven={REMOVED: 221}, unproven={REMOVED: 8},
         removed={REMOVED: 99}),
    Case(damages.all_deleted, right=0, unproven={REMOVED: 15}, removed={REMOVED: 600}),
    Case(damages.all_deleted_and_written_again, right=0, not_judged={OTHERS: 600}, unproven={REMOVED: 15},
         removed={REMOVED: 600}),
    Case(damages.a_later_loss_behind_what_retention_took,
         {"lost": 1, "precommitted read": 2, "torn batch": 1, "outcome lie": 1, "duplicate": 1}, AHEAD, right=160,
         wrong=120, not_proven={REMOVED: 221}, unproven={REMOVED: 8}, removed={REMOVED: 99}),
    # copies by other writers
    Case(damages.a_record_copied, not_judged={OTHERS: 1}),
    Case(damages.a_record_copied_in_a_transaction, not_judged={OTHERS: 1}),
    Case(damages.a_part_copied_in_a_transaction, {"duplicate": 1}, wrong=40),
    Case(damages.a_part_copied_to_another_partition, {"duplicate": 1}, wrong=40),
    Case(damages.a_part_copied_without_a_transaction, not_judged={OTHERS: 40}),
    Case(damages.a_part_copied_among_more_rows, not_judged={OTHERS: 41}),
    Case(damages.a_foreign_transaction_stays_open, {"stalled last stable offset": 1}, not_judged={UNENDED: 1}),
    # what the sink's own ids wrote without a decision
    Case(damages.a_part_again_under_its_own_id, {"duplicate": 1}, wrong=40),
    Case(damages.an_old_part_under_an_unused_id, {"duplicate": 1}, wrong=40),
    Case(damages.a_record_again_under_an_id_of_the_sink, {"output ahead": 1}, wrong=1),
    Case(damages.compacted_and_a_copy_under_an_id_of_the_sink, {"output ahead": 1}, wrong=1),
    Case(damages.rows_in_a_topic_that_no_decision_names, {"output ahead": 1}, wrong=20),
    Case(damages.an_open_part_of_the_sink_that_is_decided_by_nobody, not_proven={UNDECIDED: 2}),
    # a log that has lost decisions
    Case(damages.the_last_decision_gone, {"output ahead": 3, "lost decision": 2, "offset skew": 1}, AHEAD, right=480,
         wrong=120),
    Case(damages.a_middle_decision_gone, {"phantom": 3, "lost": 1, "lost decision": 1}, right=480, wrong=120),
    Case(damages.the_first_decision_gone, {"lost decision": 1}, right=480, not_judged={OTHER_BATCHES: 120},
         unproven={TOO_FEW: 1}),
    Case(damages.the_first_decision_gone_and_a_part_of_it_again, {"lost decision": 1, "output ahead": 1}, right=480,
         wrong=40, not_judged={OTHER_BATCHES: 120}, unproven={TOO_FEW: 1}),
    Case(damages.all_decisions_gone, {"lost decision": 7}, AHEAD, right=0, wrong=600),
    Case(damages.all_decisions_and_marks_and_the_group_gone, {"lost decision": 1}, AHEAD, right=0, wrong=600),
    Case(damages.the_commit_log_deleted, {"lost decision": 2}, AHEAD, right=0, wrong=600),
    Case(damages.every_record_of_the_log_gone, {"lost decision": 2}, AHEAD, right=0, wrong=600),
    Case(damages.the_log_cut_at_its_end, {"output ahead": 3, "lost decision": 1, "offset skew": 1}, AHEAD, right=480,
         wrong=120),
    Case(damages.the_last_mark_gone, unproven={UNMARKED: 1}),
    # decisions that somebody has changed
    Case(damages.the_last_decision_one_handle_less, {"precommitted read": 2, "output ahead": 1}, right=480, wrong=120),
    Case(damages.every_decision_one_handle_less, {"precommitted read": 10, "phantom": 4, "output ahead": 1}, right=0,
         wrong=600),
    Case(damages.a_handle_one_record_less, {"phantom": 1, "precommitted read": 3}, right=480, wrong=120),
    Case(damages.no_digests, {"precommitted read": 3}, right=480, wrong=120, unproven={NO_DIGEST: 3}),
    Case(damages.the_last_decision_without_handles, {"output ahead": 3}, right=480, wrong=120),
    Case(damages.totals_in_place_of_handles, right=480, not_proven={NO_HANDLES: 120}, unproven={NO_HANDLES: 3}),
    Case(damages.handles_of_two_batches_exchanged, {"precommitted read": 6, "batch reorder": 3}, right=360, wrong=240),
    Case(damages.a_middle_decision_emptied, {"phantom": 3, "lost": 1, "batch reorder": 1, "offset skew": 1}, right=480,
         wrong=120),
    Case(damages.a_part_decided_in_two_batches,
         {"precommitted read": 4, "batch reorder": 3, "mixed attempt": 1, "outcome lie": 1}, right=440, wrong=160),
    Case(damages.another_digest, {"corrupt": 1}, right=560, wrong=40),
    Case(damages.a_part_named_twice_by_attempt, {"mixed attempt": 1}, right=640, wrong=80),
    Case(damages.more_parts_again_than_were_lost, {"mixed attempt": 1}, right=680, wrong=80),
    Case(damages.a_repair_that_may_have_doubled, right=720, unproven={ALIKE: 1}),
    # topics, groups, input and checkpoints
    Case(damages.the_topic_made_again, right=0, unproven={RECREATED: 15}, removed={RECREATED: 600}),
    Case(damages.the_topic_made_again_one_record_less, right=0, not_judged={OTHERS: 599}, unproven={RECREATED: 15},
         removed={RECREATED: 600}),
    Case(damages.the_topic_made_again_behind_a_decision, {"lost": 3}, AHEAD, right=0, unproven={RECREATED: 12},
         removed={RECREATED: 480}),
    Case(damages.the_topic_gone, right=0, unproven={TOPIC_GONE: 15}, removed={TOPIC_GONE: 600}),
    Case(damages.the_group_set_back, {"offset skew": 1}),
    Case(damages.the_same_input_decided_by_another_query, {"duplicate": 1, "offset skew": 1}, {"duplicate": 1},
         right=360, not_judged={OTHER_BATCHES: 240}, unproven={TOO_FEW: 2, BEGINS_ANYWHERE: 1}),
    Case(damages.taken_over_and_begun_anywhere, {"offset skew": 1}, {"duplicate": 1}, right=480,
         not_judged={OTHER_BATCHES: 120}, unproven={TOO_FEW: 1, BEGINS_ANYWHERE: 1}),
    Case(damages.the_checkpoint_two_batches_behind, also=REWOUND),
    Case(damages.the_checkpoint_one_batch_behind, also=REWOUND),
    Case(damages.another_history_of_the_checkpoint, also=REWOUND),
    Case(damages.the_checkpoint_of_another_query, also=REWOUND),
]  # fmt: skip


@pytest.fixture(scope="module")
def sinks(request: pytest.FixtureRequest, connection: Connection) -> Iterator[Iterator[Future[WholeSink]]]:
    """As many sinks as tests want one, and one more for that which wants two."""
    wanted = 1 + sum("sinks" in getattr(item, "fixturenames", ()) for item in request.session.items)
    pool = ThreadPoolExecutor(_AT_ONCE)
    made = [pool.submit(WholeSink, connection) for _ in range(wanted)]
    yield iter(made)
    pool.shutdown(cancel_futures=True)


def look(sink: WholeSink, checkpoint: str | None = None) -> Report:
    return verify(sink.connection, VerifyParameters(sink.sink_id, checkpoint=checkpoint, settle_s=0))


def unproven(report: Report) -> dict[str, int]:
    """Without the topics of the other sinks, which may have no leader yet."""
    return {why: n for why, n in report.unproven.items() if why != SILENT}


@pytest.mark.quick(
    "nothing",
    "a_part_copied_in_a_transaction",
    "all_decisions_gone",
    "the_commit_log_deleted",
    "the_topic_made_again",
    "the_checkpoint_two_batches_behind",
)
@pytest.mark.parametrize("case", [pytest.param(c, id=c.damage.__name__) for c in CASES])
def test_what_is_damaged_is_found_or_said_and_each_record_has_one_answer(
    sinks: Iterator[Future[WholeSink]], case: Case, tmp_path: Path
) -> None:
    """A silent pass over a loss, a duplicate, or decisions that are gone; a right sink that is accused; a record that
    has no answer, or two.
    """
    sink = next(sinks).result(60)
    case.damage(sink)
    report = look(sink)
    total = report.balance.total
    assert dict(report.counts) == case.found, report.findings
    assert (total.right, total.wrong) == (case.right, case.wrong)
    assert (dict(total.not_judged), dict(total.not_proven)) == (case.not_judged, case.not_proven)
    assert (unproven(report), dict(report.removed)) == (case.unproven, case.removed)
    assert report.balance.adds_up, report.balance
    with_checkpoint = look(sink, sink.checkpoint(tmp_path))
    assert dict(with_checkpoint.counts) == Counter(case.found) + Counter(case.also), with_checkpoint.findings
    assert with_checkpoint.balance.adds_up, with_checkpoint.balance
    passed = with_checkpoint.clean and not (unproven(with_checkpoint) or total.not_judged or total.not_proven)
    assert passed is case.silent


def test_a_log_that_is_gone_fails_the_command_and_is_no_sink_that_never_ran(
    sinks: Iterator[Future[WholeSink]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that takes "has decided no batch", or "no driver has ever claimed it", for a sink that is to begin."""
    for damage in (damages.all_decisions_gone, damages.the_commit_log_deleted):
        sink = next(sinks).result(60)
        damage(sink)
        servers = sink.connection.bootstrap_servers
        assert main(["--bootstrap-servers", servers, "verify", sink.sink_id, "--settle", "0"]) == 1
        said = capsys.readouterr().out
        assert "lost decision" in said and "Nothing to prove yet" not in said and "600 wrong" in said

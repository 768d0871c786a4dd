"""The tests of the contract."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from exactly_once.outputs.conformance.output import Output, key
from exactly_once.outputs.conformance.processes import call, elsewhere, prepare, write_only
from exactly_once.participant import PartName
from exactly_once.protocol.names import incarnation

#: A claim above those of all tests, so that a scope before it covers them.
_LATER = 1_000


class ParticipantConformance(Output):
    """The contract of :class:`~exactly_once.participant.Participant`, as tests. Subclass it, and override the members
    that :class:`~exactly_once.outputs.conformance.output.Output` lists as yours.
    """

    def test_check_accepts_the_rows_and_writes_none(self) -> None:
        """Mishap: a check that leaves rows behind shows them to readers, or stops the next start."""
        self.checked()
        self.checked()
        self.assert_visible()
        self.assert_left()

    def test_nothing_is_visible_before_commit(self) -> None:
        """Duplicate: rows that are visible before the decision are there twice when Spark runs the batch again."""
        participant, name = self.checked(), self.name()
        writer = participant.begin(name)
        for batch in self.rows(name):
            writer.write(batch)
            self.assert_visible()
        assert writer.pre_commit() is not None
        self.assert_visible()
        self.assert_left(name)

    def test_a_committed_batch_is_visible_once_and_leaves_nothing_staged(self) -> None:
        """The plain case, without a failure."""
        participant = self.checked()
        names, handles = self.batch()
        assert list(participant.gone(handles)) == []
        assert list(participant.commit(handles)) == []
        self.assert_visible(*names)
        self.assert_left()

    def test_every_value_is_kept(self) -> None:
        """A null that becomes empty text, or a number that is rounded, is a lost value."""
        participant, name = self.checked(), self.name()
        rows = self.rows(name, 40)
        assert list(participant.commit([self.stored(prepare(participant, name, rows))])) == []
        want, seen = sorted(key(r) for b in rows for r in b.to_pylist()), sorted(key(r) for r in self.visible())
        assert seen == want, next((pair for pair in zip(seen, want, strict=False) if pair[0] != pair[1]), "a row more")

    def test_the_handle_tells_part_records_and_digest(self) -> None:
        """They prove that a part written again is the same: a wrong one stops the stream, or lets other rows pass."""
        participant, name = self.checked(), self.name(part=5)
        rows = self.rows(name, 9)
        handle = self.stored(prepare(participant, name, rows))
        assert (handle.participant, handle.part, handle.records) == (participant.name, 5, 9)
        assert handle.digest == self.digest(rows)
        assert handle == self.stored(handle), "the commit log must give back what it was given"

    def test_an_empty_part_has_no_handle_and_leaves_nothing(self) -> None:
        """Wedge: a part without a handle is in no decision, so no driver would ever end it."""
        participant = self.checked()
        assert participant.begin(self.name(part=0)).pre_commit() is None
        none = pa.RecordBatch.from_pylist([], schema=self.schema)
        assert prepare(participant, self.name(part=1), [none, none]) is None
        self.assert_left()
        self.assert_visible()

    def test_the_participant_travels_by_pickle_before_and_after_use(self) -> None:
        """Spark sends it to every task: an open connection in it would break there, not at the start."""
        participant = pickle.loads(pickle.dumps(self.checked()))
        names, handles = self.batch()
        used = pickle.loads(pickle.dumps(participant))
        assert list(participant.commit(handles)) == []
        assert list(pickle.loads(pickle.dumps(participant)).commit(handles)) == []
        assert used.name == participant.name == self.participant().name
        self.assert_visible(*names)

    def test_commit_is_idempotent(self) -> None:
        """A driver that does not know whether it committed does it again."""
        participant = self.checked()
        names, handles = self.batch()
        for one in (participant, participant, self.participant()):
            assert list(one.commit(handles)) == []
            self.assert_visible(*names)
        assert elsewhere(call, self.participant(), "recover_and_commit", handles).result == []
        self.assert_visible(*names)
        self.assert_left()

    def test_parts_are_committed_in_any_order(self) -> None:
        """The decision lists handles in the order in which the tasks answered."""
        participant = self.checked()
        names, handles = self.batch()
        assert list(participant.commit(handles[::-1])) == []
        assert list(self.participant().commit(handles[1:] + handles[:1])) == []
        self.assert_visible(*names)

    def test_batches_are_committed_one_after_the_other(self) -> None:
        """The next batch may be prepared while the last one commits."""
        participant = self.checked()
        names, handles = self.batch(7)
        more_names, more = self.batch(8)
        assert list(participant.commit(handles)) == []
        self.assert_visible(*names)
        self.assert_left(*more_names)
        assert list(participant.commit(more)) == []
        assert list(self.participant().recover_and_commit(handles)) == []
        self.assert_visible(*names, *more_names)
        self.assert_left()

    def test_the_same_batch_number_of_a_later_query_is_another_batch(self) -> None:
        """Loss: batch numbers begin again with a new checkpoint, so "batch 7 is there already" would lose its rows."""
        participant = self.checked()
        names, handles = self.batch(7, token=3)
        assert list(participant.commit(handles)) == []
        more_names, more = self.batch(7, token=9)
        assert list(participant.commit(more)) == []
        for again in (handles, more):
            assert list(self.participant().recover_and_commit(again)) == []
        self.assert_visible(*names, *more_names)

    def test_a_task_killed_before_pre_commit_is_swept(self) -> None:
        """Mishap: half of a part is published, or stays forever."""
        self.checked()
        name, again = self.name(), self.name(attempt="1.2")
        elsewhere(write_only, self.participant(), name, self.rows(name))
        self.assert_visible()
        handles = self.prepared(again)
        swept = self.participant().recover_and_abort(self.scope(0, 3, *handles))
        assert set(swept) <= {str(name)}
        self.assert_left(again)
        assert list(self.participant().commit(handles)) == []
        self.assert_visible(again)

    def test_a_task_killed_right_after_pre_commit_has_kept_its_word(self) -> None:
        """From pre_commit on the rows belong to the driver: none may end with the process or its connection."""
        self.checked()
        names = [self.name(part) for part in range(2)]
        handles = [self.stored(elsewhere(prepare, self.participant(), n, self.rows(n)).result) for n in names]
        self.assert_visible()
        assert list(self.participant().gone(handles)) == []
        assert elsewhere(call, self.participant(), "commit", handles).result == []
        self.assert_visible(*names)
        self.assert_left()

    def test_a_task_killed_anywhere_leaves_nothing_after_the_sweep(self) -> None:
        """An executor may die at each line of begin, write and pre_commit."""
        participant, names = self.checked(), list[PartName]()
        first = self.name(batch=0)
        for batch, line in enumerate(self.points(self.lines(prepare, first, self.rows(first))), 1):
            died, again = self.name(batch=batch), self.name(batch=batch, attempt="1.2")
            elsewhere(prepare, self.participant(), died, self.rows(died), kill_at=line)
            self.assert_visible(*names)
            handles = self.prepared(again)
            participant.recover_and_abort(self.scope(_LATER, None, *handles))
            self.assert_left(again)
            assert list(participant.commit(handles)) == []
            names.append(again)
            self.assert_visible(*names)

    def test_a_commit_killed_anywhere_is_completed_once(self) -> None:
        """The next driver or recovery commits a decided batch: every part, and none twice."""
        self.checked()
        names, handles = self.batch(0)
        for batch, line in enumerate(self.points(self.lines(call, "commit", handles)), 1):
            more, handles = self.batch(batch)
            elsewhere(call, self.participant(), "commit", handles, kill_at=line)
            assert self.participant().recover_and_abort(self.scope(_LATER, None, *handles)) == [], "decided"
            assert list(self.participant().recover_and_commit(handles)) == [], f"killed at line {line}"
            names += more
            self.assert_visible(*names)
            self.assert_left()

    def test_a_part_is_aborted_before_pre_commit(self) -> None:
        """A failed task removes its part, or the next sweep does."""
        participant = self.checked()
        for part, rows in enumerate(([], self.rows(self.name(part=1)))):
            writer = participant.begin(self.name(part))
            for batch in rows:
                writer.write(batch)
            writer.abort()
            writer.abort()
        participant.recover_and_abort(self.scope(_LATER))
        self.assert_left()
        self.assert_visible()

    def test_prepared_parts_are_aborted_however_often(self) -> None:
        """Its driver rolls back an undecided batch; after a crash of that driver, the next one does."""
        participant = self.checked()
        _, handles = self.batch(7)
        names, decided = self.batch(8)
        for one in (participant, participant, self.participant()):
            assert one.abort(handles) is None
            self.assert_left(*names)
        elsewhere(call, self.participant(), "abort", handles)
        self.assert_visible()
        assert list(participant.commit(decided)) == []
        self.assert_visible(*names)

    def test_an_abort_killed_anywhere_is_finished_by_the_next(self) -> None:
        """A part that an earlier abort has rolled back must not block the other parts."""
        participant = self.checked()
        _, handles = self.batch(0)
        for batch, line in enumerate(self.points(self.lines(call, "abort", handles)), 1):
            _, handles = self.batch(batch)
            elsewhere(call, self.participant(), "abort", handles, kill_at=line)
            participant.abort(handles)
            self.assert_left()
        self.assert_visible()

    def test_no_abort_undoes_a_commit(self) -> None:
        """Spark calls abort after a commit that raised; a sweep finds parts of decisions that the log has dropped."""
        participant = self.checked()
        names, handles = self.batch()
        assert list(participant.commit(handles)) == []
        participant.abort(handles)
        assert participant.recover_and_abort(self.scope(_LATER, 3)) == []
        self.assert_visible(*names)
        assert list(participant.recover_and_commit(handles)) == []
        self.assert_visible(*names)

    def test_a_sweep_touches_only_what_its_scope_covers(self) -> None:
        """A sweep that covers too much loses decided or foreign parts; one that covers too little leaves parts."""
        participant = self.checked()
        old, decided, own, newer = (self.name(part, token=t) for part, t in enumerate((2, 2, 3, 4)))
        like = self.sink_id.replace("_", "X").replace("-", "X")
        sinks = {"payments", f"{self.sink_id}-late", f"{self.sink_id}.2", f"{self.sink_id}0", like} - {self.sink_id}
        others = [self.name(10 + i, token=1, sink=sink) for i, sink in enumerate(sorted(sinks))]
        _, (kept, *_), theirs = self.prepared(old), self.prepared(decided, own, newer), self.prepared(*others)
        foreign = self.foreign()
        left: list[PartName | str] = [decided, own, newer, *others, *foreign]
        self.assert_left(old, *left)
        for found in ([str(old)], []):
            assert self.participant().recover_and_abort(self.scope(3, None, kept)) == found
            self.assert_left(*left)
        for found in ([str(own)], []):
            assert elsewhere(call, participant, "recover_and_abort", self.scope(3, 3, kept)).result == found
            self.assert_left(decided, newer, *others, *foreign)
        assert list(participant.recover_and_commit([kept])) == []
        for handle in theirs:
            assert list(participant.commit([handle])) == []
        self.assert_visible(decided, *others)
        self.assert_left(newer, *foreign)

    def test_two_participants_of_a_sink_may_share_a_place(self) -> None:
        """Two tables of one server, two formats in one folder: the second participant could not prepare a part under a
        name that is taken, or would publish or sweep parts of the first.
        """
        participant, neighbour = self.checked(), self.neighbour()
        mine = self.name()
        theirs = mine._replace(participant=neighbour.name)
        handle, other = (
            self.stored(prepare(p, n, self.rows(mine))) for p, n in ((participant, mine), (neighbour, theirs))
        )
        assert list(participant.gone([handle])) == list(neighbour.gone([other])) == []
        assert list(neighbour.commit([other])) == []
        self.assert_visible(mine)
        self.assert_left(mine)
        assert participant.recover_and_abort(self.scope(_LATER)) == [str(mine)]
        assert list(neighbour.recover_and_commit([other])) == []
        self.assert_visible(mine)
        again = theirs._replace(batch_id=8)
        prepare(neighbour, again, self.rows(again))
        assert participant.recover_and_abort(self.scope(_LATER)) == [], "the neighbour's"
        self.assert_left(again)

    def test_what_a_log_left_that_is_gone_is_swept_and_another_clusters_is_not(self) -> None:
        """A recreated commit log counts its claims from 1 again: parts of the old log would stay forever, or pass for
        parts of the new one. The sink of the same name on another cluster has claims of its own.
        """
        participant = self.checked()
        mine = self.name(0, token=3)
        before = mine._replace(token=5, incarnation=incarnation("cluster", "deleted log"))
        elsewhere = mine._replace(token=1, incarnation=incarnation("other cluster", "log"))
        ((kept,), _, (theirs,)) = self.prepared(mine), self.prepared(before), self.prepared(elsewhere)
        assert participant.recover_and_abort(self.scope(2, None, kept)) == [str(before)]
        self.assert_left(mine, elsewhere)
        for handle in (kept, theirs):
            assert list(participant.commit([handle])) == []
        self.assert_visible(mine, elsewhere)

    def test_the_same_numbers_under_a_new_commit_log_are_another_batch(self) -> None:
        """Loss: after the log was deleted, claims, batches and attempts begin again. "Already published" would lose the
        batch, and a name that is taken would keep it out forever.
        """
        participant = self.checked()
        mine = self.name()
        before = mine._replace(incarnation=incarnation("cluster", "deleted log"))
        for name in (before, mine):
            (handle,) = self.prepared(name)
            assert list(participant.commit([handle])) == []
        self.assert_visible(before, mine)
        (again,) = self.prepared(mine._replace(batch_id=8))
        self.lose(again)
        assert list(participant.commit([again])) == [again]

    def test_parts_of_an_earlier_version_are_committed_and_swept(self) -> None:
        """Earlier versions gave parts names without incarnation and participant. Parts that such a version prepared
        before an upgrade are decided, or hold locks and space.
        """
        participant = self.checked()
        decided, left = (self.name(part)._replace(incarnation="", participant="") for part in range(2))
        (kept,), _ = self.prepared(decided), self.prepared(left)
        assert participant.recover_and_abort(self.scope(_LATER, None, kept)) == [str(left)]
        assert list(participant.recover_and_commit([kept])) == []
        self.assert_visible(decided)
        self.assert_left()

    def test_what_readers_see_is_found_part_by_part(self) -> None:
        """Without it ``exactly-once verify`` proves nothing of this output; a wrong answer is a false alarm, or hides a
        loss. Skipped if the participant does not override found().
        """
        participant = self.checked()
        names, handles = self.batch(7)
        more_names, more = self.batch(8)
        assert list(participant.commit(handles)) == []
        found = self.found(handles)
        parts = {f.name: f for f in found}
        for handle in handles:
            seen = parts.pop(handle.name)
            assert (seen.visible, seen.prepared, seen.records) == (True, False, handle.records), seen
            assert seen.digest in (handle.digest, "") and len(seen.places) == 1 and not seen.wrong + seen.unproven, seen
        assert parts.keys() == {h.name for h in more}, "what is prepared and not decided"
        assert all(f.prepared and not f.visible for f in parts.values()), parts
        self.assert_visible(*names)
        self.assert_left(*more_names)

    def test_a_part_that_is_committed_and_not_decided_is_found(self) -> None:
        """Phantom: readers see rows that no decision names. Skipped if the participant does not override found()."""
        participant = self.checked()
        _, handles = self.batch(7)
        names, undecided = self.batch(8, parts=1)
        assert list(participant.commit(handles)) == list(participant.commit(undecided)) == []
        found = self.found(handles)
        foreign = [f for f in found if f.name not in {h.name for h in handles}]
        assert [(f.visible, f.records) for f in foreign] == [(True, undecided[0].records)], foreign
        assert foreign[0].name in (str(names[0]), ""), foreign

    def test_a_lost_part_is_not_found(self) -> None:
        """Loss: a lost part must not be called visible. Skipped if the participant does not override found()."""
        participant = self.checked()
        _, handles = self.batch()
        self.lose(handles[1])
        assert [h.part for h in participant.commit(handles)] == [1]
        found = {f.name: f for f in self.found(handles)}
        seen = {h.part: (f.visible, f.prepared, f.unproven) for h in handles for f in [found[h.name]]}
        assert seen == {0: (True, False, ""), 1: (False, False, ""), 2: (True, False, "")}

    def test_a_sweep_killed_anywhere_is_finished_by_the_next(self) -> None:
        """The sweeping driver may die of the same cause as the one before."""
        participant = self.checked()
        scope = self.scope(_LATER)
        self.batch(0)
        for batch, line in enumerate(self.points(self.lines(call, "recover_and_abort", scope)), 1):
            self.batch(batch)
            elsewhere(call, self.participant(), "recover_and_abort", scope, kill_at=line)
            participant.recover_and_abort(scope)
            self.assert_left()
        self.assert_visible()

    def test_of_two_attempts_of_a_part_only_the_decided_one_is_visible(self) -> None:
        """Spark runs a task again while the first attempt is still running; both prepare."""
        participant = self.checked()
        loser, winner = self.name(), self.name(attempt="1.2")
        lost, won = self.prepared(loser, winner)
        assert list(participant.commit([won])) == []
        self.assert_visible(winner)
        self.assert_left(loser)
        assert participant.recover_and_abort(self.scope(0, 3)) == [str(loser)]
        self.assert_left()
        participant.abort([lost])
        self.assert_visible(winner)

    def test_a_prepared_part_that_is_lost_is_named_before_the_decision(self) -> None:
        """Loss: a decision over a part that is gone cannot be kept."""
        participant = self.checked()
        _, handles = self.batch()
        self.lose(handles[1])
        assert [h.part for h in participant.gone(handles)] == [1]
        participant.abort(handles)
        self.assert_left()
        self.assert_visible()

    def test_a_decided_part_that_is_lost_is_named_and_written_again(self) -> None:
        """Flink logs the loss and continues; here the part is written again, and no other part is duplicated."""
        participant = self.checked()
        names, handles = self.batch()
        self.lose(handles[1])
        for one in (participant, self.participant()):
            assert [h.part for h in one.recover_and_commit(handles)] == [1]
            self.assert_visible(names[0], names[2])
        again = self.name(1, token=3, attempt="1.2")
        (new,) = self.prepared(again)
        for one in (participant, self.participant()):
            assert list(one.recover_and_commit([handles[0], new, handles[2]])) == []
            self.assert_visible(names[0], again, names[2])
        self.assert_left()

    def test_a_batch_whose_parts_are_all_lost_is_written_again(self) -> None:
        """A lost part of an undecided batch leaves nothing to roll back."""
        participant = self.checked()
        _, handles = self.batch(parts=2)
        for handle in handles:
            self.lose(handle)
        assert sorted(h.part for h in participant.commit(handles)) == [0, 1]
        self.assert_visible()
        again = [self.name(part, attempt="1.2") for part in range(2)]
        assert list(participant.commit(self.prepared(*again))) == []
        self.assert_visible(*again)
        self.assert_left()

    def test_a_commit_of_what_was_written_again_killed_anywhere_is_completed_once(self) -> None:
        """The second commit of a batch finds parts that the first has published."""

        def after_a_loss(batch: int) -> tuple[list[PartName], list[Any]]:
            names, handles = self.batch(batch)
            self.lose(handles[1])
            assert [h.part for h in self.participant().commit(handles)] == [1]
            again = self.name(1, batch, attempt="1.2")
            return [names[0], again, names[2]], [handles[0], *self.prepared(again), handles[2]]

        self.checked()
        names, handles = after_a_loss(0)
        for batch, line in enumerate(self.points(self.lines(call, "commit", handles)), 1):
            more, handles = after_a_loss(batch)
            elsewhere(call, self.participant(), "commit", handles, kill_at=line)
            assert list(self.participant().recover_and_commit(handles)) == [], f"killed at line {line}"
            names += more
            self.assert_visible(*names)
            self.assert_left()

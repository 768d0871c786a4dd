"""The steps of everything but the drivers: tasks on executors, brokers, the network, an operator, other clients."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.state import (
    IN_FLIGHT,
    Handle,
    Rules,
    Scenario,
    Task,
    Transaction,
    World,
    abort,
    commit,
    decided_handles,
    decisions,
    fence,
    is_open,
    make_topic_again,
    open_decisions,
    owner_of,
    transaction,
    with_tasks,
    with_transaction,
)
from tests.model.steps import Actors, Step


class Environment:
    """The steps of everything but the actors."""

    def __init__(self, scenario: Scenario, rules: Rules, actors: Actors):
        self.scenario, self.rules, self._actors = scenario, rules, actors

    # -- tasks --------------------------------------------------------------------------------------------------------

    def tasks(self, w: World) -> Iterator[Step]:
        """What each task may do next."""
        for t in dict.fromkeys(w.tasks):
            who = f"task of part {t.part}, attempt {t.attempt} under claim {t.token}"
            id_ = self._id(t)
            if t.pc == "waits":
                nw = fence(w, id_, "a task's InitProducerId")
                epoch = max(x.epoch for x in nw.transactions if x.id == id_)
                yield "init", f"{who} initialises {_name((id_, epoch))}", self._to(nw, t, "ready", epoch)
            elif t.pc == "ready":
                late = self._too_late(w, t)
                if late is not None:
                    text = "comes too late, and ends" if late else "asks whether it may begin"
                    yield "task asks", f"{who} {text}", self._to(w, t, "failed" if late else "asked", t.epoch)
            elif t.pc == "asked":
                now = transaction(w, id_)
                if now is None or now.epoch != t.epoch:
                    yield "begin", f"{who} finds that it is fenced", self._to(w, t, "failed", t.epoch)
                else:
                    new = Transaction(id_, t.epoch, "open", t.token, t.batch, w.topic, w.input)
                    text = f"{who} begins {_name(new.handle)}"
                    yield "begin", text, self._to(with_transaction(w, new), t, "open", t.epoch)
                    if any(x.id == id_ for x in w.hanging):
                        nw = with_transaction(w, new._replace(aside=True))
                        yield "begin", f"{text} on another partition", self._to(nw, t, "open", t.epoch)
            elif t.pc == "open":
                late = self._too_late(w, t) if self.rules.asks_behind_begin else False
                if late:
                    nw = abort(w, (id_, t.epoch), "a task")
                    text = f"{who} comes too late, and aborts its own transaction"
                    yield "task asks", text, self._to(nw, t, "failed", t.epoch)
                elif late is not None:
                    text = f"{who} asks again, while its records are on their way"
                    yield "task asks", text, self._to(w, t, "told", t.epoch)
                if w.left.begins:
                    nw = abort(w, (id_, t.epoch), "a task's end") if is_open(w, (id_, t.epoch)) else w
                    nw = nw._replace(left=w.left._replace(begins=w.left.begins - 1))
                    yield "begin again", f"{who} has sent nothing, and begins again", self._to(nw, t, "waits")
            elif t.pc == "told":
                if is_open(w, (id_, t.epoch)):
                    yield "prepare", f"{who} prepares", self._to(w, t, "prepared", t.epoch)
                else:
                    yield "prepare", f"{who} finds its transaction gone", self._to(w, t, "failed", t.epoch)
            if t.live and t.pc in ("waits", *IN_FLIGHT):
                yield from self._retries(w, t, who)

    def _id(self, t: Task) -> tuple[int, int, int]:
        slot = t.token % self.scenario.slots if self.rules.ids_carry_slot else 0
        return slot, t.part, t.attempt

    def _too_late(self, w: World, t: Task) -> bool | None:
        """Whether the log says that this run of the tasks has ended; None while the log cannot be read."""
        if not self.rules.late_task_asks:
            return False
        known = self._actors.readable(w)
        if known is None:
            return None
        log = w.log[: known.bit_length()]
        if owner_of(log) != t.token:
            return True
        if ("aborted", t.token, t.execution) in log:
            return True
        return self.rules.late_task_knows_decided and any(r[:3] == ("decision", t.batch, t.token) for r in log)

    @staticmethod
    def _to(w: World, t: Task, pc: str, epoch: int = 0) -> World:
        """The task's next state; what becomes of one that nobody waits for is nobody's business."""
        rest = list(w.tasks)
        rest.remove(t)
        if t.live or pc in IN_FLIGHT:
            rest.append(t._replace(pc=pc, epoch=epoch))
        return with_tasks(w, rest)

    def _retries(self, w: World, t: Task, who: str) -> Iterator[Step]:
        rest = list(w.tasks)
        rest.remove(t)
        old = t._replace(live=False)
        if w.left.retries:
            nw = w._replace(left=w.left._replace(retries=w.left.retries - 1))
            new = Task(t.execution, t.token, t.batch, t.part, t.attempt + 1, again=self.rules.reports_say_again)
            yield "task retried", f"Spark gives up the {who}, and tries again", with_tasks(nw, [*rest, old, new])
        if w.left.twins:
            nw = w._replace(left=w.left._replace(twins=w.left.twins - 1))
            new = Task(t.execution, t.token, t.batch, t.part, t.attempt, again=self.rules.reports_say_again)
            text = f"Spark runs the stage of the {who} again"
            yield "task retried", text, with_tasks(nw, [*rest, old, new])

    # -- brokers and others -------------------------------------------------------------------------------------------

    def world(self, w: World) -> Iterator[Step]:
        """What may go wrong."""
        left = w.left
        if left.timeouts:
            for t in w.transactions:
                if t.state == "open":
                    nw = abort(w, t.handle, "")
                    text = f"a time-out, or an operator, aborts {_name(t.handle)}"
                    yield "time-out", text, nw._replace(left=left._replace(timeouts=left.timeouts - 1))
        if left.markers:
            for t in w.transactions:
                if t.state == "open":
                    nw = abort(w, t.handle, "", marked=False)
                    text = f"the broker is away past the time-out of {_name(t.handle)}, and leaves out its end marker"
                    yield "marker left out", text, nw._replace(left=left._replace(markers=left.markers - 1))
        for h in w.net:
            nw, _ = commit(w, h)
            rest = tuple(x for x in w.net if x != h)
            yield "late EndTxn", f"the EndTxn for {_name(h)} arrives late", nw._replace(net=rest)
        if w.wire is not None and w.wire[0] == w.holder:
            nw = self._actors.lands(w, w.wire[1])._replace(wire=None)
            yield "late write", "the write of the decision lands late", nw
        if left.foreign and w.foreign < 0:
            nw = w._replace(foreign=len(w.log), left=left._replace(foreign=left.foreign - 1))
            yield "foreign", "somebody opens a transaction on the commit log", nw
        if w.foreign >= 0:
            yield "foreign", "somebody's transaction on the commit log ends", w._replace(foreign=-1)
        yield from self._taken(w)
        yield from self._made_again(w)

    def _taken(self, w: World) -> Iterator[Step]:
        """Retention, or DeleteRecords: of the output, whoever wrote it, and of the input."""
        left = w.left
        if left.records:
            looked = {h for a in w.actors if a.pc in ("decide", "complete", "completed") for h in a.handles}
            looked |= decided_handles(w.log)
            for t in w.transactions:
                if t.state in ("open", "committed") and t.topic == w.topic and t.handle not in (*w.gone, *w.taken):
                    kind = "taken" if t.handle in looked else "gone"
                    records = tuple(sorted([*getattr(w, kind), t.handle]))
                    nw = w._replace(left=left._replace(records=left.records - 1), **{kind: records})
                    yield "records gone", f"retention takes the records of {_name(t.handle)}", nw
        if left.starved:
            for b in {t.batch for t in w.tasks} | {d[1] for d in open_decisions(w.log, None)} | set(decisions(w.log)):
                if b not in w.spark and b not in w.starved:
                    nw = w._replace(
                        starved=tuple(sorted([*w.starved, b])), left=left._replace(starved=left.starved - 1)
                    )
                    yield "input gone", f"retention takes the input of {b}", nw

    @staticmethod
    def _made_again(w: World) -> Iterator[Step]:
        left = w.left
        if left.topics:
            nw = make_topic_again(w)._replace(left=left._replace(topics=left.topics - 1))
            yield "output made again", "the output topic is deleted and made again", nw
        if left.inputs:
            nw = w._replace(input=w.input + 1, left=left._replace(inputs=left.inputs - 1))
            yield "input made again", "the input topic is deleted and made again", nw


def _name(h: Handle) -> str:
    (slot, part, attempt), epoch = h
    return f"{slot}:{part}:{attempt}@{epoch}"

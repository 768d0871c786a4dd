"""What a driver, a recovery and a retirement do, step by step.

Between two steps anything else may happen; inside one, nothing.

A step that only computes is part of the one before it. An InitProducerId of the log and the read behind it are one
step: what comes between them either shows in the read or fences the producer, and then the write finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from exactly_once.errors import CheckpointRewound
from exactly_once.protocol.names import older_slots
from exactly_once.protocol.outcomes import Outcome, read_answer
from exactly_once.protocol.planning import Batch, Plan, plan_batch
from exactly_once.protocol.records import Decision
from tests.model.state import (
    DRIVER,
    SUCCESSOR,
    Actor,
    Handle,
    Record,
    Rules,
    Scenario,
    Task,
    World,
    abort,
    actor,
    commit,
    decided_handles,
    decisions,
    fate,
    fence,
    heal,
    is_open,
    is_retired,
    is_whole,
    last_decided,
    newest,
    open_decisions,
    open_in,
    owner_of,
    transaction,
    with_tasks,
)

#: Where a sweep looks, and where it aborts what it saw; after the last abort it looks again.
_SWEEPING = {"sweep": "sweeping", "housekeep": "housekeeping", "completed": "beside", "own": "owning"}
_AFTER_SWEEPING = {aborts: looks for looks, aborts in _SWEEPING.items()}

#: The transition's name (``code.TRANSITIONS`` says what it stands for), what happened, and the world after it.
Step = tuple[str, str, World]

#: The code's own functions, as far as they are pure.
slots_before = lru_cache(older_slots)
meaning = lru_cache(read_answer)


@lru_cache
def planned(batch: int, last: int) -> Plan | None:
    """What the code's own planning says of ``batch`` after the decision of ``last``; None when it refuses."""
    decided = Decision("q", last, 0, (), "", 5, 0) if last else None
    try:
        return plan_batch("s", Batch("q", batch, ""), decided, adopt=True)
    except CheckpointRewound:
        return None


class Actors:
    """The steps of drivers and recoveries in one scenario."""

    def __init__(self, scenario: Scenario, rules: Rules):
        self.scenario, self.rules = scenario, rules
        self._steps: dict[str, Callable[[World, int, Actor], Iterator[Step]]] = {
            "off": self._start,
            "claim": self._claim,
            "recover": self._recover,
            "recovered": self._mark,
            "sweep": self._sweep,
            "sweeping": self._sweeping,
            "heal": self._heal,
            "run": self._run,
            "decide": self._decide,
            "complete": self._complete,
            "completed": self._mark_and_sweep,
            "housekeep": self._sweep,
            "housekeeping": self._sweeping,
            "beside": self._sweeping,
            "swept": self._mark_last,
            "spark": self._spark,
            "abort": self._abort,
            "disown": self._disown,
            "fence": self._fence,
            "fencing": self._fencing,
            "own": self._sweep,
            "owning": self._sweeping,
            "abandon": self._abandon,
            "abandoning": self._abandoning,
            "retire": self._retire,
            "stopped": self._start_again,
        }

    def steps(self, w: World) -> Iterator[Step]:
        """What each actor may do next."""
        for i, a in enumerate(w.actors):
            step = self._steps.get(a.pc)
            if step is not None:
                who = f"{self.scenario.kinds[i]} {i + 1}"
                for name, text, nw in step(w, i, a):
                    yield name, f"{who} {text}", nw

    # -- the commit log -----------------------------------------------------------------------------------------------

    def readable(self, w: World) -> int | None:
        """Which records a reader gets; None while it has to wait for somebody's open transaction."""
        if w.foreign < 0:
            return (1 << len(w.log)) - 1
        return None if self.rules.reads_to_high_watermark else (1 << w.foreign) - 1

    def _init(self, w: World, i: int, process: str) -> tuple[World, int] | None:
        """The last init wins: every other writer is fenced, and what it had under way is aborted."""
        seen = self.readable(w)
        return None if seen is None else (w._replace(holder=(i, process), wire=None), seen)

    def _may_write(self, w: World, i: int, process: str) -> bool:
        return w.holder == (i, process) or not self.rules.log_is_fenced

    def lands(self, w: World, record: Record) -> World:
        """A decision lands in the log."""
        if record[2] != owner_of(w.log):
            w = w._replace(harm="a superseded driver decides")
        if is_retired(w.log):
            w = w._replace(harm="a batch of a retired sink is decided")
        w = self._of_another(w, record)
        earlier = decisions(w.log).get(record[1])
        if earlier is not None:
            seen = {h for _, h, topic in w.visible if topic == w.topic}
            if any(h not in record[3] and (is_open(w, h) or h in seen) for h in earlier[3]) or earlier[3] == record[3]:
                w = w._replace(harm="a batch is decided twice")
        return w._replace(log=(*w.log, record))

    @staticmethod
    def _of_another(w: World, record: Record) -> World:
        """Whether a decision goes on in another output or input than the one before it, which nobody has adopted."""
        if (before := newest(w.log)) is None:
            return w
        if record[4] != before[4] and ("output", record[4]) not in w.adopted:
            return w._replace(harm="another output is written to, and nobody has adopted it")
        parts = {t.handle: t.input for t in w.transactions if t.handle in record[3]}
        if record[1] == before[1] and any(i != before[5] for h, i in parts.items() if h not in before[3]):
            return w._replace(harm="a part is written again from another input")
        if any(i != before[5] and ("input", i) not in w.adopted for i in parts.values()):
            return w._replace(harm="offsets of one input are read on in another, and nobody has adopted it")
        return w

    @staticmethod
    def _records(w: World, known: int) -> tuple[Record, ...]:
        if known == (1 << len(w.log)) - 1:
            return w.log
        return tuple(r for n, r in enumerate(w.log) if known >> n & 1)

    # -- a start: claim, complete, sweep, plan ------------------------------------------------------------------------

    def in_flight(self, w: World, i: int) -> int:
        """The batch that Spark's checkpoint has in flight for this actor, 0 when all of its input is done."""
        return next((b for b in self.scenario.inputs[i] if b not in w.spark), 0)

    def _start(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Read the log behind an init of its producer, and look whether this batch may be run."""
        driver, batch = self.scenario.kinds[i] == DRIVER, self.in_flight(w, i)
        if driver and not batch:
            return
        twin = i and self.scenario.kinds[i - 1] == DRIVER and self.scenario.inputs[i - 1] == self.scenario.inputs[i]
        if driver and twin and w.actors[i - 1].pc == "off":
            return  # drivers of one query are alike: the first one starts first
        if not driver and not owner_of(w.log):
            return
        if (begun := self._init(w, i, "claim")) is None:
            return
        w, known = begun
        log = self._records(w, known)
        if driver and planned(batch, last_decided(log, self.scenario.inputs[i])) is None:
            yield "start", "is refused: the checkpoint is older than the log", self._stop(w, i, a)
            return
        if driver and is_retired(log) and self.rules.retired_is_refused:
            yield "start", "is refused: the sink is retired", self._stop(w, i, a)
            return
        if driver and self._bound_to_later(log, i):
            yield "start", "is refused: another query has taken over", self._stop(w, i, a)
            return
        if driver:
            others = self._unadopted(w, log, "output")
            if batch > last_decided(log, self.scenario.inputs[i]):  # what is decided has to be committed first
                others += self._unadopted(w, log, "input")
            yield from self._refused(w, i, a, others)
            if len(others) > w.left.adopts:
                return
            w = self._adopted(w, others)
        yield "start", "inits the log and reads it", actor(w, i, a._replace(pc="claim", known=known, batch=batch))

    def _unadopted(self, w: World, log: tuple[Record, ...], kind: str) -> list[tuple[str, int]]:
        """The topic that is not that of the newest decision, as far as the rules compare them; nobody adopted it."""
        place, topic, rule = {
            "output": (4, w.topic, self.rules.refuses_new_topic),
            "input": (5, w.input, self.rules.input_is_decided),
        }[kind]
        last = newest(log)
        other = rule and last is not None and last[place] != topic and (kind, topic) not in w.adopted
        return [(kind, topic)] if other else []

    def _refused(self, w: World, i: int, a: Actor, others: list[tuple[str, int]]) -> Iterator[Step]:
        for kind, _ in others:
            yield "refuse", f"is refused: the {kind} topic was made again", self._stop(w, i, a)

    @staticmethod
    def _adopted(w: World, others: list[tuple[str, int]]) -> World:
        """A person has set sink.adopt."""
        left = w.left._replace(adopts=w.left.adopts - len(others))
        return w._replace(adopted=tuple(sorted([*w.adopted, *others])), left=left)

    def _claim(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Write the claim that follows what was read."""
        if not self._may_write(w, i, "claim"):
            yield from self._start(w, i, a)
            return
        token = owner_of(self._records(w, a.known)) + 1
        known = a.known | 1 << len(w.log)
        w = w._replace(log=(*w.log, ("claim", token, i)))
        yield "claim", f"writes claim {token}", actor(w, i, self._resolve(w, a._replace(token=token, known=known)))

    def _resolve(self, w: World, a: Actor) -> Actor:
        """The next decision to complete, then the sweep."""
        if not self.rules.heals_after_decided and not a.healed and (todo := self._held_by_leaders(w, a)):
            return a._replace(pc="heal", todo=todo, healed=True)
        if self.rules.completes_at_claim:
            before = a.token if self.rules.own_past_only else None
            done = set(a.lost)
            log = self._records(w, a.known) if self.rules.own_past_only else w.log
            for d in open_decisions(log, before):
                if not done & set(d[3]):
                    return a._replace(pc="recover", todo=d[3], handles=d[3], ending=d[1])
        return a._replace(pc="sweep", todo=(), handles=())

    def _recover(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Commit what an earlier driver decided."""
        for sentence, nw, na in self._end(w, a):
            if na.failed:  # the sweep goes on all the same, and the start fails after it
                yield "recover", sentence, actor(nw, i, na._replace(pc="sweep", todo=(), handles=()))
            elif na.todo:
                yield "recover", sentence, actor(nw, i, na)
            elif set(na.lost) & set(na.handles):  # it stays open
                yield "recover", sentence, actor(nw, i, self._resolve(nw, na))
            else:
                yield "recover", sentence, actor(nw, i, na._replace(pc="recovered"))

    def _end(self, w: World, a: Actor) -> Iterator[tuple[str, World, Actor]]:
        """EndTxn(commit) of one handle, and what its answer means."""
        topic = decisions(w.log)[a.ending][4]
        for h in a.todo:
            rest = tuple(x for x in a.todo if x != h)
            name = _name(h)
            if topic != w.topic and self.rules.done_is_of_its_topic:
                yield self._end_of_another_topic(w, a, h, rest)
                continue
            if w.left.unmarked and is_open(w, h):
                nw, _ = commit(w, h, marked=False)
                nw = nw._replace(left=w.left._replace(unmarked=w.left.unmarked - 1))
                yield f"commits {name}, whose leader is away: no end marker", nw, a._replace(todo=rest)
            nw, answer = commit(w, h)
            if meaning(answer) is Outcome.DONE:
                yield f"commits {name}", nw, a._replace(todo=rest)
            elif not self.rules.proves_outcomes:
                yield f"logs that {name} is lost, and goes on", nw, a._replace(todo=rest)
            else:
                found = self._outcome_of(w, h, topic)
                if found == "committed":
                    yield f"finds {name} committed", nw, a._replace(todo=rest)
                elif found == "hanging":
                    lost = tuple(sorted([*a.lost, h]))
                    text = f"hears from its coordinator that {name}, which hangs, is aborted"
                    yield text, nw, a._replace(todo=rest, lost=lost)
                elif found == "aborted":
                    lost = tuple(sorted([*a.lost, h]))
                    yield f"finds {name} rolled back: {answer}", nw, a._replace(todo=rest, lost=lost)
                else:
                    yield f"cannot tell what became of {name}", nw, a._replace(failed=True)
            if w.left.silences and h not in w.net:
                nw = w._replace(net=tuple(sorted([*w.net, h])), left=w.left._replace(silences=w.left.silences - 1))
                if self.rules.waits_for_proof:
                    yield f"gets no answer for {name}", nw, a._replace(failed=True)
                else:
                    yield f"gets no answer for {name}, and goes on", nw, a._replace(todo=rest)

    def _outcome_of(self, w: World, h: Handle, topic: int) -> str:
        """What became of a transaction of which EndTxn cannot tell."""
        if not self.rules.asks_the_output:
            return "aborted"
        found = fate(w, h, topic)
        t = transaction(w, h[0])
        if found == "open" and self.rules.hanging_is_lost and t is not None and (t.epoch, t.state) == (h[1], "aborted"):
            return "hanging"  # the coordinator's own word, of this very transaction, has it aborted
        return "aborted" if found == "unknown" and not self.rules.silence_is_no_abort else found

    @staticmethod
    def _end_of_another_topic(w: World, a: Actor, h: Handle, rest: tuple[Handle, ...]) -> tuple[str, World, Actor]:
        """The topic is another one than the decision names: what EndTxn says is nothing about records."""
        lost = a._replace(todo=rest, lost=tuple(sorted([*a.lost, h])))
        return f"aborts {_name(h)}, whose topic was made again: it is lost", abort(w, h, ""), lost

    def _mark(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Write that every outcome of the batch is proven."""
        process = "claim" if a.pc == "recovered" else "commit"
        batch = a.ending
        if self._may_write(w, i, process):
            w, known = w._replace(log=(*w.log, ("completed", batch, a.token))), a.known | 1 << len(w.log)
            a = a._replace(known=known)
            if a.pc == "recovered":
                yield "mark", f"marks {batch} as completed", actor(w, i, self._resolve(w, a))
            else:
                pc = "housekeep" if a.pc == "completed" and self._sweeps(a) else "spark"
                a = a._replace(pc=pc, again=a.again and pc == "housekeep", replay=(), lost=(), amended=())
                yield "mark", f"marks {batch} as completed", actor(w, i, a)
        elif (begun := self._init(w, i, process)) is not None:
            w, known = begun
            if self._superseded(w, a, known):
                after = self._stop(w, i, a) if a.pc == "recovered" else self._give_up(w, a, i)
                yield "fenced", "was fenced, reads the log, and finds a later claim", after
            else:
                yield (
                    "fenced",
                    "was fenced, reads the log, and is the owner still",
                    actor(w, i, a._replace(known=known)),
                )

    def _mark_and_sweep(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Side by side: what is open is looked for before the mark, or behind it; Spark writes commits/N meanwhile."""
        yield from self._early(w, i, a)
        yield from self._mark(w, i, a)
        if self._sweeps(a):
            yield from self._sweep(w, i, a)

    def _sweeps(self, a: Actor) -> bool:
        return self.rules.sweeps_after_batch and a.again

    def _mark_last(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """The sweep is through, and the mark is not."""
        yield from self._early(w, i, a)
        yield from self._mark(w, i, a)

    def _early(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Every part is proven committed: Spark writes commits/N while the mark is still under way."""
        if a.batch not in w.spark:
            early = w._replace(spark=tuple(sorted([*w.spark, a.batch])))
            yield "commits/N", f"writes commits/{a.batch} before the mark", actor(early, i, a._replace(noted=True))

    def _sweep(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Look for what is open: of older claims at a start; own attempts after a retry; all of this claim's after an
        abort."""
        own = frozenset([self._slot(a.token)])
        older = slots_before(a.token, self.scenario.slots)
        if a.pc == "sweep":
            found = open_in(w, older if self.rules.own_past_only else None)
            if not self.rules.sweeps_at_claim:
                found = []
            if self.rules.sweep_spares_decided:
                spared = {h for d in open_decisions(self._records(w, a.known), a.token) for h in d[3]}
                ids = {h[0] for h in spared}
                exact = self.rules.sweep_spares_exactly
                found = [t for t in found if (t.handle not in spared if exact else t.id not in ids)]
        else:
            found = open_in(w, own if a.pc == "own" else own | older)
        if found:
            todo = tuple(t.handle for t in found)
            yield "sweep", f"finds {_names(todo)} open", actor(w, i, a._replace(pc=_SWEEPING[a.pc], todo=todo))
        elif a.pc == "sweep":
            if todo := self._held_by_leaders(w, a):
                text = f"hears from leaders that {_names(todo)} hang"
                yield "ask leaders", text, actor(w, i, a._replace(pc="heal", todo=todo))
            else:
                yield from self._plan(w, i, a)
        elif a.pc in ("housekeep", "completed"):
            pc = "spark" if a.pc == "housekeep" else "swept"
            yield "sweep", "finds nothing open", actor(w, i, a._replace(pc=pc, again=False))
        elif self.rules.aborted_before_sweep or not self.rules.late_task_asks:
            yield "sweep", "finds nothing open under its own claim", self._stop(w, i, a)
        else:
            yield "sweep", "finds nothing open under its own claim", actor(w, i, a._replace(pc="disown"))

    def _sweeping(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Abort what was seen, by producer id and epoch."""
        h, rest = a.todo[0], a.todo[1:]
        pc = a.pc if rest else _AFTER_SWEEPING[a.pc]
        nw = abort(w, h, "a sweep")
        yield "abort", f"aborts {_name(h)}", actor(nw, i, a._replace(pc=pc, todo=rest))

    def _held_by_leaders(self, w: World, a: Actor) -> tuple[Handle, ...]:
        """DescribeProducers: the ids of older claims under which something hangs, with the epochs that coordinators
        name now; save what a decision needs.
        """
        if not self.rules.asks_leaders:
            return ()
        older = slots_before(a.token, self.scenario.slots)
        found = {t.id: t for t in w.hanging if t.id[0] in older or not self.rules.heals_older_only}
        decided = decided_handles(w.log) - set(a.lost) if self.rules.heals_no_decided else set()
        found = {i: t for i, t in found.items() if t.handle not in decided}
        now = [t for t in w.transactions if t.id in found and (t.state != "open" or not self.rules.heals_ended_only)]
        return tuple(t.handle for t in now)

    def _heal(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """End what hangs by a new transaction of its id, which is aborted.

        The code leaves an id that was initialised since it was seen; that alone would not be enough.
        """
        h, rest = a.todo[0], a.todo[1:]
        nw, text = heal(w, h[0]), f"ends what hangs under the id of {_name(h)} by a new transaction"
        if rest or self.rules.heals_after_decided:
            yield "heal", text, actor(nw, i, a._replace(pc="heal" if rest else "sweep", todo=rest))
        else:
            yield "heal", text, actor(nw, i, self._resolve(nw, a._replace(todo=())))

    def _plan(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """The end of a start: write the batch, drain it, write what was lost of it; or stop."""
        if a.failed:
            yield "plan", "could not complete what is decided, and stops", self._stop(w, i, a)
            return
        if self.scenario.kinds[i] == SUCCESSOR:
            whole = not a.lost or not self.rules.retires_at_rest
            after = actor(w, i, a._replace(pc="retire")) if whole else self._stop(w, i, a)
            yield "rest", "has swept" if whole else "has swept, and finds lost parts", after
            return
        if self.scenario.kinds[i] != DRIVER:
            yield "rest", "has swept, and is gone", actor(w, i, Actor("done", a.token))
            return
        log, mine = self._records(w, a.known), self.scenario.inputs[i]
        lost: list[Handle] = []
        for batch, d in decisions(log).items():
            if part := [h for h in d[3] if h in a.lost]:
                if batch == a.batch:
                    lost += part
                elif batch in mine or not (self.scenario.writes and self.rules.leaves_others_losses):
                    yield "plan", f"finds that batch {batch} has to come first, and stops", self._stop(w, i, a)
                    return
        last = last_decided(log, mine)
        plan = planned(a.batch, last) if self.rules.drains_decided else Plan.WRITE
        a = a._replace(known=0, lost=(), handles=(), todo=())
        others = self._unadopted(w, log, "input")
        yield from self._refused(w, i, a, others)
        if len(others) > w.left.adopts:
            return
        w = self._adopted(w, others)
        if a.batch in w.starved and not (plan is Plan.DRAIN and not lost and self.rules.drains_without_input):
            yield "plan", "cannot read its input any more, and stops", self._stop(w, i, a)
        elif plan is Plan.DRAIN and lost and self.rules.replays_lost:
            parts = tuple(sorted({h[0][1] for h in lost}))
            written = parts if self.rules.replays_only_lost else tuple(range(self.scenario.parts))
            text = f"plans to write {', '.join(f'part {p}' for p in written)} of {a.batch} again"
            yield "plan", text, self._execute(w, i, a._replace(replay=parts, plan="replay"), written)
        elif plan is Plan.DRAIN and a.batch in w.starved:
            yield "drain unread", f"drains {a.batch}, whose input is gone", actor(w, i, a._replace(pc="spark"))
        elif plan is Plan.DRAIN:
            yield "plan", f"drains {a.batch}, which is decided", actor(w, i, a._replace(pc="spark"))
        elif plan is None:
            yield "plan", "is refused: the checkpoint is older than the log", self._stop(w, i, a)
        else:
            every = tuple(range(self.scenario.parts))
            yield "plan", f"plans to write {a.batch}", self._execute(w, i, a._replace(plan="write"), every)

    def _retire(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """One durable record, behind which nobody decides."""
        if self._may_write(w, i, "claim") or not self.rules.retires_as_owner:
            nw = w._replace(log=(*w.log, ("retired", a.token)))
            yield "retire", "retires the sink", actor(nw, i, Actor("done", a.token))
        elif (begun := self._init(w, i, "claim")) is not None:
            w, known = begun
            if self._superseded(w, a, known):
                yield "fenced", "was fenced, reads the log, and finds a later claim", self._stop(w, i, a)
            else:
                text = "was fenced, reads the log, and is the owner still"
                yield "fenced", text, actor(w, i, a._replace(known=known))

    def _execute(self, w: World, i: int, a: Actor, parts: tuple[int, ...]) -> World:
        a = a._replace(pc="run", execution=a.execution + 1)
        new = [Task((i, a.execution), a.token, a.batch, p) for p in parts]
        return actor(with_tasks(w, [*w.tasks, *new]), i, a)

    # -- a batch: decide, complete ------------------------------------------------------------------------------------

    def _run(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Spark runs the tasks, and calls commit() or abort()."""
        mine = [t for t in w.tasks if t.execution == (i, a.execution) and t.live]
        if any(t.pc == "failed" for t in mine):
            yield "task fails", "loses a task", self._give_up(*self._collect(w, i, a), i)
        elif all(t.pc == "prepared" for t in mine):
            yield from self._check_before_decision(*self._collect(w, i, a), i)
        if w.left.stops:
            nw = w._replace(left=w.left._replace(stops=w.left.stops - 1))
            yield "stop", "is stopped by its user", self._give_up(*self._collect(nw, i, a), i)

    def _collect(self, w: World, i: int, a: Actor) -> tuple[World, Actor]:
        """The handles that have come back from the tasks; a task that goes on is nobody's."""
        mine = [t for t in w.tasks if t.execution == (i, a.execution)]
        back = tuple(sorted(((self._slot(t.token), t.part, t.attempt), t.epoch) for t in mine if _came_back(t)))
        rest = [t._replace(live=False) if t in mine else t for t in w.tasks if t not in mine or not _ended(t)]
        again = any(t.again for t in mine if t.live)
        return with_tasks(w, rest), a._replace(handles=back, again=again)

    def _check_before_decision(self, w: World, a: Actor, i: int) -> Iterator[Step]:
        """Right before the decision: still the owner, not decided yet, every transaction alive."""
        known = a.known
        if not known:
            seen = self.readable(w)
            if seen is None:
                return
            known = seen
            if self.rules.reads_behind_init:
                w = w._replace(holder=(i, "commit"), wire=None)
        log = self._records(w, known)
        if owner_of(log) != a.token:
            yield "look", "reads the log, and finds that the claim is not its own", self._give_up(w, a, i)
            return
        if not self.rules.drops_what_was_sent:  # it is sent beside the look; with the rule, whatever follows drops it
            a = a._replace(sent=self._decision(w, a._replace(topic=w.topic, input=w.input)))
        if not all(is_open(w, h) for h in a.handles):
            yield "look", "finds a prepared transaction gone", self._give_up(w, a, i)
        elif others := self._not_the_same(w, a, log):
            yield "look", f"finds that the {others[0][0]} topic was made again", self._give_up(w, a, i)
        elif self.rules.leader_was_asked and not all(is_whole(w, h) for h in a.handles):
            yield "look", "hears from a leader that a transaction is not there", self._give_up(w, a, i)
        else:
            earlier = decisions(log).get(a.batch) if a.plan == "replay" else None
            amended = earlier[3] if earlier else ()
            a = a._replace(pc="decide", known=known, topic=w.topic, input=w.input, amended=amended, sent=())
            yield "look", "finds everything alive", actor(w, i, a)

    def _not_the_same(self, w: World, a: Actor, log: tuple[Record, ...]) -> list[tuple[str, int]]:
        """Behind the last row: the topics are those of the newest decision, and a lost part has the rows that it had.

        The same id before two decisions proves that nothing between them was read from, or written to, another topic.
        """
        found = self._unadopted(w, log, "output")
        if self.rules.input_asked_behind_rows:
            found += self._unadopted(w, log, "input")
        read = {t.input for t in w.transactions if t.handle in a.handles}
        if a.plan == "replay" and self.rules.replays_same_input and read != {decisions(log)[a.batch][5]}:
            found.append(("input", w.input))
        return found

    def _decision(self, w: World, a: Actor) -> Record:
        """What is to be decided; of a replay, with the handles that stay."""
        again = {h[0][1] for h in a.handles}
        kept = [h for h in a.amended if h[0][1] not in again and self.rules.amends]
        return "decision", a.batch, a.token, tuple(sorted([*a.handles, *kept])), a.topic, a.input

    def _undecided(self, w: World, i: int, a: Actor) -> bool:
        """Whether the state of the log behind which a decision is about to be written allows it."""
        log = self._records(w, a.known)
        last = last_decided(log, self.scenario.inputs[i])
        if last < a.batch or not self.rules.rechecks_decided:
            return True
        return last == a.batch and decisions(log)[last][3] == a.amended and bool(open_decisions(log, None))

    def _decide(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """One durable record."""
        record = self._decision(w, a)
        text = f"decides {a.batch}: {_names(record[3])}"
        decided = a._replace(pc="complete", todo=record[3], handles=record[3], ending=a.batch)
        if not self._undecided(w, i, a):
            yield "look", f"finds that {a.batch} is decided already", self._give_up(w, a, i)
        elif self._may_write(w, i, "commit") or not self.rules.reads_behind_init:
            nw = self.lands(w, record)._replace(holder=(i, "commit"))
            known = a.known | 1 << len(w.log)
            yield "decide", text, actor(nw, i, decided._replace(known=known))
            if w.left.log_silences:
                nw = w._replace(
                    wire=((i, "commit"), record), left=w.left._replace(log_silences=w.left.log_silences - 1)
                )
                yield "decide", f"{text}; no answer comes, and it gives up", self._give_up(nw, a, i)
        elif (begun := self._init(w, i, "commit")) is not None:
            w, known = begun
            if self._superseded(w, a, known):
                yield "fenced", "was fenced, reads the log, and finds a later claim", self._give_up(w, a, i)
            else:
                yield (
                    "fenced",
                    "was fenced, reads the log, and is the owner still",
                    actor(w, i, a._replace(known=known)),
                )

    def _complete(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Commit what was decided."""
        for sentence, nw, na in self._end(w, a):
            if na.failed or (na.lost and not na.todo):
                yield "complete", sentence, self._give_up(nw, na, i)
            else:
                yield "complete", sentence, actor(nw, i, na if na.todo else na._replace(pc="completed"))

    def _spark(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """commits/N, and the next batch: under the same claim, since this one went through."""
        if a.batch in w.spark and not a.noted:
            yield "commits/N", "finds commits/N of another run, and stops", self._stop(w, i, a)
            return
        w = w._replace(spark=tuple(sorted({*w.spark, a.batch})))
        batch, text = self.in_flight(w, i), f"writes commits/{a.batch}"
        a = a._replace(noted=False)
        if not batch:
            yield "commits/N", f"{text}, and ends", actor(w, i, Actor("done", a.token))
        else:
            a = a._replace(batch=batch, plan="write", handles=(), todo=())
            parts = tuple(range(self.scenario.parts))
            yield "commits/N", f"{text}, and plans to write {batch}", self._execute(w, i, a, parts)

    # -- the end of a failed batch ------------------------------------------------------------------------------------

    def _give_up(self, w: World, a: Actor, i: int) -> World:
        """The batch failed: Spark calls abort(); the query's end does when only the mark was left."""
        a = a._replace(pc="abort", noted=False, known=0, todo=(), lost=(), replay=(), amended=(), failed=False, plan="")
        a = a._replace(topic=0, input=0)
        return actor(w, i, a)

    def _abort(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Read the log first: what is decided is left alone."""
        if not self.rules.abort_reads_log:
            yield "abort batch", "is asked by Spark to abort", actor(w, i, a._replace(pc="own"))
            return
        begun = self._init(w, i, "abort")
        if begun is None:
            return
        if self.rules.abort_inits_first:
            w, known = begun
        else:
            known = begun[1]
        log = self._records(w, known)
        if owner_of(log) != a.token:
            yield "abort batch", "is asked by Spark to abort, and finds a later claim", self._abandons(w, i, a)
        elif any(r[:3] == ("decision", a.batch, a.token) for r in log):
            yield "abort batch", f"is asked by Spark to abort, and finds {a.batch} decided", self._stop(w, i, a)
        else:
            first = self.rules.late_task_asks and self.rules.aborted_before_sweep
            a = a._replace(pc="disown" if first else "own", known=known)
            yield "abort batch", f"is asked by Spark to abort, and finds {a.batch} undecided", actor(w, i, a)

    def _disown(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Tell late tasks of this execution that it has ended."""
        if self._may_write(w, i, "abort"):
            if a.sent:
                w, a = self.lands(w, a.sent), a._replace(sent=())
            w = w._replace(log=(*w.log, ("aborted", a.token, (i, a.execution))))
            if self.rules.aborted_before_sweep:
                alive = any(t.execution == (i, a.execution) for t in w.tasks)
                a = a._replace(pc="fence" if alive and self.rules.abort_fences_late else "own")
                yield "disown", "writes that this run of the tasks has ended", actor(w, i, a)
            else:
                yield "disown", "writes that this run of the tasks has ended", self._stop(w, i, a)
        elif (begun := self._init(w, i, "abort")) is not None:
            w, known = begun
            if self._superseded(w, a, known):
                text = "was fenced, reads the log, and finds a later claim"
                yield "fenced", text, self._abandons(w, i, a)
            else:
                text = "was fenced, reads the log, and is the owner still"
                yield "fenced", text, actor(w, i, a._replace(known=known))

    def _fence(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """Look for ids of this claim that a task may have initialised and not begun with."""
        slot, spared = self._slot(a.token), {h[0] for d in open_decisions(w.log, None) for h in d[3]}
        todo = tuple(t.handle for t in w.transactions if t.id[0] == slot and t.state != "open" and t.id not in spared)
        pc = "fencing" if todo else "own"
        yield "fence", f"lists {_names(todo) or 'no ids'} as idle", actor(w, i, a._replace(pc=pc, todo=todo))

    def _fencing(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        h, rest = a.todo[0], a.todo[1:]
        nw = fence(w, h[0], "an abort's InitProducerId")
        text = f"initialises the id of {_name(h)}"
        yield "fence", text, actor(nw, i, a._replace(pc="fencing" if rest else "own", todo=rest))

    def _abandons(self, w: World, i: int, a: Actor) -> World:
        return actor(w, i, a._replace(pc="abandon")) if self.rules.abandons else self._stop(w, i, a)

    def _abandon(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """A superseded driver ends exactly what its own tasks prepared and it has not decided.

        Its abort() has just read everything that it can ever have decided, so this read may stop wherever it has to.
        """
        known = (1 << (w.foreign if w.foreign >= 0 else len(w.log))) - 1
        log = self._records(w, known)
        spared = decided_handles(log) if self.rules.abandon_spares_decided else set()
        found = {h for h in a.handles if is_open(w, h)}
        if self.rules.abandon_sweeps_slot and owner_of(log) - a.token < self.scenario.slots // 2:
            found |= {t.handle for t in open_in(w, frozenset([self._slot(a.token)]))}
        if todo := tuple(sorted(found - spared)):
            yield "abandon", f"sees its own {_names(todo)} open", actor(w, i, a._replace(pc="abandoning", todo=todo))
        else:
            yield "abandon", "has nothing of its own open", self._stop(w, i, a)

    def _abandoning(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        nw, rest = abort(w, a.todo[0], "a superseded driver"), a.todo[1:]
        after = actor(nw, i, a._replace(todo=rest)) if rest else self._stop(nw, i, a)
        yield "abandon", f"aborts {_name(a.todo[0])}", after

    def _stop(self, w: World, i: int, a: Actor) -> World:
        return actor(w, i, Actor("stopped", a.token, a.execution))

    def _start_again(self, w: World, i: int, a: Actor) -> Iterator[Step]:
        """The query is started again in the same Spark application, which remembers that its last run failed."""
        batch = self.in_flight(w, i)
        if not w.left.restarts or self.scenario.kinds[i] != DRIVER or not batch:
            return
        w = w._replace(left=w.left._replace(restarts=w.left.restarts - 1))
        if self.rules.claims_after_failure or not a.token:
            for name, text, nw in self._start(w, i, a):
                yield name, f"starts again, {text}", nw
        elif any(r[:3] == ("decision", batch, a.token) for r in w.log):
            yield "start", f"starts again, and drains {batch}", actor(w, i, a._replace(pc="spark", batch=batch))
        else:
            a = a._replace(batch=batch, plan="write")
            text = f"starts again under claim {a.token}"
            yield "start", text, self._execute(w, i, a, tuple(range(self.scenario.parts)))

    # -- small things -------------------------------------------------------------------------------------------------

    def _bound_to_later(self, log: tuple[Record, ...], i: int) -> bool:
        """Whether the sink belongs to another query, which this driver was not told to take over."""
        by = next((r[2] for r in reversed(log) if r[0] == "claim" and self.scenario.kinds[r[2]] == DRIVER), i)
        return not self.scenario.writes and by > i and self.scenario.inputs[by] != self.scenario.inputs[i]

    def _slot(self, token: int) -> int:
        return token % self.scenario.slots if self.rules.ids_carry_slot else 0

    def _superseded(self, w: World, a: Actor, known: int) -> bool:
        return owner_of(self._records(w, known)) != a.token


def _came_back(t: Task) -> bool:
    return t.live and t.pc == "prepared"


def _ended(t: Task) -> bool:
    return t.pc in ("prepared", "failed")


def _name(h: Handle) -> str:
    (slot, part, attempt), epoch = h
    return f"{slot}:{part}:{attempt}@{epoch}"


def _names(handles: tuple[Handle, ...]) -> str:
    return ", ".join(map(_name, handles))

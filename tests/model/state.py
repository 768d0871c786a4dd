"""What the model is made of: the world as one hashable value, the rules that can be switched off, the sizes."""

from __future__ import annotations

from typing import NamedTuple

#: A transactional id: slot, part, attempt.
Id = tuple[int, int, int]

#: One transaction of an id: each InitProducerId raises the epoch, so this names exactly one.
Handle = tuple[Id, int]

#: A record of the commit log: ("claim", token, actor), ("decision", batch, token, handles, topic id, input's id),
#: ("completed", batch, token), ("aborted", token, execution) or ("retired", token).
Record = tuple

#: Kinds of actors.
DRIVER, RECOVERY, SUCCESSOR = "driver", "recovery", "successor"

#: Where an actor's life ends by itself; one that is never scheduled again has been killed.
ENDED = ("done", "stopped")

#: A task's transaction may come to be, or be open, without anybody but the task knowing.
IN_FLIGHT = ("ready", "asked", "open", "told")


class Rules(NamedTuple):
    """Everything that the protocol leans on. ``code.RULES`` says which function keeps each, and what it says."""

    log_is_fenced: bool = True
    reads_behind_init: bool = True
    reads_to_high_watermark: bool = True
    rechecks_decided: bool = True
    drains_decided: bool = True
    ids_carry_slot: bool = True
    own_past_only: bool = True
    sweep_spares_decided: bool = True
    sweep_spares_exactly: bool = True
    sweeps_at_claim: bool = True
    completes_at_claim: bool = True
    proves_outcomes: bool = True
    asks_the_output: bool = True
    waits_for_proof: bool = True
    replays_lost: bool = True
    replays_only_lost: bool = True
    amends: bool = True
    leader_was_asked: bool = True
    drops_what_was_sent: bool = True
    abort_reads_log: bool = True
    abort_inits_first: bool = True
    abandons: bool = True
    abandon_spares_decided: bool = True
    abandon_sweeps_slot: bool = True
    claims_after_failure: bool = True
    late_task_asks: bool = True
    asks_behind_begin: bool = True
    aborted_before_sweep: bool = True
    abort_fences_late: bool = True
    late_task_knows_decided: bool = True
    sweeps_after_batch: bool = True
    reports_say_again: bool = True
    leaves_others_losses: bool = True
    retired_is_refused: bool = True
    retires_as_owner: bool = True
    retires_at_rest: bool = True
    refuses_new_topic: bool = True
    done_is_of_its_topic: bool = True
    silence_is_no_abort: bool = True
    asks_leaders: bool = True
    heals_after_decided: bool = True
    heals_older_only: bool = True
    heals_ended_only: bool = True
    heals_no_decided: bool = True
    hanging_is_lost: bool = True
    input_is_decided: bool = True
    input_asked_behind_rows: bool = True
    replays_same_input: bool = True
    drains_without_input: bool = True


class Faults(NamedTuple):
    """How often each thing may still go wrong."""

    timeouts: int = 0  # the broker's, of any open transaction, or an operator's abort
    silences: int = 0  # an EndTxn gets no answer, and arrives late or never
    log_silences: int = 0  # the decision's write gets no answer, and lands late or never
    foreign: int = 0  # somebody's transaction on the commit log
    stops: int = 0  # query.stop() in the middle of a batch
    restarts: int = 0  # the query is started again in the same Spark application
    records: int = 0  # retention, or DeleteRecords, takes the records of a transaction, open or committed
    topics: int = 0  # the output topic is deleted and made again
    inputs: int = 0  # the same of the input
    adopts: int = 0  # a person sets sink.adopt for a topic that was made again
    markers: int = 0  # the broker is away past a time-out, and leaves out the end marker
    unmarked: int = 0  # a leader goes while a transaction is committed: the same for a commit marker
    starved: int = 0  # retention takes the input of a batch that is planned
    retries: int = 0  # Spark gives a task up that goes on, and runs another attempt
    twins: int = 0  # the same in a stage that is run again: the new attempt has the id of the old one
    begins: int = 0  # a part's transaction was begun with a partition that gets none of its first rows


class Scenario(NamedTuple):
    """One size to explore. ``inputs`` holds each actor's batches, which are numbered over all queries and writes."""

    name: str
    kinds: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    parts: int = 1
    slots: int = 8
    writes: bool = False  # batch writes, which share nothing; else streams, of which the last one has taken over
    faults: Faults = Faults()
    reaches: tuple[str, ...] = ()
    tolerates: str = ""  # what this size cannot rule out, and what is made good
    long: bool = False


class Transaction(NamedTuple):
    """What the coordinator knows of one id: its latest transaction."""

    id: Id
    epoch: int
    state: str  # idle, open, committed, aborted
    token: int
    batch: int
    topic: int = 0  # the id of the topic that its records are in
    input: int = 0  # that of the topic that its rows were read from
    aside: bool = False  # an older one of its id hangs, on a partition that this one does not write to

    @property
    def handle(self) -> Handle:
        return self.id, self.epoch


class Task(NamedTuple):
    """One attempt of one part. Spark has given it up when it is not ``live``."""

    execution: tuple[int, int]  # actor, run of its tasks
    token: int
    batch: int
    part: int
    attempt: int = 0
    pc: str = "waits"  # waits, ready, asked, open, told, prepared, failed
    epoch: int = 0
    live: bool = True
    again: bool = False  # Spark gave up an attempt of its part before, which its report says


class Actor(NamedTuple):
    """A driver, a recovery, or what retires the sink for a successor. ``pc`` is the step it is about to take."""

    pc: str = "off"
    token: int = 0
    execution: int = 0
    batch: int = 0
    ending: int = 0  # the batch whose decision it completes
    known: int = 0  # bit n: the process at work has record n of the log in its memory, and had the log's producer
    plan: str = ""  # write, replay
    todo: tuple[Handle, ...] = ()
    handles: tuple[Handle, ...] = ()  # what its tasks prepared, or what it decided
    lost: tuple[Handle, ...] = ()  # decided, and proven to be rolled back
    replay: tuple[int, ...] = ()  # parts that have to be written again
    amended: tuple[Handle, ...] = ()  # the earlier decision of the batch that it writes again
    sent: Record = ()  # a decision in a transaction of the log that nobody has ended
    topic: int = 0  # the ids of output and input that its look found
    input: int = 0
    healed: bool = False
    failed: bool = False
    again: bool = False  # a report of its tasks says that Spark gave up an attempt
    noted: bool = False  # Spark has written commits/N of the batch that it has not marked yet


class World(NamedTuple):
    """Everything that the next step may depend on."""

    left: Faults
    actors: tuple[Actor, ...]
    tasks: tuple[Task, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    #: (batch, handle, topic id) that a read_committed reader has got: what is taken later was there
    visible: tuple[tuple[int, Handle, int], ...] = ()
    hanging: tuple[Transaction, ...] = ()  # ended by the coordinator, and open at the leader: readers wait there
    log: tuple[Record, ...] = ()
    holder: tuple[int, str] | None = None  # whose InitProducerId of the log's producer was the last
    wire: tuple[tuple[int, str], Record] | None = None  # a write of the log on its way
    foreign: int = -1  # the offset of somebody's open transaction on the log
    net: tuple[Handle, ...] = ()  # EndTxn(commit) on its way
    gone: tuple[Handle, ...] = ()  # whose records were gone before anybody decided
    taken: tuple[Handle, ...] = ()  # whose records retention took behind the last look, or later
    topic: int = 1  # the id of the output topic
    input: int = 1
    adopted: tuple[tuple[str, int], ...] = ()  # ("output", id) or ("input", id) that a person has adopted
    starved: tuple[int, ...] = ()  # batches whose input retention took
    spark: tuple[int, ...] = ()  # batches with commits/N
    harm: str = ""  # what a step did that is never allowed


def actor(w: World, i: int, a: Actor) -> World:
    """The world with another state of actor ``i``."""
    return w._replace(actors=(*w.actors[:i], a, *w.actors[i + 1 :]))


def transaction(w: World, id_: Id) -> Transaction | None:
    """What the coordinator knows of an id."""
    for t in w.transactions:
        if t.id == id_:
            return t
    return None


def with_transaction(w: World, new: Transaction) -> World:
    """The world with another state of one id."""
    rest = [t for t in w.transactions if t.id != new.id]
    return w._replace(transactions=tuple(sorted([*rest, new])))


def with_tasks(w: World, tasks: list[Task]) -> World:
    """The world with other tasks; their order means nothing."""
    return w._replace(tasks=tuple(sorted(tasks)))


# -- the commit log ---------------------------------------------------------------------------------------------------


def owner_of(log: tuple[Record, ...]) -> int:
    """The token of the latest claim, 0 without any."""
    for r in reversed(log):
        if r[0] == "claim":
            return int(r[1])
    return 0


def is_retired(log: tuple[Record, ...]) -> bool:
    """Whether the sink has a successor."""
    return any(r[0] == "retired" for r in log)


def decisions(log: tuple[Record, ...]) -> dict[int, Record]:
    """The latest decision of each batch, in the order of the log."""
    found: dict[int, Record] = {}
    for r in log:
        if r[0] == "decision":
            found.pop(r[1], None)
            found[r[1]] = r
    return found


def newest(log: tuple[Record, ...]) -> Record | None:
    """The decision that was written last."""
    return next((r for r in reversed(log) if r[0] == "decision"), None)


def open_decisions(log: tuple[Record, ...], before: int | None) -> list[Record]:
    """Decided and not marked, of claims before ``before``."""
    marks = {r[1] for r in log if r[0] == "completed"}
    return [d for b, d in decisions(log).items() if b not in marks and (before is None or d[2] < before)]


def decided_handles(log: tuple[Record, ...]) -> set[Handle]:
    """What the decisions name now."""
    return {h for d in decisions(log).values() for h in d[3]}


def last_decided(log: tuple[Record, ...], batches: tuple[int, ...]) -> int:
    """The highest decided batch among ``batches``, 0 without any."""
    return max((r[1] for r in log if r[0] == "decision" and r[1] in batches), default=0)


# -- the brokers ------------------------------------------------------------------------------------------------------


def commit(w: World, h: Handle, marked: bool = True) -> tuple[World, str]:
    """EndTxn(commit), and the broker's answer; unless ``marked``, the leader gets no end marker."""
    t = transaction(w, h[0])
    if t is None or t.epoch != h[1]:
        return w, "PRODUCER_FENCED"
    if t.state == "open":
        t = t._replace(state="committed")
        w = with_transaction(w, t)
        return (_settle(_show(w, t), t, "") if marked else _hang(w, t)), "NONE"
    return w, "NONE" if t.state == "committed" else "INVALID_TXN_STATE"


def abort(w: World, h: Handle, who: str, marked: bool = True) -> World:
    """EndTxn(abort) of exactly this transaction; nothing happens when it is not open any more."""
    t = transaction(w, h[0])
    if t is None or t.epoch != h[1] or t.state != "open":
        return w
    if who and h in decided_handles(w.log):
        w = w._replace(harm=f"{who} aborts a decided transaction")
    t = t._replace(state="aborted")
    w = with_transaction(w, t)
    return _settle(w, t, who or "an abort") if marked else _hang(w, t)


def is_open(w: World, h: Handle) -> bool:
    """DescribeTransactions: Ongoing, at this producer epoch."""
    t = transaction(w, h[0])
    return t is not None and t.epoch == h[1] and t.state == "open"


def is_whole(w: World, h: Handle) -> bool:
    """DescribeProducers: the leader holds exactly what the task wrote.

    A transaction that follows one that hangs is part of it for the leader: its place is that of the first one.
    """
    t = transaction(w, h[0])
    if t is None or t.topic != w.topic or h in w.gone:
        return False
    return t.aside or all(x.id != h[0] for x in w.hanging)


def fate(w: World, h: Handle, topic: int) -> str:
    """What the output itself tells of a transaction that has ended, which wrote to the topic of this id."""
    if any(t.handle == h for t in w.hanging):
        return "open"
    if topic != w.topic or h in w.gone or h in w.taken:
        return "unknown"
    return "committed" if any(seen[1] == h for seen in w.visible) else "aborted"


def fence(w: World, id_: Id, who: str) -> World:
    """InitProducerId: what the id has open is aborted, and whoever had initialised it can begin nothing any more."""
    before = transaction(w, id_)
    if before is None:
        return with_transaction(w, Transaction(id_, 1, "idle", 0, 0))
    w = abort(w, before.handle, who)
    return with_transaction(w, Transaction(id_, before.epoch + 1, "idle", 0, 0))


def heal(w: World, id_: Id) -> World:
    """A new transaction of the id, on the partition where one hangs, and aborted: its end marker ends both."""
    w = fence(w, id_, "a claim's InitProducerId")
    mine = transaction(w, id_)
    assert mine is not None
    return _settle(w, mine, "a claim's abort")


def make_topic_again(w: World) -> World:
    """The output is another topic under the same name: nothing of the old one is left."""
    return w._replace(topic=w.topic + 1, hanging=())


def _show(w: World, t: Transaction) -> World:
    if t.topic != w.topic or t.handle in w.gone or t.handle in w.taken:
        return w
    return w._replace(visible=tuple(sorted([*w.visible, (t.batch, t.handle, t.topic)])))


def _hang(w: World, t: Transaction) -> World:
    return w._replace(hanging=tuple(sorted([*w.hanging, t]))) if t.topic == w.topic else w


def _settle(w: World, ended: Transaction, aborts: str) -> World:
    """An end marker of the producer reaches the leader: what hangs there of it ends in the same way."""
    mine = [] if ended.aside else [t for t in w.hanging if t.id == ended.id]
    if not mine:
        return w
    w = w._replace(hanging=tuple(t for t in w.hanging if t.id != ended.id))
    for t in mine:
        if not aborts:
            w = _show(w, t)
        elif t.state == "committed":
            w = w._replace(harm=f"{aborts} takes committed records along")
    return w


def open_in(w: World, slots: frozenset[int] | None) -> list[Transaction]:
    """ListTransactions: what is open in these slots, in all without any."""
    return [t for t in w.transactions if t.state == "open" and (slots is None or t.id[0] in slots)]

"""One run: a workload, a system, the faults of a plan, an operator who starts again what has ended, and a verdict."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from exactly_once.kafka.admin import Admin
from faultlab import remedy as way_out
from faultlab.broker import LabBroker
from faultlab.faults import FAULTS, NOTHING, Fault
from faultlab.file_stores import FileStore
from faultlab.history import LabHistory
from faultlab.judge import LabVerdict, judge_output
from faultlab.machine import Machine
from faultlab.outputs import LabOutputs
from faultlab.plan import FaultPlan, Step
from faultlab.system import Stopped, System
from faultlab.workload import Workload
from testkit import oracle
from testkit.broker import create_topic, delete_topic
from testkit.oracle import Row
from testkit.processes import until

#: How long a process waits at a point of the protocol, so that the fault comes while it is there. Shorter than a
#: transaction of seconds lives.
AT_POINT_S = 2.0

#: A point that nobody comes to in this time (a sweep where nothing is open) is left: the fault is done without it.
POINT_S = 20.0

#: From the start of the system to its first output, on a busy machine.
FIRST_S = 120.0

#: From the end of the faults: restarts, transactions that time out, and the rest of the input.
DRAIN_S = 180.0

#: How often an operator tries to drain before the run counts as one that does not recover.
DRAIN_TRIES = 6

#: How often the lab and its operator poll.
POLL_S = 0.05


class Lab:
    """The system, its machines and its brokers: everything that a fault can strike.

    Parameters
    ----------
    broker : LabBroker
    workload : Workload
    system : System
    history : LabHistory
    sink_id : str, optional
        Of the sink whose transactions must all be over in the end.
    machine : Machine, optional
        That of the stream.
    outputs : LabOutputs, optional
        What it writes beside its topic.
    file_store : FileStore, optional
        What its checkpoint is on; by default a local disk.
    """

    def __init__(
        self,
        broker: LabBroker,
        workload: Workload,
        system: System,
        history: LabHistory,
        sink_id: str | None = None,
        machine: Machine | None = None,
        outputs: LabOutputs | None = None,
        file_store: FileStore | None = None,
    ):
        self.broker, self.workload, self.system, self.history = broker, workload, system, history
        self.sink_id, self.machine, self.outputs = sink_id, machine, outputs
        self.file_store = file_store
        self.operator = Operator(system, history)
        self.done: list[Step] = []  #: the steps as they were done, for a replay
        self.erased: list[Row] = []  #: rows that readers could get in the output before a person made it again

    def run(self, plan: FaultPlan) -> LabVerdict:
        """Do the faults of a plan to the running stream, end in quiescence, and judge.

        Raises
        ------
        Stopped
            The stream cannot be drained although every fault is undone.
        """
        self.workload.start()
        self.operator.start()
        self.operator.await_running()
        self._await_output()
        self.history.begin()
        try:
            Execution(self, plan).run()
        finally:
            self.operator.stop()
        self.rest()
        return self.judged()

    def rest(self) -> None:
        """Bring the brokers back, end the writers, and drain. Called when no fault is left and the operator is gone.

        Raises
        ------
        Stopped
        """
        self.broker.bring_back()
        self.workload.start()  # a writer that was killed ends what it left open
        self.workload.stop()
        self.drain()

    def recreate_output(self) -> int:
        """Delete the output and make it again; nothing of the stream runs. What readers could get is owed no more.

        Returns
        -------
        int
            How many records these were.
        """
        past, topic = self.workload.connection, self.system.topic
        before = [(m.key, m.value) for m in oracle.read(past, [topic], timeout_s=120)]
        with Admin(past) as admin:
            partitions = len(admin.watermarks(topic))
        delete_topic(past.bootstrap_servers, topic)
        create_topic(past.bootstrap_servers, topic, partitions)
        self.erased += before
        return len(before)

    def judged(self) -> LabVerdict:
        """Judge every output of a lab at rest."""
        expected, erased = self.workload.expected(), set(self.erased)
        expected = [row for row in expected if row not in erased]
        verdict = judge_output(self.workload.connection, self.system.topic, expected, self.sink_id)
        if self.outputs is not None:
            self.outputs.judge(verdict, expected)
        return verdict

    def _await_output(self) -> None:
        """Wait until something is in the output: before that, there is little that a fault could strike."""
        topic = self.system.topic
        with Admin(self.workload.connection, FIRST_S) as admin:
            until("the first output", lambda: any(m.high for m in admin.watermarks(topic).values()), FIRST_S)

    def drain(self) -> None:
        """Let the system write what is left, as an operator does: again when it fails."""
        end = time.monotonic() + DRAIN_S
        for attempt in itertools.count(1):
            try:
                self.history.add("drain")
                self.system.drain(max(1.0, end - time.monotonic()))
                self.history.add("drained")
                return
            except Stopped as e:
                self.history.ended(str(e))
                way_out.take(self.system, str(e), self.history)
                if attempt == DRAIN_TRIES or time.monotonic() > end:
                    raise


@dataclass(order=True)
class _Event:
    """Something to do at a moment."""

    at_s: float
    order: int
    act: Callable[[], None]


class Execution:
    """The faults of a plan, each at its moment, in one thread."""

    def __init__(self, lab: Lab, plan: FaultPlan):
        self._lab, self._plan = lab, plan
        self._order = itertools.count()
        self._events: list[_Event] = []
        self._active: dict[int, tuple[Step, Fault]] = {}
        self._waiting: dict[str, tuple[Step, float]] = {}

    def run(self) -> None:
        """Do them all; in the end every fault is undone."""
        for step in self._plan.steps:
            self._at(step.at_s, partial(self._begin, step))
        try:
            while self._events or self._waiting:
                self._poll_points()
                while self._events and self._events[0].at_s <= self._lab.history.now_s:
                    heapq.heappop(self._events).act()
                time.sleep(POLL_S)
        finally:
            for point in list(self._waiting):
                self._leave(point)
            for number in list(self._active):
                self._undo(number)

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, _Event(at_s, next(self._order), act))

    def _begin(self, step: Step) -> None:
        if step.point is None or step.point in self._waiting or step.point not in self._lab.system.points:
            self._do(step)
        else:
            self._lab.system.arm(step.point, f"sleep {AT_POINT_S}")
            self._waiting[step.point] = step, self._lab.history.now_s + POINT_S

    def _poll_points(self) -> None:
        for point, (step, until_s) in list(self._waiting.items()):
            if self._lab.system.has_reached(point):
                del self._waiting[point]
                self._do(step)
            elif self._lab.history.now_s > until_s:
                self._leave(point)
                self._do(replace(step, at_s=self._lab.history.now_s, point=None))

    def _leave(self, point: str) -> None:
        self._lab.system.disarm(point)
        self._waiting.pop(point, None)

    def _do(self, step: Step) -> None:
        fault = FAULTS[step.fault]()
        if not fault.fits(self._lab):
            self._lab.history.add("left", step.fault, "not in this lab")
            return
        began_s = step.at_s if step.point else self._lab.history.now_s
        fault.at = self._lab.system.process_at(step.point) if step.point else 0
        target = fault.do(self._lab, self._plan.random(step))
        where = f" at {step.point}" if step.point else ""
        event = "left" if target.startswith(NOTHING) else "do"
        self._lab.history.add(event, step.fault, f"{target}{where}")
        self._lab.done.append(replace(step, at_s=round(began_s, 2)))
        self._active[step.number] = step, fault
        self._at(self._lab.history.now_s + step.lasts_s, partial(self._undo, step.number))

    def _undo(self, number: int) -> None:
        if number in self._active:
            step, fault = self._active.pop(number)
            fault.undo(self._lab)
            if type(fault).undo is not Fault.undo:
                self._lab.history.add("undo", step.fault)


class Operator:
    """Starts the system, and starts it again whenever it has ended, in a thread of its own."""

    def __init__(self, system: System, history: LabHistory):
        self._system, self._history = system, history
        self._over, self._running = threading.Event(), threading.Event()
        self._failed: BaseException | None = None
        self._hands = threading.Lock()  # one thing at a time
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def await_running(self, timeout_s: float = 120.0) -> None:
        """Wait until the system runs for the first time."""
        if not self._running.wait(timeout_s):
            raise Stopped(f"the system did not start within {timeout_s:g} s: {self._failed or ''}")

    def stop(self) -> None:
        """End, and leave the system as it is."""
        self._over.set()
        self._thread.join(150)
        if self._failed is not None:
            raise self._failed

    @contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile nothing is started: somebody repairs what must not run."""
        with self._hands:
            yield

    def _work(self) -> None:
        try:
            while not self._over.wait(POLL_S):
                with self._hands:
                    self._restart_if_ended()
        except BaseException as e:  # the lab's thread raises it
            self._failed = e
            self._running.set()

    def _restart_if_ended(self) -> None:
        if (why := self._system.ended()) is None:
            self._over.wait(0.2)
            return
        if self._running.is_set():
            self._history.ended(why)
            way_out.take(self._system, why, self._history)
        try:
            self._system.start()
        except Stopped as e:
            self._history.ended(str(e))
            way_out.take(self._system, str(e), self._history)
            self._over.wait(0.5)
            return
        self._history.add("started")
        self._running.set()

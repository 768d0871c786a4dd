"""Brokers that are killed, paused, restarted, lost for good; leaders that move."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from random import Random
from typing import TYPE_CHECKING

from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import namespace
from exactly_once.txn.coordinators import list_transactions
from faultlab.faults.fault import NOTHING, Fault
from testkit.processes import Timeout, until

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: To stop one broker in order and start it again, when faults beside it make that slow.
ROLL_S = 45.0


#: A stream that runs has a batch in this time.
BATCH_S = 15.0

#: Behind the end of the batch's last transaction.
PAST_S = 3.0


class _OneNode(Fault):
    """A fault of one broker that runs."""

    node: int | None = None

    def do(self, lab: Lab, random: Random) -> str:
        pids = lab.broker.pids
        if not pids:
            return NOTHING
        self.node = random.choice(sorted(pids))
        self.strike(lab, pids[self.node])
        return f"node {self.node}"

    def strike(self, lab: Lab, pid: int) -> None:
        """Do it to the process of the node."""
        raise NotImplementedError


class PauseBroker(_OneNode):
    """A broker that does not answer and comes back: its session, and the transactions it coordinates, run out."""

    name = "pause-broker"
    what = "SIGSTOP of one broker, then SIGCONT"

    def strike(self, lab: Lab, pid: int) -> None:
        self._pid = pid
        os.kill(pid, signal.SIGSTOP)

    def undo(self, lab: Lab) -> None:
        if self.node is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)


class KillBroker(_OneNode):
    """The machine of a broker goes and comes back: what it had not replicated or written is gone."""

    name = "kill-broker"
    what = "kill -9 of one broker; it starts again"

    def strike(self, lab: Lab, pid: int) -> None:
        lab.broker.kill(self.node)

    def undo(self, lab: Lab) -> None:
        if self.node is not None:
            lab.broker.launch(self.node)


class StopBroker(_OneNode):
    """A broker is taken out of service in order: leaders and coordinators move first, where there are others."""

    name = "stop-broker"
    what = "SIGTERM of one broker; it starts again"

    def strike(self, lab: Lab, pid: int) -> None:
        os.kill(pid, signal.SIGTERM)

    def undo(self, lab: Lab) -> None:
        if self.node is not None:
            lab.broker.launch(self.node)


class _ThreeNodes(Fault):
    """A fault that only three brokers can take."""

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return lab.broker.nodes >= 3


class LoseBroker(_OneNode, _ThreeNodes):
    """A machine that nobody brings back. At most one of three in a run: with two gone, nothing can be written."""

    name = "lose-broker"
    what = "kill -9 of one of three brokers, for good; at most once in a run"

    def do(self, lab: Lab, random: Random) -> str:
        return NOTHING if lab.broker.lost or len(lab.broker.pids) < 3 else super().do(lab, random)

    def strike(self, lab: Lab, pid: int) -> None:
        assert self.node is not None
        lab.broker.lose(self.node)


class RollBrokers(_ThreeNodes):
    """An upgrade: every broker restarts in order, one after the other."""

    name = "roll-brokers"
    what = "each of three brokers is stopped in order and started again, one after the other"

    def do(self, lab: Lab, random: Random) -> str:
        nodes = sorted(lab.broker.pids)
        random.shuffle(nodes)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._roll, args=(lab, nodes), daemon=True)
        self._thread.start()
        return f"nodes {nodes}"

    def _roll(self, lab: Lab, nodes: list[int]) -> None:
        for node in nodes:
            if not self._over.is_set():
                lab.broker.roll(node, ROLL_S)

    def undo(self, lab: Lab) -> None:
        self._over.set()  # the node that is down comes back; the others stay


class MoveLeaders(_ThreeNodes):
    """Leaders and coordinators move while their brokers live."""

    name = "move-leaders"
    what = "the replicas of input, output and transaction state change their order; leaders and coordinators follow"

    def do(self, lab: Lab, random: Random) -> str:
        names = ["__transaction_state", lab.system.topic, lab.workload.topic]
        try:
            moved = lab.broker.move_leaders(names, random)
        except ExactlyOnceError as e:  # no controller at this moment
            return f"{NOTHING}: {e.code}"
        return f"{moved} partitions"


class BrokerAway(_OneNode):
    """A broker goes in the middle of a batch, and is back when its transactions have timed out: Kafka ends them while
    their partitions have no leader, and leaves out end markers.
    """

    name = "broker-away"
    what = "kill -9 of one broker in the middle of a batch; it starts again when the transactions have timed out"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return lab.sink_id is not None and cls._timeout_s(lab) > 0

    @staticmethod
    def _timeout_s(lab: Lab) -> float:
        return int(getattr(lab.system, "options", {}).get("kafka.transaction.timeout.ms", 0)) / 1000

    def do(self, lab: Lab, random: Random) -> str:
        assert lab.sink_id is not None
        namespace_ = namespace(lab.sink_id)
        try:
            with Admin(lab.workload.connection, BATCH_S) as admin:
                until("a batch", lambda: len(list_transactions(admin, namespace_, ("Ongoing",))) > 1, BATCH_S)
        except (Timeout, ExactlyOnceError):  # another fault keeps the stream from it
            return NOTHING
        return super().do(lab, random)

    def strike(self, lab: Lab, pid: int) -> None:
        lab.broker.kill(self.node)
        self._back = time.monotonic() + self._timeout_s(lab) + PAST_S

    def undo(self, lab: Lab) -> None:
        if self.node is None:
            return
        time.sleep(max(0.0, self._back - time.monotonic()))
        if self.node not in lab.broker.pids:  # another fault may have brought it back
            lab.broker.launch(self.node)


#: With a test of its own: it takes as long as a transaction lives.
AWAY = (BrokerAway,)

BROKERS = (PauseBroker, KillBroker, StopBroker, LoseBroker, RollBrokers, MoveLeaders)

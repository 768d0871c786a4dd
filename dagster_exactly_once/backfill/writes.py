"""The writes of one run beside a stream, through a sink of their own: the tags, the failure, and the sink at rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import FailurePlace, as_failure, diagnose
from dagster_exactly_once.runs.operator import alive_of, operator_of
from dagster_exactly_once.streaming.source import READ_BUDGET_S
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.processes import Process, is_mine, owner_alive
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Claim


def of_a_write(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a stream's sink for a write beside it: without the topic of its whole batches."""
    return {name: value for name, value in options.items() if name.lower() != "sink.progress.topic"}


@dataclass(frozen=True)
class SideWrites:
    """The batch writes of a run, each named by its ``write.id``."""

    context: dg.OpExecutionContext | dg.AssetExecutionContext
    what: str
    sink_id: str
    connection: Connection
    transactions: TransactionAdmin

    @property
    def operator(self) -> str:
        """The run, as its claims name it."""
        return operator_of(self.context.instance, self.context.run.run_id)

    def options(self, write_id: str, declared: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the sink for one write, with those that the stream has ``declared``."""
        own = {"sink.id": self.sink_id, "write.id": write_id, "sink.operator": self.operator}
        return {**of_a_write(declared), **own}

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Bring the sink to rest before the block, and after it if it fails, which gets a classified failure."""
        try:
            self._bring_to_rest()
            yield
        except Exception as error:  # not an interrupt: Dagster must see that one unchanged
            failure = diagnose(error, FailurePlace(self.context.run.job_name))
            self.context.log.error(f"{self.what} failed: {error}")
            self._bring_to_rest()
            raise as_failure(failure) from error
        except BaseException:
            self._bring_to_rest()
            raise

    def _bring_to_rest(self) -> None:
        """Commit the decided writes of this run and abort its open transactions, unless another process still writes.

        Readers of the stream's topics wait for an open transaction of these writes too.
        """
        try:
            log = read_log(self.connection, self.sink_id, READ_BUDGET_S)
            alive = alive_of(self.context.instance)
            if log.owner is None or not (self._is_ours(log.owner) or owner_alive(log.owner, alive) is False):
                return
            if log.open_decisions or self.transactions.list(self.sink_id):
                report = self.transactions.recover(self.sink_id, self.operator)
                self.context.log.info(report.sentence)
        except ExactlyOnceError as error:
            self.context.log.warning(f"Could not recover the sink; the next run does. {error}")

    def _is_ours(self, owner: Claim) -> bool:
        """Return whether this run made the claim: its JVM stays until the process ends."""
        return owner.operator == self.operator if owner.operator else is_mine(Process.of(owner))

"""Explanation of one transaction for an operator, from an inspection: pure."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from exactly_once.inspection.findings import (
    BlockedPartition,
    Inspection,
    OpenTransaction,
    judge_transaction,
    naming,
    sink_of,
    title,
)
from exactly_once.inspection.processes import end_command
from exactly_once.inspection.sink import UNDER_WAY
from exactly_once.inspection.words import duration, owner_sentence, plural
from exactly_once.protocol.names import PartId
from exactly_once.tools.operation.rules import check_owner, refusal_of
from exactly_once.txn.coordinators import Description


@dataclass(frozen=True)
class Option:
    """An action that the operator may take: the exact command, and its effect."""

    command: str
    effect: str


@dataclass(frozen=True)
class Explanation:
    """One transaction, in sentences: the screen of one command, which shows the diagnoses of the sink beside it.

    Attributes
    ----------
    what, owner, state, by_itself : str
        What the transaction is; who owns its sink; its state and the time left before its timeout; what happens
        without an operator.
    blocks : tuple of BlockedPartition
        Partitions whose readers wait for it.
    """

    transactional_id: str
    what: str
    owner: str
    state: str
    by_itself: str
    blocks: tuple[BlockedPartition, ...]
    readers_complete: bool | None
    options: tuple[Option, ...]
    transaction: OpenTransaction | None

    def as_json(self) -> dict[str, Any]:
        transaction = self.transaction.as_json() if self.transaction else None
        return {**asdict(self), "blocks": [b.as_json() for b in self.blocks], "transaction": transaction}


def explain(described: Description, inspection: Inspection, program: str = "exactly-once") -> Explanation:
    """Explain the transaction (or the lack of one) of one transactional id.

    Parameters
    ----------
    described : Description
        Its coordinator's view.
    inspection : Inspection
        That of its sink; for a foreign id, of what it holds back alone.
    program : str
        The beginning of the commands.
    """
    under_way = described.state in UNDER_WAY
    transaction = judge_transaction(described, inspection.log, inspection.checked_ms) if under_way else None
    mine = set(described.partitions)
    return Explanation(
        transactional_id=described.transactional_id,
        what=_what(described, inspection, transaction),
        owner=owner_sentence(inspection) if sink_of(described.transactional_id) else "Another application.",
        state=_state(described, transaction),
        by_itself=_by_itself(described, inspection, transaction),
        blocks=tuple(b for b in inspection.blocked if (b.topic, b.partition) in mine) if under_way else (),
        readers_complete=inspection.readers_complete,
        options=tuple(_options(inspection, transaction, program)),
        transaction=transaction,
    )


def _what(described: Description, inspection: Inspection, transaction: OpenTransaction | None) -> str:
    name = described.transactional_id
    if sink_of(name) is None:
        return "A foreign id: it belongs to no sink of this package, so this package never touches it."
    part = PartId.parse(name)
    if part is None:
        return f"The commit-log producer of sink {inspection.sink_id}: it writes the sink's decisions."
    batch = naming(described, inspection.log)
    if batch is not None:
        records = plural(batch.handle.records, "record")
        return f"Part {part.part} of {title(batch.decision)} of sink {inspection.sink_id}, {records}."
    if transaction is None:
        return f"The id of part {part.part} of sink {inspection.sink_id}, with no transaction under way."
    return f"Part {part.part} of a batch of sink {inspection.sink_id} that is not decided."


def _state(described: Description, transaction: OpenTransaction | None) -> str:
    if not described.state:
        return "No coordinator knows this id: it was never used on this cluster, or it has expired."
    if transaction is None:
        return f"{described.state}: no transaction is under way."
    left = transaction.timeout_s - transaction.age_s
    limit = f"after {duration(transaction.timeout_s)} the broker aborts it"
    rest = f"{duration(left)} left" if left > 0 else "the broker should have aborted it already"
    return f"{described.state} for {duration(transaction.age_s)}; {limit} ({rest}). Verdict: {transaction.verdict}."


def _by_itself(described: Description, inspection: Inspection, transaction: OpenTransaction | None) -> str:
    if sink_of(described.transactional_id) is None:
        return "Its own client ends it, or the broker aborts it when its timeout is over."
    if transaction is None:
        return "No transaction is open."
    if described.state != "Ongoing":
        return f"The coordinator is writing its {described.state.removeprefix('Prepare').lower()} markers."
    left = duration(max(0.0, transaction.timeout_s - transaction.age_s))
    if transaction.verdict == "log":
        return f"A write to the log takes milliseconds. The next claim ends it, or the broker aborts it in {left}."
    if transaction.verdict == "decided":
        batch = title(named.decision) if (named := naming(described, inspection.log)) else "its batch"
        return (
            f"Its driver, the next start or a recovery commits it. In {left} the broker aborts it; its records are "
            f"then missing from {batch} until the stream starts and writes them again (EO-LOST)."
        )
    return (
        "Its driver commits it once the batch is decided; the next start or a recovery aborts it, and in "
        f"{left} the broker does. Nothing is lost: the next start writes the batch again."
    )


def _options(inspection: Inspection, transaction: OpenTransaction | None, program: str) -> list[Option]:
    if transaction is None and not inspection.decided and not inspection.open:
        return []
    refused = refusal_of(check_owner, inspection.sink_id, inspection.owner)
    force = f" --force {shlex.quote(refused.phrase or '')}" if refused else ""
    options: list[Option] = []
    if inspection.owner is not None and inspection.owner.frozen:  # first: a driver that is fenced only is frozen still
        effect = "Ends the frozen driver. No record is lost. Then start the stream, or run the recovery."
        options.append(Option(end_command(inspection.owner.frozen), effect))
    name = transaction.transactional_id if transaction else ""
    if transaction is not None and transaction.state == "Ongoing":
        if transaction.verdict == "decided":
            count = plural(transaction.records or 0, "record")
            effect = f"Commits the transaction, which makes its {count} visible. A driver may do the same at once."
            options.append(Option(f"{program} transactions commit {name}", effect))
        elif transaction.verdict == "undecided":
            effect = (
                "Aborts this and every other undecided transaction of the sink, and commits decided batches. "
                "No record is lost."
            )
            options.append(Option(f"{program} transactions abort {name}{force}", effect))
    if inspection.owner is not None and inspection.owner.works and not inspection.owner.frozen:
        options.append(Option("wait", "The driver is alive and ends its own transactions."))
    if inspection.owner is not None:
        fences = " Stops the driver with EO-FENCED." if force else ""
        options.append(
            Option(
                f"{program} recover {inspection.sink_id}{force}",
                f"Commits decided batches, aborts undecided transactions, and verifies the result.{fences}",
            )
        )
    return options
